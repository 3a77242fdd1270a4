"""Deformable convolution: bilinear samples at moved positions, as columns, times the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, rank
from sardonyx.errors import ArgumentError, quote
from sardonyx.grad.driver import gradient_rule
from sardonyx.grad.nn.parts import by_parts
from sardonyx.grad.nn.window import quotient, sizes, window


@gradient_rule("DeformConv")
def deform_conv(op, g, x, w, offset, b, mask, *, group, offset_group, node, **attributes):
    if rank(x) != 4:
        raise ArgumentError(
            "DeformConv has a gradient for images of two dimensions only",
            [[f"node {quote(node.name)}", f"{rank(x) - 2} dimensions"]],
        )
    win = window(op, x, attributes, sizes(op, w))

    def forward(op, x, w, offset, b, mask):
        columns = _columns(op, x, offset, mask, win, offset_group)
        height, width = sizes(op, offset)
        columns = op.Reshape(columns, op.join([0, group, -1, height * width]))
        rows = op.Reshape(w, op.join([group, quotient(op, op.dim(w, 0), group), -1]))
        y = op.Reshape(
            op.MatMul(rows, columns), op.join([op.dim(x, 0), op.dim(w, 0), *sizes(op, offset)])
        )
        return y if b is None else y + op.Unsqueeze(b, [1, 2])

    return by_parts(op, (g,), (x, w, offset, b, mask), forward)


def _columns(op: Builder, x, offset, mask, win, groups: int) -> ir.Value:
    """What the kernel's elements meet: (N, groups, C/groups, elements · positions)."""
    moved = op.Reshape(offset, op.join([0, groups, *win.kernel, 2, *sizes(op, offset)]))
    length = op.join([0, groups, 1, -1])
    places = []
    for axis in (0, 1):
        taps = _steps(op, win.kernel[axis], win.dilations[axis], 0, 2 + axis, x.dtype)
        starts = _steps(
            op, op.dim(offset, 2 + axis), win.strides[axis], win.begin[axis], 4 + axis, x.dtype
        )
        shift = op.Squeeze(op.Slice(moved, [axis], [axis + 1], [4]), [4])
        places.append(op.Reshape(shift + taps + starts, length))
    height, width = sizes(op, x)
    image = op.Reshape(x, op.join([0, groups, -1, height * width]))
    samples: Any = None
    for rows, row_share in _corners(op, places[0], height, x.dtype):
        for columns, column_share in _corners(op, places[1], width, x.dtype):
            at = rows * op.join([width]) + columns
            pixels = op.GatherElements(image, _to_channels(op, at, image), axis=3)
            part = pixels * (row_share * column_share)
            samples = part if samples is None else samples + part
    if mask is not None:
        samples = samples * op.Reshape(mask, length)
    return samples


def _steps(op: Builder, count: Dim, step: int, before: int, axis: int, dtype) -> ir.Value:
    """count numbers, `step` apart, from -before on, along `axis` of six."""
    shape = [1] * 6
    shape[axis] = -1
    if isinstance(count, int):
        return op.const((np.arange(count) * step - before).reshape(shape), dtype)
    numbers = op.Range(0, op.Squeeze(count, [0]), 1) * step - before
    return op.Reshape(op.cast(numbers, dtype), shape)


def _corners(op: Builder, place: ir.Value, size: Dim, dtype) -> list[tuple[ir.Value, ir.Value]]:
    """The pixels before and after `place`, and their shares; none for a pixel outside."""
    low = op.Floor(place)
    corners = []
    last = op.cast(op.join([size]) - 1, dtype) if not isinstance(size, int) else float(size - 1)
    for pixel, share in ((low, low - place + 1.0), (low + 1.0, place - low)):
        inside = op.And(op.GreaterOrEqual(pixel, 0.0), op.LessOrEqual(pixel, last))
        index = op.cast(op.Where(inside, pixel, 0.0), ir.DataType.INT64)
        corners.append((index, op.Where(inside, share, 0.0)))
    return corners


def _to_channels(op: Builder, index: ir.Value, image: ir.Value) -> ir.Value:
    """Indices (N, groups, 1, L) for all channels of a group: (N, groups, C/groups, L)."""
    return op.Expand(index, op.join([1, 1, op.dim(image, 2), 1]))
