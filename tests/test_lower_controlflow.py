"""Branches and loops that data decides, inside a compiled graph; onnxruntime is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import EngineError
from sardonyx.model import Model
from sardonyx.verify.subjects import runner

HEADER = '<ir_version: 8, opset_import: ["": 18]>'
BRANCH = """g (float[3] x) => (float[3] y) <float zero = {0}> {
    s = ReduceSum<keepdims = 0>(x)
    c = Greater(s, zero)
    y = If (c) <then_branch = t () => (float[3] a) {a = Exp(x)},
                else_branch = e () => (float[3] b) {b = Neg(x)}>
}"""
# Doubles until the sum is large: how often, only the data knows.
WHILE = """g (float[3] x) => (float[3] y, float[3] z) <%(trips)s bool yes = {1}, float high = {10},
    float two = {2}> {
    y, z = Loop (%(M)s, yes, x, x) <body = b (int64 i, bool go, float[3] h, float[3] g)
        => (bool on, float[3] h2, float[3] g2) {
            h2 = Mul(h, two) g2 = Sin(g) s = ReduceSum<keepdims = 0>(h2) on = Less(s, high)}>
}"""
COUNTED = """g (float[3] x, int64 n) => (float[3] y) <bool yes = {1}, float two = {2}> {
    y = Loop (n, yes, x) <body = b (int64 i, bool go, float[3] h) => (bool go2, float[3] h2)
        {go2 = Identity(go) f = Cast<to = 1>(i) k = Add(h, f) h2 = Mul(k, two)}>
}"""
SCAN = """g (float[2] h, float[%(time)s,2] x) => (float[2] last, float[%(time)s,2] every) {
    last, every = Scan <num_scan_inputs = 1, scan_output_directions = [1], body = b
        (float[2] s, float[2] r) => (float[2] s2, float[2] o)
        {t = Mul(s, r) s2 = Add(t, r) o = Tanh(s2)}> (h, x)
}"""


def text(body: str) -> Model:
    return sx.load(onnx.parser.parse_model(f"{HEADER} {body}"))


def in_jax(model: Model) -> Callable[..., list[np.ndarray]]:
    jax = pytest.importorskip("jax")
    apply, params = sx.to_jax(model)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        narrow = [a.astype(np.int32) if a.dtype == np.int64 else a for a in arrays]
        result = jax.jit(apply)(params, *narrow)
        return [np.asarray(v) for v in (result if isinstance(result, tuple) else (result,))]

    return run


def in_tensorflow(model: Model) -> Callable[..., list[np.ndarray]]:
    pytest.importorskip("tensorflow")
    module = sx.to_tensorflow(model)

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        result = module(*arrays)
        return [v.numpy() for v in (result if isinstance(result, tuple) else (result,))]

    return run


COMPILED = {"jax": in_jax, "tensorflow": in_tensorflow}
POINTS = [np.array(p, np.float32) for p in ([0.5, 1, 2], [-0.5, -1, 0.25], [0.1, 0.2, 0.3])]


def check(name: str, body: str, *rest: np.ndarray, points: Any = POINTS) -> None:
    run, oracle = COMPILED[name](text(body)), Runner(text(body))
    for x in points:
        feeds = dict(zip(oracle.inputs, (x, *rest), strict=True))
        for result, expected in zip(run(x, *rest), oracle(feeds).values(), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", COMPILED)
class TestUnderCompilation:
    def test_branch(self, name: str) -> None:
        check(name, BRANCH)

    def test_loop_until_a_condition(self, name: str) -> None:
        check(name, WHILE % {"M": "", "trips": ""}, points=POINTS[::2])

    def test_loop_until_a_condition_or_a_number_of_trips(self, name: str) -> None:
        check(name, WHILE % {"M": "M", "trips": "int64 M = {3},"})

    def test_loop_of_a_number_that_is_fed(self, name: str) -> None:
        for n in (0, 1, 5):
            check(name, COUNTED, np.array(n, np.int64))

    @pytest.mark.parametrize("time", (3, 20))
    def test_scan(self, name: str, time: int) -> None:
        x = np.random.default_rng(0).normal(size=(time, 2)).astype(np.float32)
        check(name, SCAN % {"time": time}, x, points=[np.ones(2, np.float32)])


@pytest.mark.parametrize("body", [BRANCH, WHILE % {"M": "M", "trips": "int64 M = {4},"}])
def test_gradients_in_jax(body: str) -> None:
    jax = pytest.importorskip("jax")
    apply, params = sx.to_jax(text(body))

    def loss(x: Any) -> Any:
        result = apply(params, x)
        return sum((v**2).sum() for v in (result if isinstance(result, tuple) else (result,)))

    exact = sx.to_numpy(text(body), float64=True)

    def wide(x: np.ndarray) -> float:
        result = exact(x)
        return float(
            sum((v**2).sum() for v in (result if isinstance(result, tuple) else (result,)))
        )

    for x in POINTS:
        result, step = np.asarray(jax.jit(jax.grad(loss))(x)), 1e-6
        moves = [step * row for row in np.eye(3)]
        expected = [(wide(x + m) - wide(x - m)) / (2 * step) for m in moves]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_rows_of_unknown_number_are_refused_by_name() -> None:
    jax = pytest.importorskip("jax")
    model = text("""g (float[2] x, int64 n) => (float[2] y, float[M,2] rows) <bool yes = {1}> {
        [trips] y, rows = Loop (n, yes, x) <body = b (int64 i, bool go, float[2] h)
            => (bool go2, float[2] h2, float[2] r) {go2 = Identity(go) h2 = Sin(h) r = Neg(h)}>
    }""")
    apply, params = sx.to_jax(model)
    with pytest.raises(EngineError, match=r'Loop *node "trips"'):
        jax.jit(apply)(params, np.ones(2, np.float32), np.int32(3))


@pytest.mark.parametrize("trips", [0, 2])
@pytest.mark.parametrize("engine", ["numpy", "torch", "jax", "tensorflow"])
def test_a_loop_without_iterations_stacks_rows_of_the_right_shape(engine: str, trips: int) -> None:
    """Integers, a matrix, and a vector that no iteration changes."""
    if engine != "numpy":
        pytest.importorskip(engine)
    body = """g (float[4,2] x, int64 n) => (float[4,2] s, float[K,4,3] rows, int64[K] counts)
    <bool yes = {1}, float[2,3] w = {1, 2, 3, 4, 5, 6}> {
        s, rows, counts = Loop (n, yes, x) <body = b (int64 i, bool c, float[4,2] a)
            => (bool d, float[4,2] p, float[4,3] r, int64 k)
            { d = Identity(c) p = Add(a, a) r = MatMul(p, w) k = Add(i, i) }>
    }"""
    feeds = {"x": np.ones((4, 2), np.float32), "n": np.array(trips)}
    oracle = Runner(text(body))(feeds)
    assert oracle["rows"].shape == (trips, 4, 3)
    results = runner(engine)(text(body))(feeds)
    for name, expected in oracle.items():
        value = np.asarray(results[name])
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(value, expected)
