"""Generated source of graphs whose ranks, sizes or weights are settled by a run or by layout:
the same numbers as onnxruntime's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from tests.networks import network
from tests.test_source import expected, same
from tests.test_source_operators import loaded

torch = pytest.importorskip("torch")


def matches(model: sx.Model, folder: Path, *cases: list[np.ndarray]) -> str:
    """Write the source and compare it with onnxruntime on every case, shapes included."""
    text = sx.to_torch_source(model, folder).read_text()
    module = loaded(folder)
    for inputs in cases:
        with torch.no_grad():
            results = module(*map(torch.from_numpy, inputs))
        results = results if isinstance(results, tuple) else (results,)
        reference = expected(model, inputs)
        assert [tuple(r.shape) for r in results] == [w.shape for w in reference]
        same([r.numpy() for r in results], reference)
    return text


RANKS = {
    "Slice": "y = Slice (a, zero, one, zero)",
    "Reduce": "y = ReduceMean <keepdims = 0> (a, zero)",
    "Unsqueeze": "b = Unsqueeze (a, last)  y = Relu (b)",
    "Concat": "y = Concat <axis = 0> (a, a)",
    "Softmax": "y = Softmax <axis = -1> (a)",
    "sizes": "b = Add (a, row)  s = Shape (b)  y = Cast <to = 1> (s)",
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_that_only_a_run_knows(name: str, tmp_path: Path) -> None:
    constants = {"zero": np.asarray([0]), "one": np.asarray([1]), "last": np.asarray([-1])}
    constants["row"] = np.arange(3.0)
    used = {k: v for k, v in constants.items() if k in RANKS[name]}
    model = network(f"m (float[A,B,3] x) => (float y) {{ a = Squeeze (x)  {RANKS[name]} }}", used)
    model.graph.outputs[0].shape = None
    rng = np.random.default_rng(0)
    cases = [[rng.normal(size=(*s, 3)).astype(np.float32)] for s in ((1, 4), (2, 5), (1, 1))]
    matches(model, tmp_path, *cases)


def test_a_condition_on_sizes_is_negated_as_a_bool(tmp_path: Path) -> None:
    body = """s = Shape <start = 0, end = 1> (x)  c = Equal (s, two)  n = Not (c)
        y = If (n) <then_branch = a () => (float[N,2] p) { p = Neg (x) },
                    else_branch = b () => (float[N,2] q) { q = Exp (x) }>"""
    model = network(f"m (float[N,2] x) => (float[N,2] y) {{ {body} }}", {"two": np.asarray([2])})
    cases = [[np.ones((rows, 2), np.float32)] for rows in (2, 3)]
    text = matches(model, tmp_path, *cases)
    assert "not x.shape[0] == 2" in text or "not input_.shape[0] == 2" in text


def test_a_comparison_of_sizes_is_a_tensor_where_it_is_computed_with(tmp_path: Path) -> None:
    body = """s = Shape <start = 0, end = 1> (x)  c = Equal (s, two)  n = Not (c)
        f = Cast <to = 1> (n)  y = Add (x, f)"""
    model = network(f"m (float[N,2] x) => (float[N,2] y) {{ {body} }}", {"two": np.asarray([2])})
    matches(model, tmp_path, *([np.ones((rows, 2), np.float32)] for rows in (2, 3)))


def test_rearranged_gates_are_the_weights_of_a_layer(tmp_path: Path) -> None:
    # torch's exporter stores the gates i, f, g, o and puts them into ONNX's order in the graph.
    def moved(source: str, to: str) -> str:
        parts = [f"{to}{i} = Slice ({source}, {a}, {b}, k0)" for i, a, b in (
            ("i", "k0", "k3"), ("o", "k9", "k12"), ("f", "k3", "k9"))]  # fmt: skip
        return f"{'  '.join(parts)}  {to} = Concat <axis = 0> ({to}i, {to}o, {to}f)"

    body = f"""{moved("rnn.weight_ih", "w")}  {moved("rnn.weight_hh", "r")}
        {moved("rnn.bias_ih", "p")}  {moved("rnn.bias_hh", "q")}  b = Concat <axis = 0> (p, q)
        w1 = Unsqueeze (w, k0)  r1 = Unsqueeze (r, k0)  b1 = Unsqueeze (b, k0)
        y = LSTM <hidden_size = 3> (x, w1, r1, b1)"""
    rng = np.random.default_rng(1)
    shapes = {"weight_ih": (12, 2), "weight_hh": (12, 3), "bias_ih": (12,), "bias_hh": (12,)}
    weights = {f"rnn.{name}": rng.normal(size=shape) for name, shape in shapes.items()}
    places = {f"k{i}": np.asarray([i]) for i in (0, 3, 9, 12)}
    model = network(f"m (float[T,N,2] x) => (float[T,1,N,3] y) {{ {body} }}", weights | places)
    cases = [[rng.normal(size=s).astype(np.float32)] for s in ((4, 2, 2), (6, 3, 2))]
    text = matches(model, tmp_path, *cases)
    assert "nn.LSTM(2, 3)" in text and "torch.cat" not in text
    state = loaded(tmp_path).state_dict()
    # The order that torch stores is the order that torch uses: nothing is permuted.
    stored = model.initializer("rnn.weight_ih").numpy()
    assert any(np.array_equal(v.numpy(), stored) for v in state.values())
    back = sx.with_weights(model, tmp_path)
    for name in weights:
        assert np.array_equal(back.initializer(name).numpy(), model.initializer(name).numpy())


LOOPS = {
    "count": (
        """s, rows = Loop (n, , x) <body = b (int64 i, bool c, float[N,2] a) =>
            (bool d, float[N,2] p, float[N,2] r) {
                d = Identity (c)  f = Cast <to = 1> (i)  g = Mul (a, half)  p = Add (g, f)
                r = Tanh (p) }>""",
        ["for step in torch.arange(int(n), device=", "rows = torch.stack(rows)"],
    ),
    "condition": (
        """s, rows = Loop (n, yes, x) <body = b (int64 i, bool c, float[N,2] a) =>
            (bool d, float[N,2] p, float[N,2] r) {
                p = Add (a, half)  t = ReduceSum <keepdims = 0> (p)  d = Less (t, limit)
                r = Mul (p, half) }>""",
        ["for _ in range(int(n)):\n            if not condition:\n                break\n"],
    ),
    "while": (
        """s = Loop (, yes, x) <body = b (int64 i, bool c, float[N,2] a) =>
            (bool d, float[N,2] p) {
                p = Add (a, half)  t = ReduceSum <keepdims = 0> (p)  d = Less (t, limit) }>
        m = Cast <to = 1> (n)  rows = Mul (s, m)""",
        ["while condition:"],
    ),
    "carried weight": (
        """s, w, rows = Loop (n, , x, matrix) <
            body = b (int64 i, bool c, float[N,2] a, float[2,2] v) =>
            (bool d, float[N,2] p, float[2,2] o, float[N,2] r) {
                d = Identity (c)  o = Identity (v)  p = MatMul (a, v)  r = Mul (p, half) }>""",
        ["for _ in range(int(n)):"],
    ),
    "one in another": (
        """s, rows = Loop (n, , x) <body = b (int64 i, bool c, float[N,2] a) =>
            (bool d, float[N,2] p, float[N,2] r) {
                d = Identity (c)
                p = Loop (three, , a) <body = e (int64 j, bool k, float[N,2] l) =>
                    (bool m, float[N,2] q) { m = Identity (k)  h = Mul (l, half)  q = Add (h, x) }>
                r = Neg (p) }>""",
        ["for _ in range(3):", "for _ in range(int(n)):"],
    ),
    "Scan": (
        """s, rows = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            body = b (float[N] a, float[N] e) => (float[N] p, float[N] r) {
                g = Mul (a, half)  p = Add (g, e)  r = Tanh (p) }> (first, x)
        m = Cast <to = 1> (n)  unused = Mul (s, m)""",
        ["for item in x.unbind(1):", "rows = torch.stack(rows, dim=1)"],
    ),
    "Scan backwards": (
        """s, rows = Scan <num_scan_inputs = 2, scan_input_axes = [1, 1],
            scan_input_directions = [1, 0], scan_output_directions = [1],
            body = b (float[N] a, float[N] e, float[N] k) => (float[N] p, float[N] r) {
                g = Mul (a, half)  p = Add (g, e)  h = Sub (p, k)  r = Tanh (h) }> (first, x, x)
        m = Cast <to = 1> (n)  unused = Mul (s, m)""",
        ["zip(reversed(x.unbind(1)), x.unbind(1))", "torch.stack(rows[::-1])"],
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_loops_of_python(name: str, tmp_path: Path) -> None:
    body, lines = LOOPS[name]
    constants = {"half": np.asarray(0.5), "limit": np.asarray(4.0), "yes": np.asarray(True)}
    constants |= {"three": np.asarray(3), "matrix": np.asarray([[0.5, 1.0], [-1.0, 0.25]])}
    used = {k: v for k, v in constants.items() if k in body}
    body = f"first = ReduceSum <keepdims = 0> (x, last)  {body}" if "Scan" in name else body
    used |= {"last": np.asarray([1])} if "Scan" in name else {}
    text = f"m (float[N,2] x, int64 n) => (float s, float rows) {{ {body} }}"
    model = network(text, used)
    for value in model.graph.outputs:
        value.shape = None
    rng = np.random.default_rng(4)
    cases = [
        [rng.normal(size=(size, 2)).astype(np.float32), np.asarray(trips)]
        for size, trips in ((3, 4), (5, 2), (1, 1))
    ]
    text = matches(model, tmp_path, *cases)
    for line in lines:
        assert line in text, text


@pytest.mark.parametrize("end", ["count", "condition"])
def test_a_loop_without_iterations_stacks_nothing(end: str, tmp_path: Path) -> None:
    """Its rows have the shape that they would have; onnxruntime takes 0 for free sizes."""
    inputs = {"count": "n, yes", "condition": "three, some"}[end]
    goes_on = {"count": "d = Identity (c)", "condition": "d = Less (i, n)"}[end]
    body = f"""none = Constant <value = int64 {{0}}> ()  some = Greater (n, none)
        s, rows = Loop ({inputs}, x) <body = b (int64 i, bool c, float[4,2] a) =>
            (bool d, float[4,2] p, float[4,3] r) {{
                {goes_on}  p = Add (a, half)  f = Cast <to = 1> (i)
                q = MatMul (p, matrix)  r = Add (q, f) }}>"""
    weights = {"half": np.asarray(0.5), "matrix": np.ones((2, 3)), "yes": np.asarray(True)}
    weights["three"] = np.asarray(3)
    used = {k: v for k, v in weights.items() if k in body}
    text = f"m (float[4,2] x, int64 n) => (float[4,2] s, float[K,4,3] rows) {{ {body} }}"
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    matches(network(text, used), tmp_path, *([x, np.asarray(trips)] for trips in (2, 0)))
