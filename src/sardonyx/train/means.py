"""Losses over all rows of data, from the losses of batches: the same for every batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Weighting:
    """What the loss of a batch counts: its rows, or the weights of its labels.

    added   -- it is a sum already, and counts once
    label   -- the input with the labels that count, if rows do not
    ignored -- the label that counts nothing
    weights -- what a label of each class counts; None: one
    """

    added: bool = False
    label: str | None = None
    ignored: int | None = None
    weights: tuple[float, ...] | None = None

    def of(self, batch: Mapping[str, Any], rows: int) -> float:
        """The number by which the loss of this batch divided its sum."""
        if self.added or self.label is None:
            return 1.0 if self.added else rows
        labels = np.asarray(batch[self.label]).reshape(-1)
        if self.ignored is not None:
            labels = labels[labels != self.ignored]
        if self.weights is None:
            return float(len(labels))
        return float(np.asarray(self.weights, np.float64)[labels].sum())


def total_of(described: Mapping[str, Any]) -> str:
    """The name of a record's loss."""
    return str(described.get("total", "loss"))


def weightings(described: Mapping[str, Any]) -> dict[str, Weighting]:
    """What each loss of a record counts, by its name, in the order of the losses."""
    terms: Sequence[Mapping[str, Any]] = described.get("loss_terms", [])
    losses = (described.get("arguments") or {}).get("loss") or []
    same = isinstance(losses, list) and len(losses) == len(terms)
    total = total_of(described)
    names = [f"{total}/{i}/{term['loss']}" for i, term in enumerate(terms)]
    return {
        name: _weighting(term, loss)
        for name, term, loss in zip(
            [total] if len(names) == 1 else names,
            terms,
            losses if same else [{}] * len(terms),
            strict=True,
        )
    }


def _weighting(term: Mapping[str, Any], loss: Mapping[str, Any]) -> Weighting:
    settings = term.get("settings", {})
    ignored, weights = settings.get("ignore_index"), loss.get("class_weight")
    if settings.get("reduction") == "sum":
        return Weighting(added=True)
    is_mean = term["loss"] == "cross_entropy" and settings.get("reduction", "mean") == "mean"
    if not is_mean or settings.get("probabilities") or (ignored is None and weights is None):
        return Weighting()
    return Weighting(False, term["labels"][0], ignored, tuple(weights) if weights else None)


class Means:
    """The means of one record's scalar outputs over all batches.

    A loss is a mean over rows, and a batch counts by its rows. A cross entropy with weights of
    classes, or with labels that are ignored, divides by the sum of the weights of its labels: there
    a batch counts by that sum, and a batch without any counts nothing. A loss with the reduction
    "sum" is the sum over all rows, as torch has it: those of the batches are added.
    """

    def __init__(self, described: Mapping[str, Any]):
        self.total, self.counted = total_of(described), weightings(described)
        self.sums: dict[str, float] = {}
        self.weights: dict[str, float] = {}

    def add(self, values: Mapping[str, float], batch: Mapping[str, Any], rows: int) -> None:
        """Count the scalars of one batch."""
        parts = [values[name] for name in self.counted if name in values]
        for name, weighting in self.counted.items():
            if name in values:
                self._add(name, values[name], weighting.of(batch, rows))
        for name, value in values.items():
            if name in self.counted:
                continue
            is_total = name == self.total and len(parts) == len(self.counted)
            if not is_total:
                self._add(name, value, rows)
            elif np.isfinite(rest := value - sum(parts)) or all(map(np.isfinite, parts)):
                self._add(name, rest, rows)  # penalties, which are the same in every batch

    def _add(self, name: str, value: float, weight: float) -> None:
        self.weights[name] = self.weights.get(name, 0.0) + weight
        self.sums[name] = self.sums.get(name, 0.0) + (value * weight if weight else 0.0)

    def values(self) -> dict[str, float]:
        """The means or sums by name; NaN where no label counts."""
        means = {n: s / w if (w := self.weights[n]) else np.nan for n, s in self.sums.items()}
        means |= {n: s for n, s in self.sums.items() if n in self.counted and self.counted[n].added}
        total = self.total
        if total in means and total not in self.counted and set(self.counted) <= set(means):
            means[total] += sum(means[name] for name in self.counted)
        return {name: float(value) for name, value in means.items()}
