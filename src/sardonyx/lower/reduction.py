"""Lowerings of ONNX's family reduction: axes that go."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import is_float, positive


def reduced_axes(xp, x, axes, noop_with_empty_axes):
    """The axes as a tuple; None where nothing is to be reduced."""
    rank = xp.rank(x)
    if axes is None or axes.size == 0:
        return None if noop_with_empty_axes else tuple(range(rank))
    return tuple(positive(int(a), rank) for a in axes.flat)


def reduction(name, before=None, after=None, sizes=False):
    """Register Reduce<name>: `before` elementwise, a reduction of `xp`, `after` elementwise."""

    def decorate(reduce):
        def rule(xp, data, axes=None, *, keepdims, noop_with_empty_axes):
            terms = data if before is None else before(xp, data)
            over = reduced_axes(xp, data, axes, noop_with_empty_axes)
            y = terms if over is None else reduce(xp, terms, over, bool(keepdims))
            return y if after is None else after(xp, y)

        rule.__name__, rule.__module__ = reduce.__name__, __name__
        lowering(f"Reduce{name}", static=("axes",), sizes=sizes)(rule)
        return reduce

    return decorate


@reduction("Sum", sizes=True)
def reduce_sum(xp, x, axes, keepdims):
    return xp.sum(x, axes, keepdims)


@reduction("SumSquare", before=lambda xp, x: xp.multiply(x, x))
def reduce_sum_square(xp, x, axes, keepdims):
    return xp.sum(x, axes, keepdims)


@reduction("L1", before=lambda xp, x: xp.abs(x))
def reduce_l1(xp, x, axes, keepdims):
    return xp.sum(x, axes, keepdims)


@reduction("L2", before=lambda xp, x: xp.multiply(x, x), after=lambda xp, x: root(xp, x))
def reduce_l2(xp, x, axes, keepdims):
    return xp.sum(x, axes, keepdims)


def in_float(xp, function, x):
    """A function of floats, on integers too: computed in double, rounded down."""
    dtype = xp.dtype(x)
    if is_float(dtype):
        return function(x)
    return xp.cast(function(xp.cast(x, np.dtype(np.float64))), dtype)


def root(xp, x):
    return in_float(xp, xp.sqrt, x)


@reduction("LogSum", after=lambda xp, x: in_float(xp, xp.log, x))
def reduce_log_sum(xp, x, axes, keepdims):
    return xp.sum(x, axes, keepdims)


@reduction("Prod", sizes=True)
def reduce_prod(xp, x, axes, keepdims):
    return xp.prod(x, axes, keepdims)


@reduction("Mean")
def reduce_mean(xp, x, axes, keepdims):
    if is_float(xp.dtype(x)):
        return xp.mean(x, axes, keepdims)
    total = xp.sum(x, axes, keepdims)
    count = xp.count([xp.shape(x)[a] for a in axes])
    return in_float(xp, lambda t: t / count, total)


@reduction("LogSumExp")
def reduce_log_sum_exp(xp, x, axes, keepdims):
    return in_float(xp, lambda t: log_sum_exp(xp, t, axes, keepdims), x)


def log_sum_exp(xp, x, axes, keepdims):
    if 0 in [xp.shape(x)[a] for a in axes]:
        return xp.log(xp.sum(x, axes, keepdims))
    x = xp.rounded(x)
    largest = xp.max(x, axes, True)
    # an infinite maximum would give inf - inf
    shift = xp.where(xp.isfinite(largest), largest, xp.scalar(0, x))
    total = xp.log(xp.sum(xp.exp(x - shift), axes, True)) + shift
    return total if keepdims else xp.squeeze(total, axes)


def extreme(name, lowest):
    def reduce(xp, x, axes, keepdims):
        if xp.dtype(x) == np.dtype(bool):
            return (xp.all if lowest else xp.any)(x, axes, keepdims)
        if 0 in [xp.shape(x)[a] for a in axes]:
            return empty(xp, x, axes, keepdims, lowest)
        return (xp.min if lowest else xp.max)(x, axes, keepdims)

    reduce.__name__ = f"reduce_{name.lower()}"
    reduction(name)(reduce)


def empty(xp, x, axes, keepdims, lowest):
    """The extreme of nothing: the neutral element."""
    dtype = xp.dtype(x)
    if is_float(dtype):
        value = np.inf if lowest else -np.inf
    else:
        value = np.iinfo(dtype).max if lowest else np.iinfo(dtype).min
    shape = [1 if a in axes else d for a, d in enumerate(xp.shape(x)) if keepdims or a not in axes]
    return xp.full(shape, value, dtype)


extreme("Max", lowest=False)
extreme("Min", lowest=True)


@lowering("ArgMax")
def argmax(xp, x, *, axis, keepdims, select_last_index):
    return extreme_index(xp, xp.argmax, x, axis, keepdims, select_last_index)


@lowering("ArgMin")
def argmin(xp, x, *, axis, keepdims, select_last_index):
    return extreme_index(xp, xp.argmin, x, axis, keepdims, select_last_index)


def extreme_index(xp, function, x, axis, keepdims, last):
    axis = positive(axis, xp.rank(x))
    if last:
        index = xp.shape(x)[axis] - 1 - function(xp.flip(x, (axis,)), axis)
    else:
        index = function(x, axis)
    return xp.expand_dims(index, (axis,)) if keepdims else index
