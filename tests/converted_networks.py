"""Small networks for tests of conversions, and their outputs and gradients on onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.model import Model
from tests.networks import cnn, lstm, mlp, transformer

NETWORKS = {
    "mlp": (mlp, (6,)),
    "cnn": (cnn, (3, 8, 8)),
    "transformer": (transformer, (5,)),
    "lstm": (lstm, (4, 3)),
}


def rows(name: str, count: int, seed: int = 0, longer: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = list(NETWORKS[name][1])
    shape[0] += 3 * longer
    if name == "transformer":
        return rng.integers(0, 11, (count, *shape))
    return rng.normal(size=(count, *shape)).astype(np.float32)


def expected(model: Model, x: np.ndarray) -> np.ndarray:
    return next(iter(Runner(model)({model.inputs[0].name: x}).values()))


def gradients(model: Model, x: np.ndarray) -> dict[str, np.ndarray]:
    """d sum(scores²) / d weights, by our own ONNX gradient on onnxruntime."""
    names = [w.name for w in sx.weights(model) if w.kind == "weight"]
    gradient = sx.grad(model, of=["scores"], wrt=names, seeds="input")
    feeds = {model.inputs[0].name: x}
    seed = next(v.name for v in gradient.inputs if v.name not in feeds)
    values = Runner(gradient)({**feeds, seed: 2 * expected(model, x)})
    outputs = [v.name for v in gradient.outputs]
    return {n: values[o] for n in names for o in outputs if o.endswith(n)}


def close(values: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(values), wanted, rtol=1e-4, atol=1e-5)
