"""The same elements in another arrangement, and what is known of a shape."""

from __future__ import annotations

from functools import partial

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.fork import Fork
from sardonyx.lower.sizes import larger
from sardonyx.lower.xp import NotStatic, is_string, positive, settle

INT64 = np.dtype(np.int64)


@lowering("Identity", sizes=True)
def identity(xp, x):
    return x


@lowering("Shape", sizes=True)
def shape(xp, x, *, start, end):
    return settle(xp.shape(x)[start:end])


@lowering("Size", sizes=True)
def size(xp, x):
    return settle([xp.size(x)], ())


@lowering("Reshape", static=("shape",), sizes=True)
def reshape(xp, x, shape, *, allowzero):
    sizes = xp.shape(x)
    target = shape.tolist()
    if not allowzero:
        target = [sizes[i] if isinstance(d, int) and d == 0 else d for i, d in enumerate(target)]
    return xp.reshape(x, target)


@lowering("Transpose", sizes=True)
def transpose(xp, x, *, perm):
    return xp.transpose(x, perm or range(xp.rank(x))[::-1])


@lowering("Squeeze", static=("axes",), sizes=True)
def squeeze(xp, x, axes=None):
    sizes = xp.shape(x)
    if axes is None:
        ones = [i for i, d in enumerate(sizes) if isinstance(d, int) and d == 1]
        free = [i for i, d in enumerate(sizes) if not isinstance(d, int)]
        if free and not xp.forks:
            raise NotStatic("the rank depends on which sizes are 1")
        if free:
            return squeezed_if_one(xp, x, free, ones)
    else:
        ones = [positive(int(a), len(sizes)) for a in axes.flat]
    return xp.squeeze(x, ones) if ones else x


def squeezed_if_one(xp, x, free, ones):
    """`x` without the axes of size one: `ones`, and those of `free` that turn out to be."""
    if not free:
        return xp.squeeze(x, sorted(ones)) if ones else x
    first, *rest = free

    def alternative(axes):
        def results(continuation):
            inner = squeezed_if_one(xp, x, rest, axes)
            if not isinstance(inner, Fork):
                return continuation([inner])
            return xp.fork(inner.condition, [partial(a, continuation) for a in inner.alternatives])

        return results

    return Fork(xp.is_one(xp.shape(x)[first]), (alternative([*ones, first]), alternative(ones)))


@lowering("Unsqueeze", static=("axes",), sizes=True)
def unsqueeze(xp, x, axes):
    rank = xp.rank(x) + axes.size
    return xp.expand_dims(x, sorted(positive(int(a), rank) for a in axes.flat))


@lowering("Concat", sizes=True)
def concat(xp, *xs, axis):
    return xp.concat(xs, axis)


@lowering("Split", static=("split",), sizes=True)
def split(xp, x, split=None, *, axis, num_outputs, count):
    axis = positive(axis, xp.rank(x))
    if split is not None:
        sizes = split.tolist()
    else:
        parts = num_outputs or count
        whole = xp.shape(x)[axis]
        each = (whole + parts - 1) // parts
        sizes = [each] * (parts - 1) + [whole - each * (parts - 1)]
    return tuple(xp.split(x, sizes, axis))


@lowering("Tile", static=("repeats",))
def tile(xp, x, repeats):
    return xp.tile(x, repeats.tolist())


@lowering("Slice", static=("starts", "ends", "axes", "steps"), sizes=True)
def slice_(xp, x, starts, ends, axes=None, steps=None):
    sizes = xp.shape(x)
    rank = len(sizes)
    begin, end, step = [0] * rank, [None] * rank, [1] * rank
    sliced_axes = (
        range(starts.size) if axes is None else [positive(int(a), rank) for a in axes.flat]
    )
    for i, axis in enumerate(sliced_axes):
        by = 1 if steps is None else int(steps.flat[i])
        size = sizes[axis]
        begin[axis], end[axis] = bounds(starts.flat[i], ends.flat[i], by, size)
        step[axis] = by
    return xp.slice(x, begin, end, step)


def bounds(start, stop, step, size):
    """Start and stop as Python's slices take them: None for an end beyond the array."""
    start, stop = (int(v) if isinstance(v, np.integer) else v for v in (start, stop))
    if not isinstance(size, int):
        return start, None if isinstance(stop, int) and abs(stop) > 2**31 - 2 else stop
    if step > 0:  # tensorflow's converter makes -1 of an end that has more than 32 bits
        return start, None if isinstance(stop, int) and stop >= size else stop
    start = min(start, size - 1) if isinstance(start, int) else start
    if isinstance(stop, int):
        stop = None if stop < -size else stop
    return start, stop


@lowering("Where", sizes=True)
def where(xp, condition, a, b):
    return xp.where(condition, a, b)


@lowering("DepthToSpace")
def depth_to_space(xp, x, *, blocksize, mode):
    n, c, h, w = xp.shape(x)
    depth = c // (blocksize * blocksize)
    if mode == "DCR":
        parts = xp.reshape(x, (n, blocksize, blocksize, depth, h, w))
        moved = xp.transpose(parts, (0, 3, 4, 1, 5, 2))
    else:
        parts = xp.reshape(x, (n, depth, blocksize, blocksize, h, w))
        moved = xp.transpose(parts, (0, 1, 4, 2, 5, 3))
    return xp.reshape(moved, (n, depth, h * blocksize, w * blocksize))


@lowering("SpaceToDepth")
def space_to_depth(xp, x, *, blocksize, mode="DCR"):
    n, c, h, w = xp.shape(x)
    b = blocksize
    parts = xp.reshape(x, (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return xp.reshape(xp.transpose(parts, order), (n, c * b * b, h // b, w // b))


@lowering("Trilu", static=("k",))
def trilu(xp, x, k=None, *, upper):
    rows, columns = xp.shape(x)[-2:]
    offset = xp.full((), 0 if k is None else k.reshape(-1)[0], INT64)
    row = xp.reshape(xp.arange(0, rows, 1, INT64), (rows, 1))
    column = xp.reshape(xp.arange(0, columns, 1, INT64), (1, columns))
    compare = xp.greater_equal if upper else xp.less_equal
    triangle = compare(xp.subtract(column, row), offset)
    return xp.where(triangle, x, xp.scalar(0, x))


@lowering("Pad", static=("pads", "axes"))
def pad(xp, x, pads, value=None, axes=None, *, mode):
    rank = xp.rank(x)
    padded_axes = range(rank) if axes is None else [positive(int(a), rank) for a in axes.flat]
    before, after = [0] * rank, [0] * rank
    half = len(pads) // 2
    for i, axis in enumerate(padded_axes):
        before[axis], after[axis] = pads.tolist()[i], pads.tolist()[half + i]
    for axis in range(rank):  # negative pads remove elements
        start, end = larger(-before[axis], 0), larger(-after[axis], 0)
        if not same(start, 0) or not same(end, 0):
            x = xp.index(x, axis, start, None if same(end, 0) else xp.shape(x)[axis] - end)
        before[axis], after[axis] = larger(before[axis], 0), larger(after[axis], 0)
    if mode == "constant":
        return pad_constant(xp, x, before, after, value)
    for axis in range(rank):
        if not same(before[axis], 0) or not same(after[axis], 0):
            x = xp.take(x, pad_indices(xp, x, axis, before[axis], after[axis], mode), axis)
    return x


def same(size, number):
    return isinstance(size, int) and size == number


def pad_constant(xp, x, before, after, value):
    if is_string(xp.dtype(x)):
        return np.pad(
            x, list(zip(before, after)), constant_values="" if value is None else value.item()
        )
    filler = xp.scalar(0, x) if value is None else xp.reshape(value, ())
    zeros = xp.pad(x, before, after, 0)
    if value is None:
        return zeros
    inside = xp.pad(xp.full(xp.shape(x), True, np.dtype(bool)), before, after, False)
    return xp.where(inside, zeros, filler)


def pad_indices(xp, x, axis, before, after, mode):
    """Which element stands at each place of the padded axis."""
    size = xp.shape(x)[axis]
    at = xp.arange(-before, size + after, 1, INT64)
    if mode == "edge":
        return xp.clip(at, xp.scalar(0, at), xp.full((), size - 1, INT64))
    if mode == "wrap":
        return xp.remainder(at, xp.full((), size, INT64))
    if same(size, 1):
        return at * 0
    period = 2 * (size - 1)
    folded = xp.remainder(at, xp.full((), period, INT64))
    return xp.minimum(folded, period - folded)
