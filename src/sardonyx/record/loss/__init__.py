"""Losses: functions of `op` that turn a prediction and labels into one number.

A function of its settings returns each (`cross_entropy(label_smoothing=0.1)`), with the labels that
it needs. `kinds.py` defines what a loss is; the other files hold the losses, one file for each kind
of task.
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
    maker = MAKERS.get(name)
    if maker is None:
        raise ArgumentError(f"no loss is called {name!r}", hint=did_you_mean(name, MAKERS))
    try:
        return maker(**settings)
    except TypeError as error:
        raise ArgumentError(f"{name} does not take these settings: {sorted(settings)}") from error
