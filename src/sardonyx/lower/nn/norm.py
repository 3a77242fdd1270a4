"""Normalizations: over the batch, a layer, groups of channels, or neighbouring channels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import positive


def per_channel(xp, x, rank: int):
    """A vector over channels, shaped so that it broadcasts over an input of `rank` axes."""
    return xp.reshape(x, [1, -1, *[1] * (rank - 2)])


def moments(xp, x, axes):
    """Mean and variance, with the axes kept."""
    mean = xp.mean(x, axes, True)
    away = x - mean
    return mean, xp.mean(away * away, axes, True)


def wider(dtype: np.dtype, stash_type: int) -> np.dtype:
    """The type to compute in: what the node says, unless that would lose precision."""
    stash = np.dtype(ir.DataType(stash_type).numpy())
    return stash if stash.itemsize >= dtype.itemsize else dtype


@lowering("BatchNormalization")
def batch_normalization(
    xp, x, scale, b, input_mean, input_var, *, epsilon, momentum, training_mode, count
):
    rank, dtype, wide = xp.rank(x), xp.dtype(x), xp.dtype(input_mean)
    wide_x = xp.cast(x, wide)
    scale, b = xp.cast(scale, wide), xp.cast(b, wide)
    if not training_mode:
        factor = scale / xp.sqrt(input_var + epsilon)
        centred = wide_x - per_channel(xp, input_mean, rank)
        y = centred * per_channel(xp, factor, rank) + per_channel(xp, b, rank)
        return xp.cast(y, dtype)
    axes = tuple(a for a in range(rank) if a != 1)
    y, mean, variance = xp.standardized(wide_x, axes, epsilon)
    y = y * per_channel(xp, scale, rank) + per_channel(xp, b, rank)
    latest = xp.reshape(mean, [-1]), xp.reshape(variance, [-1])
    return (xp.cast(y, dtype), *averages((input_mean, input_var), latest, momentum))[:count]


def averages(running, latest, momentum):
    """Moving averages; with momentum 0 the old ones are not read at all."""
    if not momentum:
        return latest
    pairs = zip(running, latest)
    return tuple(old * momentum + new * (1 - momentum) for old, new in pairs)


@lowering("InstanceNormalization")
def instance_normalization(xp, x, scale, b, *, epsilon):
    rank = xp.rank(x)
    y, _, _ = xp.standardized(x, tuple(range(2, rank)), epsilon)
    return y * per_channel(xp, scale, rank) + per_channel(xp, b, rank)


@lowering("LayerNormalization")
def layer_normalization(xp, x, scale, b=None, *, axis, epsilon, stash_type, count, dtypes):
    rank, dtype = xp.rank(x), xp.dtype(x)
    axes = tuple(range(positive(axis, rank), rank))
    wide = xp.cast(x, wider(dtype, stash_type))
    y, mean, variance = xp.standardized(wide, axes, epsilon)
    y = xp.cast(y, dtype) * scale
    y = y if b is None else y + b
    if count == 1:
        return y
    statistics = zip((mean, 1 / xp.sqrt(variance + epsilon)), dtypes[1:])
    return (y, *(v if t is None else xp.cast(v, t) for v, t in statistics))[:count]


@lowering("RMSNormalization")
def rms_normalization(xp, x, scale, *, axis, epsilon, stash_type):
    rank, dtype = xp.rank(x), xp.dtype(x)
    axes = tuple(range(positive(axis, rank), rank))
    wide = xp.cast(x, wider(dtype, stash_type))
    size = xp.sqrt(xp.mean(wide * wide, axes, True) + epsilon)
    return xp.cast(xp.cast(wide / size, xp.dtype(scale)) * scale, dtype)


@lowering("GroupNormalization")
def group_normalization(xp, x, scale, bias, *, epsilon, num_groups, stash_type):
    dtype, shape, rank = xp.dtype(x), xp.shape(x), xp.rank(x)
    grouped = xp.reshape(x, [shape[0], num_groups, -1])
    wide = xp.cast(grouped, wider(dtype, stash_type))
    y, _, _ = xp.standardized(wide, (2,), epsilon)
    y = xp.reshape(xp.cast(y, dtype), shape)
    return y * per_channel(xp, scale, rank) + per_channel(xp, bias, rank)


@lowering("MeanVarianceNormalization")
def mean_variance_normalization(xp, x, *, axes):
    chosen = tuple(positive(a, xp.rank(x)) for a in axes)
    mean, variance = moments(xp, x, chosen)
    return (x - mean) / (xp.sqrt(variance) + 1e-9)


@lowering("LpNormalization")
def lp_normalization(xp, x, *, axis, p):
    axis = positive(axis, xp.rank(x))
    size = xp.sum(xp.abs(x), axis, True) if p == 1 else xp.sqrt(xp.sum(x * x, axis, True))
    zero = xp.equal(size, xp.scalar(0, size))
    return xp.where(zero, xp.scalar(0, x), x / xp.where(zero, xp.scalar(1, size), size))


@lowering("LRN")
def lrn(xp, x, *, alpha, beta, bias, size):
    rank, channels = xp.rank(x), xp.shape(x)[1]
    before, after = [0] * rank, [0] * rank
    before[1], after[1] = (size - 1) // 2, size // 2
    squares = xp.pad(x * x, before, after, 0)
    total = None
    for k in range(size):
        part = xp.index(squares, 1, k, k + channels)
        total = part if total is None else total + part
    base = bias + alpha / size * total
    return x / xp.power(base, xp.scalar(beta, x))
