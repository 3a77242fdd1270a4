"""Labels from scores, and probabilities from the score of one class."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.sklearn.table import INT64, constant

F = np.float64


def picked(op: Builder, classes: Any, index: ir.Value) -> ir.Value:
    """The classes of these numbers."""
    classes = np.asarray(classes)
    if classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes))):
        return op.cast(index, INT64)
    return op.Gather(constant(op, classes), index, axis=0)


def highest(op: Builder, classes: Any, scores: ir.Value) -> ir.Value:
    """The class with the highest score in each row, the first of equal ones."""
    return picked(op, classes, op.ArgMax(scores, axis=1, keepdims=0))


def positive(op: Builder, classes: Any, score: ir.Value) -> ir.Value:
    """The second class where the score is positive, else the first."""
    return picked(op, classes, op.Cast(op.Greater(score, F(0)), to=int(INT64)))


def pair(op: Builder, p: ir.Value) -> ir.Value:
    """[1 - p, p] for probabilities of shape [rows]."""
    p = op.Unsqueeze(p, [1])
    return op.Concat(op.Sub(F(1), p), p, axis=1)


def flat(op: Builder, x: ir.Value) -> ir.Value:
    """A matrix of one column as a vector."""
    return op.Squeeze(x, [1])


def normalized(op: Builder, p: ir.Value) -> ir.Value:
    """Rows divided by their sums; rows of zeros become uniform."""
    total = op.ReduceSum(p, [1], keepdims=1)
    zero = op.Equal(total, F(0))
    assert p.shape is not None
    count = p.shape[1]
    assert isinstance(count, int)
    return op.Where(zero, F(1 / count), op.Div(p, op.Where(zero, F(1), total)))
