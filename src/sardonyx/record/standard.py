"""Updates as one node of ONNX's own optimizers: Momentum, Adagrad and Adam.

Their coefficients are attributes of 32 bits: a float64 parameter would be trained with rounded
ones, and a coefficient that the caller may feed cannot be an attribute. In those cases plain
operators are written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.opset import TRAINING_DOMAIN
from sardonyx.record.schedule import Schedule
from sardonyx.record.transform import Parameter, Update, UpdateContext, rate

FLOAT = ir.DataType.FLOAT


def preferred(operator: Update, *plain: Update) -> Update:
    """`operator` for float32 parameters, the chain `plain` for all others."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        single = [p for p in parameters if p.value.dtype == FLOAT]
        others = [p for p in parameters if p.value.dtype != FLOAT]
        if single:
            operator(step, single)
        if others:
            for part in plain:
                part(step, others)

    return update


def momentum_operator(
    lr: float, momentum: float, nesterov: bool, dampening: float, schedule: Schedule | None
) -> Update:
    """One Momentum node; its T starts at 0, when dampening does not apply yet."""
    attributes = {
        "alpha": momentum,
        "beta": 1.0 - dampening,
        "norm_coefficient": 0.0,
        "mode": "nesterov" if nesterov else "standard",
    }

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        _write(
            step,
            parameters,
            "Momentum",
            attributes,
            rate(step, lr, schedule),
            step.done(),
            ["momentum"],
        )

    return update


def adagrad_operator(
    lr: float, lr_decay: float, eps: float, initial: float, schedule: Schedule | None
) -> Update:
    """One Adagrad node; its T starts at 0."""
    attributes: dict[str, float | str] = {
        "decay_factor": lr_decay,
        "epsilon": eps,
        "norm_coefficient": 0.0,
    }

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        now = rate(step, lr, schedule)
        _write(
            step, parameters, "Adagrad", attributes, now, step.done(), ["sum_of_squares"], initial
        )

    return update


def adam_operator(
    lr: float,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    decay_after: float,
    schedule: Schedule | None,
) -> Update:
    """One Adam node for each type of parameters; its T starts at 1, or nothing would be
    corrected.
    """
    attributes: dict[str, float | str] = {
        "alpha": b1,
        "beta": b2,
        "epsilon": eps,
        "norm_coefficient": weight_decay,
        "norm_coefficient_post": decay_after,
    }

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        now = rate(step, lr, schedule)
        count = step.op.Add(step.done(), 1)
        for kind in dict.fromkeys(p.value.dtype for p in parameters):
            group = [p for p in parameters if p.value.dtype == kind]
            _write(step, group, "Adam", attributes, now, count, ["adam_v", "adam_h"])

    return update


def _write(
    step: UpdateContext,
    parameters: Sequence[Parameter],
    op_type: str,
    attributes: dict[str, float | str],
    rate_now: ir.Value,
    count: ir.Value,
    slots: Sequence[str],
    start: float = 0.0,
) -> None:
    """One node for all parameters: R, T, every X, every G, then every slot of each kind."""
    state = [[step.slot(p, kind, _filled(p, start)) for p in parameters] for kind in slots]
    outputs = step.op.call(
        op_type,
        [
            step.like(rate_now, parameters[0]),
            count,
            *(p.value for p in parameters),
            *(p.update for p in parameters),
            *(s.value for kind in state for s in kind),
        ],
        attributes,
        domain=TRAINING_DOMAIN,
        outputs=len(parameters) * (1 + len(slots)),
    )
    sources = [*(p.value for p in parameters), *(s.value for kind in state for s in kind)]
    for value, source in zip(outputs, sources, strict=True):
        value.type, value.shape = source.type, ir.Shape(source.shape)  # type: ignore[arg-type]
    for p, value in zip(parameters, outputs, strict=False):
        p.final = value
    for slot, value in zip(
        (s for kind in state for s in kind), outputs[len(parameters) :], strict=True
    ):
        slot.next = value


def _filled(p: Parameter, start: float) -> np.ndarray:
    dims = [int(d) for d in p.value.shape]  # type: ignore[union-attr,arg-type]
    return np.full(dims, start, p.value.dtype.numpy())  # type: ignore[union-attr]
