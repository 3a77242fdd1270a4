"""Sampling at places that other tensors name: GridSample, and the grids that AffineGrid makes."""

from __future__ import annotations

import itertools

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.tensor.resize import cubic, triangle

INT64 = np.dtype(np.int64)
CUBIC_A = -0.75


@lowering("GridSample")
def grid_sample(xp, x, grid, *, align_corners, mode, padding_mode):
    sizes = xp.shape(x)[2:]
    rank = len(sizes)
    last = xp.rank(grid) - 1
    axes = []
    for axis in range(rank):
        # coordinates come innermost first
        column = xp.squeeze(xp.index(grid, last, rank - 1 - axis, rank - axis), (last,))
        size = xp.cast(xp.full((), sizes[axis], INT64), xp.dtype(grid))
        at = (column + 1) / 2 * (size - 1) if align_corners else ((column + 1) * size - 1) / 2
        axes.append((at, size))
    padding = (padding_mode, align_corners)
    if mode == "nearest":
        taps = [[(xp.round(at), None)] for at, _ in axes]
    else:
        taps = [filtered(xp, at, size, mode, padding) for at, size in axes]
    total = None
    for combination in itertools.product(*taps):
        part = sampled(xp, x, combination, [size for _, size in axes], padding)
        total = part if total is None else total + part
    return total


def filtered(xp, at, size, mode, padding):
    """Places and weights along one axis."""
    if mode == "linear":
        at = reflected(xp, at, size, padding)
    low = xp.floor(at)
    first, count = (0, 2) if mode == "linear" else (-1, 4)
    kernel = triangle if mode == "linear" else lambda n, v: cubic(n, v, CUBIC_A)
    return [(low + o, kernel(xp, xp.abs(o - (at - low)))) for o in range(first, first + count)]


def reflected(xp, at, size, padding):
    """Places folded back into the axis, for the padding modes that do so."""
    mode, align_corners = padding
    zero = xp.scalar(0, at)
    if mode == "border":
        return xp.clip(at, zero, size - 1)
    if mode != "reflection":
        return at
    low = xp.scalar(0.0 if align_corners else -0.5, at)
    span = size - 1 if align_corners else size
    safe = xp.maximum(span, xp.scalar(1, at))
    period = xp.remainder(xp.abs(at - low), 2 * safe)
    folded = xp.minimum(period, 2 * safe - period) + low
    folded = xp.where(xp.equal(span, zero), zero, folded)
    return xp.clip(folded, zero, size - 1)


def sampled(xp, x, taps, sizes, padding):
    """The elements of `x` at one combination of taps, weighted; nothing outside."""
    n, c = xp.shape(x)[:2]
    shape = xp.shape(taps[0][0])
    offset, is_inside, weight = None, None, None
    for (place, w), size, count in zip(taps, sizes, xp.shape(x)[2:]):
        place = reflected(xp, place, size, padding)
        within = xp.logical_and(
            xp.greater_equal(place, xp.scalar(0, place)), xp.less_equal(place, size - 1)
        )
        is_inside = within if is_inside is None else xp.logical_and(is_inside, within)
        index = xp.cast(xp.where(within, place, xp.scalar(0, place)), INT64)  # NaN is outside
        offset = index if offset is None else offset * count + index
        weight = w if weight is None else weight * w
    total = xp.count(xp.shape(x)[2:])
    batch = xp.reshape(xp.arange(0, n, 1, INT64), (n, *[1] * (len(shape) - 1))) * total
    rows = xp.reshape(xp.move(xp.reshape(x, (n, c, total)), 1, 2), (-1, c))
    values = xp.take(rows, offset + batch, 0)
    factor = xp.cast(is_inside, xp.dtype(x))
    factor = factor if weight is None else factor * xp.cast(weight, xp.dtype(x))
    y = xp.where(xp.expand_dims(is_inside, (len(shape),)), values, xp.scalar(0, values))
    return xp.move(y * xp.expand_dims(factor, (len(shape),)), len(shape), 1)


@lowering("AffineGrid", static=("size",))
def affine_grid(xp, theta, size, *, align_corners):
    # ONNX's own body squeezes a batch of one away together with what it means to squeeze
    batch, _, *sizes = (int(v) if isinstance(v, np.integer) else v for v in size.tolist())
    rank, dtype = len(sizes), xp.dtype(theta)
    columns = [xp.full((*sizes, 1), 1, dtype)]
    for axis, count in enumerate(sizes):
        at = xp.cast(xp.arange(0, count, 1, INT64), dtype)
        whole = xp.cast(xp.full((), count, INT64), dtype)
        place = 2 * at / (whole - 1) - 1 if align_corners else (2 * at + 1) / whole - 1
        shape = [count if a == axis else 1 for a in range(rank + 1)]
        columns.insert(0, xp.broadcast_to(xp.reshape(place, shape), (*sizes, 1)))
    points = xp.reshape(xp.concat(columns, rank), (xp.count(sizes), rank + 1))
    return xp.reshape(xp.matmul(points, xp.swap(theta)), (batch, *sizes, rank))
