"""Kernels in numpy for what ONNX's reference evaluator lacks or gets wrong.

onnxruntime has no float64 kernel for convolution and most pooling, so that gradients are checked
with `onnx.reference`. Of its kernels, grouped ConvTranspose fails, MaxPool with stride 1 returns no
indices, pooling with ceil_mode moves the windows, GlobalMaxPool takes two axes for granted, LRN
counts channels by the batch, Pad does not take negative numbers, MeanVarianceNormalization mixes
float64 with float32, and GlobalLpPool and MaxRoiPool are missing.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from sardonyx.reference import rnn

Ints = Sequence[int]


def geometry(
    shape: Ints,
    kernel: Ints,
    strides: Any,
    dilations: Any,
    pads: Any,
    auto_pad: str,
    ceil_mode: Any,
) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """strides, dilations, padding before and after, and the number of windows, per spatial axis."""
    n = len(kernel)
    strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
    begin, end = (list(pads[:n]), list(pads[n:])) if pads else ([0] * n, [0] * n)
    counts = []
    for i, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        reach = (kernel[i] - 1) * dilations[i] + 1
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
            begin[i] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            end[i] = total - begin[i]
        elif auto_pad == "VALID":
            begin[i] = end[i] = 0
        span = size + begin[i] + end[i] - reach
        count = (-(-span // stride) if ceil_mode else span // stride) + 1
        if ceil_mode and (count - 1) * stride >= size + begin[i]:
            count -= 1
        counts.append(count)
    return strides, dilations, begin, end, counts


def windows(
    x: np.ndarray, kernel: Ints, strides: Ints, dilations: Ints, begin: Ints, counts: Ints
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All windows' elements (N, C, elements, windows), their places, and which are on the image.

    Off the image the place is its coordinates' clipped, the element arbitrary.
    """
    shape = x.shape[2:]
    along, valid = [], []
    for i, size in enumerate(shape):
        at = (
            np.arange(kernel[i])[:, None] * dilations[i]
            + np.arange(counts[i]) * strides[i]
            - begin[i]
        )
        along.append(np.clip(at, 0, size - 1))
        valid.append((at >= 0) & (at < size))
    n = len(shape)
    flat = np.zeros([*kernel, *counts], np.int64)
    inside = np.ones([*kernel, *counts], bool)
    for i, size in enumerate(shape):
        dilation = [1] * (2 * n)
        dilation[i], dilation[n + i] = kernel[i], counts[i]
        flat = flat * size + along[i].reshape(dilation)
        inside = inside & valid[i].reshape(dilation)
    elements = int(np.prod(kernel))
    flat, inside = flat.reshape(elements, -1), inside.reshape(elements, -1)
    return x.reshape(*x.shape[:2], -1)[:, :, flat], flat, inside


class ConvTranspose(OpRun):
    def _run(  # type: ignore[override]
        self,
        x,
        w,
        b=None,
        auto_pad=None,
        dilations=None,
        group=None,
        kernel_shape=None,
        output_padding=None,
        output_shape=None,
        pads=None,
        strides=None,
    ):
        n = x.ndim - 2
        strides, dilations = list(strides or [1] * n), list(dilations or [1] * n)
        extra, group = list(output_padding or [0] * n), group or 1
        full = [
            (x.shape[2 + i] - 1) * strides[i] + (w.shape[2 + i] - 1) * dilations[i] + 1
            for i in range(n)
        ]
        begin, out = _placed(x.shape[2:], full, extra, strides, pads, auto_pad, output_shape)
        image = np.zeros(
            (x.shape[0], w.shape[1] * group, *(f + e for f, e in zip(full, extra, strict=True)))
        )
        parts = x.reshape(x.shape[0], group, -1, *x.shape[2:])
        taps = w.reshape(group, -1, *w.shape[1:])
        for tap in itertools.product(*(range(k) for k in w.shape[2:])):
            part = np.einsum("ngc...,gco->ngo...", parts, taps[(..., *tap)])
            place: Any = tuple(
                slice(t * d, t * d + (size - 1) * s + 1, s)
                for t, d, s, size in zip(tap, dilations, strides, x.shape[2:], strict=True)
            )
            image[(..., *place)] += part.reshape(x.shape[0], -1, *x.shape[2:])
        padded = np.pad(image, [(0, 0), (0, 0), *((0, max(o, 0)) for o in out)])
        cut: Any = (..., *(slice(a, a + o) for a, o in zip(begin, out, strict=True)))
        y = padded[cut]
        return ((y if b is None else y + b.reshape(-1, *[1] * n)).astype(x.dtype),)


def _placed(
    shape: Ints, full: Ints, extra: Ints, strides: Ints, pads: Any, auto_pad: str, output_shape: Any
) -> tuple[list[int], list[int]]:
    """Where the output of a ConvTranspose begins on the full image, and its size."""
    n = len(shape)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER") and not output_shape:
        output_shape = [size * s for size, s in zip(shape, strides, strict=True)]
    if not output_shape:
        pads = list(pads) if pads and auto_pad in ("NOTSET", None) else [0] * (2 * n)
        return pads[:n], [full[i] + extra[i] - pads[i] - pads[n + i] for i in range(n)]
    out = list(output_shape[-n:])
    totals = [max(full[i] + extra[i] - out[i], 0) for i in range(n)]
    return [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals], out


class _Pool(OpRun):
    """The windows that all pools share; a subclass reduces the elements of each."""

    def _run(self, x, *, kernel_shape, **attributes):  # type: ignore[override]
        names = ("strides", "dilations", "pads", "auto_pad", "ceil_mode")
        settings: Any = (attributes.get(name) for name in names)
        strides, dilations, begin, end, counts = geometry(x.shape[2:], kernel_shape, *settings)
        values, flat, inside = windows(x, kernel_shape, strides, dilations, begin, counts)
        counted = inside
        if attributes.get("count_include_pad"):
            padded = np.zeros((1, 1, *(sum(t) for t in zip(x.shape[2:], begin, end, strict=True))))
            nowhere = [0] * len(begin)
            _, _, counted = windows(padded, kernel_shape, strides, dilations, nowhere, counts)
        y, *more = self._reduced(x, values, flat, inside, counted, attributes)
        return tuple(part.reshape(*x.shape[:2], *counts) for part in (y.astype(x.dtype), *more))

    def _reduced(self, x, values, flat, inside, counted, attributes):
        raise NotImplementedError


class MaxPool(_Pool):
    def _reduced(self, x, values, flat, inside, counted, attributes):
        values = np.where(inside, values, -np.inf)
        if len(self.onnx_node.output) == 1:
            return (values.max(2),)
        place = flat[values.argmax(2), np.arange(flat.shape[1])]
        if attributes.get("storage_order"):
            place = np.ravel_multi_index(
                np.unravel_index(place, x.shape[2:]), x.shape[2:], order="F"
            )
        planes = np.arange(x.shape[0] * x.shape[1]) * int(np.prod(x.shape[2:]))
        return values.max(2), place + planes.reshape(*x.shape[:2], 1)


class AveragePool(_Pool):
    def _reduced(self, x, values, flat, inside, counted, attributes):
        return (np.where(inside, values, 0).sum(2) / counted.sum(0),)


class LpPool(_Pool):
    def _reduced(self, x, values, flat, inside, counted, attributes):
        p = attributes["p"]
        return ((np.where(inside, np.abs(values), 0) ** p).sum(2) ** (1 / p),)


class GlobalLpPool(OpRun):
    def _run(self, x, p=None):  # type: ignore[override]
        axes = tuple(range(2, x.ndim))
        return ((np.abs(x) ** p).sum(axes, keepdims=True) ** (1 / p),)


class GlobalMaxPool(OpRun):
    def _run(self, x):  # type: ignore[override]
        return (x.max(tuple(range(2, x.ndim)), keepdims=True),)


class LRN(OpRun):
    def _run(self, x, alpha=None, beta=None, bias=None, size=None):  # type: ignore[override]
        channels = x.shape[1]
        total = np.zeros_like(x)
        for c in range(channels):
            near = slice(max(c - (size - 1) // 2, 0), min(c + size // 2 + 1, channels))
            total[:, c] = (x[:, near] ** 2).sum(1)
        return ((x * (bias + alpha / size * total) ** -beta).astype(x.dtype),)


class MeanVarianceNormalization(OpRun):
    def _run(self, x, axes=None):  # type: ignore[override]
        axes = tuple(axes)
        centred = x - x.mean(axes, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axes, keepdims=True))
        return ((centred / (deviation + 1e-9)).astype(x.dtype),)


class Shrink(OpRun):
    def _run(self, x, bias=None, lambd=None):  # type: ignore[override]
        return (np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0)).astype(x.dtype),)


class MaxRoiPool(OpRun):
    def _run(self, x, rois, pooled_shape=None, spatial_scale=None):  # type: ignore[override]
        y = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
        for r, (batch, *corners) in enumerate(rois):
            left, top, right, bottom = (int(np.floor(c * spatial_scale + 0.5)) for c in corners)
            rows = _bins(top, bottom, pooled_shape[0], x.shape[2])
            for (i, tall), (j, wide) in itertools.product(
                enumerate(rows), enumerate(_bins(left, right, pooled_shape[1], x.shape[3]))
            ):
                part = x[int(batch), :, tall, wide]
                y[r, :, i, j] = part.max((1, 2)) if part.size else 0
        return (y,)


def _bins(start: int, end: int, count: int, size: int) -> Iterator[slice]:
    step = max(end - start + 1, 1) / count
    edges = [(np.floor(i * step) + start, np.ceil((i + 1) * step) + start) for i in range(count)]
    return (slice(*(int(np.clip(e, 0, size)) for e in pair)) for pair in edges)


class Pad(OpRun):
    """Takes negative padding: it cuts."""

    def _run(self, x, pads, value=None, axes=None, mode=None):  # type: ignore[override]
        places = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
        begin, end = np.zeros(x.ndim, np.int64), np.zeros(x.ndim, np.int64)
        for i, axis in enumerate(places):
            begin[axis], end[axis] = pads[i], pads[i + len(places)]
        cut = tuple(
            slice(max(-b, 0), n - max(-e, 0)) for b, e, n in zip(begin, end, x.shape, strict=True)
        )
        widths = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
        if mode in (None, "constant"):
            fill = 0 if value is None else np.asarray(value).item()
            return (np.pad(x[cut], widths, constant_values=fill).astype(x.dtype),)
        return (np.pad(x[cut], widths, mode=mode),)


KERNELS = [
    Pad,
    LRN,
    MeanVarianceNormalization,
    Shrink,
    ConvTranspose,
    MaxPool,
    AveragePool,
    LpPool,
    GlobalLpPool,
    GlobalMaxPool,
    MaxRoiPool,
    *rnn.KERNELS,
]
