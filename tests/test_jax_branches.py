"""jax.jit of models with one branch for each size of the input, of which only one is valid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import EngineError
from tests.networks import network

jax = pytest.importorskip("jax")


def two_rates() -> sx.Model:
    """At rate 16 an LSTM over four features, at rate 8 one over two: T is 4 or 2."""
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(1, 12, n)).astype(np.float32) for n in (4, 2)}
    r = rng.normal(size=(1, 12, 3)).astype(np.float32)
    text = """rates (float[N, T] x, int64 rate) => (float[N, 3] y) {
            is_16 = Equal (rate, sixteen)
            steps = Unsqueeze (x, zero)
            y = If (is_16) <
                then_branch = wide () => (float[N, 3] a) {
                    ya, ha, ca = LSTM <hidden_size = 3> (steps, w4, r)  a = Squeeze (ha, zero) },
                else_branch = narrow () => (float[N, 3] b) {
                    yb, hb, cb = LSTM <hidden_size = 3> (steps, w2, r)  b = Squeeze (hb, zero) }>
    }"""
    constants = {"sixteen": np.array(16), "zero": np.array([0])}
    return network(text, {**constants, "r": r, **weights})


def with_onnxruntime(model: sx.Model, x: np.ndarray, rate: np.ndarray) -> np.ndarray:
    return Runner(model)({"x": x, "rate": rate})["y"]


def feeds(rate: int, features: int) -> list[np.ndarray]:
    x = np.random.default_rng(1).normal(size=(5, features)).astype(np.float32)
    return [x, np.array(rate)]


@pytest.mark.parametrize(("rate", "features"), [(16, 4), (8, 2)])
def test_the_chosen_branch_is_right(rate: int, features: int) -> None:
    model = two_rates()
    apply, params = sx.to_jax(model)
    arrays = feeds(rate, features)
    expected = with_onnxruntime(model, *arrays)
    found = jax.jit(apply)(params, *arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rate", "features"), [(16, 2), (8, 4)])
def test_a_branch_for_another_size_is_an_error_when_chosen(rate: int, features: int) -> None:
    apply, params = sx.to_jax(two_rates())
    with pytest.raises(Exception, match="jax failed in a node"):
        jax.block_until_ready(jax.jit(apply)(params, *feeds(rate, features)))


def test_no_valid_branch_is_an_error() -> None:
    apply, params = sx.to_jax(two_rates())
    with pytest.raises(EngineError, match="jax failed in a node"):
        jax.jit(apply)(params, *feeds(16, 7))


def test_gradients_pass_through_the_chosen_branch() -> None:
    """Against finite differences of onnxruntime."""
    model = two_rates()
    apply, params = sx.to_jax(model)
    x, rate = feeds(16, 4)

    def total(x: Any, rate: Any) -> Any:
        return apply(params, x, rate).sum()

    direction = np.random.default_rng(2).normal(size=x.shape).astype(np.float32)
    step = np.float32(1e-2)
    high, low = (
        np.sum(with_onnxruntime(model, x + s * direction, rate), dtype=np.float64)
        for s in (step, -step)
    )
    slope = np.sum(np.asarray(jax.jit(jax.grad(total))(x, rate)) * direction)
    assert slope == pytest.approx((high - low) / (2 * step), rel=5e-3)
