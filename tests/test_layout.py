"""The layout plan: its cut is what Transposes really move, and no other choice moves less."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError
from sardonyx.normalize import normalize
from sardonyx.passes.layout import FIRST, LAST, Demands, Plan, lay_out, plan_layout
from sardonyx.passes.layout.axes import bytes_of, to_first, to_last
from sardonyx.passes.layout.cut import UNCUT, Network
from sardonyx.passes.layout.rewrite import apply_layout

WINDOWS = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool"))
KERNELS = WINDOWS | {"BatchNormalization", "InstanceNormalization"}
DEMANDS = Demands(LAST, WINDOWS, KERNELS, "last")


def parsed(text: str, weights: dict[str, tuple[int, ...]] | None = None) -> sx.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    rng = np.random.default_rng(0)
    for name, shape in (weights or {}).items():
        array = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return normalize(sx.load(proto)).copy()


def transposed(graph: ir.Graph) -> int:
    """The bytes that Transposes between the layouts move in a graph."""
    total = 0
    for node in graph:
        if node.op_type == "Transpose":
            perm = list(node.attributes["perm"].value)
            if perm in (to_last(len(perm)), to_first(len(perm))) and len(perm) > 2:
                total += bytes_of(node.inputs[0])
    return total


CONV = "Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
W = {"w": (3, 3, 3, 3)}
GRAPHS = {
    "residual": (
        "g (float[1,3,8,8] x) => (float[1,3,8,8] y) {"
        f"a = {CONV} (x, w) b = Relu (a) c = {CONV} (b, w) d = Add (c, x) y = Relu (d) }}",
        W,
    ),
    "two readers pay once": (
        "g (float[1,3,8,8] x) => (float[1,3,64] y, float[8,24] z, float[1,3,8,8] v) {"
        f"a = {CONV} (x, w) s = Constant <value = int64[3] {{1, 3, 64}}> () "
        "t = Constant <value = int64[2] {8, 24}> () "
        f"y = Reshape (a, s) z = Reshape (a, t) v = {CONV} (a, w) }}",
        W,
    ),
    "a large operand that must be as it is": (
        "g (float[1,3,8,8] x, float[8,8] k) => (float[1,3,8,8] y) {"
        f"a = {CONV} (x, w) b = Add (a, k) c = Sigmoid (b) y = MatMul (c, k) }}",
        W,
    ),
    "channels last in the file": (
        "g (float[1,8,8,3] x) => (float[1,8,8,3] y) {"
        f"t = Transpose <perm = [0,3,1,2]> (x) a = {CONV} (t, w) "
        "u = Transpose <perm = [0,2,3,1]> (a) b = Relu (u) "
        f"v = Transpose <perm = [0,3,1,2]> (b) c = {CONV} (v, w) d = Add (c, a) "
        "y = Transpose <perm = [0,2,3,1]> (d) }",
        W,
    ),
    "pooled to a vector": (
        "g (float[N,3,8,8] x) => (float[N,3] y) {"
        f"a = {CONV} (x, w) p = GlobalAveragePool (a) y = Flatten (p) }}",
        W,
    ),
    "slices and joins": (
        "g (float[1,6,8,8] x) => (float[1,6,8,8] y) {"
        "a, b = Split <axis = 1, num_outputs = 2> (x) "
        f"c = {CONV} (a, w) d = Concat <axis = 1> (c, b) e = ReduceMean (d) y = Sub (d, e) }}",
        W,
    ),
    "a sequence of pixels": (
        "g (float[2,3,4,8] x) => (float[2,32,3] y) {"
        f"a = {CONV} (x, w) s = Constant <value = int64[3] {{2, 3, -1}}> () "
        "r = Reshape (a, s) y = Transpose <perm = [0,2,1]> (r) }",
        W,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("demands", [DEMANDS, Demands(FIRST)], ids=["last", "first"])
def test_no_choice_of_layouts_moves_fewer_bytes(name: str, demands: Demands) -> None:
    text, weights = GRAPHS[name]
    plan = plan_layout(parsed(text, weights).graph, demands)
    nodes = [n.name or n.outputs[0].name for n in plan.sides]
    results = []
    for choice in itertools.product((FIRST, LAST), repeat=len(nodes)):
        graph = parsed(text, weights).graph
        other = plan_layout(graph, demands)
        sides = dict(zip(other.sides, choice))
        if any(n.op_type in demands.operators and s != demands.layout for n, s in sides.items()):
            continue
        results.append(moved_by(graph, other, sides))
    assert plan.bytes == min(results)


def moved_by(graph: ir.Graph, plan: Plan, sides: dict[ir.Node, str]) -> int:
    plan.sides = sides
    for root in plan.layouts:
        node = root.producer()
        ports = plan.ports.get(node) if node is not None else None
        kind = ports.outputs.get(root.index()) if ports is not None else None
        plan.layouts[root] = sides[node] if kind == "linked" else plan.labels[root]
    apply_layout(graph, plan)
    return transposed(graph)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("demands", [DEMANDS, Demands(FIRST)], ids=["last", "first"])
def test_the_cut_is_what_the_graph_moves(name: str, demands: Demands) -> None:
    text, weights = GRAPHS[name]
    graph = parsed(text, weights).graph
    plan = lay_out(graph, demands)
    assert transposed(graph) == plan.bytes


def test_values_with_channels_last_need_no_transpose() -> None:
    text, weights = GRAPHS["residual"]
    graph = parsed(text, weights).graph
    plan = lay_out(graph, DEMANDS, turned=["x", "y"])
    assert (plan.bytes, plan.conversions, transposed(graph)) == (0, 0, 0)
    assert [list(v.shape or ()) for v in (*graph.inputs, *graph.outputs)] == [[1, 8, 8, 3]] * 2


def test_the_cut_is_that_of_the_maximum_flow() -> None:
    scipy = pytest.importorskip("scipy.sparse")
    from scipy.sparse.csgraph import maximum_flow

    rng = np.random.default_rng(0)
    for size in range(2, 24):
        capacities = rng.integers(0, 9, (size, size)) * (rng.random((size, size)) < 0.4)
        np.fill_diagonal(capacities, 0)
        network = Network()
        nodes = [network.node() for _ in range(size)]
        for tail, head in zip(*np.nonzero(capacities)):
            network.edge(nodes[tail], nodes[head], int(capacities[tail, head]))
        value, side = network.minimum_cut(nodes[0], nodes[-1])
        expected = maximum_flow(scipy.csr_array(capacities.astype(np.int32)), 0, size - 1)
        assert value == expected.flow_value
        inside = np.isin(np.arange(size), list(side))
        assert value == capacities[np.ix_(inside, ~inside)].sum()


def test_a_deep_network_is_cut_without_recursion() -> None:
    network = Network()
    nodes = [network.node() for _ in range(20_000)]
    for tail, head in itertools.pairwise(nodes):
        network.edge(tail, head, 3 if tail == 9_000 else UNCUT)
    value, side = network.minimum_cut(nodes[0], nodes[-1])
    assert (value, len(side)) == (3, 9_001)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_file_with_channels_last_runs_in_stock_onnxruntime(name: str, tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = parsed(*GRAPHS[name])
    plain = sx.save(model, tmp_path / "plain.onnx")
    path = sx.save(model, tmp_path / "last.onnx", layout="nhwc")
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    assert {n.domain for n in proto.graph.node if n.op_type.startswith("Conv")} == {"sardonyx.nhwc"}
    rng = np.random.default_rng(1)
    feeds = {}
    for value in model.inputs:
        shape = [d if isinstance(d, int) else 2 for d in value.shape or ()]
        feeds[value.name] = rng.normal(size=shape).astype(np.float32)
    sessions = [ort.InferenceSession(p, providers=["CPUExecutionProvider"]) for p in (plain, path)]
    expected, results = (session.run(None, feeds) for session in sessions)
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_layout_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no layout"):
        sx.save(parsed(*GRAPHS["residual"]), tmp_path / "m.onnx", layout="nwhc")
