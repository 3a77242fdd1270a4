"""Pools: the largest, the mean or the norm of what is under a window, or of everything."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn.window import Window, lowest, padded, taps, window_max, window_of, window_sum
from sardonyx.lower.numpy_xp import numpy_arrays

INT64 = np.dtype(np.int64)


@lowering("MaxPool")
def max_pool(xp, x, *, count=1, storage_order=0, **attributes):
    window = window_of(xp.shape(x)[2:], attributes)
    wide = padded(xp, x, window, lowest(xp.dtype(x)))
    if count == 1:
        return window_max(xp, wide, window)
    best, where = None, None
    for tap, part in taps(xp, wide, window):
        place = places(xp, window, tap, storage_order)
        if best is None:
            best, where = part, xp.broadcast_to(place, xp.shape(part))
        else:
            better = xp.greater(part, best)
            best, where = xp.where(better, part, best), xp.where(better, place, where)
    return best, xp.add(where, plane_starts(xp, x))


def places(xp, window: Window, tap, storage_order: int):
    """Where the element under a tap is in its plane, for each window: (1, 1, *outputs)."""
    factors = steps(window.sizes, storage_order)
    total = None
    for axis, factor in enumerate(factors):
        first = tap[axis] * window.dilations[axis] - window.before[axis]
        at = xp.arange(0, window.outputs[axis], 1, INT64) * window.strides[axis] + first
        form = [1] * (window.rank + 2)
        form[axis + 2] = window.outputs[axis]
        part = xp.reshape(at * xp.full((), factor, INT64), form)
        total = part if total is None else xp.add(total, part)
    return total


def steps(sizes, storage_order: int) -> list:
    """How far apart neighbours along each axis are: row major, or column major for order 1."""
    factors, factor = [], 1
    for size in sizes if storage_order else reversed(sizes):
        factors.append(factor)
        factor = factor * size
    return factors if storage_order else factors[::-1]


def plane_starts(xp, x):
    """The flat index at which each plane of `x` begins: (batch, channels, 1, …)."""
    batch, channels, *sizes = xp.shape(x)
    at = xp.arange(0, batch * channels, 1, INT64) * xp.full((), xp.count(sizes), INT64)
    return xp.reshape(at, [batch, channels, *[1] * len(sizes)])


@lowering("AveragePool")
def average_pool(xp, x, *, count_include_pad, **attributes):
    window = window_of(xp.shape(x)[2:], attributes)
    total = window_sum(xp, padded(xp, x, window, 0), window)
    return xp.divide(total, element_counts(xp, window, count_include_pad, xp.dtype(x)))


def element_counts(xp, window: Window, with_pads: int, dtype: np.dtype):
    """How many elements each window holds; `with_pads`: the padding of the node counts too."""
    if not window.is_padded:
        return xp.full((), window.volume, dtype)
    all_static = all(isinstance(n, int) for n in (*window.sizes, *window.before, *window.reach))
    ns = numpy_arrays() if all_static else xp
    total = None
    for axis in range(window.rank):
        part = axis_counts(ns, window, axis, with_pads)
        form = [1] * (window.rank + 2)
        form[axis + 2] = window.outputs[axis]
        part = ns.reshape(part, form)
        total = part if total is None else total * part
    return xp.cast(xp.asarray(total), dtype)


def axis_counts(ns, window: Window, axis: int, with_pads: int):
    size, before, after = window.sizes[axis], window.before[axis], window.after[axis]
    low, high = (-before, size + after) if with_pads else (0, size)
    first = ns.arange(0, window.outputs[axis], 1, INT64) * window.strides[axis] - before
    total = None
    for k in range(window.kernel[axis]):
        at = first + k * window.dilations[axis]
        inside = ns.logical_and(
            ns.greater_equal(at, ns.full((), low, INT64)), ns.less(at, ns.full((), high, INT64))
        )
        part = ns.cast(inside, INT64)
        total = part if total is None else total + part
    return total


def powered(xp, x, p: int):
    size = xp.abs(x)
    return size if p == 1 else size * size if p == 2 else xp.power(size, xp.scalar(p, x))


def rooted(xp, x, p: int):
    return x if p == 1 else xp.sqrt(x) if p == 2 else xp.power(x, xp.scalar(1 / p, x))


@lowering("LpPool")
def lp_pool(xp, x, *, p, **attributes):
    window = window_of(xp.shape(x)[2:], attributes)
    return rooted(xp, window_sum(xp, padded(xp, powered(xp, x, p), window, 0), window), p)


def spatial(xp, x) -> tuple[int, ...]:
    return tuple(range(2, xp.rank(x)))


@lowering("GlobalAveragePool")
def global_average_pool(xp, x):
    return xp.mean(x, spatial(xp, x), True)


@lowering("GlobalMaxPool")
def global_max_pool(xp, x):
    return xp.max(x, spatial(xp, x), True)


@lowering("GlobalLpPool")
def global_lp_pool(xp, x, *, p):
    return rooted(xp, xp.sum(powered(xp, x, p), spatial(xp, x), True), p)
