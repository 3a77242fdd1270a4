"""The losses and metrics of the rows that are held back, as nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError, quote
from sardonyx.record.describe import descriptions
from sardonyx.train.means import Weighting, total_of, weightings
from sardonyx.train.whole.batch import Batches
from sardonyx.train.whole.loops import Body, Values, Writer, embed, loop
from sardonyx.train.whole.parts import Parts, Settings

T = ir.DataType
METRICS = ("accuracy", "mae")  # and top1, top2, …


def refuse_metrics(names: tuple[str, ...]) -> None:
    """Only metrics that can be added up batch by batch are written as nodes."""
    wrong = [n for n in names if n not in METRICS and not _top(n)]
    if wrong:
        raise ArgumentError(
            "a whole training does not measure " + ", ".join(quote(str(n)) for n in wrong),
            hint=f"it measures {', '.join(METRICS)} and top5; sx.evaluate measures the others",
        )


def _top(name: str) -> int:
    number = name[3:] if isinstance(name, str) and name.startswith("top") else ""
    return int(number) if number.isdigit() else 0


class Validation:
    """A Loop over the batches of the rows held back."""

    def __init__(
        self, parts: Parts, settings: Settings, batches: Batches, hyper: Values, size: ir.Value
    ):
        self.parts, self.settings, self.batches = parts, settings, batches
        self.hyper, self.size = hyper, size
        described = descriptions(parts.model)
        self.counted = [weightings(d) for d in described]
        self.totals = [total_of(d) for d in described]
        self.names: list[list[str]] = []  # of each evaluation

    def write(self, op: Writer, state: Values, rows: ir.Value) -> Values:
        """Each loss over all rows, as `train/means.py` has it, and the value of each metric."""
        self.state, self.rows = state, rows
        count = op.Shape(rows)
        steps = op.Div(op.Sub(op.Add(count, self.size), [1]), self.size)
        prediction = self.parts.term["prediction"] if self.parts.term else None
        self.names = [
            [n for n, v in _outputs(g.model).items() if n != prediction and _is_number(v)]
            for g in self.parts.evaluations
        ]
        zero = op.const(np.float64(0))
        sums = {f"val/{n}": zero for n in ("count", *self.settings.metrics)}
        for number, names in enumerate(self.names):
            for name in names:
                sums[f"val/{number}/{name}"] = zero
                if self._label(number, name) is not None:
                    sums[f"weight/{number}/{name}"] = zero
        end, _ = loop(op, "validation", op.Squeeze(steps), None, sums, self._batch)
        total = op.cast(op.Squeeze(count), T.DOUBLE)
        losses: Values = {}
        for number in range(len(self.names)):
            losses |= self._losses(op, number, end, total)
        judged = op.Max(end["val/count"], np.float64(1))
        return losses | {n: op.Div(end[f"val/{n}"], judged) for n in self.settings.metrics}

    def _label(self, number: int, name: str) -> str | None:
        """The labels by which a loss counts, where it does not count by rows."""
        weighting = self.counted[number].get(name)
        return weighting.label if weighting is not None else None

    def _has_rest(self, number: int, name: str) -> bool:
        """Whether a loss is the total of others, which are added up by themselves."""
        counted = self.counted[number]
        is_total = name == self.totals[number] and name not in counted
        return is_total and {*counted} <= {*self.names[number]}

    def _losses(self, op: Writer, number: int, end: Values, rows: ir.Value) -> Values:
        counted, losses = self.counted[number], {}
        for name in self.names[number]:
            weighting, value = counted.get(name), end[f"val/{number}/{name}"]
            added = weighting is not None and weighting.added
            weight = end.get(f"weight/{number}/{name}", rows)
            losses[name] = value if added else op.Div(value, weight)
        total = self.totals[number]
        if counted and total in losses and self._has_rest(number, total):
            losses[total] = op.Add(losses[total], _sum(op, [losses[n] for n in counted]))
        return losses

    def _batch(self, op: Writer, index: ir.Value, sums: Values) -> Body:
        feeds, count = self.batches.take(
            op, self.rows, op.Mul(index, op.Squeeze(self.size)), self.size
        )
        new = dict(sums)
        everything = {**self.hyper, **feeds, **self.state}
        for number, graph in enumerate(self.parts.evaluations):
            needs = [v.name or "" for v in graph.model.graph.inputs]
            outputs = embed(op, f"evaluate{number}", graph.model, {n: everything[n] for n in needs})
            self._add(op, number, outputs, feeds, op.cast(op.Squeeze(count), T.DOUBLE), new)
            term = self.parts.term
            if self.settings.metrics and term and term["prediction"] in outputs:
                self._judge(op, outputs[term["prediction"]], feeds[term["labels"][0]], sums, new)
        return Body(op.const(True), new)

    def _add(
        self, op: Writer, number: int, outputs: Values, feeds: Values, rows: ir.Value, sums: Values
    ) -> None:
        """Add the losses of one batch, each times what it counts."""
        values = {
            n: op.cast(op.Reshape(outputs[n], np.zeros(0, np.int64)), T.DOUBLE)
            for n in self.names[number]
        }
        counted = self.counted[number]
        for name, value in values.items():
            weighting, key = counted.get(name), f"{number}/{name}"
            if weighting is not None and weighting.added:
                part = value
            elif weighting is not None and weighting.label is not None:
                weight = _weight(op, weighting, feeds[weighting.label])
                sums[f"weight/{key}"] = op.Add(sums[f"weight/{key}"], weight)
                none = op.const(np.float64(0))
                part = op.Where(op.Equal(weight, none), none, op.Mul(value, weight))
            else:
                if counted and self._has_rest(number, name):
                    value = _rest(op, value, [values[n] for n in counted])
                part = op.Mul(value, rows)
            sums[f"val/{key}"] = op.Add(sums[f"val/{key}"], part)

    def _judge(
        self, op: Writer, prediction: ir.Value, label: ir.Value, sums: Values, new: Values
    ) -> None:
        """Add one batch to every metric."""
        scores, classes, counts = self._rows(op, prediction, label)
        new["val/count"] = op.Add(sums["val/count"], op.ReduceSum(counts, keepdims=0))
        for name in self.settings.metrics:
            if name == "mae":
                wide = op.cast(op.reshape_like(scores, classes), T.DOUBLE)
                each = op.Abs(op.Sub(wide, op.cast(classes, T.DOUBLE)))
            elif name == "accuracy":
                each = op.cast(op.Equal(self._predicted(op, scores, classes), classes), T.DOUBLE)
            else:
                each = self._among(op, scores, classes, _top(name))
            total = op.ReduceSum(op.Mul(each, counts), keepdims=0)
            new[f"val/{name}"] = op.Add(sums[f"val/{name}"], total)

    def _predicted(self, op: Writer, scores: ir.Value, classes: ir.Value) -> ir.Value:
        """The class with the largest score along axis 1, or the sign of one score."""
        assert scores.shape is not None and classes.shape is not None
        if len(scores.shape) == len(classes.shape):
            return op.cast(op.Greater(scores, 0.0), classes.dtype)
        return op.cast(op.ArgMax(scores, axis=1, keepdims=0), classes.dtype)

    def _among(self, op: Writer, scores: ir.Value, classes: ir.Value, top: int) -> ir.Value:
        """Whether each label is among the largest scores along axis 1."""
        number = op.Min(op.Shape(scores, start=1, end=2), [top])
        best = op.TopK(scores, number, axis=1, outputs=2)[1]
        same = op.Equal(best, op.Unsqueeze(op.cast(classes, T.INT64), [1]))
        return op.ReduceMax(op.cast(same, T.DOUBLE), [1], keepdims=0)

    def _rows(
        self, op: Writer, prediction: ir.Value, label: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Scores with classes along axis 1, labels, and which labels count, as ones and zeros."""
        term = self.parts.term
        assert term is not None and prediction.shape is not None
        ignored = None
        if term["loss"] == "cross_entropy":
            axis, ignored = term["settings"].get("axis", 1), term["settings"].get("ignore_index")
            if term["settings"].get("probabilities"):
                label = op.ArgMax(label, axis=axis, keepdims=0)
            rank = len(prediction.shape)
            if rank > 2:
                axis %= rank
                last = [*(i for i in range(rank) if i != axis), axis]
                moved = op.transpose(prediction, last)
                width = op.dim(prediction, axis)
                prediction = op.Reshape(moved, op.join([-1, width]))
                label = op.Reshape(label, [-1])
        if ignored is None:
            counts = op.fill(1.0, label, T.DOUBLE)
        else:
            counts = op.cast(op.Not(op.Equal(label, ignored)), T.DOUBLE)
        return prediction, label, counts


def _weight(op: Writer, weighting: Weighting, label: ir.Value) -> ir.Value:
    """What the labels of a batch count."""
    labels = op.cast(op.Reshape(label, [-1]), T.INT64)
    if weighting.ignored is None:
        counts = op.fill(1.0, labels, T.DOUBLE)
    else:
        counted = op.Not(op.Equal(labels, op.const(weighting.ignored, T.INT64)))
        counts = op.cast(counted, T.DOUBLE)
        labels = op.Where(counted, labels, op.const(0, T.INT64))
    if weighting.weights is not None:
        weights = op.const(np.asarray(weighting.weights, np.float64))
        counts = op.Mul(op.Gather(weights, labels, axis=0), counts)
    return op.ReduceSum(counts, keepdims=0)


def _rest(op: Writer, total: ir.Value, parts: Sequence[ir.Value]) -> ir.Value:
    """What a total has beside its parts; nothing where these are not finite."""
    together = _sum(op, parts)
    rest = op.Sub(total, together)
    is_finite = op.Equal(op.Mul(together, np.float64(0)), np.float64(0))
    return op.Where(op.And(op.IsNaN(rest), op.Not(is_finite)), np.float64(0), rest)


def _sum(op: Writer, values: Sequence[ir.Value]) -> ir.Value:
    total = values[0]
    for value in values[1:]:
        total = op.Add(total, value)
    return total


def _outputs(model: object) -> dict[str, ir.Value]:
    return {v.name or "": v for v in model.graph.outputs}  # type: ignore[attr-defined]


def _is_number(value: ir.Value) -> bool:
    """Whether a metric is one number for every batch."""
    return value.shape is not None and all(d == 1 for d in value.shape)
