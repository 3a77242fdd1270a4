"""The gradient of a convolution's kernel, in the formulation that onnxruntime runs fastest.

x (N, C, …) is the image, g (N, O, …) the gradient at each window, w (O, C/group, …) the kernel.
The choice depends on what is known: `kernel_gradient` reads as the table of choices. All are exact.

It is made here and not by the engine, because a gradient and an exported step are files that stock
onnxruntime runs as they are. With the general form alone (`swapped`), small convolutional networks
take 1.5 times as long as in torch instead of 1.2 (bench/gradients.py).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, rank
from sardonyx.grad.nn.window import TO_THE_END, Window, crop, flat, pad, ranked, sizes

FEW_CHANNELS = 8
SMALL_KERNEL = 5
# Beyond this, one node per element of the kernel makes the graph too large.
MOST_TAPS = 64
# The unfolded image is this many times the image at most.
MOST_COLUMNS = 512
# Depthwise by products of rows: the work grows with the width of the image, measured in kernels.
WIDEST_ROW = 12


def kernel_gradient(
    op: Builder, x: ir.Value, g: ir.Value, w: ir.Value, win: Window, group: int
) -> ir.Value:
    n = len(win.strides)
    channels = w.shape[1] if w.shape is not None else None
    count = channels if isinstance(channels, int) else FEW_CHANNELS
    few = count < FEW_CHANNELS
    if win.known_kernel and win.taps == 1 and group == 1 and not any(win.pads):
        dw = pointwise(op, x, g, win)
    elif win.known_kernel and group == 1 and few and _unfolds(win, count):
        dw = unfolded(op, x, g, win, count)
    elif _has_short_rows(x, g, w, win, group):
        dw = by_rows(op, x, g, win)
    elif win.known_kernel and win.taps <= MOST_TAPS and (group > 1 or n == 3):
        dw = by_taps(op, x, g, win, group)
    elif n == 3:
        return swapped(op, x, g, win, group)
    elif few and group == 1:
        return channels_first(op, x, g, win)
    else:
        return channels_last(op, x, g, win, group)
    return op.reshape_like(dw, w)


def _unfolds(win: Window, channels: int) -> bool:
    return max(win.kernel) <= SMALL_KERNEL and win.taps * channels <= MOST_COLUMNS  # type: ignore[type-var,operator]


def pointwise(op: Builder, x: ir.Value, g: ir.Value, win: Window) -> ir.Value:
    """A kernel of one element: a product of matrices per image."""
    if any(s > 1 for s in win.strides):
        n = len(win.strides)
        x = op.Slice(x, [0] * n, [TO_THE_END] * n, win.axes, win.strides)
    return op.total(op.MatMul(flat(op, g), op.swap(flat(op, x))), [0])


def unfolded(op: Builder, x: ir.Value, g: ir.Value, win: Window, channels: int) -> ir.Value:
    """Windows laid out as columns by a depthwise convolution with an identity kernel."""
    eye = np.eye(win.taps).reshape(win.taps, 1, *win.kernel)  # type: ignore[arg-type]
    columns = op.Conv(
        x,
        op.const(np.tile(eye, (channels, *[1] * (eye.ndim - 1))), x.dtype),
        strides=win.strides,
        dilations=win.dilations,
        pads=win.pads,
        group=channels,
    )
    return op.total(op.MatMul(flat(op, g), op.swap(flat(op, columns))), [0])


def by_taps(op: Builder, x: ir.Value, g: ir.Value, win: Window, group: int) -> ir.Value:
    """One product of matrices per element of the kernel, per image and group."""
    padded = pad(op, x, win.begin, win.end)
    spans = [(d - 1) * s + 1 for d, s in zip(sizes(op, g), win.strides, strict=True)]
    gradients = _by_group(op, g, group)
    parts = []
    for tap in itertools.product(*(range(k) for k in win.kernel)):  # type: ignore[arg-type]
        starts = [t * d for t, d in zip(tap, win.dilations, strict=True)]
        part = _strided(op, padded, starts, spans, win)
        product = op.total(op.MatMul(gradients, op.swap(_by_group(op, part, group))), [0])
        parts.append(op.Unsqueeze(product, [3]))
    return op.Concat(*parts, axis=3) if len(parts) > 1 else parts[0]


def _has_short_rows(x: ir.Value, g: ir.Value, w: ir.Value, win: Window, group: int) -> bool:
    sizes_known = all(isinstance(d, int) for d in (*x.shape[1:], *g.shape[1:]))  # type: ignore[index]
    if len(win.strides) != 2 or not sizes_known or not win.known_kernel:
        return False
    depthwise = group > 1 and x.shape[1] == g.shape[1] == group  # type: ignore[index]
    short = x.shape[3] <= WIDEST_ROW * win.kernel[1] * win.strides[1]  # type: ignore[index,operator]
    rows = [_rows(x.shape[2], g.shape[2], win, i) for i in range(win.kernel[0])]  # type: ignore[index,arg-type]
    return depthwise and short and all(last > first for first, last, _ in rows)


def _rows(height: int, count: int, win: Window, tap: int) -> tuple[int, int, int]:
    """The rows of windows whose element `tap` is on the image, and the row that the first meets."""
    offset, stride = tap * win.dilations[0] - win.begin[0], win.strides[0]  # type: ignore[operator]
    first = max(0, -(offset // stride))
    last = min(count, (height - 1 - offset) // stride + 1)
    return first, last, first * stride + offset  # type: ignore[return-value]


def by_rows(op: Builder, x: ir.Value, g: ir.Value, win: Window) -> ir.Value:
    """Depthwise: all pairs of columns of image and `g`, summed over rows; a tap is a diagonal."""
    image, gradient = op.transpose(x, [1, 0, 2, 3]), op.transpose(g, [1, 0, 2, 3])
    channels, height, width = static_dims(x, 1)
    count, across = static_dims(g, 2)
    tall: Any = win.kernel[0]
    wide: Any = win.kernel[1]
    diagonals = np.zeros((wide, width, across))
    for tap in range(wide):
        at = np.arange(across) * win.strides[1] + tap * win.dilations[1] - win.begin[1]
        on_image = (at >= 0) & (at < width)
        diagonals[tap, at[on_image], np.arange(across)[on_image]] = 1
    pick = op.const(diagonals.reshape(len(diagonals), -1).T, x.dtype)
    parts = []
    for tap in range(tall):
        first, last, start = _rows(height, count, win, tap)
        stride = win.strides[0]
        above, below = image, gradient
        if not (start == 0 and last - first == height and stride == 1):
            above = op.Slice(
                image, [start], [start + (last - first - 1) * stride + 1], [2], [stride]
            )
        if last - first < count:
            below = op.Slice(gradient, [first], [last], [2])
        rows = op.reshape(above, [channels, -1, width]), op.reshape(below, [channels, -1, across])
        pairs = op.reshape(op.MatMul(op.swap(rows[0]), rows[1]), [channels, width * across])
        parts.append(op.Unsqueeze(op.MatMul(pairs, pick), [1]))
    return op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]


def static_dims(x: ir.Value, first: int) -> list[int]:
    return [int(d) for d in x.shape[first:]]  # type: ignore[index,arg-type]


def _by_group(op: Builder, x: ir.Value, group: int) -> ir.Value:
    """(N, C, …) as (N, group, C/group, L)."""
    return op.reshape(x, [0, group, _channels(op, x, group), -1])


def _strided(
    op: Builder, x: ir.Value, starts: list[int], spans: list[Dim], win: Window
) -> ir.Value:
    ends = [a + b for a, b in zip(spans, starts, strict=True)]
    return op.Slice(x, starts, op.join(ends), win.axes, win.strides)


# -- the gradient as a convolution of the image with `g` ----------------------------
# Strides and dilations change places. Without the rows that the forward's division dropped, the
# result has the size of the kernel: the padding is trimmed by them, or the result is cut.


def _trimmed(op: Builder, x: ir.Value, g: ir.Value, win: Window) -> tuple[list[int], bool]:
    """Padding at the end, less what no window reached; and whether the result must still be cut."""
    ends: list[Any] = []
    cut = False
    for i, stride in enumerate(win.strides):
        size: Any = x.shape[2 + i]  # type: ignore[index]
        count: Any = g.shape[2 + i]  # type: ignore[index]
        reach: Any = win.reach(i)
        end: Any = win.end[i]
        if all(isinstance(d, int) for d in (size, count, reach)):
            left = size + win.begin[i] + end - reach - 1 - (count - 1) * stride
            fits = left <= end
            ends.append(end - left if fits else end)
            cut = cut or not fits
        else:
            ends.append(end)
            cut = cut or stride > 1
    return ends, cut


def channels_last(op: Builder, x: ir.Value, g: ir.Value, w_win: Window, group: int) -> ir.Value:
    """Images play the channels and (H, W, C) the spatial axes: one product with C contiguous."""
    win, n = w_win, len(w_win.strides)
    ends, cut = _trimmed(op, x, g, win)
    if group == 1:
        image = op.Unsqueeze(op.transpose(x, [0, *win.axes, 1]), [0])
    else:
        spatial = sizes(op, x)
        split = op.Reshape(x, op.join([0, group, -1, *spatial]))
        moved = op.transpose(split, [1, 0, *range(3, 3 + n), 2])
        image = op.Reshape(moved, op.join([1, -1, *spatial, _channels(op, x, group)]))
    taps = op.Unsqueeze(op.transpose(g, [1, 0, *win.axes]), [n + 2])
    out = op.Conv(
        image,
        taps,
        strides=[*win.dilations, 1],
        dilations=[*win.strides, 1],
        pads=[*win.begin, 0, *ends, 0],
        group=group,
    )
    out = ranked(out, image, taps, image)
    if cut:
        out = crop(op, out, [0] * n, win.kernel)
    return op.transpose(op.Squeeze(out, [0]), [0, n + 1, *range(1, n + 1)])


def _channels(op: Builder, x: ir.Value, group: int) -> Dim:
    size = op.dim(x, 1)
    return size // group if isinstance(size, int) else op.Div(size, group)


def channels_first(op: Builder, x: ir.Value, g: ir.Value, win: Window) -> ir.Value:
    """As `channels_last`, with axes (C, H, W): better for few channels and large kernels."""
    n = len(win.strides)
    ends, cut = _trimmed(op, x, g, win)
    image, taps = op.Unsqueeze(x, [0]), op.Unsqueeze(op.transpose(g, [1, 0, *win.axes]), [2])
    out = op.Conv(
        image,
        taps,
        strides=[1, *win.dilations],
        dilations=[1, *win.strides],
        pads=[0, *win.begin, 0, *ends],
    )
    out = ranked(out, image, taps, image)
    if cut:
        out = crop(op, out, [0] * n, win.kernel, first=3)
    return op.Squeeze(out, [0])


def swapped(op: Builder, x: ir.Value, g: ir.Value, win: Window, group: int) -> ir.Value:
    """Images and channels change places: slower, but for any number of axes and any kernel."""
    n = len(win.strides)
    ends, cut = _trimmed(op, x, g, win)
    image = x
    if group > 1:
        spatial = sizes(op, x)
        split = op.transpose(
            op.Reshape(x, op.join([0, group, -1, *spatial])), [2, 1, 0, *range(3, 3 + n)]
        )
        image = op.Reshape(split, op.join([_channels(op, x, group), -1, *spatial]))
    else:
        image = op.transpose(x, [1, 0, *win.axes])
    taps = op.transpose(g, [1, 0, *win.axes])
    out = op.Conv(
        image,
        taps,
        strides=win.dilations,
        dilations=win.strides,
        pads=[*win.begin, *ends],
        group=group,
    )
    out = ranked(out, image, taps, image)
    if cut:
        out = crop(op, out, [0] * n, win.kernel)
    return op.transpose(out, [1, 0, *range(2, rank(out))])
