"""Conv, ConvTranspose and Col2Im. The gradient by the kernel of a convolution is in `kernel.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, constant, rank
from sardonyx.grad.driver import gradient_rule
from sardonyx.grad.nn.kernel import kernel_gradient
from sardonyx.grad.nn.window import (
    Window,
    channel_total,
    crop,
    flat,
    pad,
    quotient,
    ranked,
    sizes,
    spread,
    window,
)


@gradient_rule("Conv")
def conv(op, g, x, w, b, *, group, **attributes):
    win = window(op, x, attributes, sizes(op, w))
    g = ranked(g, x, w, x)
    if win.known_pads:
        dx = image_gradient(op, g, x, w, win, group)
        return dx, kernel_gradient(op, x, g, w, win, group), channel_total(op, g)
    padded = pad(op, x, win.begin, win.end)
    dx = image_gradient(op, g, padded, w, win.unpadded, group)
    dx = crop(op, dx, win.begin, sizes(op, x))
    return dx, kernel_gradient(op, padded, g, w, win.unpadded, group), channel_total(op, g)


def image_gradient(
    op: Builder, g: ir.Value, x: ir.Value, w: ir.Value, win: Window, group: int
) -> ir.Value:
    steps = [*win.strides, *win.dilations]
    pointwise = win.known_kernel and win.taps == 1 and not any(win.pads)
    if pointwise and group == 1 and all(s == 1 for s in steps):
        return op.Conv(g, op.transpose(w, [1, 0, *range(2, rank(w))]))
    return spread(op, g, w, sizes(op, x), win, group)


@gradient_rule("ConvTranspose")
def conv_transpose(op, g, x, w, b, *, auto_pad, group, output_padding, output_shape, **attributes):
    if g.shape is None:
        g.shape = ir.Shape([None] * rank(x))
    win = window(op, x, attributes, sizes(op, w))
    extra = list(output_padding or [0] * len(win.strides))
    if output_shape or auto_pad != "NOTSET":
        win = _window_with_computed_pads(op, x, win, auto_pad, extra, output_shape)
    else:
        win = replace(win, end=[e - n for e, n in zip(win.end, extra, strict=True)])
    image, win = _fit_to_windows(op, g, win)
    dx = op.Conv(image, w, strides=win.strides, dilations=win.dilations, pads=win.pads, group=group)
    dx.shape = ir.Shape(x.shape)
    return dx, kernel_gradient(op, image, x, w, win, group), channel_total(op, g)


def _window_with_computed_pads(
    op: Builder,
    x: ir.Value,
    win: Window,
    auto_pad: str,
    extra: Sequence[int],
    output_shape: Sequence[int] | None,
) -> Window:
    """The window with the padding that `output_shape` or `auto_pad` implies.

    The padding at the end is negative where output rows remain that no window reaches.
    """
    begin, end = [], []
    for i, stride in enumerate(win.strides):
        if output_shape:
            over = (op.dim(x, 2 + i) - 1) * stride + win.reach(i) + 1 - output_shape[i - len(extra)]
        elif auto_pad == "VALID":
            over = -extra[i]
        else:
            over = win.reach(i) + 1 - stride
        total = over + extra[i]
        total = max(total, 0) if isinstance(total, int) else op.Max(total, 0)
        half = quotient(op, total, 2)
        begin.append(half if auto_pad == "SAME_UPPER" else total - half)
        end.append(over - begin[-1])
    return replace(win, begin=begin, end=end)


def _fit_to_windows(op: Builder, g: ir.Value, win: Window) -> tuple[ir.Value, Window]:
    """Crop and pad `g` so that there are exactly as many windows as pixels of the input.

    A negative padding at the end is a number of output rows that no window reaches: they are cut.
    """
    if win.known_pads:
        negative = [(2 + i, e) for i, e in enumerate(win.pads[len(win.end) :]) if e < 0]
        if negative:
            axes, ends = zip(*negative, strict=True)
            g = op.Slice(g, [0] * len(axes), list(ends), list(axes))
        return g, replace(win, end=[max(e, 0) for e in win.pads[len(win.end) :]])
    after = [max(e, 0) if isinstance(e, int) else op.Max(e, 0) for e in win.end]
    full = [b + size + e for b, size, e in zip(win.begin, sizes(op, g), win.end, strict=True)]
    return crop(op, pad(op, g, win.begin, after), [0] * len(full), full), win.unpadded


@gradient_rule("Col2Im")
def col2im(op, g, x, image_shape, block_shape, **attributes):
    n = rank(g) - 2
    known_shape = constant(block_shape)
    block: list[Dim] = (
        [int(k) for k in known_shape]
        if known_shape is not None
        else [op.Slice(block_shape, [i], [i + 1], [0]) for i in range(n)]
    )
    win = window(op, g, attributes, block)
    one_channel = op.Reshape(g, op.join([-1, 1, *sizes(op, g)]))
    columns = flat(op, unfold(op, one_channel, win))
    return op.reshape_like(columns, x), None, None


def unfold(op: Builder, image: ir.Value, win: Window) -> ir.Value:
    """The windows of a one-channel image, one channel per element of a window."""
    if win.known_kernel:
        eye = np.eye(win.taps).reshape(win.taps, 1, *win.kernel)  # type: ignore[arg-type]
        taps = op.const(eye, image.dtype)
    else:
        count = op.ReduceProd(op.join(win.kernel), keepdims=1)
        square = op.ConstantOfShape(op.join([count, count]), value=ir.tensor(np.zeros(1, np.int64)))
        taps = op.Reshape(
            op.EyeLike(square, dtype=int(image.dtype or 1)), op.join([-1, 1, *win.kernel])
        )
    out = op.Conv(image, taps, strides=win.strides, dilations=win.dilations, pads=win.pads)
    return ranked(out, image, taps, image)
