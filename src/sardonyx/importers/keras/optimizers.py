"""Keras's optimizers as ours, where they compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.importers.jax import trees
from sardonyx.record import optim
from sardonyx.record.builder import RATE
from sardonyx.record.keras_state import our_name, rule_of
from sardonyx.record.transform import Parameter, UpdateContext

RATE_VARIABLE = RATE  # the variable of a rate without a schedule: it is fed, with a default


def symbolic(
    optimizer: Any, trained: Sequence[Any], slots: Sequence[Any], names: Sequence[str]
) -> tuple[optim.Optimizer, list[str]] | None:
    """The optimizer as a chain of ours with its present state, and our names for its variables.

    None where Keras computes something else, or where a variable has a constraint.
    """
    rule = rule_of(optimizer)
    single = all(str(v.dtype) == "float32" for v in trained)
    if rule is None or not single or any(v.constraint is not None for v in trained):
        return None
    ours = [our_name(rule, name) for name in names]
    values = dict(zip(ours, slots, strict=True))
    settings = {our: float(getattr(optimizer, key)) for key, our in rule.settings.items()}
    chain = optim.named(rule.name, lr=float(values[RATE]), **settings)
    start = _started({n: v for n, v in values.items() if n != RATE})
    updates = (*chain.updates, start)
    return optim.Optimizer(updates, chain.text, chain.settings), ours


def _started(values: dict[str, Any]) -> Callable[[UpdateContext, list[Parameter]], None]:
    """A last link of a chain: slots start where Keras's optimizer stands."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        step.builder.count()
        for name, value in values.items():
            slot = step.builder.slots[name]
            slot.start = np.asarray(trees.array(value), slot.start.dtype)

    return update
