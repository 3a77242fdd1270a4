"""Writing by index."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.tensor.gather import element_offsets, from_end, tuple_offsets
from sardonyx.lower.xp import positive

INT64 = np.dtype(np.int64)


def put_flat(xp, x, offsets, updates, reduction):
    flat = (xp.reshape(v, (-1,)) for v in (x, offsets, updates))
    return xp.reshape(xp.put(*flat, reduction=reduction), xp.shape(x))


@lowering("ScatterElements")
def scatter_elements(xp, x, indices, updates, *, axis, reduction):
    axis = positive(axis, xp.rank(x))
    sizes = xp.shape(x)
    offsets = element_offsets(xp, sizes, from_end(xp, indices, sizes[axis]), axis)
    return put_flat(xp, x, offsets, updates, reduction)


@lowering("ScatterND")
def scatter_nd(xp, x, indices, updates, *, reduction):
    sizes, depth = xp.shape(x), xp.shape(indices)[-1]
    row = xp.count(sizes[depth:])
    first = tuple_offsets(xp, sizes[:depth], xp.cast(indices, INT64)) * row
    offsets = xp.reshape(first, (-1, 1)) + xp.reshape(xp.arange(0, row, 1, INT64), (1, row))
    return put_flat(xp, x, offsets, updates, reduction)
