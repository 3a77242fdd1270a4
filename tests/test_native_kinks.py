"""Where a derivative does not exist, frameworks choose as the record's own gradient does.

The choices are torch's (tests/test_kinks_math.py). A step of plain gradient descent shows the
slope that an engine used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from tests.test_kinks_math import KINKS

ENGINES = ("torch", "jax", "tensorflow")
OTHERWISE = {("tensorflow", "Max"), ("tensorflow", "Min")}
# infinite and undefined slopes leave nothing to compare
FINITE = [k for k in KINKS if np.isfinite(k[3]).all()]


def slopes(
    engine: str, nodes: list[onnx.NodeProto], w: Any, opset: int = 20, **constants: Any
) -> np.ndarray:
    """The gradient of the sum of `y` by `w`, from one step with learning rate 1."""
    w = np.asarray(w, np.float32)
    tensors = {"w": w, **{n: np.asarray(a) for n, a in constants.items()}}
    total = helper.make_node("ReduceSum", ["y"], ["t"], keepdims=0)
    add = helper.make_node("Mul", ["t", "x"], ["z"])
    graph = helper.make_graph(
        [*nodes, total, add],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(a, n) for n, a in tensors.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    model = sx.load(helper.make_model(graph, opset_imports=imports, ir_version=9))

    def loss(op: Any, prediction: Any, label: Any) -> Any:
        return op.ReduceSum(op.Mul(prediction, label), keepdims=0)

    net = sx.trainable(model, loss, sx.optim.sgd(1.0), train="w")
    rep = sx.prepare_training(net, engine)
    expected = "otherwise" if (engine, nodes[0].op_type) in OTHERWISE else "differentiates"
    assert expected in rep.ways[0]
    rep.step({"x": np.ones(1, np.float32), "label": np.ones(1, np.float32)})
    return w - rep.state()["w"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("op", "x", "attributes", "expected"), FINITE, ids=lambda v: str(v))
def test_derivative_at_the_kink(
    engine: str, op: str, x: list[float], attributes: dict[str, Any], expected: list[float]
) -> None:
    nodes = [helper.make_node(op, ["w"], ["y"], **attributes)]
    np.testing.assert_allclose(slopes(engine, nodes, x), expected, rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name, inputs, w, constants, expected",
    [
        ("Max", ["w", "c"], [1.0, 2.0], {"c": np.float32([1, 1])}, [0.5, 1]),
        ("Min", ["w", "c"], [1.0, 2.0], {"c": np.float32([1, 1])}, [0.5, 0]),
        (
            "Clip",
            ["w", "a", "b"],
            [-2.0, -1.0, 0.0, 1.0, 5.0],
            {"a": np.float32(-1), "b": np.float32(1)},
            [0, 1, 1, 1, 0],
        ),
        ("PRelu", ["w", "c"], [0.0, -0.0], {"c": np.float32([0.25])}, [0.25, 0.25]),
        ("Pow", ["w", "c"], [0.0, 2.0], {"c": np.float32([2])}, [0, 4]),
    ],
)
def test_operators_of_several_inputs(
    engine: str, name: str, inputs: list[str], w: Any, constants: dict[str, Any], expected: Any
) -> None:
    nodes = [helper.make_node(name, inputs, ["y"])]
    np.testing.assert_allclose(slopes(engine, nodes, w, **constants), expected, rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_numbers_in_windows_and_choices(engine: str) -> None:
    image = np.zeros((1, 1, 2, 2))
    pool = [helper.make_node("MaxPool", ["w"], ["y"], kernel_shape=[2, 2])]
    np.testing.assert_array_equal(slopes(engine, pool, image)[0, 0], [[1, 0], [0, 0]])
    whole = [helper.make_node("GlobalMaxPool", ["w"], ["y"])]
    np.testing.assert_array_equal(slopes(engine, whole, image)[0, 0], [[1, 0], [0, 0]])
    first = [helper.make_node("TopK", ["w", "k"], ["y", "i"])]
    taken = slopes(engine, first, [1.0, 1.0, 0.0], k=np.array([1]))
    np.testing.assert_array_equal(taken, [1, 0, 0])
