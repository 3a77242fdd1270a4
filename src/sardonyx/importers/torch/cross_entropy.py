"""Cross entropy with all that torch's has: class weights, ignored labels, smoothing, probabilities.

Plain cross entropy is one SoftmaxCrossEntropyLoss.
"""

from __future__ import annotations

from typing import Any

from onnxscript import opset18 as op

from sardonyx.importers.torch.numbers import number

REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def cross_entropy(
    self: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    is_single = len(self.shape) == 1
    if is_single:
        self, target = (op.Unsqueeze(v, op.Constant(value_ints=[0])) for v in (self, target))
    if target.dtype.is_floating_point():
        loss = _of_probabilities(self, target, weight, reduction, label_smoothing)
    elif label_smoothing:
        loss = _smoothed(self, target, weight, reduction, ignore_index, label_smoothing)
    else:
        inputs = [self, target] if weight is None else [self, target, weight]
        words = REDUCTIONS[reduction]
        loss = op.SoftmaxCrossEntropyLoss(*inputs, reduction=words, ignore_index=ignore_index)
        loss = loss[0] if isinstance(loss, (tuple, list)) else loss
    if is_single and reduction == 0:
        loss = op.Squeeze(loss, op.Constant(value_ints=[0]))
    return loss


def _along_classes(weight: Any, scores: Any) -> Any:
    """Class weights in the shape of the scores' axis 1."""
    return op.Reshape(weight, op.Constant(value_ints=[-1] + [1] * (len(scores.shape) - 2)))


def _summed(x: Any, axis: int | None = None) -> Any:
    if axis is None:
        return op.ReduceSum(x, keepdims=0)
    return op.ReduceSum(x, op.Constant(value_ints=[axis]), keepdims=0)


def _averaged(x: Any) -> Any:
    """The mean over classes; where rows are compared with rows, how many there are is free."""
    return op.ReduceMean(x, op.Constant(value_ints=[1]), keepdims=0)


def _of_probabilities(
    scores: Any, target: Any, weight: Any, reduction: int, smoothing: float
) -> Any:
    logs = op.LogSoftmax(scores, axis=1)
    if weight is not None:
        logs = op.Mul(logs, _along_classes(weight, scores))
    each = op.Neg(_summed(op.Mul(logs, target), 1))
    if smoothing:
        share = op.Mul(each, number(1.0 - smoothing, logs))
        each = op.Sub(share, op.Mul(_averaged(logs), number(smoothing, logs)))
    if reduction == 0:
        return each
    return op.ReduceMean(each, keepdims=0) if reduction == 1 else _summed(each)


def _smoothed(
    scores: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> Any:
    logs = op.LogSoftmax(scores, axis=1)
    counted = op.Not(op.Equal(target, op.Constant(value_int=ignore_index)))
    safe = op.Where(counted, target, op.Constant(value_int=0))
    axis = op.Constant(value_ints=[1])
    picked = op.Squeeze(op.GatherElements(logs, op.Unsqueeze(safe, axis), axis=1), axis)
    everywhere = logs if weight is None else op.Mul(logs, _along_classes(weight, scores))
    share = op.CastLike(counted, logs)
    shares = share if weight is None else op.Mul(share, op.Gather(weight, safe, axis=0))
    nll = op.Neg(op.Mul(picked, shares))
    smooth = op.Neg(op.Mul(_averaged(everywhere), share))
    loss = op.Add(
        op.Mul(nll, number(1.0 - smoothing, logs)), op.Mul(smooth, number(smoothing, logs))
    )
    if reduction == 0:
        return loss
    return op.Div(_summed(loss), _summed(shares)) if reduction == 1 else _summed(loss)
