"""Keras's optimizers in the words of ours, and names for their variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.record.builder import RATE
from sardonyx.record.optim import Optimizer

RATE_VARIABLE = RATE  # the variable of a rate without a schedule: it is fed, with a default


def optimizer_names(optimizer: Any, variables: Sequence[Any], names: Sequence[str]) -> list[str]:
    """A name for each variable of an optimizer: the parameter's name and what it is for it."""
    stems = {v.path.replace("/", "_"): n for v, n in zip(variables, names, strict=True)}
    longest = sorted(stems, key=len, reverse=True)
    rate = getattr(optimizer, "_learning_rate", None)
    result: list[str] = []
    for variable in optimizer.variables:
        label = variable.name
        stem = next((s for s in longest if label.startswith(f"{s}_")), None)
        if variable is rate:
            name = RATE_VARIABLE
        elif stem is not None:
            name = f"{stems[stem]}/{label[len(stem) + 1 :]}"
        else:
            name = f"optimizer/{label}"
        base, count = name, 0
        while name in result or name in names:
            count += 1
            name = f"{base}_{count}"
        result.append(name)
    return result


def symbolic(training: Any) -> Optimizer | None:
    """The optimizer as a chain of ours, where Keras computes the same; None otherwise."""
    return None
