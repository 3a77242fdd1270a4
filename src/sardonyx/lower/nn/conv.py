"""Convolutions as sums over taps: one product of matrices per element of the kernel."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn.window import Window, padded, placed, taps, window_of
from sardonyx.lower.sizes import larger
from sardonyx.lower.xp import is_float

FLOAT32 = np.dtype(np.float32)


@lowering("Conv")
def conv(xp, x, w, b=None, *, group, **attributes):
    window = window_of(xp.shape(x)[2:], attributes, xp.shape(w)[2:])
    return biased(xp, convolved(xp, x, w, window, group), b)


def biased(xp, y, b):
    """A bias per channel added."""
    return y if b is None else xp.add(y, xp.reshape(b, [1, -1, *[1] * (xp.rank(y) - 2)]))


def convolved(xp, x, w, window: Window, group: int):
    """The convolution; halves are summed in float32."""
    dtype = xp.dtype(x)
    if is_float(dtype) and dtype.itemsize < 4:
        x, w = xp.cast(x, FLOAT32), xp.cast(w, FLOAT32)
    batch, channels = xp.shape(x)[:2]
    features = xp.shape(w)[0]
    length = xp.count(window.outputs)
    x = padded(xp, x, window, 0)
    total = None
    for tap, part in taps(xp, x, window):
        columns = xp.reshape(part, [batch, group, channels // group, length])
        product = xp.matmul(kernel_at(xp, w, tap, group), columns)
        total = product if total is None else xp.add(total, product)
    return xp.cast(xp.reshape(total, [batch, features, *window.outputs]), dtype)


def kernel_at(xp, w, tap, group):
    """The weights of one tap as matrices, one per group: (1, group, rows / group, columns)."""
    rows, columns = xp.shape(w)[:2]
    starts, stops = [0, 0, *tap], [None, None, *(t + 1 for t in tap)]
    one = xp.slice(w, starts, stops, [1] * len(starts))
    return xp.reshape(one, [1, group, rows // group, columns])


# -- transposed ---------------------------------------------------------------------


@dataclass(frozen=True)
class Canvas:
    """Where a transposed convolution writes: sizes, and what is cut off at both ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    sizes: tuple[Any, ...]
    begin: tuple[Any, ...]
    end: tuple[Any, ...]
    extra: tuple[int, ...]


def canvas_of(input_sizes, attributes, weights) -> Canvas:
    """The canvas for an input and weights of these spatial sizes."""
    kernel = attributes.get("kernel_shape") or weights
    rank = len(kernel)
    strides, dilations = (attributes.get(n) or [1] * rank for n in ("strides", "dilations"))
    names = ("pads", "auto_pad", "output_padding", "output_shape")
    pads, auto_pad, extra, output_shape = (attributes.get(n) for n in names)
    extra = list(extra or [0] * rank)
    spans = [
        (n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(input_sizes, strides, kernel, dilations)
    ]
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if output_shape or same:
        if output_shape:
            targets = output_shape[-rank:]
            totals = [span + e - size for span, e, size in zip(spans, extra, targets)]
        else:  # as many as strides times the input: the size cancels out
            steps = zip(kernel, dilations, extra, strides)
            totals = [(k - 1) * d + 1 + e - s for k, d, e, s in steps]
        # A negative total asks for more than the windows reach.
        lacking = [larger(-t, 0) for t in totals]
        extra = [e + more for e, more in zip(extra, lacking)]
        totals = [t + more for t, more in zip(totals, lacking)]
        small = [t // 2 for t in totals]
        large = [t - s for t, s in zip(totals, small)]
        begin, end = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    elif auto_pad == "VALID" or not pads:
        begin, end = [0] * rank, [0] * rank
    else:
        begin, end = pads[:rank], pads[rank:]
    sizes = [span + e for span, e in zip(spans, extra)]
    fields = (kernel, strides, dilations, sizes, begin, end, extra)
    return Canvas(*(tuple(f) for f in fields))


def cropped(xp, y, canvas: Canvas):
    """What is left of the canvas."""
    if not any(not isinstance(p, int) or p for p in (*canvas.begin, *canvas.end)):
        return y
    stops = [size - end for size, end in zip(canvas.sizes, canvas.end)]
    return xp.slice(y, [0, 0, *canvas.begin], [None, None, *stops], [1] * (len(stops) + 2))


@lowering("ConvTranspose")
def conv_transpose(xp, x, w, b=None, *, group, **attributes):
    canvas = canvas_of(xp.shape(x)[2:], attributes, xp.shape(w)[2:])
    return biased(xp, cropped(xp, written(xp, x, w, canvas, group), canvas), b)


def written(xp, x, w, canvas: Canvas, group: int):
    """The whole canvas: each element of `x` times the kernel, added up where it falls."""
    dtype = xp.dtype(x)
    if is_float(dtype) and dtype.itemsize < 4:
        x, w = xp.cast(x, FLOAT32), xp.cast(w, FLOAT32)
    batch, channels, *sizes = xp.shape(x)
    features = xp.shape(w)[1] * group
    columns = xp.reshape(x, [batch, group, channels // group, xp.count(sizes)])
    total = None
    for tap in itertools.product(*(range(k) for k in canvas.kernel)):
        product = xp.matmul(xp.swap(kernel_at(xp, w, tap, group)), columns)
        product = xp.reshape(product, [batch, features, *sizes])
        part = placed(xp, product, tap, canvas.strides, canvas.dilations, canvas.sizes)
        total = part if total is None else xp.add(total, part)
    return xp.cast(total, dtype)


@lowering("Col2Im", static=("image_shape", "block_shape"))
def col2im(xp, x, image_shape, block_shape, **attributes):
    sizes = [int(v) if isinstance(v, np.integer) else v for v in image_shape.tolist()]
    block = [int(v) for v in block_shape.tolist()]
    window = window_of(sizes, attributes, block)
    batch, columns = xp.shape(x)[:2]
    channels = columns // window.volume
    blocks = xp.reshape(x, [batch, channels, window.volume, *window.outputs])
    ends = zip(window.before, sizes, window.after)
    canvas = [before + size + after for before, size, after in ends]
    total = None
    for i, tap in enumerate(itertools.product(*(range(k) for k in block))):
        part = xp.squeeze(xp.index(blocks, 2, i, i + 1), (2,))
        part = placed(xp, part, tap, window.strides, window.dilations, canvas)
        total = part if total is None else xp.add(total, part)
    stops = [before + size for before, size in zip(window.before, sizes)]
    return xp.slice(total, [0, 0, *window.before], [None, None, *stops], [1] * (len(block) + 2))
