"""Metrics: numbers that judge predictions, added up batch by batch without keeping the predictions.

A metric is a class with `add(prediction, label)` and `value()`; a user's function `(predictions,
labels) -> number` is called once over all of them (`Function`). Where a class is predicted for each
of many positions, metrics see rows of scores and their labels, without those that are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import ArgumentError, did_you_mean


class Metric:
    """One metric; `better` says which direction is an improvement."""

    name = "metric"
    better = "higher"
    unflattened = False  # takes predictions and labels in their own shapes

    def add(self, prediction: np.ndarray, label: np.ndarray) -> None:
        raise TypeError(f"{type(self).__name__} does not say how to add a batch")

    def value(self) -> float:
        raise TypeError(f"{type(self).__name__} does not say its value")


NO_CLASS = -(2**62)  # of scores that hold a NaN, the first of which argmax takes for the largest


def _classes(prediction: np.ndarray, label: np.ndarray) -> np.ndarray:
    """The predicted class: the largest score along axis 1, or the sign of one score."""
    if prediction.ndim == label.ndim:
        return np.where(np.isnan(prediction), NO_CLASS, prediction > 0)
    return np.where(np.isnan(prediction).any(1), NO_CLASS, prediction.argmax(1))


class Accuracy(Metric):
    """Share of predictions whose class is the label."""

    name = "accuracy"

    def __init__(self) -> None:
        self.right = self.count = 0

    def add(self, prediction: np.ndarray, label: np.ndarray) -> None:
        self.right += int((_classes(prediction, label) == label).sum())
        self.count += label.size

    def value(self) -> float:
        return self.right / max(self.count, 1)


class TopK(Metric):
    """Share of labels among the k largest scores."""

    def __init__(self, k: int = 5):
        self.k, self.name = k, f"top{k}"
        self.right = self.count = 0

    def add(self, prediction: np.ndarray, label: np.ndarray) -> None:
        best = np.argsort(-prediction, axis=1, kind="stable")[:, : self.k]
        numbers = ~np.isnan(prediction).any(1)
        self.right += int(((best == np.expand_dims(label, 1)).any(1) & numbers).sum())
        self.count += label.size

    def value(self) -> float:
        return self.right / max(self.count, 1)


class F1(Metric):
    """The mean over classes of the harmonic mean of precision and recall."""

    name = "f1"

    def __init__(self) -> None:
        self.counts: dict[int, np.ndarray] = {}

    def add(self, prediction: np.ndarray, label: np.ndarray) -> None:
        predicted = _classes(prediction, label)
        for c in np.setdiff1d(np.union1d(predicted, label), [NO_CLASS]):
            hits = ((predicted == c) & (label == c)).sum()
            row = np.array([hits, (predicted == c).sum(), (label == c).sum()])
            self.counts[int(c)] = self.counts.get(int(c), np.zeros(3, np.int64)) + row

    def value(self) -> float:
        if not self.counts:
            return 0.0
        return float(np.mean([2 * hits / max(p + n, 1) for hits, p, n in self.counts.values()]))


class AUC(Metric):
    """Area under the ROC curve of one score per row; ties count half.

    Of several classes: the mean over classes of each against the rest, by probability.
    """

    name = "auc"

    def __init__(self) -> None:
        self.scores: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []

    def add(self, prediction: np.ndarray, label: np.ndarray) -> None:
        if prediction.ndim == label.ndim + 1 and prediction.shape[1] == 2:
            prediction = prediction[:, 1] - prediction[:, 0]
        if prediction.size == label.size:
            prediction, label = prediction.reshape(-1, 1), label.reshape(-1) > 0.5
        else:
            prediction = probabilities(prediction)
        self.scores.append(prediction)
        self.labels.append(label)

    def value(self) -> float:
        scores, labels = np.concatenate(self.scores), np.concatenate(self.labels)
        if np.isnan(scores).any():  # sorting would put them above all others
            return float("nan")
        if scores.shape[1] == 1:
            return _area(scores[:, 0], labels)
        areas = [_area(scores[:, c], labels == c) for c in range(scores.shape[1])]
        defined = [area for area in areas if not np.isnan(area)]  # the others have no rows
        return float(np.mean(defined)) if defined else float("nan")


def probabilities(scores: np.ndarray) -> np.ndarray:
    """The softmax along axis 1, unless that is what the rows are already."""
    wide = scores.astype(np.float64)
    if (wide >= 0).all() and np.allclose(wide.sum(1), 1.0, atol=1e-3):
        return wide
    raised = np.exp(wide - wide.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def _area(scores: np.ndarray, labels: np.ndarray) -> float:
    _, index, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]
    positive, negative = int(labels.sum()), int((~labels).sum())
    if not positive or not negative:
        return float("nan")
    return float((ranks[labels].sum() - positive * (positive + 1) / 2) / (positive * negative))


class MeanAbsoluteError(Metric):
    """The mean of the absolute differences."""

    name, better = "mae", "lower"

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, prediction: np.ndarray, label: np.ndarray) -> None:
        difference = prediction.reshape(label.shape).astype(np.float64) - label
        self.total += float(np.abs(difference).sum())
        self.count += label.size

    def value(self) -> float:
        return self.total / max(self.count, 1)


class Perplexity(Metric):
    """The exponential of the mean negative log-probability of the labels; scores along axis 1 (or
    last).
    """

    name, better = "perplexity", "lower"

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, prediction: np.ndarray, label: np.ndarray) -> None:
        last = prediction.shape[:-1] == label.shape
        scores = prediction if last else np.moveaxis(prediction, 1, -1)
        scores = scores.astype(np.float64)
        top = scores.max(-1, keepdims=True)
        log_sum = np.log(np.exp(scores - top).sum(-1)) + top[..., 0]
        picked = np.take_along_axis(scores, label[..., None], -1)[..., 0]
        self.total += float((log_sum - picked).sum())
        self.count += label.size

    def value(self) -> float:
        return float(np.exp(self.total / max(self.count, 1)))


class Confusion(Metric):
    """How many rows of each class were taken for which class; it has no single value."""

    name = "confusion"

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}

    def add(self, prediction: np.ndarray, label: np.ndarray) -> None:
        pairs = np.stack([label.reshape(-1), _classes(prediction, label).reshape(-1)], 1)
        pairs = pairs[pairs[:, 1] != NO_CLASS]
        for (row, column), count in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
            key = int(row), int(column)
            self.counts[key] = self.counts.get(key, 0) + int(count)


class Function(Metric):
    """A user's function of all predictions and all labels; lower is better, unless the function has
    an attribute `better` that says "higher".
    """

    unflattened = True

    def __init__(self, function: Callable[[np.ndarray, np.ndarray], float]):
        self.function, self.name = function, getattr(function, "__name__", "metric")
        self.better = getattr(function, "better", "lower")
        self.predictions: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []

    def add(self, prediction: np.ndarray, label: np.ndarray) -> None:
        self.predictions.append(prediction)
        self.labels.append(label)

    def value(self) -> float:
        return float(self.function(np.concatenate(self.predictions), np.concatenate(self.labels)))


MAKERS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "f1": F1,
    "auc": AUC,
    "mae": MeanAbsoluteError,
    "perplexity": Perplexity,
}


def make(names: Sequence[Any]) -> list[Metric]:
    """Fresh metrics out of names ("accuracy", "top5"), functions, or functions that make a
    Metric.
    """
    metrics: list[Metric] = []
    for item in names:
        if isinstance(item, str) and item in MAKERS:
            metrics.append(MAKERS[item]())
        elif isinstance(item, str) and item.startswith("top") and item[3:].isdigit():
            metrics.append(TopK(int(item[3:])))
        elif isinstance(item, type) and issubclass(item, Metric):
            metrics.append(item())
        elif callable(item):
            metrics.append(Function(item))
        else:
            raise ArgumentError(
                f"no metric is called {item!r}",
                hint=f"{did_you_mean(str(item), [*MAKERS, 'top5'])}; or give a function",
            )
    return metrics


def lower_is_better(metric: str, names: Sequence[Any]) -> bool:
    """Whether a lower value is better: of a loss it is, of a metric its class says."""
    better = {m.name: m.better for m in make(names)}
    return better.get(metric.removeprefix("val_"), "lower") == "lower"


def add_all(
    metrics: Sequence[Metric],
    loss_term: Mapping[str, Any],
    prediction: np.ndarray,
    label: np.ndarray,
) -> None:
    """Show one batch to all metrics; `loss_term` says how the loss reads prediction and label."""
    rows, classes = _rows(loss_term, prediction, label)
    for item in metrics:
        if item.unflattened:
            item.add(prediction, label)
            continue
        try:
            item.add(rows, classes)
        except (ValueError, IndexError, TypeError) as error:
            raise ArgumentError(
                f"the metric {item.name!r} does not suit this model",
                [["predictions", str(list(rows.shape))], ["labels", str(list(classes.shape))]],
                hint="accuracy, f1, auc and top5 are of classes, mae of numbers",
            ) from error


def _rows(
    loss_term: Mapping[str, Any], prediction: np.ndarray, label: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scores with the classes along axis 1 and class numbers, without labels to be ignored."""
    if loss_term["loss"] != "cross_entropy":
        return prediction, label
    settings = loss_term["settings"]
    axis, ignored = settings.get("axis", 1), settings.get("ignore_index")
    if settings.get("probabilities"):
        label = label.argmax(axis)
    if prediction.ndim > 2:
        prediction = np.moveaxis(prediction, axis, -1)
        prediction, label = prediction.reshape(-1, prediction.shape[-1]), label.reshape(-1)
    if ignored is not None:
        prediction, label = prediction[label != ignored], label[label != ignored]
    return prediction, label
