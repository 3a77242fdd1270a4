"""Pooling: average, maximum and p-norm over windows or whole images, MaxUnpool, MaxRoiPool."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, rank
from sardonyx.grad.driver import complete, gradient_rule
from sardonyx.grad.nn.window import Window, crop, flat, pad, sizes, spread, window

# The positions in a window, as floats, are exact up to this many even in bfloat16.
MOST_RANKED = 256


# -- average -------------------------------------------------------------------------


@gradient_rule("AveragePool")
def average_pool(op, g, x, *, ceil_mode, count_include_pad, **attributes):
    win = window(op, x, attributes)
    if win.is_plain() and not ceil_mode:
        tiled = enlarge(op, g * (1.0 / win.taps), win.kernel)
        return complete_image(op, tiled, x)
    return collect(op, g * _shares(op, x, g, win, ceil_mode, count_include_pad), x, win)


def _shares(
    op: Builder, x: ir.Value, g: ir.Value, win: Window, ceil_mode: int, count_include_pad: int
) -> ir.Value | float:
    """One over the number of elements that each window averages."""
    shares: ir.Value | float = 1.0
    constant_shares = np.ones([1] * rank(x))
    for i, size in enumerate(sizes(op, x)):
        counts = _counts(op, win, i, size, op.dim(g, 2 + i), ceil_mode, count_include_pad)
        spread_out = [1] * rank(x)
        spread_out[2 + i] = -1
        if isinstance(counts, ir.Value):
            vector = op.Reciprocal(op.cast(counts, x.dtype))
            shares = op.Reshape(vector, spread_out) * shares
        else:
            constant_shares = constant_shares / np.reshape(counts, spread_out)
    if np.ptp(constant_shares) == 0:
        return shares * float(constant_shares.flat[0])
    return (
        op.const(constant_shares, x.dtype) * shares
        if isinstance(shares, ir.Value)
        else op.const(constant_shares, x.dtype)
    )


def _counts(
    op: Builder, win: Window, axis: int, size: Any, windows: Any, ceil_mode: int, include: int
) -> np.ndarray | int | ir.Value:
    """How many elements of each window along one axis are counted."""
    kernel: Any = win.kernel[axis]
    stride, step = win.strides[axis], win.dilations[axis]
    begin: Any = win.begin[axis]
    end: Any = win.end[axis]
    if not ceil_mode and (include or (begin == 0 and end == 0)):
        return kernel
    taps = np.arange(kernel) * step
    low, high = (-begin, size + end) if include else (0, size)
    if all(isinstance(d, int) for d in (begin, size, windows)):
        at = np.arange(windows)[:, None] * stride - begin + taps
        return ((at >= low) & (at < high)).sum(1)
    first = op.Range(0, op.Squeeze(op.join([windows]), [0]), 1) * stride - begin
    at = op.Unsqueeze(first, [1]) + op.const(taps[None], ir.DataType.INT64)
    inside = op.And(op.GreaterOrEqual(at, low), op.Less(at, high))
    return op.total(op.cast(inside, ir.DataType.INT64), [1])


def collect(op: Builder, g: ir.Value, x: ir.Value, win: Window) -> ir.Value:
    """Each pixel's sum of `g` over the windows that read it."""
    if not win.known_pads:
        inner = sizes(op, x)
        padded = [b + s + e for b, s, e in zip(win.begin, inner, win.end, strict=True)]
        return crop(op, _collect(op, g, padded, x, win.unpadded), win.begin, inner)
    return _collect(op, g, sizes(op, x), x, win)


def _collect(op: Builder, g: ir.Value, like: list[Dim], x: ir.Value, win: Window) -> ir.Value:
    alone = op.Reshape(g, op.join([-1, 1, *sizes(op, g)]))
    ones = op.const(np.ones((1, 1, *win.kernel)), g.dtype)  # type: ignore[arg-type]
    image = spread(op, alone, ones, like, win)
    return op.reshape(image, [*op.dims(x, 0, 2), *like])


def enlarge(op: Builder, g: ir.Value, factors: list[Dim]) -> ir.Value:
    """Each pixel repeated `factors` times along each axis: Resize is by far the fastest way."""
    scales = op.const(np.array([1, 1, *factors], np.float32))
    return op.Resize(
        g,
        None,
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def complete_image(op: Builder, image: ir.Value, x: ir.Value) -> ir.Value:
    """`image` with the rows and columns of `x` that no window reached, as zeros."""
    have, want = sizes(op, image), sizes(op, x)
    return pad(op, image, [0] * len(have), [w - h for w, h in zip(want, have, strict=True)])


@gradient_rule("GlobalAveragePool")
def global_average_pool(op, g, x):
    spatial: Any = sizes(op, x)
    if all(isinstance(d, int) for d in spatial):
        return enlarge(op, g * (1.0 / int(np.prod(spatial))), spatial)
    count = op.cast(op.ReduceProd(op.join(spatial), keepdims=1), x.dtype)
    return op.Expand(op.Div(g, count), op.shape(x))


# -- maximum -------------------------------------------------------------------------


@gradient_rule("MaxPool")
def max_pool(op, g, x, *, ceil_mode, storage_order, out, node, **attributes):
    win = window(op, x, attributes)
    static = all(isinstance(d, int) for d in sizes(op, x))
    if win.is_plain() and not ceil_mode and static and win.taps <= MOST_RANKED:
        return _first_in_tile(op, g, x, out[0], win)
    if storage_order == 0:
        complete(node, 2)
        indices = node.outputs[1]
    else:
        settings = {k: a for k, a in node.attributes.items() if k != "storage_order"}
        _, indices = op.MaxPool(x, outputs=2, **settings)
    return add_at(op, op.Reshape(indices, [-1]), op.Reshape(g, [-1]), x)


def add_at(op: Builder, indices: ir.Value, updates: ir.Value, x: ir.Value) -> ir.Value:
    """An image like `x` of zeros, with `updates` added at flat `indices`."""
    zeros = op.Reshape(op.zeros_like(x), [-1])
    return op.reshape_like(op.ScatterElements(zeros, indices, updates, axis=0, reduction="add"), x)


def _first_in_tile(op: Builder, g: ir.Value, x: ir.Value, y: ir.Value, win: Window) -> ir.Value:
    """Windows that tile the image: `g` at the first maximum of each, without indices.

    Elements equal to the maximum are ranked from the last to the first; the best rank takes all.
    """
    counts = sizes(op, g)
    tiled = [c * k for c, k in zip(counts, win.kernel, strict=True)]
    inner = crop(op, x, [0] * len(tiled), tiled)
    ranks = np.arange(win.taps, 0, -1).reshape(win.kernel)  # type: ignore[arg-type]
    ranks = np.tile(ranks, counts)[None, None]  # type: ignore[arg-type]
    tied = op.cast(op.Equal(inner, enlarge(op, y, win.kernel)), x.dtype)
    ranked = tied * op.const(ranks, x.dtype)
    best = op.MaxPool(ranked, kernel_shape=win.kernel, strides=win.strides)
    chosen = op.cast(op.Equal(ranked, enlarge(op, best, win.kernel)), x.dtype)
    return complete_image(op, chosen * enlarge(op, g, win.kernel), x)


@gradient_rule("GlobalMaxPool")
def global_max_pool(op, g, x):
    image = flat(op, x)
    first = op.ArgMax(image, axis=2, keepdims=1)
    spread_out = op.ScatterElements(op.zeros_like(image), first, flat(op, g), axis=2)
    return op.reshape_like(spread_out, x)


@gradient_rule("MaxUnpool")
def max_unpool(op, g, x, indices, output_shape, **attributes):
    """Indices count within the size that pooling had; `output_shape` only adds zeros after it."""
    if output_shape is not None:
        win = window(op, x, attributes)
        windows = [
            (size - 1) * s + (k - b - e)
            for size, s, k, b, e in zip(
                sizes(op, x), win.strides, win.kernel, win.begin, win.end, strict=True
            )
        ]
        g = crop(op, g, [0] * len(windows), windows)
    picked = op.GatherElements(op.Reshape(g, [-1]), op.Reshape(indices, [-1]), axis=0)
    return op.reshape_like(picked, x), None, None


# -- p-norm --------------------------------------------------------------------------


@gradient_rule("LpPool")
def lp_pool(op, g, x, *, p, out, **attributes):
    win = window(op, x, attributes)
    return _power_slope(op, x, p) * collect(op, _over_power(op, g, out[0], p), x, win)


@gradient_rule("GlobalLpPool")
def global_lp_pool(op, g, x, *, p, out):
    return _power_slope(op, x, p) * _over_power(op, g, out[0], p)


def _power_slope(op: Builder, x: ir.Value, p: int) -> ir.Value:
    """The derivative of |x|^p / p."""
    if p == 1:
        return op.Sign(x)
    return x if p == 2 else x * op.Pow(op.Abs(x), float(p - 2))


def _over_power(op: Builder, g: ir.Value, y: ir.Value, p: int) -> ir.Value:
    """g / y^(p-1); zero where the norm is."""
    if p == 1:
        return g
    zero = op.Equal(y, 0.0)
    safe = op.Where(zero, 1.0, y)
    return op.Where(zero, 0.0, op.Div(g, safe if p == 2 else op.Pow(safe, float(p - 1))))


# -- regions of interest --------------------------------------------------------------


@gradient_rule("MaxRoiPool", refuses=(1,))
def max_roi_pool(op, g, x, rois, *, pooled_shape, spatial_scale):
    """The first maximum of each bin takes it all: the best column per row, then the best row."""
    rows, columns = sizes(op, x)
    batch = op.cast(op.Slice(rois, [0], [1], [1]), ir.DataType.INT64)
    image = op.Gather(x, op.Squeeze(batch, [1]), axis=0)
    in_row = _bins(op, rois, 2, pooled_shape[0], rows, spatial_scale)
    in_column = _bins(op, rois, 1, pooled_shape[1], columns, spatial_scale)
    lowest = float(np.finfo(np.float32).min)
    across = op.Where(op.Unsqueeze(in_column, [1, 2]), op.Unsqueeze(image, [3]), lowest)
    best_column = op.ArgMax(across, axis=4, keepdims=0)
    best = op.Transpose(op.ReduceMax(across, [4], keepdims=0), perm=[0, 1, 3, 2])
    down = op.Where(op.Unsqueeze(in_row, [1, 3]), op.Unsqueeze(best, [2]), lowest)
    row = op.ArgMax(down, axis=4, keepdims=0)
    column = op.GatherElements(best_column, row, axis=2)
    channels = op.join([op.dim(x, 1)])
    channel = op.Range(0, op.Squeeze(channels, [0]), 1)
    plane = op.Unsqueeze(batch * channels, [2, 3]) + op.Reshape(channel, [1, -1, 1, 1])
    at = (plane * op.join([rows]) + row) * op.join([columns]) + column
    filled = op.And(
        op.Unsqueeze(_any(op, in_row), [1, 3]), op.Unsqueeze(_any(op, in_column), [1, 2])
    )
    g = op.Where(filled, g, 0.0)
    return add_at(op, op.Reshape(at, [-1]), op.Reshape(g, [-1]), x), None


def _any(op: Builder, mask: ir.Value) -> ir.Value:
    return op.cast(
        op.ReduceMax(op.cast(mask, ir.DataType.INT32), [2], keepdims=0), ir.DataType.BOOL
    )


def _bins(
    op: Builder, rois: ir.Value, column: int, pooled: int, size: Dim, scale: float
) -> ir.Value:
    """(region, bin, pixel): whether the pixel is in the bin, along one axis."""

    def edge(position: int) -> ir.Value:
        scaled = op.Slice(rois, [position], [position + 1], [1]) * scale
        return op.Sign(scaled) * op.Floor(op.Abs(scaled) + 0.5)

    start, end = edge(column), edge(column + 2)
    step = op.Max(end - start + 1.0, 1.0) / float(pooled)
    bins = np.arange(pooled)[None]
    low = op.Floor(op.const(bins, rois.dtype) * step) + start
    high = op.Ceil(op.const(bins + 1, rois.dtype) * step) + start
    pixel = op.cast(op.Range(0, op.Squeeze(op.join([size]), [0]), 1), rois.dtype)
    return op.And(
        op.GreaterOrEqual(pixel, op.Unsqueeze(low, [2])), op.Less(pixel, op.Unsqueeze(high, [2]))
    )
