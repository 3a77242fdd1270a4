"""The networks of the benchmarks in plain JAX, with the weights of the torch modules, and steps.

Written as somebody would who uses JAX alone: `lax` operators, `jax.value_and_grad`, one `jax.jit`
of forward, backward and update with its state donated. Batch normalization takes the batch's own
statistics and keeps no running ones, which spares JAX a little work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from networks import Network

lax = jax.lax
Weights = dict[str, Any]


def linear(p: Weights, name: str, x: Any) -> Any:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def conv(p: Weights, name: str, x: Any, stride: int = 1, pad: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x,
        p[f"{name}.weight"],
        (stride, stride),
        [(pad, pad)] * 2,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        feature_group_count=groups,
    )


def batch_norm(p: Weights, name: str, x: Any) -> Any:
    mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    scale, bias = (p[f"{name}.{n}"][:, None, None] for n in ("weight", "bias"))
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale + bias


def layer_norm(p: Weights, name: str, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    spread = lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return centred * spread * p[f"{name}.weight"] + p[f"{name}.bias"]


def max_pool(x: Any, size: int, stride: int, pad: int = 0) -> Any:
    edges = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 1, size, size), (1, 1, stride, stride), edges
    )


def mlp(p: Weights, x: Any) -> Any:
    return linear(p, "4", jax.nn.relu(linear(p, "2", jax.nn.relu(linear(p, "0", x)))))


def cnn(p: Weights, x: Any) -> Any:
    for i in range(3):
        x = jax.nn.relu(batch_norm(p, f"bn.{i}", conv(p, f"conv.{i}", x)))
        if i < 2:
            x = max_pool(x, 2, 2)
    return linear(p, "head", x.mean((2, 3)))


def resnet18(p: Weights, x: Any) -> Any:
    x = max_pool(jax.nn.relu(batch_norm(p, "bn", conv(p, "stem", x, 2, 3))), 3, 2, 1)
    for i in range(8):
        at, stride = f"blocks.{i}", 2 if i in (2, 4, 6) else 1
        y = jax.nn.relu(batch_norm(p, f"{at}.bn1", conv(p, f"{at}.conv1", x, stride)))
        y = batch_norm(p, f"{at}.bn2", conv(p, f"{at}.conv2", y))
        if stride > 1:
            x = batch_norm(p, f"{at}.short.1", conv(p, f"{at}.short.0", x, stride, 0))
        x = jax.nn.relu(y + x)
    return linear(p, "head", x.mean((2, 3)))


def layer(p: Weights, at: str, x: Any, heads: int, causal: bool) -> Any:
    b, t, c = x.shape
    split = linear(p, f"{at}.qkv", layer_norm(p, f"{at}.norm1", x))
    q, k, v = split.reshape(b, t, 3, heads, c // heads).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(c // heads)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
    y = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, t, c)
    x = x + linear(p, f"{at}.out", y)
    up = jax.nn.gelu(linear(p, f"{at}.up", layer_norm(p, f"{at}.norm2", x)), approximate=False)
    return x + linear(p, f"{at}.down", up)


def transformer(p: Weights, x: Any) -> Any:
    x = p["token.weight"][x] + p["place"]
    for i in range(2):
        x = layer(p, f"layers.{i}", x, 4, causal=False)
    return linear(p, "head", layer_norm(p, "norm", x).mean(1))


def gpt(p: Weights, x: Any) -> Any:
    x = p["token.weight"][x] + p["place"]
    for i in range(6):
        x = layer(p, f"layers.{i}", x, 6, causal=True)
    y = linear(p, "head", layer_norm(p, "norm", x))
    return y.reshape(-1, y.shape[-1])


def lstm(p: Weights, x: Any) -> Any:
    bias = p["lstm.bias_ih_l0"] + p["lstm.bias_hh_l0"]
    inputs = (x @ p["lstm.weight_ih_l0"].T + bias).swapaxes(0, 1)
    recurrent = p["lstm.weight_hh_l0"].T
    start = jnp.zeros((x.shape[0], recurrent.shape[0]))

    def step(state: tuple[Any, Any], given: Any) -> tuple[tuple[Any, Any], None]:
        h, c = state
        i, f, g, o = jnp.split(given + h @ recurrent, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    (h, _), _ = lax.scan(step, (start, start), inputs)
    return linear(p, "head", h)


def separable(p: Weights, x: Any) -> Any:
    x = jax.nn.relu(batch_norm(p, "bn", conv(p, "stem", x, 2)))
    for i, stride in enumerate((1, 2, 1, 2)):
        at = 6 * i
        x = conv(p, f"body.{at}", x, stride, 1, x.shape[1])
        x = jax.nn.relu(batch_norm(p, f"body.{at + 1}", x))
        x = jax.nn.relu(batch_norm(p, f"body.{at + 4}", conv(p, f"body.{at + 3}", x, pad=0)))
    return linear(p, "head", x.mean((2, 3)))


FORWARD: dict[str, Callable[[Weights, Any], Any]] = {
    f.__name__: f for f in (mlp, cnn, resnet18, transformer, gpt, lstm, separable)
}


def adamw(p: Weights, g: Weights, slots: Weights) -> tuple[Weights, Weights]:
    t = slots["t"] + 1
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, slots["m"], g)
    v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, slots["v"], g)
    first, second = 1 - 0.9**t, 1 - 0.999**t

    def updated(w: Any, a: Any, b: Any) -> Any:
        return w * (1 - 1e-5) - 1e-3 * (a / first) / (jnp.sqrt(b / second) + 1e-8)

    return jax.tree.map(updated, p, m, v), {"t": t, "m": m, "v": v}


def sgd(p: Weights, g: Weights, slots: Weights) -> tuple[Weights, Weights]:
    m = jax.tree.map(lambda a, b: 0.9 * a + b, slots["m"], g)
    return jax.tree.map(lambda w, a: w - 1e-2 * a, p, m), {**slots, "m": m}


def step(network: Network, optimizer: str) -> Callable[[], float]:
    """One step of training, compiled; what it returns is the loss before the update."""
    forward, update = FORWARD[network.name], {"adamw": adamw, "sgd": sgd}[optimizer]
    weights = {n: jnp.asarray(t.detach().numpy()) for n, t in network.module().named_parameters()}
    slots = {"t": jnp.zeros(()), "m": jax.tree.map(jnp.zeros_like, weights)}
    if optimizer == "adamw":
        slots["v"] = jax.tree.map(jnp.zeros_like, weights)
    x, y = network.batch()

    def loss(p: Weights, x: Any, y: Any) -> Any:
        scores = jax.nn.log_softmax(forward(p, x))
        return -jnp.take_along_axis(scores, y[:, None], 1).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def compiled(p: Weights, s: Weights, x: Any, y: Any) -> tuple[Any, Weights, Weights]:
        value, g = jax.value_and_grad(loss)(p, x, y)
        return value, *update(p, g, s)

    state = [weights, slots]

    def run() -> float:
        value, state[0], state[1] = compiled(*state, x, y)
        return float(np.asarray(value))

    return run
