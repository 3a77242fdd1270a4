"""Arithmetic that several sources have and ONNX has not: with infinities, NaN and signs of zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder

UNSIGNED = (ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64)
WIDE = (ir.DataType.INT64, ir.DataType.UINT32)  # compared as int64
MOVES = ("Cast", "Squeeze", "Unsqueeze", "Reshape", "Slice", "Gather", "Identity")


def is_negative(op: Builder, x: ir.Value) -> ir.Value:
    """Whether the sign of `x` is minus, that of -0.0 included."""
    zero = op.const(0, x.dtype)
    below = op.Less(op.Div(op.const(1, x.dtype), x), zero)  # 1 / -0.0 is -inf
    return op.Or(op.Less(x, zero), op.And(op.Equal(x, zero), below))


def atan2(op: Builder, y: ir.Value, x: ir.Value) -> ir.Value:
    """The angle of the point (x, y), in all four quadrants and at infinity."""
    one, far = op.const(1, x.dtype), op.const(np.inf, x.dtype)
    ay, ax = op.Abs(y), op.Abs(x)
    infinite = op.And(op.Equal(ay, far), op.Equal(ax, far))
    ay, ax = op.Where(infinite, one, ay), op.Where(infinite, one, ax)
    small, large = op.Min(ay, ax), op.Max(ay, ax)
    base = op.Equal(large, op.const(0, x.dtype))
    angle = op.Atan(op.Div(small, op.Where(base, one, large)))
    right = op.const(math.pi / 2, x.dtype)
    angle = op.Where(op.Greater(ay, ax), op.Sub(right, angle), angle)
    angle = op.Where(is_negative(op, x), op.Sub(op.const(math.pi, x.dtype), angle), angle)
    return op.Where(is_negative(op, y), op.Neg(angle), angle)


def floor_div(op: Builder, a: ir.Value, b: ir.Value) -> ir.Value:
    """A quotient rounded down."""
    if a.dtype.is_floating_point():  # type: ignore[union-attr]
        return op.Floor(op.Div(a, b))
    if a.dtype in UNSIGNED:
        return op.Div(a, b)
    if _is_size(a):
        return op.Div(op.Sub(a, op.Mod(a, b)), b)  # no difference overflows
    inexact = op.Not(op.Equal(op.Mod(a, b), op.Mod(a, b, fmod=1)))
    return op.Sub(op.Div(a, b), op.Cast(inexact, to=int(a.dtype)))  # type: ignore[arg-type]


def floor_mod(op: Builder, a: ir.Value, b: ir.Value) -> ir.Value:
    """A remainder with the sign of the divisor."""
    if not a.dtype.is_floating_point():  # type: ignore[union-attr]
        return op.Mod(a, b)
    rest, zero = op.Mod(a, b, fmod=1), op.const(0, a.dtype)
    differ = op.Xor(op.Less(rest, zero), op.Less(b, zero))
    moved = op.And(differ, op.Not(op.Equal(rest, zero)))
    return op.Where(moved, op.Add(rest, b), rest)


def _is_size(value: ir.Value) -> bool:
    """Whether a value is nothing but sizes of a tensor."""
    node = value.producer()
    while node is not None and node.op_type in MOVES and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type in ("Shape", "Size")


def extreme(op: Builder, op_type: str, x: ir.Value, axes: Any, **attributes: int) -> ir.Value:
    """ReduceMax or ReduceMin in which a NaN wins; onnxruntime drops one that does not come first.

    axes -- an input as the operator takes it
    """
    where = axes if isinstance(axes, list) else None
    if x.dtype in WIDE and where and x.shape is not None:
        return _extreme_of_wide(op, op_type, x, where, attributes.get("keepdims", 1))
    y = op.call(op_type, [x, axes], attributes)
    if not x.dtype.is_floating_point():  # type: ignore[union-attr]
        return y
    invalid = op.call("ReduceMax", [op.IsNaN(x), axes], attributes)
    return op.Where(invalid, op.const(np.nan, x.dtype), y)


# NOTE [wide integers]: onnxruntime 1.31 compares the lower halves of two int64 as if they had a
# sign (Max, Min, Clip, ReduceMax and ReduceMin on x86): of 3,000,000,000 and 1, it takes 1 for the
# larger. Less and TopK are right.


def larger(op: Builder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The larger of two numbers; see NOTE [wide integers]."""
    return op.Where(op.Less(a, b), b, a) if _is_wide(a, b) else op.Max(a, b)


def smaller(op: Builder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The smaller of two numbers; see NOTE [wide integers]."""
    return op.Where(op.Less(b, a), b, a) if _is_wide(a, b) else op.Min(a, b)


def _is_wide(a: ir.Value, b: ir.Value) -> bool:
    return a.dtype == ir.DataType.INT64 and not (_is_size(a) or _is_size(b))


def _extreme_of_wide(
    op: Builder, op_type: str, x: ir.Value, axes: list[int], keep: int
) -> ir.Value:
    """See NOTE [wide integers]; one element more than there are is the extreme of none."""
    largest, dims = op_type == "ReduceMax", list(x.shape)  # type: ignore[arg-type]
    limits, kind = np.iinfo(x.dtype.numpy()), x.dtype  # type: ignore[union-attr]
    rest = np.int64(limits.min if largest else limits.max)
    y = op.cast(x, ir.DataType.INT64)
    for axis in axes:
        if not isinstance(dims[axis], int):
            pads = np.zeros(2 * len(dims), np.int64)
            pads[axis % len(dims)] = 1
            y = op.Pad(y, pads, rest)
        y, _ = op.TopK(y, [1], axis=axis, largest=int(largest), outputs=2)
    return op.cast(y if keep else op.Squeeze(y, axes), kind)


def place_among_numbers(op: Builder, op_type: str, x: ir.Value, axis: int) -> ir.Value:
    """ArgMax or ArgMin that passes over NaN; onnxruntime stays at one that comes first."""
    if x.dtype.is_floating_point():  # type: ignore[union-attr]
        last = -np.inf if op_type == "ArgMax" else np.inf
        x = op.Where(op.IsNaN(x), op.const(last, x.dtype), x)
    return op.call(op_type, [x], {"axis": axis, "keepdims": 0})
