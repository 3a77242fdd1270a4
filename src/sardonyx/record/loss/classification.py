"""Losses of classification: cross entropy, binary cross entropy and hinge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.errors import ArgumentError
from sardonyx.record.loss.class_axis import class_axis
from sardonyx.record.loss.kinds import Label, Loss, check_reduction, reduce


def cross_entropy(
    weight: Sequence[float] | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    probabilities: bool = False,
    axis: int | None = None,
    reduction: str = "mean",
) -> Loss:
    """Softmax cross entropy of logits; labels are class numbers, or `probabilities`.

    As in torch: `mean` divides by the summed weights of the labels that are not ignored.

    axis  -- that of the classes; if not given, the graph shows it: the last one of products, axis 1
             of convolutions
    """
    check_reduction(reduction)

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        n = rank(z)
        classes_at = (class_axis(z)[0] if axis is None else axis) % n
        if probabilities:
            return _soft_cross_entropy(op, z, y, weight, label_smoothing, classes_at, reduction)
        if classes_at != 1:
            z = op.transpose(z, [0, classes_at, *(a for a in range(1, n) if a != classes_at)])
        if not label_smoothing:
            classes = None if weight is None else op.const(weight, z.dtype)
            extra = {} if ignore_index is None else {"ignore_index": ignore_index}
            return op.SoftmaxCrossEntropyLoss(z, y, classes, reduction=reduction, **extra)
        return _smoothed(op, z, y, weight, ignore_index, label_smoothing, reduction)

    label = Label("like") if probabilities else Label("classes", axis)
    settings = {k: v for k, v in locals().items() if k in _CROSS_ENTROPY}
    return Loss("cross_entropy", compute, (label,), "Softmax", settings)


_CROSS_ENTROPY = ("weight", "ignore_index", "label_smoothing", "probabilities", "axis", "reduction")


def _soft_cross_entropy(
    op: Builder, z: ir.Value, y: ir.Value, weight: Any, smoothing: float, axis: int, reduction: str
) -> ir.Value:
    classes = op.dim(z, axis)
    if not isinstance(classes, int):
        raise ArgumentError("label probabilities need a known number of classes")
    with op:
        if smoothing:
            y = y * (1.0 - smoothing) + smoothing / classes
        terms = y * op.LogSoftmax(z, axis=axis)
        if weight is not None:
            shape = [classes if a == axis % rank(z) else 1 for a in range(rank(z))]
            terms = terms * op.const(np.reshape(weight, shape), z.dtype)
        rows = op.Neg(op.total(terms, [axis]))
    return reduce(op, rows, reduction)


def _smoothed(
    op: Builder,
    z: ir.Value,
    y: ir.Value,
    weight: Any,
    ignore: int | None,
    smoothing: float,
    reduction: str,
) -> ir.Value:
    """torch's label smoothing: the smooth part sums the weighted log-probabilities of all
    classes.
    """
    classes = op.dim(z, 1)
    if not isinstance(classes, int):
        raise ArgumentError("label smoothing needs a known number of classes")
    with op:
        logp = op.LogSoftmax(z, axis=1)
        keep = (
            op.cast(op.Not(op.Equal(y, ignore)), z.dtype)
            if ignore is not None
            else op.fill(1, y, z.dtype)
        )  # type: ignore[arg-type]
        safe = op.Where(op.Equal(y, ignore), 0, y) if ignore is not None else y
        picked = op.Squeeze(op.GatherElements(logp, op.Unsqueeze(safe, [1]), axis=1), [1])
        if weight is None:
            each, smooth = keep, op.total(logp, [1])
        else:
            w = op.const(weight, z.dtype)
            each = op.Gather(w, safe) * keep
            smooth = op.total(logp * op.reshape(w, [classes] + [1] * (rank(z) - 2)), [1])
        hard = op.Neg(picked * each)
        soft = op.Neg(smooth * keep)
        mix = op.ReduceSum(hard * (1.0 - smoothing) + soft * (smoothing / classes), keepdims=0)
        return mix / op.ReduceSum(each, keepdims=0) if reduction == "mean" else mix


def binary_cross_entropy(pos_weight: float | None = None, reduction: str = "mean") -> Loss:
    """Binary cross entropy of logits, in the form that stays finite: max(z,0) - z y +
    log(1+exp(-|z|)).
    """

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            tail = op.Log(1.0 + op.Exp(op.Neg(op.Abs(z))))
            if pos_weight is None:
                each = op.Relu(z) - z * y + tail
            else:
                more = 1.0 + (pos_weight - 1.0) * y
                each = (1.0 - y) * z + more * (tail + op.Relu(op.Neg(z)))
        return reduce(op, each, reduction)

    settings = {"pos_weight": pos_weight, "reduction": reduction}
    return Loss("binary_cross_entropy", compute, (Label("like"),), "Sigmoid", settings)


def hinge(margin: float = 1.0, reduction: str = "mean") -> Loss:
    """Hinge loss; labels are -1 or 1, of the prediction's shape."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            return reduce(op, op.Relu(margin - z * y), reduction)

    return Loss("hinge", compute, settings={"margin": margin, "reduction": reduction})
