"""Sliding windows: where they lie on an image, and how what they read is spread back onto it.

Convolution and pooling share this geometry. Sizes are ints where they are known and values of
shape [1] where they are not; with known sizes nothing here emits arithmetic. No rule is in here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import HALF, Builder, Dim, rank

TO_THE_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Window:
    """A window per spatial axis: its size, step, dilation, and the padding around the image."""

    kernel: list[Dim]
    strides: list[int]
    dilations: list[int]
    begin: list[Dim]
    end: list[Dim]

    @property
    def axes(self) -> list[int]:
        return list(range(2, 2 + len(self.strides)))

    @property
    def known_pads(self) -> bool:
        return all(isinstance(p, int) for p in (*self.begin, *self.end))

    @property
    def pads(self) -> list[int]:
        return [*self.begin, *self.end]  # type: ignore[list-item]

    @property
    def unpadded(self) -> Window:
        zero: list[Dim] = [0] * len(self.strides)
        return replace(self, begin=zero, end=zero)

    @property
    def known_kernel(self) -> bool:
        return all(isinstance(k, int) for k in self.kernel)

    @property
    def taps(self) -> int:
        """How many elements a window has; its kernel must be known."""
        return int(np.prod(self.kernel))  # type: ignore[arg-type]

    def reach(self, axis: int) -> Dim:
        """The distance from the first to the last element of a window."""
        return (self.kernel[axis] - 1) * self.dilations[axis]  # type: ignore[return-value]

    def is_plain(self) -> bool:
        """Whether windows tile the image: no overlap, no gap, no padding."""
        return (
            self.known_kernel
            and self.kernel == self.strides
            and all(d == 1 for d in self.dilations)
            and all(isinstance(p, int) and p == 0 for p in (*self.begin, *self.end))
        )


def window(
    op: Builder, x: ir.Value, attributes: Mapping[str, Any], weights: Sequence[Dim] = ()
) -> Window:
    """The windows that an operator with these attributes slides over `x`.

    weights -- the sizes of the kernel, where the attribute kernel_shape does not give them
    """
    n = rank(x) - 2
    kernel = list(attributes.get("kernel_shape") or weights)
    strides, dilations = (list(attributes.get(k) or [1] * n) for k in ("strides", "dilations"))
    pads, auto_pad = attributes.get("pads"), attributes.get("auto_pad")
    zero: list[Dim] = [0] * n
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        bare = Window(kernel, strides, dilations, zero, zero)
        totals = [_same_padding(op, bare, i, op.dim(x, 2 + i)) for i in range(n)]
        halves = [quotient(op, t, 2) for t in totals]
        rests = [t - h for t, h in zip(totals, halves, strict=True)]
        begin, end = (halves, rests) if auto_pad == "SAME_UPPER" else (rests, halves)
        return replace(bare, begin=begin, end=end)
    if auto_pad == "VALID" or not pads:
        return Window(kernel, strides, dilations, zero, zero)
    return Window(kernel, strides, dilations, list(pads[:n]), list(pads[n:]))


def _same_padding(op: Builder, win: Window, axis: int, size: Dim) -> Dim:
    """The total padding that gives ceil(size / stride) windows."""
    stride, reach = win.strides[axis], win.reach(axis)
    if stride == 1:
        return reach
    count = quotient(op, size + (stride - 1), stride)
    total = (count - 1) * stride + reach + 1 - size
    return max(total, 0) if isinstance(total, int) else op.Max(total, 0)


def quotient(op: Builder, a: Dim, b: int) -> Dim:
    """`a` divided by `b`, rounded down; neither is negative."""
    return a // b if isinstance(a, int) else op.Div(a, b)


def product(op: Builder, dims: Sequence[Dim], dtype: ir.DataType | None) -> ir.Value:
    """The product of sizes as a float of shape [1]."""
    out: Dim = 1
    for size in dims:
        out = out * size
    return op.const([out], dtype) if isinstance(out, int) else op.cast(out, dtype)


# -- images ------------------------------------------------------------------------


def pad(
    op: Builder, x: ir.Value, begin: Sequence[Dim], end: Sequence[Dim], value: float | None = None
) -> ir.Value:
    """`x` with its spatial axes padded by `value` (zero, if not given)."""
    if all(isinstance(p, int) and p == 0 for p in (*begin, *end)):
        return x
    fill = None if value is None else op.const(value, x.dtype)
    return op.Pad(x, op.join([0, 0, *begin, 0, 0, *end]), fill)


def crop(
    op: Builder, x: ir.Value, starts: Sequence[Dim], sizes: Sequence[Dim], first: int = 2
) -> ir.Value:
    """`x` cut to `sizes` from `starts`, along the axes from `first` on that do not fit yet."""
    cut = []
    for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        have = x.shape[first + i] if x.shape is not None else None
        if not (isinstance(start, int) and start == 0 and isinstance(size, int) and size == have):
            cut.append((first + i, start, start + size))
    if not cut:
        return x
    axes, begins, ends = zip(*cut, strict=True)
    return op.Slice(x, op.join(begins), op.join(ends), list(axes))


def ranked(image: ir.Value, batch: ir.Value, channels: ir.Value, like: ir.Value) -> ir.Value:
    """`image`, known to have the rank of `like`: ONNX infers none where a kernel's size is open.

    It has the batch of `batch`, and as many channels as `channels` has rows.
    """
    if image.shape is None:
        open_sizes = [None] * (rank(like) - 2)
        image.shape = ir.Shape([batch.shape[0], channels.shape[0], *open_sizes])  # type: ignore[index]
    return image


def sizes(op: Builder, x: ir.Value) -> list[Dim]:
    """The spatial sizes of `x`."""
    return op.dims(x, 2)


def flat(op: Builder, x: ir.Value) -> ir.Value:
    """(N, C, …) as (N, C, L)."""
    return x if rank(x) == 3 else op.reshape(x, [0, 0, -1])


def channel_total(op: Builder, g: ir.Value) -> ir.Value:
    """The sum over all axes but the channels; in two stages, which onnxruntime does faster."""
    dtype = g.dtype
    wide = op.cast(g, ir.DataType.FLOAT) if dtype in HALF else g
    if rank(g) > 2:
        wide = op.total(flat(op, wide), [2])
    return op.cast(op.total(wide, [0]), dtype)  # type: ignore[arg-type]


def spread(
    op: Builder, g: ir.Value, w: ir.Value, like: Sequence[Dim], win: Window, group: int = 1
) -> ir.Value:
    """The transpose of a convolution: the windows' `g`, weighted, added onto an image.

    like -- the sizes of the image

    With unknown sizes the image is made as large as the stride allows, and cut.
    """
    have = sizes(op, g)
    axes = range(len(win.strides))
    ends, extra, cut = [], [], False
    for i in axes:
        stride = win.strides[i]
        begin, size, count, reach = win.begin[i], like[i], have[i], win.reach(i)
        assert isinstance(begin, int)
        if all(isinstance(d, int) for d in (size, count, reach)):
            over = (count - 1) * stride + reach + 1 - begin - size
            ends.append(max(over, 0))
            extra.append(max(-over, 0))
        else:
            cut = cut or stride > 1
            ends.append(win.end[i])
            extra.append(stride - 1)
    out = op.ConvTranspose(
        g,
        w,
        strides=win.strides,
        dilations=win.dilations,
        pads=[*win.begin, *ends],
        group=group,
        output_padding=extra if any(extra) else None,
    )
    if out.shape is None:
        channels = w.shape[1] * group if isinstance(w.shape[1], int) else None  # type: ignore[index]
        out.shape = ir.Shape([g.shape[0], channels, *[None] * len(win.strides)])  # type: ignore[index]
    return crop(op, out, [0] * len(like), like) if cut else out
