"""The rule of conv_general_dilated, with which JAX writes convolutions and their gradients.

One with zeros between the pixels of its image is a transposed convolution: conv_transpose.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Dim
from sardonyx.grad.nn.kernel import kernel_gradient
from sardonyx.grad.nn.window import Window
from sardonyx.importers.jax.conv_transpose import transposed
from sardonyx.importers.jax.driver import importer
from sardonyx.importers.jax.elementwise import converted
from sardonyx.importers.jax.shapes import dilated, is_same, padded
from sardonyx.importers.jax.writer import Refusal, Writer, is_static

T = ir.DataType
POSITIONS = 64  # of a result, up to which a product sees them all at once
EXACT = (T.INT8, T.UINT8, T.INT16, T.UINT16)  # products and sums of these are exact in float64


@importer("conv_general_dilated")
def conv_general_dilated(
    op: Writer,
    x: ir.Value,
    w: ir.Value,
    *,
    dimension_numbers: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    feature_group_count: int,
    batch_group_count: int,
    out: Sequence[Any],
) -> ir.Value:
    kind = ir.DataType.from_numpy(np.dtype(out[0].dtype))
    wide = _computed_in(x, w, kind)
    numbers = dimension_numbers
    order = np.argsort(numbers.out_spec).tolist()
    image = [x.meta["aval"].shape[a] for a in numbers.lhs_spec[2:]]
    x = op.transpose(converted(op, x, wide), numbers.lhs_spec)
    kernel = converted(op, w, wide)
    w = op.transpose(kernel, numbers.rhs_spec)
    spatial = len(padding)
    is_spread = any(d != 1 for d in lhs_dilation) and all(s == 1 for s in window_strides)
    if is_spread and batch_group_count == 1 and is_static([p for pair in padding for p in pair]):
        settings = (numbers.rhs_spec, padding, lhs_dilation, rhs_dilation, feature_group_count)
        y = transposed(op, x, kernel, *settings)
        if y is not None:
            return converted(op, op.transpose(y, order), kind)
    if not spatial:
        x, w = op.unsqueezed(x, [2]), op.unsqueezed(w, [2])
    auto_pad = None
    if not is_static([p for pair in padding for p in pair]) and not is_spread:
        reaches = _reaches(w, rhs_dilation)
        if reaches is not None and is_same(image, reaches, window_strides, padding):
            auto_pad, padding = "SAME_UPPER", [(0, 0)] * spatial
    x, pads = _placed(op, x, padding, lhs_dilation)
    groups = feature_group_count
    sizes = _few_positions(w, out[0].shape, numbers.out_spec) if groups == 1 else None
    window = window_strides, rhs_dilation, pads
    if sizes and _is_kernel_gradient(x, w, sizes, *window, numbers.lhs_spec):
        y = _as_kernel_gradient(op, x, w, sizes, *window, batch_group_count)
        return converted(op, op.transpose(y, order), kind)
    if sizes and batch_group_count == 1:
        y = _by_positions(op, x, w, sizes, *window)
        return converted(op, op.transpose(y, order), kind)
    if batch_group_count > 1:
        x, groups = _batches_as_channels(op, x, batch_group_count), batch_group_count
    y = op.Conv(
        x,
        w,
        strides=list(window_strides) or [1],
        dilations=list(rhs_dilation) or [1],
        group=groups,
        **({"auto_pad": auto_pad} if auto_pad else {"pads": pads or [0, 0]}),
    )
    if not spatial:
        y = op.squeezed(y, [2])
    y = op.transpose(y, order)
    return converted(op, y, kind)


def _reaches(w: ir.Value, dilation: Sequence[int]) -> list[int] | None:
    """How far a kernel reaches along each axis; None where its size is free."""
    sizes: list[Any] = list(w.shape)[2:]  # type: ignore[arg-type]
    if not is_static(sizes):
        return None
    return [(int(k) - 1) * int(d) + 1 for k, d in zip(sizes, dilation, strict=True)]


def _few_positions(w: ir.Value, shape: Sequence[Any], out_spec: Sequence[int]) -> list[int]:
    """The sizes of the result if the kernel has more elements than the result has positions, as in
    the gradient of a kernel, where the gradient of the result is the kernel.
    """
    kernel: list[Any] = list(w.shape)[2:]  # type: ignore[arg-type]
    sizes = [shape[a] for a in out_spec[2:]]
    if not sizes or not is_static([*kernel, *sizes]) or not is_static(list(w.shape)):  # type: ignore[arg-type]
        return []
    few = int(np.prod(sizes)) <= POSITIONS and np.prod(kernel) > 2 * np.prod(sizes)
    return [int(n) for n in sizes] if few else []


def _is_kernel_gradient(
    x: ir.Value,
    w: ir.Value,
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    order: Sequence[int],
) -> bool:
    """Whether JAX differentiates a kernel: its batch stands behind its channels, and the windows
    reach over the whole image.
    """
    if not is_static(list(x.shape)) or order[0] < order[1]:  # type: ignore[arg-type]
        return False
    return all(
        int(size) + pads[i] + pads[i + len(sizes)]
        == (int(k) - 1) * dilations[i] + 1 + (sizes[i] - 1) * strides[i]
        for i, (size, k) in enumerate(zip(x.shape[2:], w.shape[2:], strict=True))  # type: ignore[index,arg-type]
    )


def _as_kernel_gradient(
    op: Writer,
    x: ir.Value,
    w: ir.Value,
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    groups: int,
) -> ir.Value:
    """The forms that gradients of kernels have in this package, of which engines know the best.

    The batch of `x` are then channels, and its channels, which are those of `w`, the batch.
    """
    spatial = len(sizes)
    begin: list[Dim] = list(pads[:spatial])
    end: list[Dim] = list(pads[spatial:])
    window = Window(list(sizes), list(dilations), list(strides), begin, end)
    channels, batch = int(x.shape[0]), int(w.shape[0])  # type: ignore[index,arg-type]
    kernel = ir.Value(type=x.type, shape=ir.Shape([batch, channels // groups, *sizes]))
    swap = [1, 0, *range(2, 2 + spatial)]
    images, gradients = op.transpose(x, swap), op.transpose(w, swap)
    return op.transpose(kernel_gradient(op, images, gradients, kernel, window, groups), swap)


def _by_positions(
    op: Writer,
    x: ir.Value,
    w: ir.Value,
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> ir.Value:
    """One product over what all positions of the result see: a kernel as large as the image is slow
    in Conv.
    """
    spatial = len(sizes)
    pairs = [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:], strict=True)]
    x = padded(op, x, pairs, op.like(0, x))
    kernel = [int(d) for d in list(w.shape)[2:]]  # type: ignore[arg-type]
    axes = list(range(2, 2 + spatial))
    patches = []
    for position in itertools.product(*(range(s) for s in sizes)):
        starts = [p * s for p, s in zip(position, strides, strict=True)]
        ends = [b + (k - 1) * d + 1 for b, k, d in zip(starts, kernel, dilations, strict=True)]
        patch = op.Slice(x, starts, ends, axes, list(dilations))
        patches.append(op.unsqueezed(op.Flatten(patch, axis=1), [0]))
    columns = op.Concat(*patches, axis=0) if len(patches) > 1 else patches[0]
    y = op.MatMul(columns, op.swap(op.Flatten(w, axis=1)))  # [positions, batch, channels]
    y = op.transpose(y, [1, 2, 0])
    batch, channels = op.dim(x, 0), op.dim(w, 0)
    return op.reshape(y, [batch, channels, *sizes])


def _computed_in(x: ir.Value, w: ir.Value, kind: ir.DataType) -> ir.DataType:
    if x.dtype in EXACT and w.dtype in EXACT:
        return T.DOUBLE
    if not kind.is_floating_point() or not x.dtype.is_floating_point():  # type: ignore[union-attr]
        raise Refusal(f"a convolution of {x.dtype}")
    return T.DOUBLE if kind == T.DOUBLE else T.FLOAT


def _placed(
    op: Writer, x: ir.Value, padding: Any, dilation: Sequence[int]
) -> tuple[ir.Value, list[int]]:
    """The image with zeros between its pixels, cut where padding is negative; and what is left
    for Conv to pad.
    """
    zero = op.like(0, x)
    for axis, factor in enumerate(dilation):
        if factor != 1:
            x = dilated(op, x, axis + 2, int(factor), zero)
    if not is_static([p for pair in padding for p in pair]):
        return padded(op, x, [(0, 0), (0, 0), *padding], zero), [0, 0] * len(padding)
    pairs = [(int(low), int(high)) for low, high in padding]
    if any(v < 0 for pair in pairs for v in pair):
        return padded(op, x, [(0, 0), (0, 0), *pairs], zero), [0, 0] * len(padding)
    return x, [low for low, _ in pairs] + [high for _, high in pairs]


def _batches_as_channels(op: Writer, x: ir.Value, groups: int) -> ir.Value:
    """[groups * n, c, …] as [n, groups * c, …]: each group of the batch has its own kernels."""
    batch, channels, *rest = op.dims(x)
    if not isinstance(batch, int) or not isinstance(channels, int):
        raise Refusal("groups of a free batch")
    x = op.reshape(x, [groups, batch // groups, channels, *rest])
    x = op.transpose(x, [1, 0, *range(2, 3 + len(rest))])
    return op.reshape(x, [batch // groups, groups * channels, *rest])
