"""Rules of primitives on integers and booleans: bits, shifts, division and remainder.

XLA defines what C++ does not: x / 0 is -1, x % 0 is x, the smallest number divided by -1 is itself,
and a shift by the width or more gives 0 (or the sign).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.importers.jax.driver import importer
from sardonyx.importers.jax.elementwise import is_float
from sardonyx.importers.jax.writer import Refusal, Writer

T = ir.DataType
UNSIGNED = {T.INT8: T.UINT8, T.INT16: T.UINT16, T.INT32: T.UINT32, T.INT64: T.UINT64}

TOP = np.uint64(1 << 63)


def is_signed(x: ir.Value) -> bool:
    return x.dtype in UNSIGNED


def signed_order(op: Writer, x: ir.Value) -> ir.Value:
    """uint64 as int64 that order alike: onnxruntime orders no uint64."""
    return op.BitCast(op.BitwiseXor(x, op.const(TOP)), to=int(T.INT64))


@importer("and")
def and_(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    return op.And(x, y) if x.dtype == T.BOOL else op.BitwiseAnd(x, y)


@importer("or")
def or_(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    return op.Or(x, y) if x.dtype == T.BOOL else op.BitwiseOr(x, y)


@importer("xor")
def xor(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    return op.Xor(x, y) if x.dtype == T.BOOL else op.BitwiseXor(x, y)


@importer("not")
def not_(op: Writer, x: ir.Value) -> ir.Value:
    return op.Not(x) if x.dtype == T.BOOL else op.BitwiseNot(x)


@importer("div")
def div(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    if is_float(x):
        return op.Div(x, y)
    if _is_plain_divisor(y):
        return op.Div(x, y)
    zero, one, minus = op.Equal(y, op.like(0, y)), op.like(1, y), op.const(-1, T.INT64)
    minus = op.cast(minus, y.dtype)
    special = zero
    if is_signed(y):
        negated = op.Equal(y, minus)
        special = op.Or(zero, negated)
    quotient = op.Div(x, op.Where(special, one, y))
    if is_signed(y):
        quotient = op.Where(negated, op.Neg(x), quotient)
    return op.Where(zero, minus, quotient)


@importer("rem")
def rem(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    if is_float(x):
        return op.Mod(x, y, fmod=1)
    special = None
    if not _is_plain_divisor(y):
        special = op.Equal(y, op.like(0, y))
        negated = op.Equal(y, op.cast(op.const(-1, T.INT64), y.dtype)) if is_signed(y) else special
        y = op.Where(op.Or(special, negated), op.like(1, y), y)
    remainder = op.Sub(x, op.Mul(op.Div(x, y), y))
    return remainder if special is None else op.Where(special, x, remainder)


def _is_plain_divisor(y: ir.Value) -> bool:
    array = constant(y)
    return array is not None and not np.isin(array, (0, -1) if is_signed(y) else (0,)).any()


def _shift(op: Writer, x: ir.Value, by: ir.Value, direction: str) -> ir.Value:
    """A logical shift by less than the width, through the unsigned type that has a kernel."""
    kind = x.dtype
    wide = T.UINT64 if kind in (T.INT64, T.UINT64) else T.UINT32
    unsigned = UNSIGNED.get(kind, kind)  # type: ignore[arg-type]
    shifted = op.BitShift(
        op.cast(op.cast(x, unsigned), wide), op.cast(by, wide), direction=direction
    )
    return op.cast(op.cast(shifted, unsigned), kind)


def _guarded(op: Writer, x: ir.Value, by: ir.Value, direction: str) -> ir.Value:
    width = x.dtype.bitwidth  # type: ignore[union-attr]
    array = constant(by)
    if array is not None and ((array >= 0) & (array < width)).all():
        return _shift(op, x, by, direction)
    inside = op.Less(by, op.like(width, by))
    if is_signed(by):
        inside = op.And(inside, op.GreaterOrEqual(by, op.like(0, by)))
    shifted = _shift(op, x, op.Where(inside, by, op.like(0, by)), direction)
    return op.Where(inside, shifted, op.like(0, x))


@importer("shift_left")
def shift_left(op: Writer, x: ir.Value, by: ir.Value) -> ir.Value:
    return _guarded(op, x, by, "LEFT")


@importer("shift_right_logical")
def shift_right_logical(op: Writer, x: ir.Value, by: ir.Value) -> ir.Value:
    return _guarded(op, x, by, "RIGHT")


@importer("shift_right_arithmetic")
def shift_right_arithmetic(op: Writer, x: ir.Value, by: ir.Value) -> ir.Value:
    if not is_signed(x):
        top = op.Greater(x, op.const(np.iinfo(x.dtype.numpy()).max // 2, x.dtype))  # type: ignore[union-attr]
    else:
        top = op.Less(x, op.like(0, x))
    flipped = op.Where(top, op.BitwiseNot(x), x)
    shifted = _guarded(op, flipped, by, "RIGHT")
    return op.Where(top, op.BitwiseNot(shifted), shifted)


@importer("population_count")
def population_count(op: Writer, x: ir.Value) -> ir.Value:
    """Bits added in pairs, then in fours, …"""
    kind, width = x.dtype, x.dtype.bitwidth  # type: ignore[union-attr]
    word = T.UINT64 if width == 64 else T.UINT32
    v = op.cast(op.cast(x, UNSIGNED.get(kind, kind)), word)  # type: ignore[arg-type]
    step = 1
    while step < width:
        pattern = sum(((1 << step) - 1) << (2 * step * i) for i in range(64 // (2 * step)))
        mask = op.const(np.array(pattern & ((1 << word.bitwidth) - 1), word.numpy()))
        high = op.BitShift(v, op.const(np.array(step, word.numpy())), direction="RIGHT")
        v = op.Add(op.BitwiseAnd(v, mask), op.BitwiseAnd(high, mask))
        step *= 2
    return op.cast(v, kind)


@importer("clz")
def clz(op: Writer, x: ir.Value) -> ir.Value:
    """Leading zeros: the width less the bits that are set once every lower bit is."""
    width = x.dtype.bitwidth  # type: ignore[union-attr]
    v, step = x, 1
    while step < width:
        v = op.BitwiseOr(v, _shift(op, v, op.const(np.array(step, v.dtype.numpy())), "RIGHT"))  # type: ignore[union-attr]
        step *= 2
    return op.Sub(op.like(width, x), population_count(op, v))


@importer("mulhi")
def mulhi(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    if x.dtype not in (T.INT32, T.UINT32, *UNSIGNED.values()) or x.dtype == T.UINT64:
        raise Refusal("the high half of a product of 64-bit integers")
    wide = T.INT64 if is_signed(x) else T.UINT64
    product = op.Mul(op.cast(x, wide), op.cast(y, wide))
    shift = op.const(np.array(x.dtype.bitwidth, wide.numpy()))  # type: ignore[union-attr]
    return op.cast(
        shift_right_arithmetic(op, product, shift)
        if is_signed(x)
        else shift_right_logical(op, product, shift),
        x.dtype,
    )
