"""Elements that are found, and elements that are written into a cache."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering, table
from sardonyx.lower.tensor.gather import element_offsets
from sardonyx.lower.tensor.scatter import put_flat
from sardonyx.lower.xp import positive

INT64 = np.dtype(np.int64)

table({"IsNaN": lambda xp, x: xp.isnan(x)}, __name__)


@lowering("IsInf")
def is_inf(xp, x, *, detect_negative, detect_positive):
    y = xp.isinf(x)
    positive_sign = xp.greater(x, xp.scalar(0, x))
    if not detect_negative:
        y = xp.logical_and(y, positive_sign)
    if not detect_positive:
        y = xp.logical_and(y, xp.logical_not(positive_sign))
    return y


@lowering("Unique")
def unique(xp, x, *, axis, sorted):
    flat = axis is None
    rows = xp.reshape(x, (-1,)) if flat else xp.move(x, positive(axis, xp.rank(x)), 0)
    order = row_order(xp, rows)
    first, group, counts = groups(xp, rows, order)
    inverse = xp.put(xp.zeros(xp.shape(order), INT64), order, group)
    if not sorted:
        by_place = xp.argsort(first, 0)
        first, counts = (xp.take(v, by_place, 0) for v in (first, counts))
        inverse = xp.take(xp.argsort(by_place, 0), inverse, 0)
    values = xp.take(rows, first, 0)
    if not flat:
        values = xp.move(values, 0, positive(axis, xp.rank(x)))
    return values, first, inverse, counts


def row_order(xp, rows):
    """The order that sorts rows, equal ones by their place: columns from the last to the first."""
    if xp.rank(rows) == 1:
        return xp.argsort(rows, 0)
    columns = xp.reshape(rows, (xp.shape(rows)[0], -1))
    order = xp.arange(0, xp.shape(rows)[0], 1, INT64)
    for column in reversed(range(xp.shape(columns)[1])):
        keys = xp.take(xp.squeeze(xp.index(columns, 1, column, column + 1), (1,)), order, 0)
        order = xp.take(order, xp.argsort(keys, 0), 0)
    return order


def groups(xp, rows, order):
    """Of each group of equal rows its first place and its size; of each sorted row its group."""
    size = xp.shape(rows)[0]
    ordered = xp.reshape(xp.take(rows, order, 0), (size, -1))
    # Not two slices of one row less: a graph of torch would then demand three rows.
    place = xp.arange(0, size, 1, INT64)
    before = xp.maximum(place - 1, xp.scalar(0, place))
    differs = xp.any(xp.not_equal(ordered, xp.take(ordered, before, 0)), axis=1)
    new = xp.logical_or(xp.equal(place, xp.scalar(0, place)), differs)
    starts = xp.reshape(xp.nonzero(new), (-1,))
    ends = xp.concat([xp.index(starts, 0, 1), xp.full((1,), size, INT64)], 0)
    group = xp.cumsum(xp.cast(new, INT64), 0) - 1
    return xp.take(order, starts, 0), group, ends - starts


@lowering("TensorScatter")
def tensor_scatter(xp, past, update, write_indices=None, *, axis, mode):
    axis = positive(axis, xp.rank(past))
    shape = xp.shape(update)
    form = [1] * len(shape)
    form[axis] = shape[axis]
    at = xp.reshape(xp.arange(0, shape[axis], 1, INT64), form)
    if write_indices is not None:
        form = [1] * len(shape)
        form[0] = shape[0]
        at = at + xp.reshape(xp.cast(write_indices, INT64), form)
    if mode == "circular":
        at = xp.remainder(at, xp.full((), xp.shape(past)[axis], INT64))
    at = xp.broadcast_to(at, shape)
    return put_flat(xp, past, element_offsets(xp, xp.shape(past), at, axis), update, "none")
