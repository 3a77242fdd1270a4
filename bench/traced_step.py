"""A training step of JAX traced whole, against the same training as a record of ours.

    python bench/traced_step.py [--steps 30]

A small convolutional network in Flax with Adam: `how="record"` differentiates the traced loss by
the rules of this package, `how="step"` writes JAX's own gradient. Both run in onnxruntime, in one
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


class Network(nn.Module):
    """Two convolutions with pooling, and two layers."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in (16, 32):
            x = nn.relu(nn.Conv(width, (3, 3))(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def models() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The two models, and a batch."""
    module = Network()
    x = jax.random.normal(jax.random.key(0), (16, 28, 28, 1))
    y = jnp.arange(16) % 10
    params = module.init(jax.random.key(1), x)["params"]

    def predict(params: Any, x: Any) -> Any:
        return module.apply({"params": params}, x)

    def loss(logits: Any, label: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

    settings: dict[str, Any] = {"loss": loss, "optimizer": optax.adam(1e-3)}
    made = {h: sx.from_jax(predict, params, x, y, how=h, **settings) for h in ("record", "step")}
    return made, {"x": np.asarray(x), "label": np.asarray(y)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    both, feeds = models()
    sessions = {how: sx.prepare_training(model) for how, model in both.items()}
    times: dict[str, list[float]] = {how: [] for how in sessions}
    for _ in range(arguments.steps):
        for how, session in sessions.items():
            start = time.process_time()
            session.step(feeds)
            times[how].append(time.process_time() - start)
    best = {how: float(np.median(t)) for how, t in times.items()}
    print("| how | nodes | ms of the processor, median |\n|---|---|---|")
    for how, model in both.items():
        nodes = len(list(model.graph)) + len(list(model.records[-1].algorithm))
        print(f"| {how} | {nodes} | {1e3 * best[how]:.1f} |")
    print(f"\nratio {best['step'] / best['record']:.2f}")


if __name__ == "__main__":
    main()
