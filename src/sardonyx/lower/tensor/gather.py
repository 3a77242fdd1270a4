"""Reading by index."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import NotStatic, is_symbolic, positive

INT64 = np.dtype(np.int64)


def from_end(xp, indices, size):
    """Indices that count from the end become positive."""
    indices = xp.cast(indices, INT64)
    return xp.where(xp.less(indices, xp.scalar(0, indices)), indices + size, indices)


@lowering("Gather", sizes=True)
def gather(xp, x, indices, *, axis):
    if is_symbolic(x):
        return xp.take(x, indices, axis)
    if is_symbolic(indices):
        raise NotStatic
    axis = positive(axis, xp.rank(x))
    return xp.take(x, from_end(xp, indices, xp.shape(x)[axis]), axis)


@lowering("GatherElements")
def gather_elements(xp, x, indices, *, axis):
    axis = positive(axis, xp.rank(x))
    positions = from_end(xp, indices, xp.shape(x)[axis])
    return (
        xp.take_along(x, positions, axis)
        if same_but(xp, x, positions, axis)
        else from_flat(xp, x, positions, axis)
    )


def same_but(xp, x, indices, axis):
    """Whether two shapes are known to be equal but for one axis."""
    pairs = list(zip(xp.shape(x), xp.shape(indices)))
    del pairs[axis]
    return all(isinstance(a, int) and isinstance(b, int) and a == b for a, b in pairs)


def element_offsets(xp, sizes, indices, axis):
    """Flat positions in an array of `sizes` of the elements that `indices` name along `axis`."""
    rank, shape = len(sizes), xp.shape(indices)
    offset, stride = None, 1
    for a in reversed(range(rank)):
        if a == axis:
            part = indices
        else:
            form = [1] * rank
            form[a] = shape[a]
            part = xp.reshape(xp.arange(0, shape[a], 1, INT64), form)
        offset = part * stride if offset is None else offset + part * stride
        stride = stride * sizes[a]
    return offset


def from_flat(xp, x, indices, axis):
    offsets = element_offsets(xp, xp.shape(x), indices, axis)
    return xp.take(xp.reshape(x, (-1,)), offsets, 0)


def tuple_offsets(xp, sizes, indices):
    """Flat positions of index tuples: the last axis of `indices` runs over the axes of `sizes`."""
    offset = None
    for a, size in enumerate(sizes):
        part = xp.squeeze(
            xp.index(indices, xp.rank(indices) - 1, a, a + 1), (xp.rank(indices) - 1,)
        )
        part = from_end(xp, part, size)
        offset = part if offset is None else offset * size + part
    return offset


@lowering("GatherND")
def gather_nd(xp, x, indices, *, batch_dims):
    sizes, shape = xp.shape(x), xp.shape(indices)
    depth, b = shape[-1], batch_dims
    batch = xp.count(sizes[:b])
    inner = sizes[b : b + depth]
    rest = sizes[b + depth :]
    flat = xp.reshape(x, (batch * xp.count(inner), *rest))
    offsets = tuple_offsets(xp, inner, xp.cast(indices, INT64))
    if b:
        offsets = xp.reshape(offsets, (batch, *shape[b:-1]))
        form = (batch, *[1] * (len(shape) - b - 1))
        first = xp.reshape(xp.arange(0, batch, 1, INT64), form) * xp.count(inner)
        offsets = xp.reshape(offsets + first, shape[:-1])
    return xp.take(flat, offsets, 0)


@lowering("Compress", either=("condition",))
def compress(xp, x, condition, *, axis):
    if axis is None:
        x, axis = xp.reshape(x, (-1,)), 0
    if isinstance(condition, np.ndarray):
        chosen = xp.asarray(np.nonzero(condition)[0].astype(np.int64))
    else:
        chosen = xp.reshape(xp.nonzero(condition), (-1,))
    return xp.take(x, chosen, positive(axis, xp.rank(x)))


@lowering("NonZero")
def nonzero(xp, x):
    return xp.nonzero(x)


@lowering("OneHot", static=("depth",))
def one_hot(xp, indices, depth, values, *, axis):
    rank = xp.rank(indices) + 1
    axis = positive(axis, rank)
    count = depth.reshape(-1)[0]
    count = count if not isinstance(count, np.generic) else int(count)
    hot_index = xp.expand_dims(from_end(xp, indices, count), (axis,))
    form = [1] * rank
    form[axis] = count
    hot = xp.equal(xp.reshape(xp.arange(0, count, 1, INT64), form), hot_index)
    off, on = (xp.reshape(v, ()) for v in xp.split(values, [1, 1], 0))
    return xp.where(hot, on, off)


@lowering("ReverseSequence")
def reverse_sequence(xp, x, lengths, *, batch_axis, time_axis):
    size, batch = xp.shape(x)[time_axis], xp.shape(x)[batch_axis]
    form = [1] * xp.rank(x)
    form[time_axis] = size
    at = xp.reshape(xp.arange(0, size, 1, INT64), form)
    form = [1] * xp.rank(x)
    form[batch_axis] = batch
    length = xp.reshape(xp.cast(lengths, INT64), form)
    source = xp.where(xp.less(at, length), length - 1 - at, at)
    return from_flat(xp, x, xp.broadcast_to(source, xp.shape(x)), time_axis)
