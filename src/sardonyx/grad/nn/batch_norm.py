"""Batch normalization: its gradient in training and inference mode, and a safe training forward.

NOTE [running outputs]: in training mode onnxruntime writes the running statistics into the buffers
of inputs 3 and 4. If those are constants, the model changes from run to run; if two nodes share
them (equal constants and equal nodes are merged), one node overwrites the results of the other.
`normalize_batch` computes both buffers from the node's own input, so that only nodes which
normalize the same tensor can share them. With momentum 0 their content does not matter, and the two
extra outputs are the batch's own mean and variance, which the gradient reads instead of computing
them again.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.grad.driver import complete, gradient_rule
from sardonyx.grad.nn.norm import like, wide
from sardonyx.grad.nn.window import channel_total, flat, product


@gradient_rule("BatchNormalization")
def batch_normalization(op, gs, x, scale, b, mean, var, *, epsilon, momentum, training_mode, node):
    if not training_mode:
        return _inference(op, gs[0], x, scale, mean, var, epsilon)
    if momentum == 0:
        complete(node, 3)
        mean, var = node.outputs[1], node.outputs[2]
        return _training(op, gs, x, scale, mean, var, epsilon)
    # Running statistics of another momentum are no function to differentiate: records, not results.
    if gs[0] is None:
        return (None,) * 5
    mean, var = statistics(op, x)
    return _training(op, (gs[0], None, None), x, scale, mean, var, epsilon)


def _inference(op: Builder, g: ir.Value | None, x, scale, mean, var, epsilon):
    if g is None:
        return (None,) * 5
    image, g, mean, scale = (wide(op, v) for v in (x, like(g, x), mean, scale))
    factor = op.Reciprocal(op.Sqrt(wide(op, var) + epsilon))
    slope = scale * factor
    total = channel_total(op, g)
    along = channel_dot(op, g, image - _column(op, mean, x))
    return (
        g * _column(op, slope, x),
        along * factor,
        total,
        -slope * total,
        along * slope * factor * factor * -0.5,
    )


def _training(op: Builder, gs, x, scale, mean, var, epsilon):
    """dX = a·g + (b·(X - mean) + c); the second term is a BatchNormalization in inference mode."""
    g, d_mean, d_var = gs
    image, mean, var, scale = wide(op, x), wide(op, mean), wide(op, var), wide(op, scale)
    deviation = op.Sqrt(var + epsilon)
    share = op.Reciprocal(_count(op, x, image.dtype))
    dx = d_scale = total = None
    per_pixel = constant = op.Mul(mean, 0.0)
    if g is not None:
        g = wide(op, like(g, x))
        total = channel_total(op, g)
        d_scale = channel_dot(op, g, image - _column(op, mean, x)) / deviation
        slope = scale / deviation
        per_pixel = -slope * d_scale * share
        constant = -slope * total * share
        dx = g * _column(op, slope, x)
    if d_mean is not None:
        constant = constant + wide(op, d_mean) * share
    if d_var is not None:
        per_pixel = per_pixel + wide(op, d_var) * deviation * share * 2.0
    affine = op.BatchNormalization(image, per_pixel, constant, mean, var, epsilon=epsilon)
    return affine if dx is None else dx + affine, d_scale, total, None, None


def statistics(op: Builder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Mean and population variance per channel; centred first: a large mean would cost digits."""
    image = wide(op, x)
    mean = _channel_mean(op, image)
    centred = image - _column(op, mean, x)
    return mean, _channel_mean(op, op.Mul(centred, centred))


def _channel_mean(op: Builder, x: ir.Value) -> ir.Value:
    rows = op.ReduceMean(flat(op, x), [2], keepdims=0) if rank(x) > 2 else x
    return op.ReduceMean(rows, [0], keepdims=0)


def channel_dot(op: Builder, g: ir.Value, x: ir.Value) -> ir.Value:
    """The sum of g·x over all axes but the channels.

    As products of a row by a column it needs no memory, but onnxruntime takes 5 to 28 times as long
    for them: number by number, and one product after the other.
    """
    return op.total(op.Mul(g, x), [0, *range(2, rank(x))])


def _column(op: Builder, vector: ir.Value, x: ir.Value) -> ir.Value:
    """A value per channel, to be broadcast over an image."""
    return op.Unsqueeze(vector, list(range(1, rank(x) - 1))) if rank(x) > 2 else vector


def _count(op: Builder, x: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """How many elements each channel has."""
    return product(op, [op.dim(x, 0), *op.dims(x, 2)], dtype)


def normalize_batch(
    op: Builder, x: ir.Value, scale: ir.Value, bias: ir.Value, epsilon: float
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """y, mean and population variance of a batch; see NOTE [running outputs]."""
    with op:
        first = op.Slice(op.Reshape(x, [-1]), [0], [1], [0])
        fresh = scale * op.cast(op.Mul(first, 0.0), scale.dtype)
        return op.BatchNormalization(
            *(x, scale, bias, fresh, op.Neg(fresh)),
            epsilon=epsilon,
            momentum=0.0,
            training_mode=1,
            outputs=3,
        )


def new_statistics(
    op: Builder,
    x: ir.Value,
    running: tuple[ir.Value, ir.Value],
    batch: tuple[ir.Value, ir.Value],
    momentum: float,
) -> tuple[ir.Value, ir.Value]:
    """The running mean and variance after a batch, as torch moves them.

    running, batch -- mean and variance; the variance of the batch is that of the population, and
                      the running one takes in that of the sample
    momentum       -- the share of the old statistics that stays, an attribute of 32 bits
    """
    keep = float(np.format_float_positional(np.float32(momentum)))  # 0.9, not 0.89999998
    with op:
        mean, var = (op.cast(b, r.dtype) for b, r in zip(batch, running, strict=True))
        wide_type = ir.DataType.DOUBLE if var.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
        count = _count(op, x, wide_type)
        var = var * op.cast(count / op.Max(count - 1.0, 1.0), var.dtype)
        return running[0] * keep + mean * (1.0 - keep), running[1] * keep + var * (1.0 - keep)
