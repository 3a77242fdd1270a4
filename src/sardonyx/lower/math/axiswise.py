"""Rows along one axis: normalised, searched, summed up."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import positive


def is_empty(xp, x):
    """Whether there is nothing in `x`, as far as is known: no row has a greatest element."""
    return any(isinstance(size, int) and size == 0 for size in xp.shape(x))


@lowering("Softmax")
def softmax(xp, x, *, axis):
    if is_empty(xp, x):
        return x
    x = xp.rounded(x)
    e = xp.exp(x - xp.max(x, axis, keepdims=True))
    return e / xp.sum(e, axis, keepdims=True)


@lowering("LogSoftmax")
def log_softmax(xp, x, *, axis):
    if is_empty(xp, x):
        return x
    x = xp.rounded(x)
    shifted = x - xp.max(x, axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis, keepdims=True))


@lowering("Hardmax")
def hardmax(xp, x, *, axis):
    if is_empty(xp, x):
        return x
    first = xp.expand_dims(xp.argmax(x, axis), (axis % xp.rank(x),))
    return xp.cast(xp.equal(positions(xp, x, axis), first), xp.dtype(x))


def positions(xp, x, axis):
    """The index along `axis` of each element, in a shape that broadcasts to that of `x`."""
    axis = positive(axis, xp.rank(x))
    size = xp.shape(x)[axis]
    shape = [1] * xp.rank(x)
    shape[axis] = size
    return xp.reshape(xp.arange(0, size, 1, np.dtype(np.int64)), shape)


@lowering("CumSum", static=("axis",))
def cumsum(xp, x, axis, *, exclusive, reverse):
    return running(xp, xp.cumsum, 0, x, int(axis.reshape(())), exclusive, reverse)


@lowering("CumProd", static=("axis",))
def cumprod(xp, x, axis, *, exclusive, reverse):
    return running(xp, xp.cumprod, 1, x, int(axis.reshape(())), exclusive, reverse)


def running(xp, function, neutral, x, axis, exclusive, reverse):
    axis = positive(axis, xp.rank(x))
    if reverse:
        x = xp.flip(x, (axis,))
    if exclusive:
        before, after = [0] * xp.rank(x), [0] * xp.rank(x)
        before[axis] = 1
        padded = xp.pad(x, before, after, neutral)
        x = xp.index(padded, axis, 0, xp.shape(x)[axis])
    total = function(x, axis)
    return xp.flip(total, (axis,)) if reverse else total


@lowering("TopK", static=("k",))
def topk(xp, x, k, *, axis, largest, sorted):
    axis = positive(axis, xp.rank(x))
    order = xp.argsort(x, axis, descending=bool(largest))
    chosen = xp.index(order, axis, 0, k.reshape(-1)[0])
    return xp.take_along(x, chosen, axis), chosen
