"""Dropout, Flatten, Shrink; and what has no gradient."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.grad.engine import complete, no_gradient, vjp

no_gradient("TfIdfVectorizer")


@vjp("Flatten")
def flatten(op, g, x, *, axis):
    return op.reshape_like(g, x)


@vjp("Shrink")
def shrink(op, g, x, *, bias, lambd):
    return op.Where(op.Greater(op.Abs(x), lambd), g, 0.0)


@vjp("Dropout", refuses=(1,))
def dropout(op, g, x, ratio, training_mode, *, seed, node):
    """What was dropped gets nothing; in inference mode nothing is dropped, whatever the ratio."""
    training = constant(training_mode)
    if training_mode is None or (training is not None and not training.item()):
        return g, None, None
    complete(node, 2)
    kept = node.outputs[1]
    rate = 0.5 if ratio is None else constant(ratio)
    if training is not None and rate is not None and float(rate) < 1.0:
        return g * (1.0 / (1.0 - float(rate))) * op.cast(kept, g.dtype), None, None
    # A ratio of 1 drops everything: the infinite factor must not meet the zeros.
    share = op.Sub(1.0, op.cast(ratio, ir.DataType.FLOAT)) if ratio is not None else 0.5
    factor = op.Where(training_mode, op.Reciprocal(share), 1.0) if ratio is not None else op.Where(
        training_mode, 2.0, 1.0
    )
    return op.Where(kept, g * op.cast(factor, g.dtype), 0.0), None, None
