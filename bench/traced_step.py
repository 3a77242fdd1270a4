"""Training steps of JAX traced whole, against the same trainings as records of ours.

    python bench/traced_step.py [--networks cnn,mlp] [--steps 30]

Networks in Flax with Adam: `how="record"` differentiates the traced loss by the rules of this
package, `how="step"` writes JAX's own gradient. Both run in onnxruntime with one thread, in one
process and by turns; the time is that of the processor. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import sardonyx as sx


class CNN(nn.Module):
    """Two convolutions with pooling, and two layers."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in (16, 32):
            x = nn.relu(nn.Conv(width, (3, 3))(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


class Residual(nn.Module):
    """Three residual blocks with batch normalization, two of them with strides."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def layer(x: Any, width: int, size: int, stride: int = 1) -> Any:
            x = nn.Conv(width, (size, size), (stride, stride), use_bias=False)(x)
            return nn.GroupNorm(8)(x) if size == 1 else _batch_norm(x)

        x = nn.relu(layer(x, 32, 3))
        for width, stride in ((32, 1), (64, 2), (128, 2)):
            y = layer(nn.relu(layer(x, width, 3, stride)), width, 3)
            x = nn.relu(y + (layer(x, width, 1, stride) if stride > 1 else x))
        return nn.Dense(10)(x.mean((1, 2)))


def _batch_norm(x: Any) -> Any:
    axes = (0, 1, 2)
    return (x - x.mean(axes)) * jax.lax.rsqrt(x.var(axes) + 1e-5)


class Pooled(nn.Module):
    """A wide kernel, windows of pooling that overlap, and averages."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Conv(32, (7, 7), (2, 2))(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        x = nn.avg_pool(nn.relu(nn.Conv(64, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Separable(nn.Module):
    """Depthwise convolutions, each followed by one of single pixels."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.Conv(32, (3, 3), (2, 2))(x))
        for width, stride in ((64, 1), (128, 2)):
            channels = x.shape[-1]
            x = nn.Conv(channels, (3, 3), (stride, stride), feature_group_count=channels)(x)
            x = nn.relu(nn.Conv(width, (1, 1))(nn.relu(x)))
        return nn.Dense(10)(x.mean((1, 2)))


class MLP(nn.Module):
    """Three layers."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in (512, 512):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


class Transformer(nn.Module):
    """Two layers of an encoder over embedded words."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Embed(1000, 128)(x)
        for _ in range(2):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(4)(y, y)
            x = x + nn.Dense(128)(nn.gelu(nn.Dense(512)(nn.LayerNorm()(x))))
        return nn.Dense(10)(nn.LayerNorm()(x).mean(1))


class LSTM(nn.Module):
    """A recurrent layer, of which the last step counts."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(10)(nn.RNN(nn.OptimizedLSTMCell(128))(x)[:, -1])


def _normal(*shape: int) -> Any:
    return jax.random.normal(jax.random.key(0), shape)


NETWORKS = {
    "cnn": (CNN(), _normal(16, 28, 28, 1)),
    "residual": (Residual(), _normal(8, 32, 32, 3)),
    "pooled": (Pooled(), _normal(16, 64, 64, 3)),
    "separable": (Separable(), _normal(16, 32, 32, 3)),
    "mlp": (MLP(), _normal(64, 784)),
    "transformer": (Transformer(), jnp.arange(8 * 64).reshape(8, 64) * 7 % 1000),
    "lstm": (LSTM(), _normal(16, 32, 64)),
}


def models(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The two models of a network, and a batch."""
    module, x = NETWORKS[name]
    y = jnp.arange(x.shape[0]) % 10
    params = module.init(jax.random.key(1), x)["params"]

    def predict(params: Any, x: Any) -> Any:
        return module.apply({"params": params}, x)

    def loss(logits: Any, label: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

    settings: dict[str, Any] = {"loss": loss, "optimizer": optax.adam(1e-3)}
    both = {h: sx.from_jax(predict, params, x, y, how=h, **settings) for h in ("record", "step")}
    return both, {"x": np.asarray(x), "label": np.asarray(y)}


def measured(name: str, steps: int) -> dict[str, tuple[int, float]]:
    """Of both ways, how many nodes there are and the milliseconds of a step."""
    both, feeds = models(name)
    sessions = {how: sx.prepare_training(model, threads=1) for how, model in both.items()}
    times: dict[str, list[float]] = {how: [] for how in sessions}
    for _ in range(steps):
        for how, session in sessions.items():
            start = time.process_time()
            session.step(feeds)
            times[how].append(time.process_time() - start)
    return {
        how: (
            len(list(model.graph)) + len(list(model.records[-1].algorithm)),
            1e3 * float(np.median(times[how])),
        )
        for how, model in both.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| network | nodes of the record | of the step | ms of the record | of the step | ratio |"
    )
    print("|---|---|---|---|---|---|")
    for name in arguments.networks.split(","):
        rows = measured(name, arguments.steps)
        nodes, times = zip(rows["record"], rows["step"], strict=True)
        ratio = times[1] / times[0]
        print(
            f"| {name} | {nodes[0]} | {nodes[1]} | {times[0]:.1f} | {times[1]:.1f} | {ratio:.2f} |"
        )


if __name__ == "__main__":
    main()
