"""A part of a tensor, or a tensor with a margin: Slice, Pad, CenterCropPad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, constant, is_static, rank, static
from sardonyx.grad.driver import gradient_rule
from sardonyx.grad.tensor.gather import counted, put, wide

Grad = ir.Value | None
FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


# -- Slice ------------------------------------------------------------------------


@gradient_rule("Slice")
def slice(op, g, x, starts, ends, axes, steps):
    pairs = _known_axes(x, starts, axes, steps)
    if pairs is None:
        return _put_back(op, g, x, lambda positions: op.Slice(positions, starts, ends, axes, steps))
    where, strides = pairs
    back = [a for a, step in zip(where, strides, strict=True) if step < 0]
    if back:
        count = len(back)
        g = op.Slice(g, [-1] * count, [FIRST] * count, back, [-1] * count)
    begins, after = [], []
    for i, (axis, step) in enumerate(zip(where, strides, strict=True)):
        size, length = op.dim(x, axis), op.dim(g, axis)
        begin = _start(op, starts, i, size, step)
        if step < 0:
            begin = begin - (length - 1) * -step
        if abs(step) > 1:
            g = _interleave(op, g, axis, abs(step))
        begins.append(begin)
        after.append(size - begin - (length if abs(step) == 1 else length * abs(step)))
    return _pad(op, g, begins, after, where)


def _known_axes(
    x: ir.Value, starts: ir.Value, axes: ir.Value | None, steps: ir.Value | None
) -> tuple[list[int], list[int]] | None:
    """The sliced axes and their steps, or None where only a run can tell."""
    if x.shape is None or starts.shape is None or not isinstance(starts.shape[0], int):
        return None
    count = starts.shape[0]
    where = np.arange(count) if axes is None else constant(axes)
    strides = np.ones(count, np.int64) if steps is None else constant(steps)
    if where is None or strides is None:
        return None
    return [int(a) % rank(x) for a in where], [int(s) for s in strides]


def _start(op: Builder, starts: ir.Value, i: int, size: Dim, step: int) -> Dim:
    """Where a slice begins: counted from the start, inside the axis."""
    numbers = constant(starts)
    start: Dim
    if numbers is None:
        start = op.cast(op.Slice(starts, [i], [i + 1], [0]), ir.DataType.INT64)
        start = op.Where(op.Less(start, 0), op.Add(start, size), start)
    else:
        start = int(numbers[i])
        start = start if start >= 0 else size + start
    highest = size if step > 0 else size - 1
    if isinstance(start, int) and isinstance(highest, int):
        return max(0, min(start, highest))
    if isinstance(start, int) and step > 0:
        return start  # beyond the end nothing is left of the slice, and the margins still add up
    return op.Max(op.Min(_value(op, start), highest), 0)


def _value(op: Builder, size: Dim) -> ir.Value:
    return size if isinstance(size, ir.Value) else op.const([size], ir.DataType.INT64)


def _interleave(op: Builder, g: ir.Value, axis: int, step: int) -> ir.Value:
    """`g` with `step - 1` zeros after each element along `axis`."""
    dims = op.dims(g)
    apart = op.Pad(op.Unsqueeze(g, [axis + 1]), [0, step - 1], None, [axis + 1])
    return op.reshape(apart, [*dims[:axis], dims[axis] * step, *dims[axis + 1 :]], allowzero=1)


def _pad(
    op: Builder, g: ir.Value, begins: Sequence[Dim], ends: Sequence[Dim], axes: Sequence[int]
) -> ir.Value:
    """Zeros around `g`, where there are any; a negative number of them cuts off."""
    rest = [
        (b, e, a)
        for b, e, a in zip(begins, ends, axes, strict=True)
        if not (isinstance(b, int) and isinstance(e, int) and b == e == 0)
    ]
    if not rest:
        return g
    pads = op.join([*(b for b, _, _ in rest), *(e for _, e, _ in rest)])
    return op.Pad(g, pads, None, [a for _, _, a in rest])


def _put_back(op: Builder, g: ir.Value, x: ir.Value, pick: Any) -> ir.Value:
    """The adjoint of any operator that copies elements: which ones, moving positions tells."""
    shape = op.shape(x)
    total = op.ReduceProd(shape, keepdims=1)
    positions = pick(op.Reshape(counted(op, total), shape, allowzero=1))
    flat = op.Reshape(op.zeros_like(wide(op, x)), [-1])
    added = op.ScatterElements(
        flat, op.Reshape(positions, [-1]), op.Reshape(wide(op, g), [-1]), axis=0, reduction="add"
    )
    return op.Reshape(added, shape, allowzero=1)


# -- Pad --------------------------------------------------------------------------


@gradient_rule("Pad")
def pad(op, g, x, pads, value, axes, *, mode):
    if mode != "constant":
        return _pad_by_copies(op, g, x, pads, axes, mode)
    margins = constant(pads)
    if margins is None:
        dx = op.Pad(g, op.Neg(pads), None, axes)
    elif margins.size and margins.min() < 0:
        dx = op.Pad(g, -margins.astype(np.int64), None, axes)
    else:
        dx = _crop(op, g, margins, axes)
    if value is None:
        return dx
    margin = op.Pad(op.zeros_like(x), pads, op.const(1, x.dtype), axes)
    return dx, None, op.reshape_like(op.total(g * margin), value)


def _crop(op: Builder, g: ir.Value, pads: np.ndarray, axes: ir.Value | None) -> ir.Value:
    count = len(pads) // 2
    begins, ends = pads[:count].astype(np.int64), pads[count:].astype(np.int64)
    if not pads.any():
        return g
    last = np.where(ends > 0, -ends, LAST)
    if axes is None:
        cut = np.flatnonzero((begins > 0) | (ends > 0))
        return op.Slice(g, begins[cut], last[cut], cut.astype(np.int64))
    return op.Slice(g, begins, last, axes)


def _pad_by_copies(
    op: Builder, g: ir.Value, x: ir.Value, pads: ir.Value, axes: ir.Value | None, mode: str
) -> ir.Value:
    """Modes that copy elements into the margin: each axis is a Gather along it."""
    where = constant(axes) if axes is not None else None
    if x.shape is None or (axes is not None and where is None):
        return _put_back(op, g, x, lambda positions: op.Pad(positions, pads, None, axes, mode=mode))
    every = range(rank(x)) if where is None else [int(a) % rank(x) for a in where]
    margins = constant(pads)
    for i, axis in enumerate(every):
        ends = None if margins is None else (int(margins[i]), int(margins[len(every) + i]))
        if ends == (0, 0):
            continue
        size = op.dim(x, axis)
        if ends is not None and isinstance(size, int):
            copied = op.const(_copied(size, ends, mode))
        else:
            both = op.Gather(pads, [i, len(every) + i]) if ends is None else list(ends)
            copied = op.Pad(counted(op, size), both, mode=mode)
        g = put(op, g, copied, 1, size, axis)
    return g


def _copied(size: int, ends: tuple[int, int], mode: str) -> np.ndarray:
    """Which elements of an axis a Pad copies, in order; negative ends cut off first."""
    before, after = ends
    positions = np.arange(size, dtype=np.int64)[max(-before, 0) : size - max(-after, 0)]
    return np.pad(positions, (max(before, 0), max(after, 0)), mode=mode)  # type: ignore[call-overload]


# -- CenterCropPad ----------------------------------------------------------------


@gradient_rule("CenterCropPad")
def center_crop_pad(op, g, x, shape, *, axes):
    where = list(range(rank(x))) if axes is None else list(axes)
    if not (is_static(x) and is_static(g)):
        # Both directions round the margin before the data down: the operator undoes itself.
        return op.CenterCropPad(g, op.join([op.dim(x, a) for a in where]), axes=where)
    growth = [static(x)[a] - static(g)[a] for a in where]
    begins = [int(d / 2) for d in growth]
    return _pad(op, g, begins, [d - b for d, b in zip(growth, begins, strict=True)], where)
