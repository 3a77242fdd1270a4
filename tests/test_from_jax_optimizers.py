"""Every optimizer and schedule of optax: a hundred steps in onnxruntime against `jax.jit`.

A rounding error that a rule amplifies (a sign, a root of a variance near zero) makes two correct
runs part, so that a run is judged by its loss, and an optimizer of that kind by single steps from
the states of JAX.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx as sx

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
jnp = jax.numpy
KEY = jax.random.key(0)
RATE, STEPS = 1e-2, 100
PLAIN = (
    "adabelief", "adadelta", "adan", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw",
    "amsgrad", "fromage", "lamb", "lars", "lbfgs", "lion", "nadam", "nadamw", "novograd",
    "optimistic_adam_v2", "optimistic_gradient_descent", "polyak_sgd", "radam", "rmsprop",
    "rprop", "sgd", "sign_sgd", "signum", "sm3", "yogi",
)  # fmt: skip
CONTRIBUTED = (
    "acprop", "ademamix", "adopt", "cocob", "dadapt_adamw", "dog", "dowg", "momo", "momo_adam",
    "muon", "prodigy", "schedule_free_adamw", "schedule_free_sgd", "simplified_ademamix",
)  # fmt: skip
# They amplify rounding: after a hundred steps, two correct runs differ.
UNSTABLE = {"acprop", "cocob", "lbfgs", "rmsprop"}
QUICK = {"adamw", "sgd with momentum", "schedule: warmup cosine"}


def optimizers() -> dict[str, Any]:
    table = {name: getattr(optax, name) for name in PLAIN if hasattr(optax, name)}
    contributed = {n: getattr(optax.contrib, n) for n in CONTRIBUTED if hasattr(optax.contrib, n)}
    made = {}
    for name, maker in {**table, **contributed}.items():
        try:
            made[name] = maker(RATE)
        except TypeError:
            made[name] = maker()
    adam = optax.adam(RATE)
    return {
        **made,
        "sgd with momentum": optax.sgd(RATE, 0.9, nesterov=True),
        "noisy_sgd": optax.noisy_sgd(RATE, key=KEY),
        "inject_hyperparams": optax.inject_hyperparams(optax.adam)(learning_rate=RATE),
        "MultiSteps": optax.MultiSteps(adam, 4),
        "clipping": optax.chain(optax.clip(0.1), optax.clip_by_global_norm(0.5), adam),
        "masked": optax.chain(
            optax.add_decayed_weights(1e-2, mask={"a": True, "b": False, "c": True}), adam
        ),
        "multi_transform": optax.multi_transform(
            {"x": adam, "y": optax.sgd(RATE)}, {"a": "x", "b": "y", "c": "x"}
        ),
        "ema": optax.chain(adam, optax.ema(0.9)),
        "apply_if_finite": optax.apply_if_finite(adam, 5),
        "adaptive_grad_clip": optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(RATE)),
        **{f"schedule: {name}": optax.sgd(s) for name, s in schedules().items()},
    }


def schedules() -> dict[str, Any]:
    cycle = {"init_value": 0, "peak_value": RATE, "warmup_steps": 5, "end_value": 1e-4}
    return {
        "cosine": optax.cosine_decay_schedule(RATE, 50),
        "warmup cosine": optax.warmup_cosine_decay_schedule(0, RATE, 10, 80),
        "exponential": optax.exponential_decay(RATE, 10, 0.9),
        "staircase": optax.exponential_decay(RATE, 10, 0.9, transition_begin=5, staircase=True),
        "polynomial": optax.polynomial_schedule(RATE, 1e-4, 2, 60),
        "linear": optax.linear_schedule(RATE, 0, 50),
        "piecewise": optax.piecewise_constant_schedule(RATE, {20: 0.5, 60: 0.1}),
        "interpolated": optax.piecewise_interpolate_schedule("cosine", RATE, {20: 0.5, 60: 0.1}),
        "linear one cycle": optax.linear_onecycle_schedule(100, RATE),
        "cosine one cycle": optax.cosine_onecycle_schedule(100, RATE),
        "restarts": optax.sgdr_schedule(
            [{**cycle, "decay_steps": 30}, {**cycle, "decay_steps": 60}]
        ),
        "joined": optax.join_schedules(
            [optax.constant_schedule(RATE), optax.linear_schedule(RATE, 0, 50)], [30]
        ),
        "warmup exponential": optax.warmup_exponential_decay_schedule(0, RATE, 10, 20, 0.5),
        "warmup": optax.warmup_constant_schedule(0, RATE, 10),
    }


OPTIMIZERS = optimizers()
CASES = [pytest.param(n, marks=[] if n in QUICK else pytest.mark.nightly) for n in OPTIMIZERS]


def predict(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["a"]) @ params["b"] + params["c"]


def squared(y: Any, label: Any) -> Any:
    return jnp.mean((y - label) ** 2)


def problem() -> tuple[Any, Any, Any]:
    params = {
        "a": 0.5 * jax.random.normal(KEY, (6, 8)),
        "b": 0.5 * jax.random.normal(KEY, (8, 4)),
        "c": jnp.zeros(4),
    }
    x, y = jax.random.normal(KEY, (16, 6)), jax.random.normal(jax.random.key(3), (16, 4))
    return params, x, y


@pytest.mark.parametrize("name", CASES)
def test_a_hundred_steps_have_the_losses_of_jax(name: str) -> None:
    tx, (params, x, y) = OPTIMIZERS[name], problem()
    slots = tx.init(params)
    takes_more = any(c.__name__.endswith("ExtraArgs") for c in type(tx).__mro__)

    @jax.jit
    def step(params: Any, slots: Any) -> Any:
        def objective(p: Any) -> Any:
            return squared(predict(p, x), y)

        value, g = jax.value_and_grad(objective)(params)
        more = {"value": value, "grad": g, "value_fn": objective} if takes_more else {}
        updates, slots = tx.update(g, slots, params, **more)
        return optax.apply_updates(params, updates), slots, value

    model = sx.from_jax(predict, params, x, y, loss=squared, optimizer=tx, how="step")
    training = sx.prepare_training(model)
    feeds = {"x": np.asarray(x), "label": np.asarray(y)}
    for _ in range(10 if name in UNSTABLE else STEPS):
        params, slots, value = step(params, slots)
        result = training.step(feeds)
        np.testing.assert_allclose(result["loss"], value, rtol=5e-5, atol=1e-6)


# -- chains whose formula is one of ours ---------------------------------------------------------

CHAINS = {
    "sgd": optax.sgd(RATE),
    "sgd, momentum": optax.sgd(RATE, 0.9, nesterov=True),
    "sgd, decay": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(RATE, 0.9)),
    "adam": optax.adam(RATE),
    "adamw": optax.adamw(RATE, b1=0.8, weight_decay=0.1),
    "adamw, clipped": optax.chain(optax.clip(0.01), optax.adamw(RATE)),
    "lion": optax.lion(1e-3),
    "lamb": optax.lamb(RATE),
    "adamax": optax.adamax(RATE),
    "adadelta": optax.adadelta(1.0),
    "rmsprop": optax.chain(optax.scale_by_rms(0.9, 1e-3, eps_in_sqrt=False), optax.scale(-RATE)),
}
TRACED = {
    "nadam": optax.nadam(RATE),
    "schedule": optax.adam(optax.cosine_decay_schedule(RATE, 50)),
    "norm": optax.chain(optax.clip_by_global_norm(0.5), optax.adam(RATE)),
    "masked": optax.adamw(RATE, mask={"a": True, "b": False, "c": True}),
    "eps_root": optax.adam(RATE, eps_root=1e-8),
    "ascent": optax.adam(-RATE),
}


def continued(tx: Any, count: int = 3) -> tuple[Any, Any, Any]:
    """Parameters and state after some steps in JAX, and the step."""
    params, x, y = problem()
    slots = tx.init(params)

    @jax.jit
    def step(params: Any, slots: Any) -> Any:
        value, g = jax.value_and_grad(lambda p: squared(predict(p, x), y))(params)
        updates, slots = tx.update(g, slots, params)
        return optax.apply_updates(params, updates), slots, value

    for _ in range(count):
        params, slots, _ = step(params, slots)
    return params, slots, step


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_ours_is_continued_by_name(name: str) -> None:
    tx = CHAINS[name]
    params, slots, step = continued(tx)
    _, x, y = problem()
    model = sx.from_jax(predict, params, x, y, loss=squared, optimizer=tx, state=slots)
    assert sx.inspect(model).training[0].optimizer.startswith(name.split(",")[0])
    training = sx.prepare_training(model)
    feeds = {"x": np.asarray(x), "label": np.asarray(y)}
    for _ in range(20):
        params, slots, value = step(params, slots)
        np.testing.assert_allclose(training.step(feeds)["loss"], value, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", TRACED)
def test_any_other_chain_is_traced(name: str) -> None:
    tx = TRACED[name]
    params, slots, step = continued(tx)
    _, x, y = problem()
    model = sx.from_jax(predict, params, x, y, loss=squared, optimizer=tx, state=slots)
    assert sx.inspect(model).training[0].optimizer.startswith("optax")
    training = sx.prepare_training(model)
    feeds = {"x": np.asarray(x), "label": np.asarray(y)}
    for _ in range(5):
        params, slots, value = step(params, slots)
        np.testing.assert_allclose(training.step(feeds)["loss"], value, rtol=2e-5, atol=1e-6)
