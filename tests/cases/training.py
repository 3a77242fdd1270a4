"""Cases of ai.onnx.preview.training: the optimizers, for one parameter and for two."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import Case, case

DOMAIN = "ai.onnx.preview.training"
RATE = np.array(0.1)
SHAPES = [(2, 3), (4,)]


def optimizer(op: str, step: int, parameters: int, states: int, id: str, **given: Any) -> Case:
    """A case whose squares (the last state) are not negative."""
    rng = np.random.default_rng(step + parameters)
    shapes = SHAPES[:parameters]
    tensors = [rng.normal(size=s) for _ in range(2 + states) for s in shapes]
    tensors[-parameters:] = [np.abs(t) for t in tensors[-parameters:]]
    count = np.array(step, np.int64)
    outputs = (1 + states) * parameters
    return case(op, RATE, count, *tensors, domain=DOMAIN, outputs=outputs, order=0, id=id, **given)


MOMENTUM = {"alpha": 0.9, "norm_coefficient": 0.01}

CASES: list[Case] = [
    optimizer("Adagrad", 0, 1, 1, "first-step", norm_coefficient=0.01, epsilon=1e-5),
    optimizer("Adagrad", 7, 2, 1, "two-decaying", norm_coefficient=0.01, decay_factor=0.1),
    optimizer("Momentum", 0, 1, 1, "first-step", mode="standard", beta=0.1, **MOMENTUM),
    optimizer("Momentum", 3, 2, 1, "two", mode="standard", beta=0.1, **MOMENTUM),
    optimizer("Momentum", 3, 1, 1, "nesterov", mode="nesterov", beta=1.0, **MOMENTUM),
    optimizer("Adam", 0, 1, 2, "first-step", norm_coefficient=0.01),
]
