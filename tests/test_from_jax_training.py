"""Training steps of JAX as records: ten steps in onnxruntime against `jax.jit`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, ImportRefused

jax = pytest.importorskip("jax")
nn = pytest.importorskip("flax.linen")
optax = pytest.importorskip("optax")
jnp = jax.numpy
KEY = jax.random.key(0)


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Dropout(0.3, deterministic=not train)(nn.relu(nn.Dense(16)(x)))
        return nn.Dense(4)(x)


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Conv(8, (3, 3), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.avg_pool(nn.Conv(8, (3, 3), strides=2)(x), (2, 2))
        return nn.Dense(4)(x.reshape(x.shape[0], -1))


def cross_entropy(logits: Any, label: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()


def step_of(module: Any, x: Any, tx: Any) -> tuple[Any, Any]:
    variables = module.init(KEY, x)
    params, stats = variables["params"], variables.get("batch_stats", {})
    state = {"params": params, "stats": stats, "tx": tx.init(params), "key": jax.random.key(1)}

    def step(state: Any, batch: Any) -> Any:
        key, dropout = jax.random.split(state["key"])

        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": state["stats"]}
            logits, new = module.apply(
                variables,
                batch["x"],
                train=True,
                mutable=["batch_stats"],
                rngs={"dropout": dropout},
            )
            return cross_entropy(logits, batch["y"]), (logits, new.get("batch_stats", {}))

        (value, (logits, stats)), g = jax.value_and_grad(loss, has_aux=True)(state["params"])
        updates, tx_state = tx.update(g, state["tx"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        accuracy = jnp.mean(logits.argmax(-1) == batch["y"])
        new = {"params": params, "stats": stats, "tx": tx_state, "key": key}
        return new, {"loss": value, "accuracy": accuracy}

    return step, state


@pytest.mark.parametrize(
    ("module", "shape"), [(MLP(), (8, 6)), (CNN(), (4, 12, 12, 3))], ids=["dropout", "batch norm"]
)
def test_a_whole_step_is_that_of_jax(module: Any, shape: Any) -> None:
    x = jax.random.normal(KEY, shape)
    batch = {"x": x, "y": jnp.arange(len(x)) % 4}
    step, state = step_of(module, x, optax.adamw(1e-2))
    model = sx.from_jax_step(step, state, batch)
    training, compiled = sx.prepare_training(model), jax.jit(step)
    feeds = {name: np.asarray(value) for name, value in batch.items()}
    for _ in range(10):
        state, metrics = compiled(state, batch)
        result = training.step(feeds)
        np.testing.assert_allclose(result["loss"], metrics["loss"], rtol=2e-5)
        assert result["accuracy"] == metrics["accuracy"]
    key = training.state()["key"]
    np.testing.assert_array_equal(key, jax.random.key_data(state["key"]))
    kernel = training.state()["params.Dense_0.kernel"]
    np.testing.assert_allclose(kernel, state["params"]["Dense_0"]["kernel"], rtol=1e-4, atol=1e-5)


def predict(params: Any, x: Any) -> Any:
    return MLP().apply({"params": params}, x)


@pytest.mark.parametrize("how", ["record", "step"])
def test_a_loss_and_an_optimizer_become_a_record(how: str, tmp_path: Any) -> None:
    x, y = jax.random.normal(KEY, (8, 6)), jnp.arange(8) % 4
    params = MLP().init(KEY, x)["params"]
    schedule = optax.cosine_decay_schedule(1e-2, 100)
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule))
    slots = tx.init(params)

    @jax.jit
    def step(params: Any, slots: Any) -> Any:
        value, g = jax.value_and_grad(lambda p: cross_entropy(predict(p, x), y))(params)
        updates, slots = tx.update(g, slots, params)
        return optax.apply_updates(params, updates), slots, value

    for _ in range(3):  # a run that is under way
        params, slots, _ = step(params, slots)
    model = sx.from_jax(
        predict, params, x, y, loss=cross_entropy, optimizer=tx, state=slots, how=how
    )
    sx.save(model, tmp_path / "model.onnx")
    training = sx.prepare_training(sx.load(tmp_path / "model.onnx"))
    for _ in range(10):
        params, slots, value = step(params, slots)
        result = training.step({"x": np.asarray(x), "label": np.asarray(y)})
        np.testing.assert_allclose(result["loss"], value, rtol=1e-5)
    kernel = training.state()["Dense_0.kernel"]
    np.testing.assert_allclose(kernel, params["Dense_0"]["kernel"], rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_stopped_stays_stopped() -> None:
    def function(params: Any, x: Any) -> Any:
        return x @ params["w"] + jax.lax.stop_gradient(x @ params["w"]) ** 2

    params = {"w": jnp.array([[0.5], [-1.0]])}
    x, y = jnp.array([[1.0, 2.0], [3.0, -1.0]]), jnp.ones((2, 1))

    def loss(z: Any, label: Any) -> Any:
        return jnp.mean((z - label) ** 2)

    model = sx.from_jax(function, params, x, y, loss=loss, optimizer=optax.sgd(0.1))
    training = sx.prepare_training(model)
    training.step({"x": np.asarray(x), "label": np.asarray(y)})
    g = jax.grad(lambda p: loss(function(p, x), y))(params)
    np.testing.assert_allclose(training.state()["w"], params["w"] - 0.1 * g["w"], rtol=1e-6)


def test_a_gradient_of_its_own_needs_a_step() -> None:
    @jax.custom_vjp
    def rounded(x: Any) -> Any:
        return jnp.round(x)

    rounded.defvjp(lambda x: (rounded(x), None), lambda _, g: (g,))
    arguments = (lambda p, x: rounded(x @ p["w"]), {"w": jnp.ones((2, 1))}, jnp.ones((3, 2)))
    options = {"loss": lambda z: jnp.mean(z**2), "optimizer": optax.sgd(0.1)}
    with pytest.raises(ImportRefused, match='how="step"'):
        sx.from_jax(*arguments, **options)
    assert sx.from_jax(*arguments, **options, how="step").records


def test_a_tangent_of_its_own_needs_a_step() -> None:
    @jax.custom_jvp
    def limited(x: Any) -> Any:
        return x * x

    limited.defjvp(lambda x, dx: (limited(*x), jnp.clip(2 * x[0], -9, 9) * dx[0]))
    arguments = (lambda p, x: limited(x @ p["w"]), {"w": jnp.ones((2, 1))}, jnp.ones((3, 2)))
    options = {"loss": lambda z: jnp.mean(z**2), "optimizer": optax.sgd(0.1)}
    with pytest.raises(ImportRefused, match='how="step"') as refusal:  # not beyond 4.5: the example
        sx.from_jax(*arguments, **options)
    assert "limited(x @" in str(refusal.value) or __file__ in str(refusal.value)
    assert sx.from_jax(*arguments, **options, how="step").records


def bad_steps() -> dict[str, Any]:
    return {
        "a pair": lambda s, b: s,
        "another structure": lambda s, b: ({"v": s["w"]}, {"loss": b.sum()}),
        "types or shapes": lambda s, b: ({"w": s["w"].astype(jnp.float16)}, {"loss": b.sum()}),
        "no metrics": lambda s, b: ({"w": s["w"] - b}, {}),
        "changes nothing": lambda s, b: (s, {"loss": b.sum()}),
    }


@pytest.mark.parametrize("words", bad_steps())
def test_what_is_no_step_is_refused(words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        sx.from_jax_step(bad_steps()[words], {"w": jnp.ones(3)}, jnp.ones(3))


def test_a_loss_must_be_one_number_and_read_its_labels() -> None:
    arguments = (
        predict,
        MLP().init(KEY, jnp.ones((2, 6)))["params"],
        jnp.ones((2, 6)),
        jnp.ones(2),
    )
    with pytest.raises(ArgumentError, match="not one number"):
        sx.from_jax(*arguments, loss=lambda z, y: z, optimizer=optax.sgd(0.1))
    with pytest.raises(ArgumentError, match="ignores its labels"):
        sx.from_jax(*arguments, loss=lambda z, y: jnp.mean(z), optimizer=optax.sgd(0.1))
    with pytest.raises(ArgumentError, match="no optimizer of optax"):
        sx.from_jax(*arguments, loss=lambda z, y: jnp.mean(z.T - y), optimizer="adam")


def test_a_step_that_is_not_pure_is_refused() -> None:
    count = [0]

    def step(state: Any, batch: Any) -> Any:
        count[0] += 1
        return {"w": state["w"] - 0.1 * count[0] * batch.mean()}, {"loss": batch.mean()}

    with pytest.raises(ArgumentError, match="not pure"):
        sx.from_jax_step(step, {"w": jnp.zeros(3)}, jnp.ones(4))


def test_a_step_through_branches_is_that_of_jax() -> None:
    """The gradient of a branch has an empty place for what only the other branch keeps."""

    def predict_by_branch(params: Any, x: Any) -> Any:
        branches = [lambda z: z, lambda z: z @ params["w"], lambda z: jnp.tanh(z @ params["w"])]
        return jax.lax.switch((x.sum() > 0).astype(jnp.int32) + 1, branches, x)

    x = jax.random.normal(KEY, (3, 5))
    params = {"w": 0.4 * jax.random.normal(jax.random.key(1), (5, 5))}
    options: dict[str, Any] = {"loss": lambda z, y: jnp.mean((z - y) ** 2), "how": "step"}
    model = sx.from_jax(
        predict_by_branch, params, x, jnp.ones((3, 5)), optimizer=optax.sgd(0.1), **options
    )

    def objective(w: Any) -> Any:
        return jnp.mean((predict_by_branch({"w": w}, x) - 1.0) ** 2)

    training = sx.prepare_training(model)
    training.step({"x": np.asarray(x), "y": np.ones((3, 5), np.float32)})
    expected = params["w"] - 0.1 * jax.grad(objective)(params["w"])
    np.testing.assert_allclose(training.state()["w"], expected, atol=1e-6)
