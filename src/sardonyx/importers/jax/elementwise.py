"""Rules of elementwise primitives on floats, comparisons, selections and casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.arithmetic import atan2, is_negative, larger, smaller
from sardonyx.importers.jax.driver import Reader, importer
from sardonyx.importers.jax.writer import Refusal, Writer

T = ir.DataType
# One operator of ONNX means exactly this primitive.
SAME = {
    "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "neg": "Neg", "abs": "Abs",
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh",
    "logistic": "Sigmoid", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "floor": "Floor", "ceil": "Ceil", "erf": "Erf",
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}  # fmt: skip
SAME_NAMES = (
    "copy", "copy_p", "name", "pvary", "real",
    "optimization_barrier", "sharding_constraint", "device_put", "mesh_cast", "reshard", "pin",
    "layout_constraint", "conj",
)  # fmt: skip


def _register() -> None:
    for primitive, op_type in SAME.items():

        def rule(op: Writer, *operands: ir.Value, op_type: str = op_type) -> ir.Value:
            return op.call(op_type, operands)

        importer(primitive)(_positional(rule, op_type))
    importer(*SAME_NAMES)(_identity)


def _positional(rule: Any, op_type: str) -> Any:
    def same(op: Writer, *operands: ir.Value) -> Any:
        return rule(op, *operands, op_type=op_type)

    same.__name__ = op_type.lower()
    return same


def _identity(op: Writer, *operands: ir.Value) -> Sequence[ir.Value]:
    return list(operands)


_register()


@importer("stop_gradient")
def stop_gradient(op: Writer, x: ir.Value, *, reader: Reader) -> ir.Value:
    bits = {T.FLOAT: T.INT32, T.DOUBLE: T.INT64, T.FLOAT16: T.INT16, T.BFLOAT16: T.INT16}
    if not reader.differentiated or x.dtype not in bits:
        return x
    # ONNX has no such operator; nothing flows back through integers.
    return op.BitCast(op.BitCast(x, to=int(bits[x.dtype])), to=int(x.dtype))


def is_float(x: ir.Value) -> bool:
    return x.dtype is not None and x.dtype.is_floating_point()


@importer("ne")
def ne(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    return op.Not(op.Equal(x, y))


@importer("max")
def maximum(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    return op.Or(x, y) if x.dtype == T.BOOL else larger(op, x, y)


@importer("min")
def minimum(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    return op.And(x, y) if x.dtype == T.BOOL else smaller(op, x, y)


@importer("sign")
def sign(op: Writer, x: ir.Value) -> ir.Value:
    if x.dtype != T.INT64:
        return op.Sign(x)
    # onnxruntime's Sign is wrong of the numbers of which its Max is: NOTE [wide integers]
    zero = op.like(0, x)
    return op.Sub(op.cast(op.Greater(x, zero), T.INT64), op.cast(op.Less(x, zero), T.INT64))


@importer("clamp")
def clamp(op: Writer, low: ir.Value, x: ir.Value, high: ir.Value) -> ir.Value:
    return minimum(op, maximum(op, x, low), high)


@importer("square")
def square(op: Writer, x: ir.Value) -> ir.Value:
    return op.Mul(x, x)


@importer("rsqrt")
def rsqrt(op: Writer, x: ir.Value) -> ir.Value:
    return op.Reciprocal(op.Sqrt(x))


@importer("cbrt")
def cbrt(op: Writer, x: ir.Value) -> ir.Value:
    # The power is rounded; one step of Newton's method makes the root exact to an ulp.
    a = op.Abs(x)
    usable = op.And(op.Greater(a, op.like(0, x)), op.Less(a, op.like(np.inf, x)))
    b = op.Where(usable, a, op.like(1, x))
    r = op.Pow(b, op.like(1 / 3, x))
    r = op.Sub(r, op.Div(op.Sub(r, op.Div(b, op.Mul(r, r))), op.like(3, x)))
    return op.Where(usable, op.Mul(r, op.Sign(x)), x)


@importer("exp2")
def exp2(op: Writer, x: ir.Value) -> ir.Value:
    return op.Pow(op.like(2, x), x)


@importer("log2")
def log2(op: Writer, x: ir.Value) -> ir.Value:
    return op.Div(op.Log(x), op.like(math.log(2.0), x))


@importer("log1p")
def log1p(op: Writer, x: ir.Value) -> ir.Value:
    # Kahan: the error of u = 1 + x cancels in log(u) / (u - 1).
    one = op.like(1, x)
    u = op.Add(one, x)
    exact = op.Or(op.Equal(u, one), op.Equal(x, op.like(np.inf, x)))
    v = op.Where(exact, op.like(2, x), u)
    return op.Where(exact, x, op.Mul(op.Log(v), op.Div(x, op.Sub(v, one))))


@importer("expm1")
def expm1(op: Writer, x: ir.Value) -> ir.Value:
    # Kahan: the error of u = exp(x) cancels in (u - 1) / log(u).
    one, infinity = op.like(1, x), op.like(np.inf, x)
    u = op.Exp(x)
    less = op.Sub(u, one)
    plain = op.Or(op.Equal(less, op.like(-1, x)), op.Equal(u, infinity))
    small = op.Equal(u, one)
    v = op.Where(op.Or(plain, small), op.like(2, x), u)
    scaled = op.Mul(op.Sub(v, one), op.Div(x, op.Log(v)))
    return op.Where(small, x, op.Where(plain, less, scaled))


@importer("is_finite")
def is_finite(op: Writer, x: ir.Value) -> ir.Value:
    return op.Less(op.Abs(x), op.like(np.inf, x))


@importer("round")
def round_(op: Writer, x: ir.Value, *, rounding_method: Any) -> ir.Value:
    if int(rounding_method) == 1:  # to nearest even
        return op.Round(x)
    a = op.Abs(x)
    whole = op.Floor(a)
    up = op.GreaterOrEqual(op.Sub(a, whole), op.like(0.5, x))
    away = op.Where(up, op.Add(whole, op.like(1, x)), whole)
    nearest = op.Where(op.Less(a, op.like(np.inf, x)), away, a)
    return op.Where(is_negative(op, x), op.Neg(nearest), nearest)


importer("atan2")(atan2)


@importer("pow")
def pow_(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    if not is_float(x):
        raise Refusal("integer powers")
    return op.Pow(x, op.cast(y, x.dtype))


@importer("one_minus_square")  # since JAX 0.11, in the gradient of tanh
def one_minus_square(op: Writer, x: ir.Value) -> ir.Value:
    return op.Sub(op.like(1, x), op.Mul(x, x))


@importer("integer_pow")
def integer_pow(op: Writer, x: ir.Value, *, y: int) -> ir.Value:
    if y == 0:
        return op.expanded(op.like(1, x), x.meta["aval"].shape)
    power: Any = None
    base, count = x, abs(y)
    while count:
        if count & 1:
            power = base if power is None else op.Mul(power, base)
        count >>= 1
        if count:
            base = op.Mul(base, base)
    if y < 0 and not is_float(x):
        raise Refusal("a negative power of integers")
    return op.Div(op.like(1, x), power) if y < 0 else power


@importer("select_n")
def select_n(op: Writer, which: ir.Value, *cases: ir.Value) -> ir.Value:
    if which.dtype == T.BOOL:
        return op.where(which, cases[-1], cases[0]) if len(cases) == 2 else op.Identity(cases[0])
    result = cases[-1]
    for number in range(len(cases) - 2, -1, -1):
        limit = op.like(number, which)
        result = op.where(op.LessOrEqual(which, limit), cases[number], result)
    return result


@importer("nextafter")
def nextafter(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    kind = {T.FLOAT: (T.INT32, np.int32), T.DOUBLE: (T.INT64, np.int64)}.get(x.dtype)  # type: ignore[arg-type]
    if kind is None:
        raise Refusal(f"nextafter of {x.dtype}")
    bits, number = kind
    word = op.BitCast(x, to=int(bits))
    one = op.const(number(1))
    away = op.Equal(op.Less(x, y), op.Greater(x, op.like(0, x)))
    moved = op.BitCast(op.Where(away, op.Add(word, one), op.Sub(word, one)), to=int(x.dtype))  # type: ignore[arg-type]
    tiny = op.BitCast(one, to=int(x.dtype))  # type: ignore[arg-type]
    first = op.Where(op.Greater(y, op.like(0, y)), tiny, op.Neg(tiny))
    moved = op.Where(op.Equal(x, op.like(0, x)), first, moved)
    invalid = op.Or(op.IsNaN(x), op.IsNaN(y))
    return op.Where(invalid, op.Add(x, y), op.Where(op.Equal(x, y), y, moved))


# -- casts --------------------------------------------------------------------------------


@importer("convert_element_type")
def convert_element_type(op: Writer, x: ir.Value, *, new_dtype: Any) -> ir.Value:
    return converted(op, x, ir.DataType.from_numpy(np.dtype(new_dtype)))


def converted(op: Writer, x: ir.Value, to: ir.DataType) -> ir.Value:
    """`x` in the type `to`. JAX saturates floats outside of an integer type; NaN becomes 0."""
    if x.dtype == to:
        return x
    if to == T.BOOL:
        return op.Not(op.Equal(x, op.like(0, x)))
    if not is_float(x) or not to.is_integer():
        return op.cast(x, to)
    if x.dtype in (T.FLOAT16, T.BFLOAT16):
        x = op.cast(x, T.FLOAT)
    limits = np.iinfo(to.numpy())
    inside = op.And(
        op.Greater(x, op.like(float(limits.min) - 1.0, x))
        if limits.bits < 32
        else op.GreaterOrEqual(x, op.like(float(limits.min), x)),
        op.Less(x, op.like(float(int(limits.max) + 1), x)),
    )
    y = op.cast(op.Where(inside, x, op.like(0, x)), to)
    high, low = op.like(float(int(limits.max) + 1), x), op.like(float(limits.min), x)
    y = op.Where(op.GreaterOrEqual(x, high), op.const(limits.max, to), y)
    if limits.min == 0:
        return y
    return op.Where(op.Less(x, low), op.const(limits.min, to), y)


@importer("reduce_precision")
def reduce_precision(
    op: Writer, x: ir.Value, *, exponent_bits: int, mantissa_bits: int
) -> ir.Value:
    formats = {(8, 23): T.FLOAT, (11, 52): T.DOUBLE, (8, 7): T.BFLOAT16, (5, 10): T.FLOAT16}
    kind = formats.get((exponent_bits, mantissa_bits))
    precision = next(bits for bits, dtype in formats.items() if dtype == x.dtype)
    if exponent_bits >= precision[0] and mantissa_bits >= precision[1]:
        return op.Identity(x)
    if kind == T.BFLOAT16 and x.dtype == T.FLOAT:
        return op.cast(op.cast(x, kind), x.dtype)
    raise Refusal(f"a precision of {exponent_bits} and {mantissa_bits} bits")


@importer("bitcast_convert_type")
def bitcast_convert_type(op: Writer, x: ir.Value, *, new_dtype: Any) -> ir.Value:
    to = ir.DataType.from_numpy(np.dtype(new_dtype))
    if to == x.dtype:
        return op.Identity(x)
    if to.bitwidth != x.dtype.bitwidth or T.BOOL in (to, x.dtype):  # type: ignore[union-attr]
        raise Refusal("a change of the width of elements")
    return op.BitCast(x, to=int(to))
