"""What the tables cannot say about `math` and `reduction`: shapes that are empty or unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper
import pytest
from onnx import TensorProto

from sardonyx import opset
from sardonyx.grad import grad
from sardonyx.model import Model, from_proto
from sardonyx.testing import Case, Runner, case, feeds_of, model_of, wrt_of

from .cases import all_cases

RUN_TIME_SHAPES = {"Shape", "Size", "NonZero", "Range"}
# ONNX does not infer the shape of an Einsum whose ellipses broadcast: the forward's is not known.
NOT_INFERRED = {"...ij,...jk->...ik"}
STATIC = [
    c
    for c in all_cases()
    if opset.family(c.op) in ("math", "reduction")
    and not c.fed
    and c.order
    and not c.domain
    and c.id not in NOT_INFERRED
]


@pytest.mark.parametrize("case", STATIC, ids=str)
def test_known_shapes_leave_no_shape_arithmetic(case: Case) -> None:
    gradient = grad(model_of(case), of=["y0"], wrt=wrt_of(case), outputs=False)
    assert not {node.op_type for node in gradient.graph} & RUN_TIME_SHAPES


def gradients(one: Case) -> dict[str, np.ndarray]:
    return Runner(grad(model_of(one), of=["y0"], wrt=wrt_of(one), outputs=False))(feeds_of(one))


EMPTY = [
    *[
        case(op, np.zeros((2, 0, 4)), np.array([1]), id=f"empty {kept}", keepdims=kept)
        for op in ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare")
        for kept in (0, 1)
    ],
    case("ReduceProd", np.zeros((2, 0, 4)), np.array([1])),
    case("ReduceMax", np.zeros((0, 3)), np.array([1])),
    case("ReduceLogSumExp", np.zeros((0, 3)), np.array([1])),
    case("Softmax", np.zeros((0, 3))),
    case("Add", np.zeros((0, 3)), np.ones(3)),
    case("MatMul", np.zeros((0, 3)), np.ones((3, 4))),
    case("MatMul", np.zeros((2, 0, 3)), np.ones((3, 4)), id="weight"),
    case("Gemm", np.zeros((0, 3)), np.ones((3, 4)), np.ones(4)),
    case("Max", np.zeros((0, 3)), np.ones(3)),
]


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize("one", EMPTY, ids=str)
def test_empty_tensors_have_empty_or_zero_gradients(one: Case) -> None:
    result = gradients(one)
    for name, array in feeds_of(one).items():
        np.testing.assert_array_equal(result[f"grad/{name}"], np.zeros_like(array))


def of_unknown_rank(op: str, inputs: int, **attributes: Any) -> Model:
    names = [f"x{i}" for i in range(inputs)]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, names, ["y"], **attributes)],
        op,
        [onnx.helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in names],
        [onnx.helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
    )
    imports = [onnx.helper.make_opsetid("", 18)]
    return from_proto(onnx.helper.make_model(graph, opset_imports=imports, ir_version=10))


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("Relu", [(2, 3)], {}),
        ("Add", [(2, 3), (3,)], {}),
        ("Mul", [(4, 1, 3), (2, 1)], {}),
        ("Pow", [(2, 3), (3,)], {}),
        ("Max", [(2, 3), (1, 3)], {}),
        ("MatMul", [(2, 3, 4), (4, 5)], {}),
        ("MatMul", [(3, 4), (2, 4, 5)], {}),
        ("Softmax", [(2, 3)], {"axis": 1}),
        ("ReduceSum", [(2, 3)], {"keepdims": 0}),
        ("ReduceMean", [(2, 3)], {}),
        ("ReduceProd", [(2, 3)], {"keepdims": 0}),
    ],
    ids=str,
)
def test_unknown_rank(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    known = case(op, *[rng.uniform(0.5, 2, shape) for shape in shapes], **attributes)
    result = Runner(grad(of_unknown_rank(op, len(shapes), **attributes), outputs=False))(
        feeds_of(known)
    )
    for name, expected in gradients(known).items():
        np.testing.assert_allclose(result[name], expected, rtol=1e-12)
