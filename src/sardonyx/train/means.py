"""Losses over all rows of data, from the losses of batches: the same for every batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

TOTAL = "loss"


class Means:
    """The means of one record's scalar outputs over all batches.

    A loss is a mean over rows, and a batch counts by its rows. A cross entropy with weights of
    classes, or with labels that are ignored, divides by the sum of the weights of its labels: there
    a batch counts by that sum, and a batch without any counts nothing. A loss with the reduction
    "sum" is the sum over all rows, as torch has it: those of the batches are added.
    """

    def __init__(self, described: Mapping[str, Any]):
        self.terms: Sequence[Mapping[str, Any]] = described.get("loss_terms", [])
        losses = (described.get("arguments") or {}).get("loss") or []
        same = isinstance(losses, list) and len(losses) == len(self.terms)
        self.losses: Sequence[Any] = losses if same else [{}] * len(self.terms)
        names = [f"{TOTAL}/{i}/{term['loss']}" for i, term in enumerate(self.terms)]
        self.names = [TOTAL] if len(names) == 1 else names
        self.added = {n for n, term in zip(self.names, self.terms, strict=True) if _is_sum(term)}
        self.sums: dict[str, float] = {}
        self.weights: dict[str, float] = {}

    def add(self, values: Mapping[str, float], batch: Mapping[str, Any], rows: int) -> None:
        """Count the scalars of one batch."""
        parts = [values[name] for name in self.names if name in values]
        for name, term, loss in zip(self.names, self.terms, self.losses, strict=True):
            if name in values:
                self._add(name, values[name], _weight(term, loss, batch, rows))
        for name, value in values.items():
            if name in self.names:
                continue
            is_total = name == TOTAL and len(parts) == len(self.names)
            if not is_total:
                self._add(name, value, rows)
            elif np.isfinite(rest := value - sum(parts)) or all(map(np.isfinite, parts)):
                self._add(name, rest, rows)  # penalties, which are the same in every batch

    def _add(self, name: str, value: float, weight: float) -> None:
        weight = 1.0 if name in self.added else weight
        self.weights[name] = self.weights.get(name, 0.0) + weight
        self.sums[name] = self.sums.get(name, 0.0) + (value * weight if weight else 0.0)

    def values(self) -> dict[str, float]:
        """The means or sums by name; NaN where no label counts."""
        means = {n: s / w if (w := self.weights[n]) else np.nan for n, s in self.sums.items()}
        means |= {name: self.sums[name] for name in self.added & self.sums.keys()}
        if TOTAL in means and TOTAL not in self.names and set(self.names) <= set(means):
            means[TOTAL] += sum(means[name] for name in self.names)
        return {name: float(value) for name, value in means.items()}


def _is_sum(term: Mapping[str, Any]) -> bool:
    return bool(term.get("settings", {}).get("reduction") == "sum")


def _weight(
    term: Mapping[str, Any], loss: Mapping[str, Any], batch: Mapping[str, Any], rows: int
) -> float:
    """What the loss of a batch counts: the number by which the term divided its sum."""
    settings = term.get("settings", {})
    ignored, weights = settings.get("ignore_index"), loss.get("class_weight")
    is_mean = term["loss"] == "cross_entropy" and settings.get("reduction", "mean") == "mean"
    if not is_mean or settings.get("probabilities") or (ignored is None and weights is None):
        return rows
    labels = np.asarray(batch[term["labels"][0]]).reshape(-1)
    if ignored is not None:
        labels = labels[labels != ignored]
    return float(len(labels) if weights is None else np.asarray(weights, np.float64)[labels].sum())
