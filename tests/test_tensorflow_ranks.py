"""tf.function of models whose ranks depend on free sizes, or on which branch is taken.

onnxruntime is the oracle for values; for gradients, its differences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import EngineError
from sardonyx.lower.fork import MOST_FORKS
from sardonyx.lower.program import DependsOnData
from tests.networks import network
from tests.test_jax_branches import feeds, two_rates

tf = pytest.importorskip("tensorflow")

CONSTANTS = {
    "one": np.array([1]),
    "zero": np.array([0]),
    "last": np.array([-1]),
    "half": np.array(0.5, np.float32),
    "w": np.linspace(-1, 1, 6).reshape(2, 3, 1).astype(np.float32),
}
IF_SQUEEZE = """y0 = If(is_one) <
    then_branch = a () => (float[A1] p) { p = Squeeze(x, one) },
    else_branch = b () => (float[A2, B2] q) { q = Identity(x) }>"""
SIZE = "s = Shape<start = 1>(x) is_one = Equal(s, one)"
# Inputs, nodes, and the shapes to try: both ranks are valid where nothing else is said.
MODELS = {
    "squeeze of one free size": ("float[A, 3] x", "y = Squeeze(x)", [(1, 3), (4, 3)]),
    "squeeze of two free sizes": (
        "float[A, B, 1] x",
        "z = Squeeze(x) h = Mul(z, half) y = Sigmoid(h)",
        [(1, 1, 1), (1, 3, 1), (2, 1, 1), (2, 3, 1)],
    ),
    "if with a squeeze": (
        "float[A, B] x",
        f"{SIZE} {IF_SQUEEZE} m = ReduceMean<keepdims = 0>(y0, zero) y = Add(m, half)",
        [(3, 1), (3, 2)],
    ),
    "one rank again": (
        "float[A, B] x",
        f"{SIZE} {IF_SQUEEZE} f = Reshape(y0, last) t = Tanh(f) c = Shape(t) "
        "e = ConstantOfShape(c) y = Concat<axis = 0>(e, t)",
        [(3, 1), (3, 2)],
    ),
    "an if in an if": (
        "float[A, B] x",
        f"{SIZE} total = ReduceSum<keepdims = 0>(x) low = Less(total, half) "
        "z = If(low) < then_branch = u () => (float[U] p1) {"
        + IF_SQUEEZE.replace("y0", "y1")
        + " p1 = Neg(y1) }, else_branch = v () => (float[V, W] q1) { q1 = Identity(x) }>"
        " y = Exp(z)",
        [(3, 1), (3, 2), (1, 1), (2, 5)],
    ),
    "a fork in a loop": (
        "float[A, B] x",
        "y = Loop(four, yes, x) < body = body (int64 i, bool go, float[A, B] h)"
        " => (bool on, float[A, B] h2) { on = Identity(go) d = Shape(h) z = Squeeze(h)"
        " t = Tanh(z) h2 = Reshape(t, d) } >",
        [(3, 1), (1, 1), (3, 2)],
    ),
}


def model_of(name: str) -> sx.Model:
    inputs, nodes, _ = MODELS[name]
    constants = {**CONSTANTS, "four": np.array(4), "yes": np.array(True)}
    used = {n: v for n, v in constants.items() if n in nodes}
    return network(f"g ({inputs}) => (float y) {{ {nodes} }}", used)


def function_of(model: sx.Model, **options: Any) -> Any:
    module = sx.to_tensorflow(model)
    return tf.function(
        lambda *xs: module(*xs), input_signature=module.signature, autograph=False, **options
    )


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_serves_every_rank(name: str) -> None:
    model = model_of(name)
    session, function = Runner(model), function_of(model)
    for seed, shape in enumerate(MODELS[name][2]):
        x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        expected = session({"x": x})["y"]
        result = function(x).numpy()
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert function.experimental_get_tracing_count() == 1


def test_a_saved_model_serves_every_rank(tmp_path: Path) -> None:
    model = model_of("if with a squeeze")
    sx.to_tensorflow(model).save(tmp_path)
    loaded, session = tf.saved_model.load(str(tmp_path)), Runner(model)
    for shape in [(3, 1), (3, 2)]:
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(loaded(x).numpy(), session({"x": x})["y"], rtol=1e-5)


def test_gradients_pass_through_the_rank_in_use() -> None:
    model = model_of("if with a squeeze")
    session, module = Runner(model), sx.to_tensorflow(model)

    @tf.function(input_signature=module.signature, autograph=False)
    def slope(x: Any) -> Any:
        return tf.gradients(tf.reduce_sum(tf.square(module(x))), x)[0]

    for shape in [(3, 1), (3, 2)]:
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        direction = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        high, low = (
            np.sum(np.square(session({"x": x + s * direction})["y"], dtype=np.float64))
            for s in (np.float32(1e-2), np.float32(-1e-2))
        )
        assert np.sum(slope(x).numpy() * direction) == pytest.approx((high - low) / 2e-2, rel=1e-3)


CONV = f"{SIZE} {IF_SQUEEZE} u = Unsqueeze(y0, zero) y = Conv(u, w)"  # valid for two axes only


def test_a_rank_that_the_rest_does_not_take_is_an_error_when_met() -> None:
    model = network(
        f"g (float[A, B] x) => (float y) {{ {CONV} }}",
        {n: CONSTANTS[n] for n in ("one", "zero", "w")},
    )
    session, function = Runner(model), function_of(model)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(function(x).numpy(), session({"x": x})["y"], rtol=1e-5, atol=1e-6)
    with pytest.raises(Exception, match="is invalid for these inputs"):
        function(x[:, :1])
    with pytest.raises(EngineError):  # onnxruntime refuses it too
        session({"x": x[:, :1]})


@pytest.mark.parametrize(("rate", "features"), [(16, 4), (8, 2)])
def test_a_branch_for_another_size_is_an_error_when_chosen(rate: int, features: int) -> None:
    model = two_rates()
    module = sx.to_tensorflow(model)
    x, _ = feeds(rate, features)
    function = tf.function(lambda r: module(tf.constant(x), r), autograph=False)
    expected = Runner(model)({"x": x, "rate": np.array(rate)})["y"]
    np.testing.assert_allclose(
        function(tf.constant(rate, tf.int64)), expected, rtol=1e-5, atol=1e-6
    )


def test_xla_does_not_pass_over_an_invalid_branch() -> None:
    """XLA leaves assertions out of what it compiles."""
    from sardonyx.engines.tensorflow.branches import branched
    from sardonyx.engines.tensorflow.xp import arrays

    def invalid() -> Any:
        raise EngineError("no such rank")

    def choose(chosen: Any, x: Any) -> Any:
        return branched(arrays(), chosen, [lambda: [x * 2], invalid])

    x = tf.constant([1.0, 2.0])
    plain = tf.function(choose, autograph=False)
    np.testing.assert_array_equal(plain(tf.constant(True), x)[0], [2, 4])
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such rank"):
        plain(tf.constant(False), x)
    compiled = tf.function(choose, autograph=False, jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        compiled(tf.constant(False), x)


def test_too_many_ranks_are_refused() -> None:
    """Each of these doubles the ranks that the rest has to be built for."""
    nodes = [f"s{i} = Squeeze(x{i}) x{i + 1} = Add(s{i}, x0)" for i in range(20)]
    text = f"g (float[A, B] x0) => (float x20) {{ {' '.join(nodes)} }}"
    module = sx.to_tensorflow(network(text, {}))
    with pytest.raises(DependsOnData, match=f"more than {MOST_FORKS} combinations of ranks"):
        module.serve.get_concrete_function()
