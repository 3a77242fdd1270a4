"""Dropout, Flatten, Shrink; and what has no gradient."""

from __future__ import annotations

from sardonyx.build import constant
from sardonyx.grad.driver import complete, gradient_rule, no_gradient

no_gradient("TfIdfVectorizer")


@gradient_rule("Flatten")
def flatten(op, g, x, *, axis):
    return op.reshape_like(g, x)


@gradient_rule("Shrink")
def shrink(op, g, x, *, bias, lambd):
    return op.Where(op.Greater(op.Abs(x), lambd), g, 0.0)


@gradient_rule("Dropout", refuses=(1,))
def dropout(op, g, x, ratio, training_mode, *, seed, node):
    """What was dropped gets nothing; in inference mode nothing is dropped, whatever the ratio."""
    training = constant(training_mode)
    if training_mode is None or (training is not None and not training.item()):
        return g, None, None
    complete(node, 2)
    mask = op.cast(node.outputs[1], g.dtype)
    rate = 0.5 if ratio is None else constant(ratio)
    if rate is None:
        factor = op.Reciprocal(op.Sub(1.0, op.cast(ratio, g.dtype)))
    else:
        factor = op.const(1.0 / (1.0 - float(rate)), g.dtype)
    if training is None:
        factor = op.Where(training_mode, factor, 1.0)
    return g * factor * mask, None, None
