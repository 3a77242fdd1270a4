"""Branches and loops of converted torch modules: called, exported, compiled, differentiated.

onnxruntime is the oracle for values; for gradients, differences in float64.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.lower.program import DependsOnData
from sardonyx.model import Model
from tests.test_lower_controlflow import BRANCH, COUNTED, SCAN, WHILE, text

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
VECTORS = [np.array(p, np.float32) for p in ([0.5, 1, 2], [-0.5, -1, 0.25], [0.1, 0.2, 0.3])]
# Weights inside of branches and loops, one of them read by both, and a body inside a body.
NESTED = """g (float[N,2] x) => (float[N,2] y)
<float[2,2] w = {0.5, -0.25, 0.125, 1}, float[2] b = {0.5, -1}, float zero = {0}, float high = {40},
 bool yes = {1}, int64 M = {12}> {
    s = ReduceSum<keepdims = 0>(x)
    c = Greater(s, zero)
    y = If (c) <then_branch = t () => (float[N,2] a) {
            a = Loop (M, yes, x) <body = l (int64 i, bool go, float[N,2] h)
                => (bool on, float[N,2] h2) {
                    p = MatMul(h, w) h2 = Add(p, b) q = Mul(h2, h2)
                    r = ReduceSum<keepdims = 0>(q) on = Less(r, high)}>},
        else_branch = e () => (float[N,2] a) {m = MatMul(x, w) a = Tanh(m)}>
}"""
ROWS = """g (float[2] x) => (float[2] y, float[M,2] rows) <bool yes = {1}, int64 n = {15}> {
    y, rows = Loop (n, yes, x) <body = b (int64 i, bool go, float[2] h)
        => (bool go2, float[2] h2, float[2] r) {
            go2 = Identity(go) f = Cast<to = 1>(i) h2 = Sin(h) r = Mul(h, f)}>
}"""
NAMED = {
    "branch": (BRANCH, [(v,) for v in VECTORS], None),
    "loop until": (WHILE % {"M": "", "trips": ""}, [(v,) for v in VECTORS[::2]], None),
    "loop until or at most": (
        WHILE % {"M": "M", "trips": "int64 M = {20},"},
        [(v,) for v in VECTORS],
        None,
    ),
    "loop of a number that is fed": (
        COUNTED,
        [(VECTORS[0], np.array(n, np.int64)) for n in (3, 5, 1, 0)],
        None,
    ),
    "loop that stacks": (ROWS, [(v[:2],) for v in VECTORS], None),
    "loop in a branch": (
        NESTED,
        [(s * RNG.normal(size=(n, 2)).astype(np.float32) + s,) for n, s in ((3, 1), (5, -1))],
        ({0: torch.export.Dim.DYNAMIC},),
    ),
    "scan of a free length": (
        SCAN % {"time": "T"},
        [(np.ones(2, np.float32), RNG.normal(size=(t, 2)).astype(np.float32)) for t in (20, 7, 1)],
        ({}, {0: torch.export.Dim.DYNAMIC}),
    ),
}


@pytest.fixture(params=NAMED)
def case(request: pytest.FixtureRequest) -> tuple[Model, list[tuple[np.ndarray, ...]], Any]:
    body, feeds, free = NAMED[request.param]
    return text(body), feeds, free


def check(run: Any, model: Model, feeds: list[tuple[np.ndarray, ...]]) -> None:
    oracle = Runner(model)
    for feed in feeds:
        result = run(*(torch.from_numpy(a) for a in feed))
        result = result if isinstance(result, (tuple, list)) else (result,)
        expected = oracle(dict(zip(oracle.inputs, feed, strict=True)))
        for part, value in zip(result, expected.values(), strict=True):
            np.testing.assert_allclose(part.detach().numpy(), value, rtol=1e-5, atol=1e-6)


def operations(graph_module: Any) -> set[str]:
    result = {str(n.target) for n in graph_module.graph.nodes if n.op == "call_function"}
    return result.union(*(operations(m) for m in graph_module.children()))


def test_the_module_is_a_graph(case: Any) -> None:
    model, feeds, _ = case
    module = sx.to_torch(model)
    assert module.untraced == ""
    check(module, model, feeds)


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
def test_export_keeps_branches_and_loops(case: Any, strict: bool) -> None:
    model, feeds, free = case
    inputs = tuple(torch.from_numpy(a) for a in feeds[0])
    exported = torch.export.export(
        sx.to_torch(model), inputs, dynamic_shapes=free or None, strict=strict
    )
    assert operations(exported.graph_module) & {"cond", "while_loop", "scan"}
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    check(torch.export.load(buffer).module(), model, feeds)


def test_compile_takes_the_whole_graph(case: Any) -> None:
    model, feeds, _ = case
    torch._dynamo.reset()
    check(torch.compile(sx.to_torch(model), fullgraph=True, backend="aot_eager"), model, feeds)


@pytest.mark.parametrize("name", ["branch", "loop until or at most", "loop in a branch"])
def test_gradients_go_through(name: str) -> None:
    body, feeds, _ = NAMED[name]
    module, exact = sx.to_torch(text(body)), sx.to_numpy(text(body), float64=True)

    def loss(found: Any) -> Any:
        return sum((v**2).sum() for v in (found if isinstance(found, tuple) else (found,)))

    for (x,) in feeds:
        tensor = torch.from_numpy(x).requires_grad_()
        loss(module(tensor)).backward()
        moves = 1e-6 * np.eye(x.size).reshape(-1, *x.shape)
        expected = [(loss(exact(x + m)) - loss(exact(x - m))) / 2e-6 for m in moves]
        np.testing.assert_allclose(tensor.grad.numpy().reshape(-1), expected, rtol=1e-3, atol=1e-4)


def test_weights_in_branches_are_trained_and_come_back() -> None:
    model = text(NESTED)
    module = sx.to_torch(model)
    assert set(dict(module.named_parameters())) == {"w", "b"}
    x = torch.ones(3, 2)
    module(x).square().sum().backward()
    with torch.no_grad():
        for p in module.parameters():
            assert p.grad is not None and p.grad.abs().sum() > 0
            p -= 0.01 * p.grad
    tuned = sx.with_weights(model, module)
    check(module, tuned, [(np.ones((3, 2), np.float32),)])


def recurrent(op: str, direction: str, free: bool, activations: str = "") -> Model:
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(1)
    shapes = {"w": (ways, gates * 5, 3), "r": (ways, gates * 5, 5), "b": (ways, 2 * gates * 5)}
    arrays = {n: (0.5 * rng.normal(size=s)).astype(np.float32) for n, s in shapes.items()}
    reset = "linear_before_reset = 1, " if op == "GRU" else ""
    body = f"""g (float[{"T" if free else 6},N,3] x) => (float[A,B,C,D] y, float[E,F,G] h) {{
        y, h = {op} <{reset}{activations}direction = "{direction}", hidden_size = 5> (x, w, r, b)
    }}"""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {body}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    return sx.load(proto)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_exported_with_free_time(
    op: str, direction: str, tmp_path: Path
) -> None:
    model = recurrent(op, direction, free=True)
    module = sx.to_torch(model)
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    inputs = (torch.from_numpy(RNG.normal(size=(6, 2, 3)).astype(np.float32)),)
    exported = torch.export.export(module, inputs, dynamic_shapes=(sizes,))
    torch.export.save(exported, tmp_path / "m.pt2")
    feeds = [(RNG.normal(size=(t, n, 3)).astype(np.float32),) for t, n in ((6, 2), (9, 4), (2, 3))]
    check(torch.export.load(tmp_path / "m.pt2").module(), model, feeds)
    check(module, model, feeds)


def test_other_activations_over_free_time_are_a_graph() -> None:
    model = recurrent("GRU", "forward", True, 'activations = ["HardSigmoid", "Softsign"], ')
    module = sx.to_torch(model)
    assert module.untraced == ""
    feeds = [(RNG.normal(size=(t, 2, 3)).astype(np.float32),) for t in (6, 9)]
    check(module, model, feeds)


FREE = {
    "a loop over the rows": """g (float[N,3] x) => (float s, float[K,3] y) {
        size = Shape<start = 0, end = 1>(x) n = Squeeze(size) yes = Constant<value = bool {1}>()
        first = ReduceSum<keepdims = 0>(x)
        s, y = Loop (n, yes, first) <body = b (int64 i, bool c, float a)
            => (bool d, float p, float[3] r) {
            d = Identity(c) r = Gather(x, i) q = ReduceSum<keepdims = 0>(r) p = Add(a, q) }> }""",
    "a loop as often as there are rows": """g (float[N,3] x) => (float[N,3] y) {
        size = Shape<start = 0, end = 1>(x) n = Squeeze(size) yes = Constant<value = bool {1}>()
        y = Loop (n, yes, x) <body = b (int64 i, bool c, float[N,3] a) => (bool d, float[N,3] p) {
            d = Identity(c) p = Sin(a) }> }""",
    # As tf2onnx writes a recurrent layer: it counts by itself, and compares sizes as floats.
    "a loop that counts the rows itself": """g (float[N,3] x) => (float[3] s, float[K,3] y) {
        size = Shape<start = 0, end = 1>(x) short = Cast<to = 6>(size) n = Squeeze(short)
        f = Cast<to = 1>(n) zero = Constant<value = float {0}>() any = Less(zero, f)
        m = Cast<to = 7>(n) start = Constant<value = int32 {0}>() first = ReduceSum<keepdims = 0,
            noop_with_empty_axes = 0>(x) row = Constant<value = float[3] {0, 0, 0}>()
        h = Add(row, first)
        k, s, y = Loop (m, any, start, h) <body = b (int64 i, bool c, int32 at, float[3] a)
            => (bool d, int32 next, float[3] p, float[3] r) {
            one = Constant<value = int32 {1}>() next = Add(at, one) v = Gather(x, at)
            t = Add(a, v) p = Tanh(t) r = Identity(p)
            g = Cast<to = 1>(next) d = Less(g, f) }> }""",
    "Unique": "g (float[N,3] x) => (float[M] y, int64[M] i, int64[K] j, int64[M] k)"
    " { y, i, j, k = Unique(x) }",
    "Unique rows": "g (float[N,3] x) => (float[M,3] y) { y = Unique<axis = 0>(x) }",
}


@pytest.mark.parametrize("name", FREE)
def test_no_number_of_rows_is_demanded_of_an_export(name: str) -> None:
    """Neither the number at the export nor a least one beyond torch's own, which is two."""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {FREE[name]}')
    module = sx.to_torch(proto)
    free = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(module, (torch.ones(5, 3),), dynamic_shapes=free, strict=False)
    oracle = Runner(sx.load(proto))
    for rows in (2, 3, 9):
        x = np.random.default_rng(rows).integers(0, 3, (rows, 3)).astype(np.float32)
        results = exported.module()(torch.from_numpy(x))
        results = results if isinstance(results, tuple) else (results,)
        for value, expected in zip(results, oracle({"x": x}).values(), strict=True):
            np.testing.assert_allclose(value.detach().numpy(), expected, rtol=1e-6)


def test_a_branch_of_another_rank_is_decided_by_the_sizes_of_an_export() -> None:
    """As scripted modules write `squeeze`: torch's program demands sizes that decide alike."""
    model = text("""g (float[N,1,T] x) => (float y)
        <int64 one = {1}, int64[1] axis = {2}, float[1,1,4] w = {1, -2, 3, 4}> {
        p = Conv<strides = [4]>(x, w) size = Shape<start = 2, end = 3>(p)
        n = Squeeze(size) is_one = Equal(n, one)
        row = If (is_one) <then_branch = t () => (float[N,1] a) { a = Squeeze(p, axis) },
            else_branch = e () => (float[N,1,K] a) { a = Tanh(p) }>
        y = ReduceMax<keepdims = 0>(row) }""")
    module = sx.to_torch(model)
    free = ({0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC},)
    x = RNG.normal(size=(3, 1, 5)).astype(np.float32)
    program = torch.export.export(module, (torch.from_numpy(x),), dynamic_shapes=free).module()
    check(program, model, [(x,), (x[:2, :, :4],)])
    with pytest.raises(AssertionError, match="Guard failed"):
        program(torch.ones(3, 1, 9))


def test_a_branch_of_another_rank_that_depends_on_data_is_refused() -> None:
    model = text("""g (float[2,2] x) => (float y) <float zero = {0}> {
        s = ReduceSum<keepdims = 0>(x) c = Greater(s, zero)
        row = If (c) <then_branch = t () => (float[2] a) { a = ReduceSum<keepdims = 0>(x) },
            else_branch = e () => (float[2,2] a) { a = Tanh(x) }>
        y = ReduceSum<keepdims = 0>(row) }""")
    with pytest.raises(DependsOnData, match="branches return tensors of other ranks"):
        torch.export.export(sx.to_torch(model), (torch.ones(2, 2),))


def test_a_program_made_for_several_rows_takes_one() -> None:
    """The reshape inside torch's product would demand more, for steps that are computed."""
    model = text("""g (float[N,1,T] x) => (float[N,K,3] y)
        <float[2,1,6] w = {1, 2, 3, 4, 5, 6, 1, -1, 1, -1, 1, -1},
         float[2,3] v = {1, 2, 3, -1, -2, 1}> {
        c = Conv<strides = [3]>(x, w) r = Transpose<perm = [0, 2, 1]>(c) y = MatMul(r, v) }""")
    module = sx.to_torch(model)
    x = RNG.normal(size=(3, 1, 30)).astype(np.float32)
    free = ({0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(module, (torch.from_numpy(x),), dynamic_shapes=free).module()
    check(program, model, [(x,), (x[:1],), (x[:2, :, :21],)])
