"""Steps of JAX on a CPU: new state in the memory of the old, which is there if one goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.helper import make_training_info
from onnx.parser import parse_graph, parse_model

import sardonyx as sx

from .networks import mlp

jax = pytest.importorskip("jax")

rng = np.random.default_rng(0)
BATCH = {
    "x": rng.normal(size=(8, 6)).astype(np.float32),
    "label": rng.integers(0, 3, 8),
}
BROKEN = {**BATCH, "x": np.where(np.arange(8) == 3, np.nan, BATCH["x"].T).T.astype(np.float32)}
SETTINGS: list[dict[str, Any]] = [{}, {"accumulate": 2, "clip_norm": 0.5}, {"ema": 0.9}]


def trained(settings: dict[str, Any], engine: str = "jax") -> Any:
    net = sx.trainable(mlp(), "cross_entropy", sx.optim.adamw(0.1), **settings)
    return sx.prepare_training(net, engine)


def test_the_old_state_is_given_up() -> None:
    rep = trained({})
    rep.step(BATCH)
    old = {n: v.value for n, v in rep.variables.items()}
    rep.step(BATCH)
    assert all(array.is_deleted() for array in old.values())
    assert all(variable.before is variable.value for variable in rep.variables.values())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_state_before_a_loss_that_is_not_finite_is_there(settings: dict[str, Any]) -> None:
    rep, reference = trained(settings), trained(settings, "numpy")
    for _ in range(3):
        rep.step(BATCH)
        reference.step(BATCH)
    before = rep.state()
    assert np.isnan(rep.step(BROKEN)["loss"])
    reference.step(BROKEN)
    kept = rep.steps[0].before()
    assert kept.keys() == before.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(kept[name], array, err_msg=name)
        # the state itself is what the record says, as on any engine
        np.testing.assert_allclose(rep.state()[name], reference.state()[name], rtol=1e-4, atol=1e-5)
    assert any(np.isnan(array).any() for array in rep.state().values()) or "accumulate" in settings
    assert "fc0" in str(rep.first_not_finite(BROKEN)) or "h0" in str(rep.first_not_finite(BROKEN))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_training_goes_on_from_the_state_before(settings: dict[str, Any]) -> None:
    rep, unbroken = trained(settings), trained(settings)
    for i in range(4):
        if i == 2:
            rep.step(BROKEN)
            rep.load_state(rep.steps[0].before())
        assert rep.step(BATCH)["loss"] == unbroken.step(BATCH)["loss"]
    for name, array in unbroken.state().items():
        np.testing.assert_array_equal(rep.state()[name], array, err_msg=name)


def test_the_expanded_gradient_computes_the_same() -> None:
    losses = [
        [float(rep.step(BATCH)["loss"]) for _ in range(5)]
        for rep in (
            trained({}),
            sx.prepare_training(
                sx.trainable(mlp(), "cross_entropy", sx.optim.adamw(0.1)), "jax", native=False
            ),
        )
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_metric_of_the_new_weights_is_no_obstacle() -> None:
    """It is not known before the update, so the state before a step keeps its memory."""
    algorithm = """t () => (float[2] w_new, float loss, float size) {
        h = Mul(x, w)
        loss = ReduceSumSquare<keepdims = 0>(h)
        slope = ai.onnx.preview.training.Gradient<xs = ["w"], y = "loss">(w)
        rate = Constant<value_float = 0.1>()
        change = Mul(slope, rate)
        w_new = Sub(w, change)
        size = ReduceMax<keepdims = 0>(w_new)
    }"""
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>
        g (float[2] x) => (float[2] y) <float[2] w = {2.0, 3.0}> { y = Mul(x, w) }"""
    )
    training = make_training_info(parse_graph(algorithm), [("w", "w_new")], None, None)
    model.training_info.append(training)
    rep = sx.prepare_training(sx.load(model), "jax")
    assert rep.ways == ["the framework differentiates the forward part"]
    x = np.array([1, 2], np.float32)
    results = rep.step({"x": x})
    expected = np.array([2, 3]) - 0.1 * 2 * np.array([2, 3]) * x**2
    np.testing.assert_allclose(rep.state()["w"], expected, rtol=1e-6)
    np.testing.assert_allclose(results["size"], expected.max(), rtol=1e-6)
    before = rep.state()["w"]
    assert np.isinf(rep.step({"x": x * np.float32(1e30)})["loss"])
    np.testing.assert_array_equal(rep.steps[0].before()["w"], before)
