"""Losses: functions of `op` that turn a prediction and a label into one number.

Each is made by a function of its settings (`cross_entropy(label_smoothing=0.1)`) and says what
label it wants. What a loss is, and how one is written, is in `kinds.py`; a file per kind of task
holds the losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.errors import ArgumentError, did_you_mean
from sardonyx.record.loss.alignment import ctc
from sardonyx.record.loss.classification import binary_cross_entropy, cross_entropy, hinge
from sardonyx.record.loss.embeddings import contrastive, cosine, kl_divergence, triplet
from sardonyx.record.loss.kinds import Label, Loss, Term, custom
from sardonyx.record.loss.own_graph import graph
from sardonyx.record.loss.penalties import l1_penalty, l2_penalty
from sardonyx.record.loss.regression import huber, l1, mse

MAKERS: dict[str, Callable[..., Loss]] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "mse": mse,
    "l1": l1,
    "huber": huber,
    "hinge": hinge,
    "kl_divergence": kl_divergence,
    "cosine": cosine,
    "triplet": triplet,
    "contrastive": contrastive,
    "ctc": ctc,
}

__all__ = [
    "Label",
    "Loss",
    "Term",
    "binary_cross_entropy",
    "contrastive",
    "cosine",
    "cross_entropy",
    "ctc",
    "custom",
    "graph",
    "hinge",
    "huber",
    "kl_divergence",
    "l1",
    "l1_penalty",
    "l2_penalty",
    "mse",
    "named",
    "triplet",
]


def named(name: str, **settings: Any) -> Loss:
    """The loss called `name`, e.g. `named("cross_entropy", label_smoothing=0.1)`."""
    found = MAKERS.get(name)
    if found is None:
        raise ArgumentError(f"no loss is called {name!r}", hint=did_you_mean(name, MAKERS))
    try:
        return found(**settings)
    except TypeError as error:
        raise ArgumentError(f"{name} does not take these settings: {sorted(settings)}") from error
