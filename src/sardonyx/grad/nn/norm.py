"""Normalisation over images, groups, rows, neighbouring channels. Batches: `batch_norm.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import HALF, Builder, rank
from sardonyx.grad.driver import gradient_rule
from sardonyx.grad.nn.window import flat, product


def wide(op: Builder, x: ir.Value) -> ir.Value:
    """`x` in the precision that statistics need."""
    return op.cast(x, ir.DataType.FLOAT) if x.dtype in HALF else x


def like(g: ir.Value, x: ir.Value) -> ir.Value:
    """`g`, known to have the shape of `x`: ONNX does not infer it for every normalisation."""
    if g.shape is None and x.shape is not None:
        g.shape = ir.Shape(x.shape)
    return g


def standardized(
    op: Builder, x: ir.Value, axes: Sequence[int], epsilon: float
) -> tuple[ir.Value, ir.Value]:
    """`x` with mean 0 and variance 1 over `axes`, and the factor that made it so."""
    centred = x - op.ReduceMean(x, list(axes), keepdims=1)
    variance = op.ReduceMean(op.Mul(centred, centred), list(axes), keepdims=1)
    factor = op.Reciprocal(op.Sqrt(variance + epsilon))
    return centred * factor, factor


def through_standardized(
    op: Builder, n: ir.Value, unit: ir.Value, factor: ir.Value, axes: Sequence[int]
) -> ir.Value:
    """The cotangent of x, from `n`, that of `unit = (x - mean) * factor`."""
    along = op.ReduceMean(n * unit, list(axes), keepdims=1)
    return factor * (n - op.ReduceMean(n, list(axes), keepdims=1) - unit * along)


# -- over rows -----------------------------------------------------------------------


@gradient_rule("LayerNormalization", needs=3, broadcasts=True)
def layer_normalization(op, gs, x, scale, b, *, axis, epsilon, stash_type, out):
    g, d_mean, d_factor = gs
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis, rank(x)))
    image = wide(op, x)
    if x.dtype == ir.DataType.DOUBLE:
        # The statistics that the operator returns are float32: too coarse here.
        unit, factor = standardized(op, image, axes, epsilon)
    else:
        factor = op.cast(out[2], image.dtype)
        unit = (image - op.cast(out[1], image.dtype)) * factor
    dx: Any = None
    d_scale = None
    if g is not None:
        g = wide(op, g)
        d_scale = g * unit
        dx = through_standardized(op, g * wide(op, scale), unit, factor, axes)
    if d_mean is not None or d_factor is not None:
        dx = _through_statistics(op, dx, d_mean, d_factor, unit, factor, axes)
    dx.shape = x.shape and ir.Shape(x.shape)
    return dx, d_scale, g


def _through_statistics(
    op: Builder,
    dx: ir.Value | None,
    d_mean: ir.Value | None,
    d_factor: ir.Value | None,
    unit: ir.Value,
    factor: ir.Value,
    axes: Sequence[int],
) -> ir.Value:
    """Adds what reaches x by the mean and by the inverse deviation."""
    total = op.zeros_like(unit) if dx is None else dx
    share = op.Reciprocal(product(op, [op.dim(unit, a) for a in axes], unit.dtype))
    if d_mean is not None:
        total = total + op.cast(d_mean, unit.dtype) * share
    if d_factor is not None:
        total = total - op.cast(d_factor, unit.dtype) * factor * factor * share * unit
    return total


@gradient_rule("RMSNormalization", broadcasts=True)
def rms_normalization(op, g, x, scale, *, axis, epsilon, stash_type):
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis, rank(x)))
    image, g = wide(op, x), wide(op, g)
    square = op.ReduceMean(op.Mul(image, image), axes, keepdims=1)
    factor = op.Reciprocal(op.Sqrt(square + epsilon))
    unit = image * factor
    n = g * wide(op, scale)
    dx = factor * (n - unit * op.ReduceMean(n * unit, axes, keepdims=1))
    dx.shape = x.shape and ir.Shape(x.shape)
    return dx, g * unit


@gradient_rule("LpNormalization")
def lp_normalization(op, g, x, *, axis, p, out):
    size = op.ReduceL1 if p == 1 else op.ReduceL2
    norm = size(x, [axis], keepdims=1)
    zero = op.Equal(norm, 0.0)
    slope = op.Sign(x) if p == 1 else out[0]
    along = op.total(op.Mul(g, out[0]), [axis], keepdims=True)
    return op.Where(zero, 0.0, (g - slope * along) / op.Where(zero, 1.0, norm))


# -- over images ---------------------------------------------------------------------


@gradient_rule("InstanceNormalization")
def instance_normalization(op, g, x, scale, b, *, epsilon):
    image, g = wide(op, flat(op, x)), wide(op, flat(op, like(g, x)))
    unit, factor = standardized(op, image, [2], epsilon)
    n = g * op.Unsqueeze(wide(op, scale), [1])
    dx = through_standardized(op, n, unit, factor, [2])
    return op.reshape_like(dx, x), _per_channel(op, g * unit), _per_channel(op, g)


@gradient_rule("GroupNormalization")
def group_normalization(op, g, x, scale, b, *, epsilon, num_groups, stash_type):
    image, g = wide(op, flat(op, x)), wide(op, flat(op, like(g, x)))
    grouped = [0, num_groups, -1]
    unit, factor = standardized(op, op.reshape(image, grouped), [2], epsilon)
    n = op.reshape(g * op.Unsqueeze(wide(op, scale), [1]), grouped)
    dx = through_standardized(op, n, unit, factor, [2])
    return (
        op.reshape_like(dx, x),
        _per_channel(op, g * op.reshape_like(unit, image)),
        _per_channel(op, g),
    )


def _per_channel(op: Builder, x: ir.Value) -> ir.Value:
    return op.total(op.total(x, [2]), [0])


@gradient_rule("MeanVarianceNormalization")
def mean_variance_normalization(op, g, x, *, axes):
    """y = (x - mean) / (deviation + 1e-9): where all are equal, the deviation has no slope."""
    axes = list(axes)
    image, g = wide(op, x), wide(op, g)
    centred = image - op.ReduceMean(image, axes, keepdims=1)
    deviation = op.Sqrt(op.ReduceMean(op.Mul(centred, centred), axes, keepdims=1))
    zero = op.Equal(deviation, 0.0)
    safe = op.Where(zero, 1.0, deviation)
    factor = op.Reciprocal(safe + 1e-9)
    along = op.ReduceMean(g * centred, axes, keepdims=1) * factor * factor / safe
    flat_out = (g - op.ReduceMean(g, axes, keepdims=1)) * op.Where(zero, 1e9, factor)
    return flat_out - centred * along


# -- over channels -------------------------------------------------------------------


@gradient_rule("LRN")
def lrn(op, g, x, *, alpha, beta, bias, size):
    near = _neighbours(op, x, size)
    image, g = flat(op, x), flat(op, g)
    base = op.MatMul(near, op.Mul(image, image)) * (alpha / size) + bias
    power = op.Pow(base, -beta)
    # The window of an even size is not symmetric: who reads channel c is not whom c reads.
    read = op.MatMul(op.swap(near), g * image * power / base)
    return op.reshape_like(g * power - image * read * (2.0 * alpha * beta / size), x)


def _neighbours(op: Builder, x: ir.Value, size: int) -> ir.Value:
    """(C, C): which channels the window of each channel covers."""
    before, after = (size - 1) // 2, size // 2
    channels = op.dim(x, 1)
    if isinstance(channels, int):
        away = np.arange(channels)[None] - np.arange(channels)[:, None]
        return op.const((away >= -before) & (away <= after), x.dtype)
    index = op.Range(0, op.Squeeze(channels, [0]), 1)
    away = op.Unsqueeze(index, [0]) - op.Unsqueeze(index, [1])
    inside = op.And(op.GreaterOrEqual(away, -before), op.LessOrEqual(away, after))
    return op.cast(inside, x.dtype)
