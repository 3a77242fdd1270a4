"""Classification losses, by scattering at the targets: no one-hot matrix is made.

Both losses are sums of -w[t] · logp[t] over the positions, divided for "mean" by the sum of w[t].
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import HALF, Builder, rank
from sardonyx.grad.driver import gradient_rule

Grads = tuple[ir.Value | None, ...]


@gradient_rule("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(op, g, x, target, weight, *, ignore_index, reduction, out):
    losses = _Losses(op, x, target, weight, ignore_index, reduction)
    scale = op.cast(losses.scale(g), x.dtype)  # type: ignore[arg-type]
    dx = op.ScatterElements(op.zeros_like(x), losses.index, op.Neg(scale), axis=1)
    return dx, None, losses.to_weight(g, x, weight, out[0])


@gradient_rule("SoftmaxCrossEntropyLoss", needs=2)
def softmax_cross_entropy_loss(op, gs, scores, labels, weights, *, ignore_index, reduction, out):
    g, direct = gs
    losses = _Losses(op, out[1], labels, weights, ignore_index, reduction)
    probability = op.Exp(op.cast(out[1], losses.dtype))
    dx = dweights = None
    if g is not None:
        scale = losses.scale(g)
        dx = op.ScatterElements(
            probability * scale, losses.index, op.Neg(scale), axis=1, reduction="add"
        )
        dweights = losses.to_weight(g, out[1], weights, out[0])
    if direct is not None:
        direct = op.cast(direct, losses.dtype)
        through = direct - probability * op.total(direct, [1], keepdims=True)
        dx = through if dx is None else dx + through
    return dx, None, dweights


class _Losses:
    """What the gradients of one loss node share: the targets, their weights, the divisor."""

    def __init__(
        self,
        op: Builder,
        x: ir.Value,
        target: ir.Value,
        weight: ir.Value | None,
        ignore_index: int | None,
        reduction: str,
    ):
        assert x.dtype is not None
        self.op, self.reduction = op, reduction
        # In 16 bits a divisor beyond 65504 positions would overflow; nor does onnxruntime add
        # up scattered 16-bit floats.
        self.dtype = ir.DataType.FLOAT if x.dtype in HALF else x.dtype
        self.valid = None
        if ignore_index is not None:
            ignored = op.const(np.array(ignore_index), target.dtype)
            self.valid = op.Not(op.Equal(target, ignored))
            target = op.Where(self.valid, target, op.const(np.array(0), target.dtype))
        self.target = target
        self.index = op.Unsqueeze(target, [1])
        if weight is not None:
            each = op.Gather(op.cast(weight, self.dtype), target)
            self.each = each if self.valid is None else op.Where(self.valid, each, 0.0)
        elif self.valid is not None:
            self.each = op.cast(self.valid, self.dtype)
        else:
            self.each = op.fill(1.0, target, self.dtype)
        self.divisor = op.total(self.each) if reduction == "mean" else None

    def scale(self, g: ir.Value) -> ir.Value:
        """The factor of -logp[t] at each position, with an axis of size 1 for the classes."""
        g = self.op.cast(g, self.dtype)
        if self.divisor is not None:
            g = g / self.divisor
        scale = self.each * g
        if self.divisor is not None and self.valid is not None:
            # Where every label is ignored, the loss is NaN, but depends on no score.
            scale = self.op.Where(self.valid, scale, 0.0)
        return self.op.Unsqueeze(scale, [1])

    def to_weight(
        self, g: ir.Value, logp: ir.Value, weight: ir.Value | None, loss: ir.Value
    ) -> ir.Value | None:
        """The gradient of the class weights: of w[t] · l[t], for "mean" over the sum of w[t]."""
        if weight is None:
            return None
        op = self.op
        picked = op.GatherElements(logp, self.index, axis=1)
        each = op.Neg(op.cast(op.Squeeze(picked, [1]), self.dtype))
        g = op.cast(g, self.dtype)
        if self.divisor is not None:
            each = (each - op.cast(loss, self.dtype)) / self.divisor
        each = each * g
        if self.valid is not None:
            each = op.Where(self.valid, each, 0.0)
        zeros = op.fill(0.0, weight, self.dtype)
        flat = each if rank(each) == 1 else op.Reshape(each, [-1])
        places = self.target if rank(each) == 1 else op.Reshape(self.target, [-1])
        summed = op.ScatterElements(zeros, places, flat, axis=0, reduction="add")
        return op.cast(summed, weight.dtype)  # type: ignore[arg-type]
