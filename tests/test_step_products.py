"""Matrix products of a step by our own kernel: against NumPy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import sardonyx as sx
from sardonyx.engines.c_library import find_compiler
from sardonyx.engines.onnxruntime import prepare_training, step_session
from sardonyx.engines.onnxruntime.kernels import fusion, library, products
from sardonyx.engines.onnxruntime.kernels.program import DOMAIN, Programs
from sardonyx.engines.onnxruntime.session import open_session

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


def product(a: np.ndarray, b: np.ndarray, form: tuple[int, int], *bias: np.ndarray) -> np.ndarray:
    feeds = dict(zip("abc", (a, b, *bias), strict=False))
    ends = [helper.make_tensor_value_info(n, 1, [None] * v.ndim) for n, v in feeds.items()]
    node = helper.make_node("Product", list(feeds), ["y"], domain=DOMAIN, product=(*form, 0))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", ends, [result])
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    data = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
    path = library.library(Programs().source())
    assert path is not None
    (array,) = open_session(data, threads=2, libraries=[path]).run(None, feeds)
    return array


# one row or column, whole tiles, rests of tiles, more than one part of the depth
SIZES = [1, 2, 13, 14, 15, 31, 32, 33, 70, 200, 300]
DEPTHS = [1, 3, 4, 7, 191, 192, 193, 383, 384, 385, 900]


@pytest.mark.parametrize("form", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("depth", DEPTHS)
def test_products_of_all_sizes(form: tuple[int, int], depth: int) -> None:
    rng = np.random.default_rng(depth)
    for rows in SIZES:
        columns = int(rng.choice(SIZES))
        a = rng.normal(size=(depth, rows) if form[0] else (rows, depth)).astype(np.float32)
        b = rng.normal(size=(columns, depth) if form[1] else (depth, columns)).astype(np.float32)
        bias = [rng.normal(size=columns).astype(np.float32)] if rows % 2 else []
        exact = (a.T if form[0] else a).astype(float) @ (b.T if form[1] else b)
        exact += bias[0] if bias else 0.0
        result = product(a, b, form, *bias)
        sizes = np.abs(a.T if form[0] else a) @ np.abs(b.T if form[1] else b) + 4
        assert (np.abs(result - exact) <= 2**-24 * (depth + 1) * sizes).all(), (rows, columns)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1900, 40), (30, 2100), (1793, 2049), (3600, 64), (64, 4130)]
)
@pytest.mark.parametrize("transposed", [0, 1])
def test_more_rows_and_columns_than_are_copied_at_a_time(
    rows: int, columns: int, transposed: int
) -> None:
    rng = np.random.default_rng(rows)
    a = rng.normal(size=(400, rows)).astype(np.float32)
    b = rng.normal(size=(columns, 400) if transposed else (400, columns)).astype(np.float32)
    bias = rng.normal(size=columns).astype(np.float32)
    exact = a.T.astype(float) @ (b.T if transposed else b) + bias
    result = product(a, b, (1, transposed), bias)
    np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("added", ["nothing", "row", "matrix"])
def test_a_matrix_that_was_packed_before(transposed: int, added: str) -> None:
    """As products in loops use it: panels of all parts of the depth, made by another node."""
    rng = np.random.default_rng(0)
    path = library.library(Programs().source())
    assert path is not None
    for rows, columns, depth in (
        (1, 5, 3),
        (32, 96, 24),
        (33, 70, 900),
        (14, 32, 384),
        (1900, 40, 400),
    ):
        a = rng.normal(size=(rows, depth)).astype(np.float32)
        b = rng.normal(size=(columns, depth) if transposed else (depth, columns)).astype(np.float32)
        shape = {"nothing": (), "row": (columns,), "matrix": (rows, columns)}[added]
        feeds = {"a": a, "b": b}
        if shape:
            feeds["c"] = rng.normal(size=shape).astype(np.float32)
        ends = [helper.make_tensor_value_info(n, 1, [None] * v.ndim) for n, v in feeds.items()]
        names = ["a", "packed", *(["c"] if shape else [])]
        nodes = [
            helper.make_node("Pack", ["b"], ["packed"], domain=DOMAIN, product=(0, transposed, 0)),
            helper.make_node(
                "Product", names, ["y"], domain=DOMAIN, product=(0, transposed, columns)
            ),
        ]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "g", ends, [result])
        versions = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
        data = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
        (y,) = open_session(data, threads=2, libraries=[path]).run(None, feeds)
        exact = a.astype(float) @ (b.T if transposed else b) + feeds.get("c", 0.0)
        sizes = np.abs(a) @ np.abs(b.T if transposed else b) + 4
        assert (np.abs(y - exact) <= 2**-24 * (depth + 1) * sizes).all(), (rows, columns, depth)


def test_leading_axes_are_rows() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((2, 3, 5, 40), (40, 50)))
    result = product(a, b, (0, 0))
    assert result.shape == (2, 3, 5, 50)
    np.testing.assert_allclose(result, a.astype(float) @ b, atol=2e-5)


def test_no_rows() -> None:
    empty = np.zeros((0, 40), np.float32)
    assert product(empty, np.ones((40, 50), np.float32), (0, 0)).shape == (0, 50)


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_common_axis_without_elements_gives_what_is_added(transposed: int) -> None:
    a = np.zeros((0, 5) if transposed else (5, 0), np.float32)
    b, row = np.zeros((0, 40), np.float32), np.arange(40, dtype=np.float32)
    np.testing.assert_array_equal(product(a, b, (transposed, 0)), np.zeros((5, 40)))
    np.testing.assert_array_equal(product(a, b, (transposed, 0), row), np.tile(row, (5, 1)))


@pytest.mark.parametrize("size", [(64, 1), (1, 64), (64,), (64, 64), (1,), ("free", 1)])
def test_a_column_that_is_added_is_not_taken_for_a_row(
    size: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(products, "LEAST", 1)
    monkeypatch.setattr(fusion, "LEAST_WORK", 0)
    shapes = {"a": (128, 64), "b": (128, 64), "c": size}
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in shapes.items()]
    node = helper.make_node("Gemm", list(shapes), ["y"], transA=1, name="product")
    result = helper.make_tensor_value_info("y", 1, (64, 64))
    graph = helper.make_graph([node], "g", ends, [result])
    versions = [helper.make_opsetid("", 20)]
    model = ir.serde.deserialize_model(
        helper.make_model(graph, opset_imports=versions, ir_version=10)
    )
    path = fusion.fuse(model.graph)
    sizes = {n: [64 if d == "free" else d for d in s] for n, s in shapes.items()}
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in sizes.items()}
    data = ir.serde.serialize_model(model).SerializeToString()
    (y,) = open_session(data, libraries=[path] if path else []).run(None, feeds)
    assert (path is not None) == (size in [(1, 64), (64,)])
    np.testing.assert_allclose(y, feeds["a"].T @ feeds["b"] + feeds["c"], atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    """Panels are filled with zeros, which must not meet it."""
    a, b = np.ones((17, 5), np.float32), np.ones((5, 35), np.float32)
    a[16, 4] = value
    result = product(a, b, (0, 0))
    assert not np.isfinite(result[16]).any()
    np.testing.assert_array_equal(result[:16], 5)


def test_sizes_that_do_not_match_are_an_error() -> None:
    with pytest.raises(Exception, match="sizes of a product"):
        product(np.ones((3, 4), np.float32), np.ones((5, 6), np.float32), (0, 0))


class Spy:
    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.operators: list[str] = []
        monkeypatch.setattr(step_session, "open_session", self)

    def __call__(self, data: bytes, **settings: Any) -> ort.InferenceSession:
        self.operators = [n.op_type for n in onnx.load_from_string(data).graph.node]
        return open_session(data, **settings)


def network() -> sx.Model:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(48, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 32)
    )
    program = torch.onnx.export(
        module.eval(), (torch.randn(3, 5, 48),), dynamo=True, verbose=False, input_names=["x"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )  # fmt: skip
    return sx.load(program.model_proto)


def test_a_training_with_our_products_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LEAST", 1)
    monkeypatch.setattr(products, "_pays", lambda *_: True)
    monkeypatch.setattr(fusion, "LEAST_WORK", 0)
    spy = Spy(monkeypatch)
    net = sx.trainable(network(), "cross_entropy", sx.optim.adamw(1e-2))
    ours = prepare_training(net, threads=2)
    assert spy.operators.count("Product") >= 4
    plain = prepare_training(net, threads=2, without=["kernels"])
    assert "Product" not in spy.operators
    rng = np.random.default_rng(0)
    batches = [
        {
            "x": rng.normal(size=(rows, 5, 48)).astype(np.float32),
            "label": rng.integers(0, 32, (rows, 5)),
        }
        for rows in (4, 4, 7, 1, 4)
    ]
    assert sx.verify_training(net, ours, plain, data=batches, steps=5).verdict == "same"


def test_small_steps_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch)
    prepare_training(sx.trainable(network(), "cross_entropy", sx.optim.adamw(1e-2)))
    assert not {"Fused", "Product"} & set(spy.operators)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "chosen"),
    [
        (32, 768, 768, 1),
        (128, 512, 512, 1),
        (129, 768, 768, 0),
        (32, 500, 500, 0),
        (4, 512, 512, 0),
    ],
)
def test_few_rows_with_a_large_matrix_are_chosen(
    rows: int, depth: int, columns: int, chosen: int
) -> None:
    values = [("a", [1, rows, depth]), ("b", [depth, columns])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in values]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, rows, columns])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"], name="y")], "g", ends, [result]
    )
    model = ir.serde.deserialize_model(helper.make_model(graph))
    assert len(products.choose_products(model.graph)) == chosen
