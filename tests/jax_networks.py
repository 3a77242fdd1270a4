"""Small networks in Flax (linen and NNX) and Equinox, each with a whole training step.

`NETWORKS` maps a name to a function that returns `(step, state, batch)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

KEY = jax.random.key(0)
Network = tuple[Callable[[Any, Any], Any], Any, Any]
NETWORKS: dict[str, Callable[[], Network]] = {}


def network(function: Callable[[], Network]) -> Callable[[], Network]:
    NETWORKS[function.__name__.replace("_", " ")] = function
    return function


def normal(seed: int, *shape: int) -> Any:
    return jax.random.normal(jax.random.key(seed), shape)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def linen(module: nn.Module, batch: Any, loss: Callable[..., Any], tx: Any) -> Network:
    """A step of a linen module; `loss(apply, batch)` gets its forward pass in training mode."""
    variables = module.init({"params": KEY, "dropout": KEY, "noise": KEY}, batch["x"])
    params = variables["params"]
    state = {
        "params": params,
        "stats": variables.get("batch_stats", {}),
        "tx": tx.init(params),
        "key": jax.random.key(7),
    }

    def step(state: Any, batch: Any) -> Any:
        key, dropout, noise = jax.random.split(state["key"], 3)

        def objective(params: Any) -> Any:
            def apply(*arguments: Any) -> Any:
                return module.apply(
                    {"params": params, "batch_stats": state["stats"]},
                    *arguments,
                    train=True,
                    mutable=["batch_stats"],
                    rngs={"dropout": dropout, "noise": noise},
                )

            return loss(apply, batch)

        (value, stats), g = jax.value_and_grad(objective, has_aux=True)(state["params"])
        updates, slots = tx.update(g, state["tx"], state["params"])
        new = optax.apply_updates(state["params"], updates)
        return {"params": new, "stats": stats, "tx": slots, "key": key}, {"loss": value}

    return step, state, batch


def classified(apply: Any, batch: Any) -> Any:
    logits, new = apply(batch["x"])
    return cross_entropy(logits, batch["y"]), new.get("batch_stats", {})


class Block(nn.Module):
    heads: int = 2

    @nn.compact
    def __call__(self, x: Any, mask: Any = None, train: bool = False) -> Any:
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(self.heads, dropout_rate=0.1, deterministic=not train)(
            y, y, mask=mask
        )
        x = x + nn.Dropout(0.1, deterministic=not train)(y)
        y = nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(2 * x.shape[-1])(nn.LayerNorm()(x))))
        return x + y


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any, train: bool = False) -> Any:
        x = nn.Embed(11, 16)(tokens)
        x = x + self.param("position", nn.initializers.normal(0.02), (tokens.shape[1], 16))
        mask = nn.make_causal_mask(tokens)
        for _ in range(2):
            x = Block()(x, mask, train)
        return nn.Dense(11)(nn.LayerNorm()(x))


@network
def transformer_in_linen() -> Network:
    tokens = jax.random.randint(KEY, (3, 7), 0, 11)
    batch = {"x": tokens, "y": jnp.roll(tokens, -1, 1)}
    return linen(Transformer(), batch, classified, optax.adamw(1e-2))


class ViT(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Conv(16, (4, 4), strides=(4, 4))(x)
        x = x.reshape(x.shape[0], -1, 16)
        token = self.param("token", nn.initializers.zeros, (1, 1, 16))
        x = jnp.concatenate([jnp.tile(token, (x.shape[0], 1, 1)), x], axis=1)
        x = Block()(x, None, train)
        return nn.Dense(5)(x[:, 0])


@network
def vit_in_linen() -> Network:
    batch = {"x": normal(1, 4, 12, 12, 3), "y": jnp.arange(4) % 5}
    return linen(ViT(), batch, classified, optax.lion(1e-3))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Bidirectional(nn.RNN(nn.OptimizedLSTMCell(6)), nn.RNN(nn.GRUCell(6)))(x)
        x = nn.RNN(nn.GRUCell(5), reverse=True, keep_order=True)(x)
        return nn.Dense(3)(x[:, -1])


@network
def lstm_and_gru_in_linen() -> Network:
    batch = {"x": normal(2, 4, 6, 5), "y": jnp.arange(4) % 3}
    return linen(Recurrent(), batch, classified, optax.rmsprop(1e-2, momentum=0.9))


class UNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        a = nn.relu(nn.GroupNorm(2)(nn.Conv(4, (3, 3))(x)))
        b = nn.max_pool(a, (2, 2), (2, 2))
        b = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (3, 3))(b)))
        up = nn.ConvTranspose(4, (2, 2), strides=(2, 2))(b)
        size = (up.shape[0], *a.shape[1:3], up.shape[3])
        resized = jax.image.resize(nn.Conv(4, (1, 1))(b), size, "bilinear")
        return nn.Conv(2, (1, 1))(jnp.concatenate([a, up, resized], axis=-1))


@network
def unet_in_linen() -> Network:
    labels = (normal(4, 2, 8, 8) > 0).astype(jnp.int32)
    return linen(UNet(), {"x": normal(3, 2, 8, 8, 3), "y": labels}, classified, optax.adam(1e-3))


class VAE(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        h = nn.relu(nn.Dense(12)(x))
        mean, log_variance = nn.Dense(3)(h), nn.Dense(3)(h)
        noise = jax.random.normal(self.make_rng("noise"), mean.shape)
        z = mean + jnp.exp(0.5 * log_variance) * noise
        return nn.Dense(x.shape[-1])(nn.tanh(nn.Dense(12)(z))), mean, log_variance


@network
def vae_in_linen() -> Network:
    def loss(apply: Any, batch: Any) -> Any:
        (logits, mean, log_variance), _ = apply(batch["x"])
        fit = optax.sigmoid_binary_cross_entropy(logits, batch["x"]).sum(-1)
        kl = -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), -1)
        return jnp.mean(fit + kl), {}

    x = (normal(5, 6, 10) > 0).astype(jnp.float32)
    return linen(VAE(), {"x": x}, loss, optax.adam(1e-2))


class Denoiser(nn.Module):
    @nn.compact
    def __call__(self, x: Any, time: Any = None, train: bool = False) -> Any:
        time = jnp.zeros(x.shape[0], jnp.int32) if time is None else time
        angles = time[:, None] * jnp.exp(-jnp.arange(4.0))
        signal = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        h = nn.swish(nn.Conv(8, (3, 3))(x) + nn.Dense(8)(signal)[:, None, None])
        return nn.Conv(x.shape[-1], (3, 3))(h)


@network
def diffusion_in_linen() -> Network:
    def loss(apply: Any, batch: Any) -> Any:
        x, (a, b) = batch["x"], jax.random.split(jax.random.wrap_key_data(batch["words"]))
        time = jax.random.randint(a, (x.shape[0],), 0, 10)
        noise = jax.random.normal(b, x.shape)
        share = jnp.cos(0.5 * jnp.pi * time / 10)[:, None, None, None]
        predicted, _ = apply(share * x + jnp.sqrt(1 - share**2) * noise, time)
        return jnp.mean((predicted - noise) ** 2), {}

    batch = {"x": normal(6, 3, 6, 6, 2), "words": jax.random.key_data(jax.random.key(5))}
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    return linen(Denoiser(), batch, loss, tx)


# -- NNX ----------------------------------------------------------------------------------


class NnxCNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = nnx.relu(self.norm(self.conv(x)))
        return self.head(self.drop(nnx.avg_pool(x, (2, 2), (2, 2)).mean((1, 2))))


@network
def cnn_in_nnx() -> Network:
    tx = optax.sgd(0.1, momentum=0.9, nesterov=True)
    definition, params, rest = nnx.split(NnxCNN(nnx.Rngs(0)), nnx.Param, ...)
    state = {"params": params, "rest": rest, "tx": tx.init(params)}

    def step(state: Any, batch: Any) -> Any:
        def objective(params: Any) -> Any:
            rest = jax.tree.map(jnp.asarray, state["rest"])  # variables of this trace
            module = nnx.merge(definition, params, rest)
            value = cross_entropy(module(batch["x"]), batch["y"])
            return value, nnx.split(module, nnx.Param, ...)[2]

        (value, rest), g = jax.value_and_grad(objective, has_aux=True)(state["params"])
        updates, slots = tx.update(g, state["tx"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "rest": rest, "tx": slots}, {"loss": value}

    return step, state, {"x": normal(8, 4, 6, 6, 3), "y": jnp.arange(4)}


# -- Equinox ------------------------------------------------------------------------------


def equinox(module: Any, batch: Any, loss: Callable[..., Any], tx: Any) -> Network:
    params, static = eqx.partition(module, eqx.is_array)
    state = {"params": params, "tx": tx.init(params)}

    def step(state: Any, batch: Any) -> Any:
        def objective(params: Any) -> Any:
            return loss(eqx.combine(params, static), batch)

        value, g = jax.value_and_grad(objective)(state["params"])
        updates, slots = tx.update(g, state["tx"], state["params"])
        return {"params": eqx.apply_updates(state["params"], updates), "tx": slots}, value

    return step, state, batch


@network
def mlp_in_equinox() -> Network:
    module = eqx.nn.MLP(5, 3, 16, 2, key=KEY)

    def loss(module: Any, batch: Any) -> Any:
        return cross_entropy(jax.vmap(module)(batch["x"]), batch["y"])

    batch = {"x": normal(9, 8, 5), "y": jnp.arange(8) % 3}
    return equinox(module, batch, loss, optax.adamw(1e-2))


@network
def attention_in_equinox() -> Network:
    module = {
        "attention": eqx.nn.MultiheadAttention(2, 8, key=KEY),
        "norm": eqx.nn.LayerNorm(8),
        "head": eqx.nn.Linear(8, 3, key=KEY),
    }

    def one(module: Any, x: Any) -> Any:
        y = jax.vmap(module["norm"])(x)
        x = x + module["attention"](y, y, y)
        return module["head"](x.mean(0))

    def loss(module: Any, batch: Any) -> Any:
        return cross_entropy(jax.vmap(lambda x: one(module, x))(batch["x"]), batch["y"])

    batch = {"x": normal(10, 4, 5, 8), "y": jnp.arange(4) % 3}
    return equinox(module, batch, loss, optax.adam(1e-2))


@network
def lstm_in_equinox() -> Network:
    module = {"cell": eqx.nn.LSTMCell(4, 6, key=KEY), "head": eqx.nn.Linear(6, 2, key=KEY)}

    def one(module: Any, x: Any) -> Any:
        start = (jnp.zeros(6), jnp.zeros(6))
        (h, _), _ = jax.lax.scan(lambda s, v: (module["cell"](v, s), None), start, x)
        return module["head"](h)

    def loss(module: Any, batch: Any) -> Any:
        return cross_entropy(jax.vmap(lambda x: one(module, x))(batch["x"]), batch["y"])

    batch = {"x": normal(11, 4, 7, 4), "y": jnp.arange(4) % 2}
    return equinox(module, batch, loss, optax.adam(1e-2))


@network
def cnn_in_equinox() -> Network:
    keys = jax.random.split(KEY, 3)
    module = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 4, 3, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.ConvTranspose2d(4, 3, 2, stride=2, key=keys[1]),
            eqx.nn.AvgPool2d(2, 2),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(3 * 3 * 3, 4, key=keys[2]),
        ]
    )

    def loss(module: Any, batch: Any) -> Any:
        return cross_entropy(jax.vmap(module)(batch["x"]), batch["y"])

    batch = {"x": normal(12, 4, 1, 6, 6), "y": jnp.arange(4)}
    return equinox(module, batch, loss, optax.adagrad(1e-2))


def adversaries(
    params: Any, fakes: Callable[[Any, Any], Any], judge: Callable[[Any, Any], Any], x: Any
) -> Network:
    """A step of a generator and a critic, which are the parts of `params`, on noise of its own."""
    tx = optax.adam(1e-3, b1=0.5)
    state = {
        "params": params,
        "tx": {name: tx.init(part) for name, part in params.items()},
        "key": jax.random.key(3),
    }

    def step(state: Any, batch: Any) -> Any:
        key, sub = jax.random.split(state["key"])
        noise = jax.random.normal(sub, (batch["x"].shape[0], 3))
        now = state["params"]

        def critic_loss(part: Any) -> Any:
            fake = judge(part, fakes(now["generator"], noise))
            return jnp.mean(jax.nn.softplus(fake) + jax.nn.softplus(-judge(part, batch["x"])))

        def generator_loss(part: Any) -> Any:
            return jnp.mean(jax.nn.softplus(-judge(now["critic"], fakes(part, noise))))

        params, slots, values = {}, {}, {}
        for name, loss in (("critic", critic_loss), ("generator", generator_loss)):
            values[name], g = jax.value_and_grad(loss)(now[name])
            updates, slots[name] = tx.update(g, state["tx"][name])
            params[name] = optax.apply_updates(now[name], updates)
        return {"params": params, "tx": slots, "key": key}, values

    return step, state, {"x": x}


@network
def gan_in_equinox() -> Network:
    """Two networks and two optimizers in one step; the noise is drawn in the step."""
    pair = {
        "generator": eqx.nn.MLP(3, 5, 12, 1, key=KEY),
        "critic": eqx.nn.MLP(5, 1, 12, 1, activation=jax.nn.leaky_relu, key=jax.random.key(1)),
    }
    params, static = eqx.partition(pair, eqx.is_array)

    def part(name: str) -> Callable[[Any, Any], Any]:
        return lambda weights, x: jax.vmap(eqx.combine(weights, static[name]))(x)

    return adversaries(params, part("generator"), part("critic"), normal(13, 6, 5))


@network
def gan_in_linen() -> Network:
    generator = nn.Sequential([nn.Dense(12), nn.relu, nn.Dense(5)])
    critic = nn.Sequential([nn.Dense(12), nn.leaky_relu, nn.Dense(1)])
    params = {
        "generator": generator.init(KEY, jnp.ones((1, 3)))["params"],
        "critic": critic.init(KEY, jnp.ones((1, 5)))["params"],
    }

    def part(module: Any) -> Callable[[Any, Any], Any]:
        return lambda weights, x: module.apply({"params": weights}, x)

    return adversaries(params, part(generator), part(critic), normal(13, 6, 5))


class Layers(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.Dense(16)(x)))
        return nn.Dense(3)(nn.LayerNorm()(x))


@network
def mlp_in_linen() -> Network:
    batch = {"x": normal(14, 8, 5), "y": jnp.arange(8) % 3}
    return linen(Layers(), batch, classified, optax.adamw(1e-2))


@network
def vit_in_equinox() -> Network:
    keys = jax.random.split(KEY, 5)
    module = {
        "patches": eqx.nn.Conv2d(3, 8, 4, 4, key=keys[0]),
        "place": normal(15, 9, 8) * 0.02,
        "attention": eqx.nn.MultiheadAttention(2, 8, key=keys[1]),
        "norms": [eqx.nn.LayerNorm(8), eqx.nn.LayerNorm(8)],
        "mlp": eqx.nn.MLP(8, 8, 16, 1, activation=jax.nn.gelu, key=keys[2]),
        "head": eqx.nn.Linear(8, 5, key=keys[3]),
    }

    def one(module: Any, image: Any) -> Any:
        x = module["patches"](image).reshape(8, -1).T + module["place"]
        y = jax.vmap(module["norms"][0])(x)
        x = x + module["attention"](y, y, y)
        x = x + jax.vmap(module["mlp"])(jax.vmap(module["norms"][1])(x))
        return module["head"](x.mean(0))

    def loss(module: Any, batch: Any) -> Any:
        return cross_entropy(jax.vmap(lambda x: one(module, x))(batch["x"]), batch["y"])

    batch = {"x": normal(16, 4, 3, 12, 12), "y": jnp.arange(4) % 5}
    return equinox(module, batch, loss, optax.adamw(1e-3))


@network
def unet_in_equinox() -> Network:
    keys = jax.random.split(KEY, 4)
    module = {
        "down": eqx.nn.Conv2d(3, 4, 3, padding=1, key=keys[0]),
        "deep": eqx.nn.Conv2d(4, 6, 3, stride=2, padding=1, key=keys[1]),
        "norm": eqx.nn.GroupNorm(2, 6),
        "up": eqx.nn.ConvTranspose2d(6, 4, 4, stride=2, padding=1, key=keys[2]),
        "head": eqx.nn.Conv2d(8, 3, 1, key=keys[3]),
    }

    def one(module: Any, x: Any) -> Any:
        a = jax.nn.relu(module["down"](x))
        b = jax.nn.silu(module["norm"](module["deep"](a)))
        return module["head"](jnp.concatenate([a, module["up"](b)]))

    def loss(module: Any, batch: Any) -> Any:
        logits = jax.vmap(lambda x: one(module, x))(batch["x"])
        return cross_entropy(jnp.moveaxis(logits, 1, -1), batch["y"])

    labels = jnp.arange(2 * 8 * 8).reshape(2, 8, 8) % 3
    return equinox(module, {"x": normal(17, 2, 3, 8, 8), "y": labels}, loss, optax.adam(1e-3))


@network
def vae_in_equinox() -> Network:
    module = {
        "encoder": eqx.nn.MLP(6, 8, 12, 1, key=KEY),
        "decoder": eqx.nn.MLP(4, 6, 12, 1, key=jax.random.key(1)),
    }

    def loss(module: Any, batch: Any) -> Any:
        mean, spread = jnp.split(jax.vmap(module["encoder"])(batch["x"]), 2, -1)
        noise = jax.random.normal(jax.random.wrap_key_data(batch["words"]), mean.shape)
        logits = jax.vmap(module["decoder"])(mean + jnp.exp(0.5 * spread) * noise)
        fit = optax.sigmoid_binary_cross_entropy(logits, batch["x"]).sum(-1)
        apart = -0.5 * (1 + spread - mean**2 - jnp.exp(spread)).sum(-1)
        return (fit + apart).mean()

    x = jax.random.bernoulli(jax.random.key(18), 0.4, (6, 6)).astype(jnp.float32)
    batch = {"x": x, "words": jax.random.key_data(jax.random.key(6))}
    return equinox(module, batch, loss, optax.adam(1e-2))


@network
def diffusion_in_equinox() -> Network:
    keys = jax.random.split(KEY, 3)
    module = {
        "first": eqx.nn.Conv2d(2, 8, 3, padding=1, key=keys[0]),
        "time": eqx.nn.Linear(8, 8, key=keys[1]),
        "last": eqx.nn.Conv2d(8, 2, 3, padding=1, key=keys[2]),
    }

    def one(module: Any, x: Any, time: Any) -> Any:
        angles = time * jnp.exp(-jnp.arange(4.0))
        signal = module["time"](jnp.concatenate([jnp.sin(angles), jnp.cos(angles)]))
        return module["last"](jax.nn.silu(module["first"](x) + signal[:, None, None]))

    def loss(module: Any, batch: Any) -> Any:
        x, (a, b) = batch["x"], jax.random.split(jax.random.wrap_key_data(batch["words"]))
        time = jax.random.randint(a, (x.shape[0],), 0, 10)
        noise = jax.random.normal(b, x.shape)
        share = jnp.cos(0.5 * jnp.pi * time / 10)[:, None, None, None]
        mixed = share * x + jnp.sqrt(1 - share**2) * noise
        predicted = jax.vmap(lambda x, t: one(module, x, t))(mixed, time)
        return jnp.mean((predicted - noise) ** 2)

    batch = {"x": normal(19, 3, 2, 6, 6), "words": jax.random.key_data(jax.random.key(5))}
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    return equinox(module, batch, loss, tx)
