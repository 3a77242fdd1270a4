"""Noise without a float64 run: perturb inputs and weights in the last place.

A backward-stable program gives the exact result for inputs and weights that are off by a rounding.
How much the result moves when they are is therefore what rounding may do to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.model import Model
from sardonyx.verify.exact import is_float
from sardonyx.verify.noise import EPS
from sardonyx.verify.subjects import OnnxSubject, Subject

TRIALS = 4
# Operands that are floats and decide on shapes: a rounding of one would be another model.
SIZES = {("Resize", 1), ("Resize", 2), ("Upsample", 1), ("Range", 0), ("Range", 1), ("Range", 2)}


class Jitter:
    """The first subject as its own reference, its results on perturbed numbers as baselines."""

    def __init__(self, subject: Subject, model: Model | None):
        self.subject, self.model = subject, model

    def __call__(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        center = self.subject(feeds)
        results = []
        for trial in range(TRIALS):
            rng = np.random.default_rng(trial)
            subject = self.subject
            if isinstance(subject, OnnxSubject) and subject.model is not None:
                subject = OnnxSubject(
                    moved_weights(subject.model, [trial, 1]), subject.engine, subject.name
                )
            results.append(subject({k: moved(v, rng) for k, v in feeds.items()}))
        return center, results


def moved(value: Any, rng: np.random.Generator) -> Any:
    """Floats perturbed by one unit in the last place, up or down."""
    if not is_float(value) or not value.size:
        return value
    step = EPS[value.dtype.name] * rng.choice((-1.0, 1.0), value.shape)
    return (value.astype(np.float64) * (1.0 + step)).astype(value.dtype)


def moved_weights(model: Model, seed: int | Sequence[int], largest: int | None = None) -> Model:
    """A copy of the model whose float weights, of up to so many elements, are perturbed."""
    rng, copy = np.random.default_rng(seed), model.copy()
    for value in copy.graph.initializers.values():
        tensor = value.const_value
        if largest is not None and tensor is not None and tensor.size > largest:
            continue
        if any((use.node.op_type, use.idx) in SIZES for use in value.uses()):
            continue
        if tensor is not None and tensor.dtype.is_floating_point() and tensor.dtype.bitwidth >= 16:
            value.const_value = ir.tensor(moved(tensor.numpy(), rng), name=value.name)
    return copy
