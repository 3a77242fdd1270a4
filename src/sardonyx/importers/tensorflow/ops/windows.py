"""Rules of convolutions and pooling, which ONNX computes with channels first."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.reader import dtype_of, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


def is_first(data_format: str) -> bool:
    """Whether channels come before positions: NCHW, NCDHW."""
    return data_format.startswith("NC")


def spatial(values: Sequence[int], data_format: str) -> list[int]:
    """The entries of the axes of positions."""
    return [int(v) for v in (values[2:] if is_first(data_format) else values[1:-1])]


def pads_of(
    padding: str,
    sizes: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    explicit: Sequence[int] = (),
    data_format: str = "NHWC",
) -> dict[str, Any]:
    """The attributes that pad as TensorFlow does."""
    if padding == "VALID":
        return {}
    if padding == "EXPLICIT":
        pairs = [(explicit[2 * i], explicit[2 * i + 1]) for i in range(len(explicit) // 2)]
        pairs = pairs[2:] if is_first(data_format) else pairs[1:-1]
        return {"pads": [int(p[0]) for p in pairs] + [int(p[1]) for p in pairs]}
    totals = []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (k - 1) * d + 1
        if s == 1:
            totals.append(reach - 1)
        elif isinstance(size, int):
            totals.append(max((-(-size // s) - 1) * s + reach - size, 0))
        else:
            return {"auto_pad": "SAME_UPPER"}
    return {"pads": [t // 2 for t in totals] + [t - t // 2 for t in totals]}


# -- convolutions ---------------------------------------------------------------------------------


@importer("Conv2D", "Conv3D")
def conv(
    op: Writer,
    x: ir.Value,
    w: ir.Value,
    *,
    strides: Sequence[int],
    padding: str,
    data_format: str,
    dilations: Sequence[int],
    explicit_paddings: Sequence[int] = (),
) -> ir.Value:
    n = rank(w)
    kernel = op.Transpose(w, perm=[n - 1, n - 2, *range(n - 2)])
    image = x if is_first(data_format) else op.channels_first(x)
    channels, inner = image.shape[1], w.shape[n - 2]  # type: ignore[index]
    # Where a number is free, groups would have been an error of the runtime, not another result.
    are_numbers = isinstance(channels, int) and isinstance(inner, int)
    groups = channels // inner if are_numbers else 1  # type: ignore[operator]
    y = _convolved(
        op, image, kernel, strides, padding, data_format, dilations, explicit_paddings,
        groups,  # type: ignore[arg-type]
    )  # fmt: skip
    return y if is_first(data_format) else op.channels_last(y)


@importer("DepthwiseConv2dNative")
def depthwise_conv2d_native(
    op: Writer,
    x: ir.Value,
    w: ir.Value,
    *,
    strides: Sequence[int],
    padding: str,
    data_format: str,
    dilations: Sequence[int],
    explicit_paddings: Sequence[int] = (),
) -> ir.Value:
    if w.shape is None or not all(isinstance(d, int) for d in w.shape):
        raise Refusal("a kernel of free size")
    height, width, channels, times = (int(d) for d in w.shape)  # type: ignore[arg-type]
    kernel = op.Transpose(w, perm=[2, 3, 0, 1])
    kernel = op.Reshape(kernel, [channels * times, 1, height, width])
    image = x if is_first(data_format) else op.channels_first(x)
    y = _convolved(
        op, image, kernel, strides, padding, data_format, dilations, explicit_paddings, channels
    )
    return y if is_first(data_format) else op.channels_last(y)


def _convolved(
    op: Writer,
    x: ir.Value,
    w: ir.Value,
    strides: Sequence[int],
    padding: str,
    data_format: str,
    dilations: Sequence[int],
    explicit: Sequence[int],
    groups: int,
) -> ir.Value:
    steps, gaps = spatial(strides, data_format), spatial(dilations, data_format)
    kernel = list(w.shape)[2:]  # type: ignore[arg-type]
    free = any(not isinstance(d, int) for d in kernel)
    if free and padding == "SAME":
        raise Refusal("a kernel of free size")
    sizes = list(x.shape)[2:]  # type: ignore[arg-type]
    pads = pads_of(padding, sizes, kernel, steps, gaps, explicit, data_format)  # type: ignore[arg-type]
    kind = x.dtype
    if kind not in (T.FLOAT, T.DOUBLE):
        x, w = op.cast(x, T.FLOAT), op.cast(w, T.FLOAT)
    options = {} if free else {"kernel_shape": list(kernel)}
    y = op.Conv(x, w, strides=steps, dilations=gaps, group=groups, **options, **pads)
    return op.cast(y, kind)


@importer("Conv2DBackpropInput", "Conv3DBackpropInputV2")
def conv_backprop_input(
    op: Writer,
    sizes: ir.Value,
    w: ir.Value,
    g: ir.Value,
    *,
    strides: Sequence[int],
    padding: str,
    data_format: str,
    dilations: Sequence[int],
    node: Any,
    explicit_paddings: Sequence[int] = (),
) -> ir.Value:
    """A transposed convolution: the gradient of a convolution, as decoders use it."""
    n = rank(w)
    kernel = op.Transpose(w, perm=[n - 1, n - 2, *range(n - 2)])
    image = g if is_first(data_format) else op.channels_first(g)
    steps, gaps = spatial(strides, data_format), spatial(dilations, data_format)
    reach = [
        (int(k) - 1) * d + 1
        for k, d in zip(list(kernel.shape)[2:], gaps, strict=True)  # type: ignore[arg-type]
    ]
    channels, outer = image.shape[1], w.shape[n - 1]  # type: ignore[index]
    groups = channels // outer if isinstance(channels, int) and isinstance(outer, int) else 1
    if groups != 1:
        raise Refusal("a transposed convolution of groups")
    target = _positions(op, sizes, node, data_format, n - 2)
    sides = list(image.shape)[2:]  # type: ignore[arg-type]
    attributes: dict[str, Any] = {"strides": steps, "dilations": gaps}
    if all(isinstance(v, int) for v in [*target, *sides]):
        pads = _static_pads(padding, explicit_paddings, data_format, target, sides, steps, reach)
        y = op.ConvTranspose(image, kernel, **attributes, **pads)
    else:
        y = _cut(op, image, kernel, attributes, padding, target, steps, reach)
    return y if is_first(data_format) else op.channels_last(y)


def _positions(op: Writer, sizes: ir.Value, node: Any, data_format: str, count: int) -> list[Any]:
    """The sizes of the result along the axes of positions: ints, or values of shape [1]."""
    shape = node.outputs[0].shape
    numbers = spatial_or_none(shape.as_list(), data_format) if shape.rank else [None] * count
    array = op.elements(sizes)
    start = 2 if is_first(data_format) else 1
    if array is not None and len(array) == count:
        start = 0
    out: list[Any] = []
    for i, size in enumerate(numbers):
        if size is None and array is not None:
            element = array[start + i]
            size = element if isinstance(element, int) else op.size(element)
        out.append(size if size is not None else op.element(op.int64(sizes), start + i))
    return out


def spatial_or_none(values: Sequence[Any], data_format: str) -> list[Any]:
    return list(values[2:] if is_first(data_format) else values[1:-1])


def _static_pads(
    padding: str,
    explicit: Sequence[int],
    data_format: str,
    target: Sequence[int],
    counts: Sequence[Any],
    strides: Sequence[int],
    reach: Sequence[int],
) -> dict[str, Any]:
    before, after, more = [], [], []
    pairs: list[Any] = [None] * len(target)
    if padding == "EXPLICIT":
        both = [(explicit[2 * i], explicit[2 * i + 1]) for i in range(len(explicit) // 2)]
        pairs = spatial_or_none(both, data_format)
    for size, count, s, k, pair in zip(target, counts, strides, reach, pairs, strict=True):
        full = (count - 1) * s + k
        total = max(full - size, 0) if padding == "SAME" else 0
        low, high = (total // 2, total - total // 2) if pair is None else pair
        before.append(int(low))
        after.append(int(high))
        more.append(int(size - (full - low - high)))
    return {"pads": before + after, "output_padding": more}


def _cut(
    op: Writer,
    x: ir.Value,
    w: ir.Value,
    attributes: dict[str, Any],
    padding: str,
    target: Sequence[Any],
    strides: Sequence[int],
    reach: Sequence[int],
) -> ir.Value:
    """The whole transposed convolution, cut to its size at run time."""
    if padding == "EXPLICIT":
        raise Refusal("explicit paddings of a free size")
    n = len(target)
    full = op.ConvTranspose(x, w, output_padding=[s - 1 for s in strides], **attributes)
    size = op.join(list(target))
    start: Any = op.const(np.zeros(n, np.int64))
    if padding == "SAME":
        whole = op.Shape(full, start=2)
        spare = op.Sub(op.Sub(whole, size), np.array([s - 1 for s in strides], np.int64))
        start = op.Div(op.Max(spare, op.const(np.zeros(1, np.int64))), [2])
    return op.Slice(full, start, op.Add(start, size), list(range(2, n + 2)))


# -- pooling --------------------------------------------------------------------------------------


@importer("MaxPool", "MaxPool3D")
def max_pool(
    op: Writer,
    x: ir.Value,
    *,
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: str,
    data_format: str,
    explicit_paddings: Sequence[int] = (),
) -> ir.Value:
    return _pooled(op, "MaxPool", x, ksize, strides, padding, data_format, explicit_paddings)


@importer("MaxPoolV2")
def max_pool_v2(
    op: Writer, x: ir.Value, ksize: ir.Value, strides: ir.Value, *, padding: str, data_format: str
) -> ir.Value:
    sizes, steps = (op.known(v, "a window").tolist() for v in (ksize, strides))
    return _pooled(op, "MaxPool", x, sizes, steps, padding, data_format, ())


@importer("AvgPool", "AvgPool3D")
def avg_pool(
    op: Writer,
    x: ir.Value,
    *,
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: str,
    data_format: str,
) -> ir.Value:
    return _pooled(op, "AveragePool", x, ksize, strides, padding, data_format, ())


def _pooled(
    op: Writer,
    operator: str,
    x: ir.Value,
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: str,
    data_format: str,
    explicit: Sequence[int],
) -> ir.Value:
    if data_format == "NCHW_VECT_C" or ksize[0] != 1 or strides[0] != 1:
        raise Refusal("pooling over the batch")
    channel = 1 if is_first(data_format) else -1
    if ksize[channel] != 1:
        raise Refusal("pooling over channels")
    image = x if is_first(data_format) else op.channels_first(x)
    kernel, steps = spatial(ksize, data_format), spatial(strides, data_format)
    sizes = list(image.shape)[2:]  # type: ignore[arg-type]
    pads = pads_of(padding, sizes, kernel, steps, [1] * len(kernel), explicit, data_format)
    kind = image.dtype
    if kind not in (T.FLOAT, T.DOUBLE):
        wide = T.DOUBLE if kind == T.INT64 else T.FLOAT
        image = op.cast(image, wide)
    if operator == "AveragePool" and any(
        p >= k for p, k in zip(pads.get("pads", []), kernel * 2, strict=False)
    ):
        raise Refusal("padding as wide as the window")
    y = op.cast(
        op.call(operator, [image], {"kernel_shape": kernel, "strides": steps, **pads}), kind
    )
    return y if is_first(data_format) else op.channels_last(y)


@importer("MaxPoolWithArgmax")
def max_pool_with_argmax(
    op: Writer,
    x: ir.Value,
    *,
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: str,
    include_batch_in_index: bool,
    node: Any,
) -> list[ir.Value]:
    """Values, and the place of each in the flattened image [height, width, channels]."""
    image = op.channels_first(x)
    channels, height, width = (op.dim_value(image, a) for a in (1, 2, 3))
    kernel, steps = spatial(ksize, "NHWC"), spatial(strides, "NHWC")
    pads = pads_of(padding, list(image.shape)[2:], kernel, steps, [1, 1])  # type: ignore[arg-type]
    y, place = op.MaxPool(image, kernel_shape=kernel, strides=steps, outputs=2, **pads)
    # ONNX counts [batch, channels, height, width]
    area = op.Mul(height, width)
    channel = op.Unsqueeze(op.count(channels), [1, 2])
    index = op.Add(op.Mul(op.Mod(place, area), channels), channel)
    if include_batch_in_index:
        size = op.Mul(area, channels)
        index = op.Add(index, op.Mul(op.Div(place, size), size))
    kind = dtype_of(node.outputs[1].dtype)
    return [op.channels_last(y), op.cast(op.channels_last(index), kind)]


@importer("ExtractImagePatches", "ExtractVolumePatches")
def extract_image_patches(
    op: Writer,
    x: ir.Value,
    *,
    ksizes: Sequence[int],
    strides: Sequence[int],
    padding: str,
    rates: Sequence[int] | None = None,
) -> ir.Value:
    """What each window sees, one slice of the image per place in the window."""
    kernel, steps = spatial(ksizes, "NHWC"), spatial(strides, "NHWC")
    gaps = spatial(rates, "NHWC") if rates else [1] * len(kernel)
    sizes = list(x.shape)[1:-1]  # type: ignore[arg-type]
    if any(not isinstance(d, int) for d in sizes):
        raise Refusal("patches of an image of free size")
    n = len(kernel)
    pads = pads_of(padding, sizes, kernel, steps, gaps).get("pads", [0] * 2 * n)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, gaps, strict=True)]
    full = [int(s) + pads[i] + pads[n + i] for i, s in enumerate(sizes)]  # type: ignore[arg-type]
    counts = [(f - r) // s + 1 for f, r, s in zip(full, reach, steps, strict=True)]
    if any(pads):
        x = op.Pad(x, [0, *pads[:n], 0, 0, *pads[n:], 0])
    parts = []
    for place in itertools.product(*(range(k) for k in kernel)):
        starts = [p * d for p, d in zip(place, gaps, strict=True)]
        ends = [b + (c - 1) * s + 1 for b, c, s in zip(starts, counts, steps, strict=True)]
        parts.append(op.Slice(x, starts, ends, list(range(1, n + 1)), steps))
    return op.Concat(*parts, axis=-1) if len(parts) > 1 else parts[0]


@importer("Dilation2D")
def dilation_2d(
    op: Writer,
    x: ir.Value,
    w: ir.Value,
    *,
    strides: Sequence[int],
    rates: Sequence[int],
    padding: str,
) -> ir.Value:
    """The largest of a window's pixels, to each of which the kernel's entry is added."""
    height, width = (int(d) for d in list(w.shape)[:2])  # type: ignore[arg-type]
    steps, gaps = spatial(strides, "NHWC"), spatial(rates, "NHWC")
    sizes = list(x.shape)[1:-1]  # type: ignore[arg-type]
    if any(not isinstance(d, int) for d in sizes):
        raise Refusal("an image of free size")
    pads = pads_of(padding, sizes, [height, width], steps, gaps).get("pads", [0] * 4)
    if any(pads):
        low = op.like(np.finfo(x.dtype.numpy()).min, x)  # type: ignore[union-attr]
        x = op.Pad(x, [0, *pads[:2], 0, 0, *pads[2:], 0], low)
    full = [int(s) + pads[i] + pads[2 + i] for i, s in enumerate(sizes)]  # type: ignore[arg-type]
    reach = [(k - 1) * d + 1 for k, d in zip((height, width), gaps, strict=True)]
    counts = [(f - r) // s + 1 for f, r, s in zip(full, reach, steps, strict=True)]
    best: ir.Value | None = None
    for i, j in itertools.product(range(height), range(width)):
        starts = [i * gaps[0], j * gaps[1]]
        ends = [b + (c - 1) * s + 1 for b, c, s in zip(starts, counts, steps, strict=True)]
        part = op.Slice(x, starts, ends, [1, 2], steps)
        row = op.Slice(w, [i, j], [i + 1, j + 1], [0, 1])
        part = op.Add(part, op.Unsqueeze(row, [0]))
        best = part if best is None else op.Max(best, part)
    assert best is not None
    return best
