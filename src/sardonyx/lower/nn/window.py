"""Sliding windows: how many there are, the padding that they need, and the elements under each tap.

A tap is one element of the kernel; the elements under it, over all windows, are a strided slice.
Sums and maxima over windows are sums and maxima over taps. The way back, `placed`, puts elements
where a tap is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.lower.sizes import larger
from sardonyx.lower.xp import is_float


@dataclass(frozen=True)
class Window:
    """A window over spatial axes with everything resolved; sizes may be symbolic.

    sizes    -- of the input along the spatial axes
    outputs  -- how many windows there are along each
    before   -- padding at the begin; `after`: at the end, as the node says it
    reach    -- padding at the end so that the last window fits: more than `after` for ceil_mode
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    sizes: tuple[Any, ...]
    outputs: tuple[Any, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    reach: tuple[Any, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def volume(self) -> int:
        return int(np.prod(self.kernel))

    @property
    def is_padded(self) -> bool:
        return any(not isinstance(p, int) or p for p in (*self.before, *self.reach))

    @property
    def is_dilated(self) -> bool:
        return any(d != 1 and k != 1 for d, k in zip(self.dilations, self.kernel))


def window_of(sizes: Sequence[Any], attributes: Mapping[str, Any], weights=()) -> Window:
    """The window over axes of given sizes that the attributes of a node describe.

    weights -- the sizes of the kernel, where the attribute kernel_shape does not give them
    """
    kernel = attributes.get("kernel_shape") or weights
    rank = len(kernel)
    strides, dilations = (attributes.get(n) or [1] * rank for n in ("strides", "dilations"))
    pads, auto_pad, ceil_mode = (attributes.get(n) for n in ("pads", "auto_pad", "ceil_mode"))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        before, after = same_pads(sizes, extents, strides, auto_pad)
    elif auto_pad == "VALID" or not pads:
        before, after = [0] * rank, [0] * rank
    else:
        before, after = list(pads[:rank]), list(pads[rank:])
    outputs, reach = [], []
    for size, extent, stride, b, a in zip(sizes, extents, strides, before, after):
        count = window_count(size, extent, stride, b, a, ceil_mode)
        outputs.append(count)
        if not ceil_mode:
            reach.append(a)
        elif isinstance(size, int):
            reach.append(max((count - 1) * stride + extent - size - b, 0))
        else:
            reach.append(a + stride - 1)
    fields = (kernel, strides, dilations, sizes, outputs, before, after, reach)
    return Window(*(tuple(f) for f in fields))


def same_pads(sizes, extents, strides, auto_pad):
    small, large = [], []
    for size, extent, stride in zip(sizes, extents, strides):
        total = (-(-size // stride) - 1) * stride + extent - size
        total = total if extent >= stride else larger(total, 0)
        small.append(total // 2)
        large.append(total - total // 2)
    return (large, small) if auto_pad == "SAME_LOWER" else (small, large)


def window_count(size, extent, stride, before, after, ceil_mode):
    """How many windows fit; with ceil_mode none begins in the padding at the end."""
    if not ceil_mode:
        return (size + before + after - extent) // stride + 1
    if after + stride > extent:
        # As many as there are places to begin at: rounding up never gives fewer here.
        return (size + before + stride - 1) // stride
    return (size + before + after - extent + stride - 1) // stride + 1


def lowest(dtype: np.dtype) -> float | int:
    """What never wins against an element of `dtype`."""
    return -np.inf if is_float(dtype) else np.iinfo(dtype).min


def padded(xp, x, window: Window, value):
    """`x` with the padding that all windows need, on its last axes."""
    if not window.is_padded:
        return x
    lead = [0] * (xp.rank(x) - window.rank)
    return xp.pad(x, [*lead, *window.before], [*lead, *window.reach], value)


def taps(xp, x, window: Window) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Each tap of the kernel, and the elements of (padded) `x` under it, in the kernel's order."""
    lead = xp.rank(x) - window.rank
    for tap in itertools.product(*(range(k) for k in window.kernel)):
        starts = [k * d for k, d in zip(tap, window.dilations)]
        stops = [
            a + (count - 1) * stride + 1
            for a, count, stride in zip(starts, window.outputs, window.strides)
        ]
        yield (
            tap,
            xp.slice(
                x, [0] * lead + starts, [None] * lead + stops, [1] * lead + list(window.strides)
            ),
        )


def window_sum(xp, x, window: Window):
    """The sum under each window of `x`, which has its padding."""
    total = None
    for _, part in taps(xp, x, window):
        total = part if total is None else xp.add(total, part)
    return total


def window_max(xp, x, window: Window):
    best = None
    for _, part in taps(xp, x, window):
        best = part if best is None else xp.maximum(best, part)
    return best


def spread(xp, x, axis: int, stride: int):
    """`x` with `stride` - 1 zeros between its elements along `axis`."""
    if stride == 1:
        return x
    shape = list(xp.shape(x))
    size = shape[axis]
    apart = xp.reshape(x, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    after = [0] * (len(shape) + 1)
    after[axis + 1] = stride - 1
    apart = xp.pad(apart, [0] * (len(shape) + 1), after, 0)
    joined = xp.reshape(apart, [*shape[:axis], size * stride, *shape[axis + 1 :]])
    return xp.index(joined, axis, 0, (size - 1) * stride + 1)


def placed(xp, x, tap: Sequence[int], strides, dilations, sizes: Sequence[Any]):
    """A canvas of zeros whose last axes have `sizes`, with the elements of `x` where `tap` is."""
    lead = xp.rank(x) - len(sizes)
    before, after = [0] * lead, [0] * lead
    for axis, (k, stride, dilation, size) in enumerate(zip(tap, strides, dilations, sizes)):
        x = spread(xp, x, lead + axis, stride)
        start = k * dilation
        before.append(start)
        after.append(size - start - xp.shape(x)[lead + axis])
    return xp.pad(x, before, after, 0)
