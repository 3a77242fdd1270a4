"""Recurrent layers of a step as one compiled loop, against torch and onnxruntime's own loops."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.shape_inference import infer_shapes

import sardonyx as sx
from sardonyx.engines import c_library
from sardonyx.engines.onnxruntime import prepare_training, step_session
from sardonyx.engines.onnxruntime.kernels import fusion, loops
from sardonyx.engines.onnxruntime.session import open_session

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(c_library.find_compiler() is None, reason="no C compiler")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LEVEL = {"graph_optimization_level": ort.GraphOptimizationLevel.ORT_DISABLE_ALL}
SIZES = (3, 6)  # of inputs and of a state, where a test does not say


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[onnx.ModelProto]]:
    """The steps that are run. Small ones are compiled too."""
    models: list[onnx.ModelProto] = []

    def spied(data: bytes, **settings: Any) -> Any:
        models.append(onnx.load_from_string(data))
        return open_session(data, **settings)

    monkeypatch.setattr(step_session, "open_session", spied)
    monkeypatch.setattr(fusion, "LEAST_WORK", 0)
    yield models


def count(model: onnx.ModelProto) -> tuple[int, int]:
    """How many loops are compiled, and how many are left."""
    kinds = [node.op_type for node in model.graph.node]
    return kinds.count("Recurrence"), kinds.count("Scan")


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


# -- against torch -----------------------------------------------------------------------


class Layers(torch.nn.Module):
    def __init__(self, kind: str, both: bool, depth: int) -> None:
        super().__init__()
        make = getattr(torch.nn, kind)
        self.layer = make(5, 12, depth, batch_first=True, bidirectional=both)
        self.head = torch.nn.Linear(24 if both else 12, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x)[0].mean(1))


@pytest.mark.parametrize("kind", sorted(GATES))
@pytest.mark.parametrize(("both", "depth"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # the exporter's
def test_a_layer_trains_as_in_torch(
    opened: list[onnx.ModelProto], kind: str, both: bool, depth: int, length: int
) -> None:
    """Batches of several sizes: a short last one, and one of a single row.

    Each loss depends on the gradients of all steps before it.
    """
    torch.manual_seed(3)
    module, rng = Layers(kind, both, depth), np.random.default_rng(3)
    batches = [(normal(rng, n, length, 5), rng.integers(0, 4, n)) for n in (9, 9, 4, 1, 9)]
    file = io.BytesIO()
    torch.onnx.export(
        module.eval(), (torch.tensor(batches[0][0]),), file, dynamo=False,
        input_names=["x"], dynamic_axes={"x": {0: "batch"}},
    )  # fmt: skip
    net = sx.trainable(onnx.load_from_string(file.getvalue()), "cross_entropy", sx.optim.sgd(0.2))
    rep = prepare_training(net, threads=2)
    losses = [float(rep.step({"x": x, "label": y})["loss"]) for x, y in batches]
    assert count(opened[0]) == (2 * depth * (1 + both), 0)
    module = module.double()
    optimizer, exact = torch.optim.SGD(module.parameters(), 0.2), []
    for x, y in batches:
        optimizer.zero_grad()
        scores = module(torch.tensor(x, dtype=torch.float64))
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(y))
        loss.backward()
        optimizer.step()
        exact.append(loss.item())
    np.testing.assert_allclose(losses, exact, rtol=2e-6)


# -- against onnxruntime's loops ---------------------------------------------------------


def layer(
    kind: str,
    hidden: int = SIZES[1],
    direction: str = "forward",
    sizes: tuple[Any, Any] = ("steps", "rows"),
    inputs: Sequence[str] = (),
    output: str = "Y",
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one recurrent node.

    inputs -- which optional ones it has: b, lengths, h, c, p
    """
    rng, count = np.random.default_rng(hidden), 2 if direction == "bidirectional" else 1
    steps, rows = sizes
    ends = [helper.make_tensor_value_info("x", 1, (*sizes, SIZES[0]))]
    if "lengths" in inputs:
        ends.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, (rows,)))
    ends += [
        helper.make_tensor_value_info(n, 1, (count, rows, hidden)) for n in "hc" if n in inputs
    ]
    gates = GATES[kind] * hidden
    shapes = {"w": (gates, SIZES[0]), "r": (gates, hidden), "b": (2 * gates,), "p": (3 * hidden,)}
    weights = {
        name: normal(rng, count, *shape) * 0.5 / hidden**0.5
        for name, shape in shapes.items()
        if name in "wr" or name in inputs
    }
    optional = [n if n in inputs else "" for n in ("b", "lengths", "h", "c", "p")]
    names = ["x", "w", "r", *(optional if kind == "LSTM" else optional[:3])]
    places = ["Y", "Y_h", "Y_c"]
    results = [n if n == output else "" for n in places[: places.index(output) + 1]]
    node = helper.make_node(
        kind, names, results, "layer", hidden_size=hidden, direction=direction, **attributes
    )
    shape = (steps, count, rows, hidden) if output == "Y" else (count, rows, hidden)
    values = [onnx.numpy_helper.from_array(v, n) for n, v in weights.items()]
    result = helper.make_tensor_value_info(output, 1, shape)
    graph = helper.make_graph([node], "g", ends, [result], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def batches(
    model: onnx.ModelProto, sizes: Sequence[tuple[int, int]]
) -> list[dict[str, np.ndarray]]:
    """Batches of so many steps and rows."""
    rng, feeds = np.random.default_rng(1), []
    values = {v.name: v.type.tensor_type.shape for v in model.graph.input}
    values["label"] = model.graph.output[0].type.tensor_type.shape
    for steps, rows in sizes:
        free = {"steps": steps, "rows": rows}
        shapes = {k: [free.get(d.dim_param, d.dim_value) for d in v.dim] for k, v in values.items()}
        feed = {name: normal(rng, *shape) for name, shape in shapes.items()}
        if "lengths" in feed:
            feed["lengths"] = rng.integers(0, steps + 1, rows).astype(np.int32)
        feeds.append(feed)
    return feeds


CASES: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {"inputs": "bhc"}),
    ("LSTM", {"inputs": "bp", "direction": "bidirectional"}),
    ("LSTM", {"inputs": ["b", "lengths"], "direction": "reverse"}),
    ("LSTM", {"output": "Y_c", "input_forget": 1}),
    ("LSTM", {"output": "Y_h", "inputs": ["lengths", "h", "c"], "hidden": 33}),
    ("LSTM", {"activations": ["Sigmoid", "Relu", "Softsign"], "hidden": 17}),
    ("GRU", {"inputs": "b", "linear_before_reset": 1, "direction": "reverse"}),
    ("GRU", {"inputs": ["b", "lengths", "h"], "linear_before_reset": 1, "hidden": 20}),
    ("GRU", {"inputs": "bh", "direction": "bidirectional", "output": "Y_h"}),
    ("RNN", {"inputs": ["b", "lengths"], "direction": "bidirectional", "hidden": 40}),
    ("RNN", {"inputs": "h", "activations": ["Relu"], "hidden": 1}),
]


@pytest.mark.parametrize(("kind", "settings"), CASES)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_layer_trains_as_without_kernels(
    opened: list[onnx.ModelProto], kind: str, settings: dict[str, Any], threads: int
) -> None:
    """Every number of rows leaves another rest for the last thread, and for the last tile."""
    model = layer(kind, **settings)
    output = settings.get("output", "Y")
    net = sx.trainable(sx.load(model), "mse", sx.optim.sgd(0.5, 0.9), prediction=output)
    ours = prepare_training(net, threads=threads)
    plain = prepare_training(net, threads=1, without=["kernels"])
    directions = 2 if settings.get("direction") == "bidirectional" else 1
    assert count(opened[0]) == (2 * directions, 0)
    assert count(opened[1]) == (0, 2 * directions)
    data = batches(model, [(5, 31), (1, 1), (2, 5), (7, 1), (5, 14), (5, 15)])
    assert sx.verify_training(net, ours, plain, data=data, steps=6).verdict == "same"


def test_sizes_that_are_fixed(opened: list[onnx.ModelProto]) -> None:
    """One step of one row: every axis has one element, and no size is free."""
    model = layer("LSTM", sizes=(1, 1), inputs="bhc")
    net = sx.trainable(sx.load(model), "mse", "adam", prediction="Y")
    ours, plain = prepare_training(net), prepare_training(net, without=["kernels"])
    assert count(opened[0]) == (2, 0)
    data = batches(model, [(1, 1)] * 3)
    assert sx.verify_training(net, ours, plain, data=data, steps=3).verdict == "same"


def test_values_that_are_computed_again(opened: list[onnx.ModelProto]) -> None:
    model = layer("LSTM", 24, inputs="b")
    net = sx.trainable(sx.load(model), "mse", "adam", prediction="Y")
    ours = prepare_training(net, threads=2, recompute=True)
    plain = prepare_training(net, threads=2, without=["kernels"])
    assert count(opened[0])[1] == 0
    data = batches(model, [(9, 8)] * 3)
    assert sx.verify_training(net, ours, plain, data=data, steps=3).verdict == "same"


# -- loops by hand -----------------------------------------------------------------------


class Loop:
    """A Scan with one state h and one sequence x, both of so many columns."""

    def __init__(self, columns: int = 8, **attributes: Any) -> None:
        self.columns, self.attributes = columns, attributes
        self.inside: list[onnx.NodeProto] = []
        self.before: list[onnx.NodeProto] = []
        self.outputs: list[str] = []
        self.add("MatMul", "h_in", "w", to="product")

    def add(self, op_type: str, *names: str, to: str, **attributes: Any) -> None:
        self.inside.append(helper.make_node(op_type, names, [to], to, **attributes))

    def model(self, state: str, written: str, sequence: str = "x") -> onnx.ModelProto:
        rows, info = ("rows", self.columns), helper.make_tensor_value_info
        body = helper.make_graph(
            self.inside,
            "body",
            [info("h_in", 1, rows), info("x_in", 1, rows)],
            [info(state, 1, rows), info(written, 1, rows)],
        )
        scan = helper.make_node(
            "Scan", ["h", sequence], ["last", "y"], "scan", body=body, num_scan_inputs=1,
            **self.attributes,
        )  # fmt: skip
        three = ("steps", *rows)
        inputs = {"h": rows, "x": three, "w": (self.columns,) * 2, "v": three, "m": rows}
        ends = [info(n, 1, s) for n, s in inputs.items()]
        names = ["last", "y", *self.outputs]
        results = [info(n, 1, rows if n == "last" else three) for n in names]
        graph = helper.make_graph([*self.before, scan], "g", ends, results)
        versions = [helper.make_opsetid("", 20)]
        return helper.make_model(graph, opset_imports=versions, ir_version=10)


def run(model: onnx.ModelProto, rows: int = 5, steps: int = 4) -> tuple[Any, Any, list[str]]:
    """What a model gives as it is, and with its loops compiled; and the nodes that it then has."""
    rng, free, feeds = np.random.default_rng(0), {"rows": rows, "steps": steps}, {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        feeds[value.name] = normal(rng, *(free.get(d.dim_param, d.dim_value) for d in dims)) * 0.3
    plain = open_session(model.SerializeToString(), threads=1, options=LEVEL).run(None, feeds)
    session, kinds = compiled(model)
    return plain, session.run(None, feeds), kinds


def compiled(model: onnx.ModelProto) -> tuple[ort.InferenceSession, list[str]]:
    copy = ir.serde.deserialize_model(infer_shapes(model, strict_mode=True))
    path = fusion.fuse(copy.graph, 2)
    data = ir.serde.serialize_model(copy).SerializeToString()
    session = open_session(data, threads=2, options=LEVEL, libraries=[path] if path else [])
    return session, [node.op_type for node in copy.graph]


def assert_close(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> None:
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inward", [0, 1])
@pytest.mark.parametrize("outward", [0, 1])
def test_both_directions(inward: int, outward: int) -> None:
    loop = Loop(scan_input_directions=[inward], scan_output_directions=[outward])
    loop.add("Add", "product", "x_in", to="sum")
    loop.add("Tanh", "sum", to="new")
    loop.add("Mul", "new", "m", to="written")
    plain, ours, kinds = run(loop.model("new", "written"))
    assert "Recurrence" in kinds
    assert_close(ours, plain)


def test_products_one_after_another_and_columns_that_are_cut_and_joined() -> None:
    loop = Loop()
    loop.inside.append(helper.make_node("Split", ["product"], ["a", "b"], axis=1, num_outputs=2))
    loop.add("Sigmoid", "b", to="gate")
    loop.add("Concat", "gate", "a", to="joined", axis=1)
    loop.add("Add", "joined", "x_in", to="sum")
    loop.add("MatMul", "sum", "w", to="second")
    loop.add("Mul", "second", "joined", to="scaled")
    loop.add("Gemm", "scaled", "w", "m", to="new", transB=1)
    plain, ours, kinds = run(loop.model("new", "scaled"))
    assert "Recurrence" in kinds
    assert_close(ours, plain)


def test_a_sequence_is_computed_in_the_loop_where_nobody_else_reads_it() -> None:
    loop = Loop()
    loop.before = [
        helper.make_node("Mul", ["x", "v"], ["xv"]),
        helper.make_node("Exp", ["xv"], ["e"]),
    ]
    loop.add("Add", "product", "x_in", to="sum")
    loop.add("Tanh", "sum", to="new")
    plain, ours, kinds = run(loop.model("new", "sum", sequence="e"))
    assert sorted(kinds) == ["Pack", "Recurrence"]
    assert_close(ours, plain)
    loop.outputs = ["xv"]
    plain, ours, kinds = run(loop.model("new", "sum", sequence="e"))
    assert sorted(kinds) == ["Mul", "Pack", "Recurrence"]
    assert_close(ours, plain)


@pytest.mark.parametrize("node", ["Transpose", "ReduceSum", "MatMul", "CumSum", "Softmax"])
def test_a_loop_that_mixes_rows_or_columns_stays(node: str) -> None:
    loop = Loop()
    if node == "Transpose":  # a product of two values of the step
        loop.add("Transpose", "x_in", to="turned")
        loop.add("MatMul", "turned", "product", to="square")
        loop.add("MatMul", "x_in", "square", to="new")
    elif node == "MatMul":  # a matrix that is made in the step
        loop.add("Mul", "w", "w", to="matrix")
        loop.add("MatMul", "product", "matrix", to="new")
    elif node == "Softmax":
        loop.add("Softmax", "product", to="new", axis=1)
    elif node == "CumSum":
        axis = onnx.numpy_helper.from_array(np.array(0), "axis")
        loop.inside.append(helper.make_node("Constant", [], ["axis"], value=axis))
        loop.add("CumSum", "product", "axis", to="new")
    else:
        axes = onnx.numpy_helper.from_array(np.array([0]), "axes")
        loop.inside.append(helper.make_node("Constant", [], ["axes"], value=axes))
        loop.add("ReduceSum", "product", "axes", to="total")
        loop.add("Add", "product", "total", to="new")
    loop.add("Add", "new", "x_in", to="written")
    plain, ours, kinds = run(loop.model("new", "written"))
    assert "Recurrence" not in kinds
    assert_close(ours, plain)


def test_a_matrix_too_large_for_one_thread_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LARGEST", 63)
    loop = Loop()
    loop.add("Add", "product", "x_in", to="new")
    plain, ours, kinds = run(loop.model("new", "product"))
    assert "Scan" in kinds
    assert_close(ours, plain)


@pytest.mark.parametrize("rows", [0, 1, 2, 13, 28, 29, 57])
def test_all_numbers_of_rows(rows: int) -> None:
    loop = Loop(columns=37)
    loop.add("Add", "product", "x_in", to="sum")
    loop.add("Tanh", "sum", to="new")
    plain, ours, kinds = run(loop.model("new", "sum"), rows=rows)
    assert "Recurrence" in kinds
    assert_close(ours, plain)


def test_what_is_not_finite_stays_in_its_row() -> None:
    """Rows share a tile of a product, and the last tile is filled up."""
    loop = Loop(columns=20)
    loop.add("Add", "product", "x_in", to="new")
    model = loop.model("new", "product")
    rng = np.random.default_rng(0)
    shapes = {"h": (5, 20), "x": (3, 5, 20), "w": (20, 20), "v": (3, 5, 20), "m": (5, 20)}
    feeds = {name: normal(rng, *shape) for name, shape in shapes.items()}
    feeds["h"][2, 1] = np.inf
    last, written = compiled(model)[0].run(None, feeds)
    others = [0, 1, 3, 4]
    assert np.isfinite(last[others]).all() and np.isfinite(written[:, others]).all()
    assert not np.isfinite(last[2]).any()


def test_a_sequence_of_another_size_is_an_error() -> None:
    loop = Loop()
    loop.add("Add", "product", "x_in", to="new")
    session, _ = compiled(loop.model("new", "product"))
    shapes = {"h": (5, 8), "x": (3, 4, 8), "w": (8, 8), "v": (3, 5, 8), "m": (5, 8)}
    feeds = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    with pytest.raises(Exception, match="a state of a loop has another type or shape"):
        session.run(None, feeds)
