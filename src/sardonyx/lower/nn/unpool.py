"""MaxUnpool, the way back from MaxPool; MaxRoiPool, the largest in the bins of regions."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering

INT64 = np.dtype(np.int64)


@lowering("MaxUnpool", static=("output_shape",))
def max_unpool(xp, x, indices, output_shape=None, *, kernel_shape, pads, strides):
    rank = len(kernel_shape)
    strides, pads = strides or [1] * rank, pads or [0] * (2 * rank)
    batch, channels, *sizes = xp.shape(x)
    # Indices count in a tensor of the size that was pooled: what the window covers.
    pooled = [
        (n - 1) * s + k - pads[i] - pads[rank + i]
        for i, (n, s, k) in enumerate(zip(sizes, strides, kernel_shape))
    ]
    inner = [batch, channels, *pooled]
    canvas = xp.zeros([xp.count(inner)], xp.dtype(x))
    flat = [xp.reshape(v, [-1]) for v in (indices, x)]
    y = xp.reshape(xp.put(canvas, *flat, "none"), inner)
    if output_shape is None:
        return y
    targets = [int(n) if isinstance(n, np.integer) else n for n in output_shape.tolist()]
    return xp.pad(y, [0] * len(inner), [w - n for w, n in zip(targets, inner)], 0)


@lowering("MaxRoiPool")
def max_roi_pool(xp, x, rois, *, pooled_shape, spatial_scale):
    owner = xp.cast(xp.squeeze(xp.index(rois, 1, 0, 1), (1,)), INT64)
    images = xp.take(x, owner, 0)
    height, width = xp.shape(x)[2:]
    rows = bins(xp, rois, 2, height, pooled_shape[0], spatial_scale)
    columns = bins(xp, rois, 1, width, pooled_shape[1], spatial_scale)
    none = xp.scalar(-np.inf, x)
    bands = [
        xp.max(xp.where(xp.expand_dims(row, (1, 3)), images, none), 2) for row in rows
    ]  # each (regions, channels, width)
    pooled_rows = [
        xp.stack([xp.max(xp.where(xp.expand_dims(c, (1,)), band, none), 2) for c in columns], 2)
        for band in bands
    ]
    y = xp.stack(pooled_rows, 2)
    return xp.where(xp.equal(y, none), xp.scalar(0, x), y)  # an empty bin


def bins(xp, rois, column: int, size, count: int, scale: float) -> list:
    """Per bin, which of `size` rows it holds in each region: (regions, size)."""
    first, last = (nearest(xp, xp.index(rois, 1, c, c + 1) * scale) for c in (column, column + 2))
    step = xp.maximum(last - first + 1, xp.scalar(1, rois)) / count
    at = xp.cast(xp.reshape(xp.arange(0, size, 1, INT64), [1, size]), xp.dtype(rois))
    masks = []
    for i in range(count):
        begin, end = xp.floor(i * step) + first, xp.ceil((i + 1) * step) + first
        masks.append(xp.logical_and(xp.greater_equal(at, begin), xp.less(at, end)))
    return masks


def nearest(xp, x):
    """The nearest whole number, halves away from zero."""
    return xp.sign(x) * xp.floor(xp.abs(x) + 0.5)
