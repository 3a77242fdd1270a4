"""Rules of arithmetic, element by element, and of products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import rank
from sardonyx.importers.arithmetic import atan2, floor_div, floor_mod, larger, smaller
from sardonyx.importers.coefficients import ERFC_FAR, ERFC_NEAR
from sardonyx.importers.tensorflow import patterns
from sardonyx.importers.tensorflow.reader import dtype_of, importer, is_complex
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType
UNARY = {
    "Abs": "Abs", "Neg": "Neg", "Exp": "Exp", "Log": "Log", "Sqrt": "Sqrt", "Floor": "Floor",
    "Ceil": "Ceil", "Round": "Round", "Rint": "Round", "Sign": "Sign", "Sin": "Sin", "Cos": "Cos",
    "Tan": "Tan", "Asin": "Asin", "Acos": "Acos", "Atan": "Atan", "Sinh": "Sinh", "Cosh": "Cosh",
    "Asinh": "Asinh", "Acosh": "Acosh", "Atanh": "Atanh", "Tanh": "Tanh", "Sigmoid": "Sigmoid",
    "Erf": "Erf", "Reciprocal": "Reciprocal", "Inv": "Reciprocal", "LogicalNot": "Not",
    "IsNan": "IsNaN", "Invert": "BitwiseNot",
}  # fmt: skip
BINARY = {
    "Less": "Less", "LessEqual": "LessOrEqual", "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual", "LogicalAnd": "And", "LogicalOr": "Or",
    "BitwiseAnd": "BitwiseAnd", "BitwiseOr": "BitwiseOr", "BitwiseXor": "BitwiseXor",
}  # fmt: skip
INTEGERS_KEPT = frozenset(["Floor", "Ceil", "Round", "Rint"])  # an integer is its own


def _unary(name: str, operator: str) -> Callable[..., ir.Value]:
    def rule(op: Writer, x: ir.Value) -> ir.Value:
        whole = not x.dtype.is_floating_point()  # type: ignore[union-attr]
        if name in INTEGERS_KEPT and whole:
            return x
        if is_complex(x):  # of these, Exp alone is read
            return _complex_exponential(op, x)
        return op.call(operator, [x])

    return rule


def _binary(operator: str) -> Callable[..., ir.Value]:
    def rule(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
        return op.call(operator, [a, b])

    return rule


for _name, _operator in UNARY.items():
    importer(_name)(_unary(_name, _operator))
for _name, _operator in BINARY.items():
    importer(_name)(_binary(_operator))
importer("Maximum")(larger)
importer("Minimum")(smaller)


# -- sums, products, quotients --------------------------------------------------------------------


@importer("Add", "AddV2")
def add(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    if a.dtype == T.STRING:
        return op.StringConcat(a, b)
    normalized = None if is_complex(a) else patterns.batch_normalization(op, a, b)
    return _pairwise(op, "Add", a, b) if normalized is None else normalized


@importer("Sub")
def sub(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return _pairwise(op, "Sub", a, b)


@importer("Mul")
def mul(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    if is_complex(a) and is_complex(b):
        return _complex_product(op, a, b)
    if is_complex(a) or is_complex(b):
        raise Refusal("a product of complex and real numbers")
    activation = patterns.gelu(op, a, b)
    return op.Mul(a, b) if activation is None else activation


def _pairwise(op: Writer, operator: str, a: ir.Value, b: ir.Value) -> ir.Value:
    if is_complex(a) != is_complex(b):
        raise Refusal("a sum of complex and real numbers")
    y = op.call(operator, [a, b])
    if is_complex(a):
        y.meta["complex"] = True
    return y


def _complex_product(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    (ar, ai), (br, bi) = (op.Split(v, None, axis=-1, num_outputs=2, outputs=2) for v in (a, b))
    real = op.Sub(op.Mul(ar, br), op.Mul(ai, bi))
    imaginary = op.Add(op.Mul(ar, bi), op.Mul(ai, br))
    y = op.Concat(real, imaginary, axis=-1)
    y.meta["complex"] = True
    return y


def _complex_exponential(op: Writer, x: ir.Value) -> ir.Value:
    real, imaginary = op.part(x, -1, 0, 1), op.part(x, -1, 1, 2)
    y = op.Mul(op.Exp(real), op.Concat(op.Cos(imaginary), op.Sin(imaginary), axis=-1))
    y.meta["complex"] = True
    return y


@importer("RealDiv")
def real_div(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return op.Div(a, b)


@importer("Div", "TruncateDiv")
def div(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    y = op.Div(a, b)
    return y


importer("FloorDiv")(floor_div)
importer("FloorMod")(floor_mod)


@importer("Mod", "TruncateMod")
def truncate_mod(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return op.Mod(a, b, fmod=1)


@importer("DivNoNan")
def div_no_nan(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    zero = op.like(0, b)
    safe = op.Where(op.Equal(b, zero), op.like(1, b), b)
    return op.Where(op.Equal(b, zero), zero, op.Div(a, safe))


@importer("MulNoNan")
def mul_no_nan(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    zero = op.like(0, b)
    return op.Where(op.Equal(b, zero), zero, op.Mul(a, b))


@importer("Xdivy")
def xdivy(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    zero = op.like(0, a)
    return op.Where(op.Equal(a, zero), zero, op.Div(a, b))


@importer("Xlogy")
def xlogy(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    zero = op.like(0, a)
    return op.Where(op.Equal(a, zero), zero, op.Mul(a, op.Log(b)))


@importer("Xlog1py")
def xlog1py(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    zero = op.like(0, a)
    return op.Where(op.Equal(a, zero), zero, op.Mul(a, log1p(op, b)))


@importer("Pow")
def pow_(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return op.Pow(a, b)


@importer("SquaredDifference")
def squared_difference(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return square(op, op.Sub(a, b))


@importer("Square")
def square(op: Writer, x: ir.Value) -> ir.Value:
    return op.Mul(x, x)


@importer("AddN", "AccumulateNV2")
def add_n(op: Writer, *xs: ir.Value) -> ir.Value:
    total = xs[0]
    for x in xs[1:]:
        total = op.Add(total, x)
    return total


@importer("ClipByValue")
def clip_by_value(op: Writer, x: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
    return larger(op, smaller(op, x, high), low)


# -- functions ------------------------------------------------------------------------------------


@importer("Rsqrt")
def rsqrt(op: Writer, x: ir.Value) -> ir.Value:
    return op.Reciprocal(op.Sqrt(x))


@importer("Expm1")
def expm1(op: Writer, x: ir.Value) -> ir.Value:
    """tanh(x / 2) (exp(x) + 1), which keeps the digits of a small x."""
    y = op.Mul(op.Tanh(op.Mul(x, op.like(0.5, x))), op.Add(op.Exp(x), op.like(1, x)))
    return y


@importer("Log1p")
def log1p(op: Writer, x: ir.Value) -> ir.Value:
    """log(u) x / (u - 1) with u = 1 + x, which keeps the digits of a small x (Goldberg)."""
    one = op.like(1, x)
    u = op.Add(x, one)
    v = op.Sub(u, one)
    exact = op.Or(op.Equal(v, op.like(0, x)), op.Equal(u, op.like(np.inf, x)))
    ratio = op.Div(x, op.Where(exact, one, v))
    plain = op.Where(op.Equal(v, op.like(0, x)), x, op.Log(u))
    return op.Where(exact, plain, op.Mul(op.Log(u), ratio))


@importer("Softplus")
def softplus(op: Writer, x: ir.Value) -> ir.Value:
    """max(x, 0) + log1p(exp(-|x|)), which has the digits of both tails."""
    tail = log1p(op, op.Exp(op.Neg(op.Abs(x))))
    return op.Add(op.Max(x, op.like(0, x)), tail)


@importer("Erfc")
def erfc(op: Writer, x: ir.Value) -> ir.Value:
    """By Cephes' expansion, as far tails have no digits in 1 - erf(x)."""
    if x.dtype == T.DOUBLE:
        raise Refusal("the function in float64")
    one, zero = op.like(1, x), op.like(0, x)
    size = op.Abs(x)
    z = op.Exp(op.Neg(op.Mul(x, x)))
    q = op.Div(one, op.Max(size, one))
    s = op.Mul(q, q)
    p = op.Where(
        op.Less(size, op.like(2, x)), polynomial(op, s, ERFC_NEAR), polynomial(op, s, ERFC_FAR)
    )
    y = op.Mul(op.Mul(z, q), p)
    y = op.Where(op.Equal(z, zero), zero, y)
    tail = op.Where(op.Less(x, zero), op.Sub(op.like(2, x), y), y)
    result = op.Where(op.Less(size, one), op.Sub(one, op.Erf(x)), tail)
    result.meta["erfc"] = x
    return result


def polynomial(op: Writer, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """Horner's scheme, the coefficient of the highest power first."""
    y = op.like(coefficients[0], x)
    for c in coefficients[1:]:
        y = op.Add(op.Mul(y, x), op.like(c, x))
    return y


importer("Atan2")(atan2)


@importer("IsInf")
def is_inf(op: Writer, x: ir.Value) -> ir.Value:
    return op.IsInf(op.cast(x, T.FLOAT) if x.dtype == T.FLOAT16 else x)


@importer("IsFinite")
def is_finite(op: Writer, x: ir.Value) -> ir.Value:
    return op.Not(op.Or(is_inf(op, x), op.IsNaN(x)))


# -- comparisons and choices ----------------------------------------------------------------------


@importer("Equal")
def equal(op: Writer, a: ir.Value, b: ir.Value, *, incompatible_shape_error: bool = True) -> Any:
    if a.dtype in (T.INT16, T.UINT16):
        a, b = op.cast(a, T.INT32), op.cast(b, T.INT32)
    return op.Equal(a, b)


@importer("NotEqual")
def not_equal(
    op: Writer, a: ir.Value, b: ir.Value, *, incompatible_shape_error: bool = True
) -> ir.Value:
    return op.Not(equal(op, a, b))


@importer("ApproximateEqual")
def approximate_equal(op: Writer, a: ir.Value, b: ir.Value, *, tolerance: float) -> ir.Value:
    return op.Less(op.Abs(op.Sub(a, b)), op.like(tolerance, a))


@importer("SelectV2")
def select_v2(op: Writer, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
    return op.where(condition, yes, no)


@importer("Select")
def select(op: Writer, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
    n = rank(yes)
    if rank(condition) == 1 and n > 1:
        condition = op.Unsqueeze(condition, list(range(1, n)))
    return op.where(condition, yes, no)


@importer("Cast")
def cast(op: Writer, x: ir.Value, *, DstT: tf.DType, node: Any) -> ir.Value:
    kind = dtype_of(DstT)
    if kind is None or DstT.is_complex or is_complex(x) or T.STRING in (kind, x.dtype):
        raise Refusal(f"a cast to {DstT.name}")
    if x.dtype == kind:
        return x
    if kind == T.BOOL and x.dtype.is_floating_point():  # type: ignore[union-attr]
        return op.Not(op.Equal(x, op.like(0, x)))
    value = op.Cast(x, to=int(kind))
    for key in ("int64", "elements"):
        if key in x.meta and kind in (T.INT32, T.INT64):
            value.meta[key] = x.meta[key]
    return value


@importer("LeftShift")
def left_shift(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return _shifted(op, a, b, "LEFT")


@importer("RightShift")
def right_shift(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return _shifted(op, a, b, "RIGHT")


UNSIGNED = {T.INT8: T.UINT8, T.INT16: T.UINT16, T.INT32: T.UINT32, T.INT64: T.UINT64}


def _shifted(op: Writer, a: ir.Value, b: ir.Value, direction: str) -> ir.Value:
    """BitShift is for unsigned integers: a right shift of a negative number divides, downwards."""
    if a.dtype not in UNSIGNED:
        if a.dtype == T.UINT16:
            wide = op.BitShift(op.cast(a, T.UINT32), op.cast(b, T.UINT32), direction=direction)
            return op.cast(wide, T.UINT16)
        return op.BitShift(a, b, direction=direction)
    if direction == "RIGHT":
        flip = op.Less(a, op.like(0, a))
        positive = op.where(flip, op.BitwiseNot(a), a)  # ~a = -a - 1, whose sign bit is zero
        y = _unsigned_shift(op, positive, b, direction)
        return op.where(flip, op.BitwiseNot(y), y)
    return _unsigned_shift(op, a, b, direction)


def _unsigned_shift(op: Writer, a: ir.Value, b: ir.Value, direction: str) -> ir.Value:
    kind = UNSIGNED[a.dtype]  # type: ignore[index]
    kind = T.UINT32 if kind == T.UINT16 else kind
    y = op.BitShift(op.cast(a, kind), op.cast(b, kind), direction=direction)
    return op.cast(y, a.dtype)


@importer("PopulationCount", "NextAfter", "Igamma", "Igammac", "Betainc", "Zeta", "Polygamma")
def unsupported(op: Writer, *xs: ir.Value) -> ir.Value:
    raise Refusal("ONNX has no such function")


@importer("Cross")
def cross(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    def turned(x: ir.Value, order: list[int]) -> ir.Value:
        return op.Gather(x, order, axis=-1)

    first = op.Mul(turned(a, [1, 2, 0]), turned(b, [2, 0, 1]))
    return op.Sub(first, op.Mul(turned(a, [2, 0, 1]), turned(b, [1, 2, 0])))


# -- products of matrices -------------------------------------------------------------------------


@importer("MatMul")
def mat_mul(
    op: Writer, a: ir.Value, b: ir.Value, *, transpose_a: bool, transpose_b: bool
) -> ir.Value:
    return _product(op, a, b, transpose_a, transpose_b)


@importer("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_mat_mul(
    op: Writer, a: ir.Value, b: ir.Value, *, adj_x: bool, adj_y: bool, node: Any
) -> ir.Value:
    kind = dtype_of(node.outputs[0].dtype)
    return _product(op, op.cast(a, kind), op.cast(b, kind), adj_x, adj_y)


def _product(op: Writer, a: ir.Value, b: ir.Value, turn_a: bool, turn_b: bool) -> ir.Value:
    a = op.swap(a) if turn_a else a
    b = op.swap(b) if turn_b else b
    return op.MatMul(a, b)


@importer("Einsum")
def einsum(op: Writer, *xs: ir.Value, equation: str) -> ir.Value:
    return op.Einsum(*xs, equation=equation)


@importer("LowerBound", "UpperBound")
def bound(
    op: Writer, rows: ir.Value, values: ir.Value, *, out_type: tf.DType, node: Any
) -> ir.Value:
    """How many elements of a sorted row are below each value, or not above it."""
    rows, values = op.Unsqueeze(rows, [1]), op.Unsqueeze(values, [2])
    is_below = op.Less if node.type == "LowerBound" else op.LessOrEqual
    below = op.cast(is_below(rows, values), T.INT64)
    return op.cast(op.ReduceSum(below, [-1], keepdims=0), dtype_of(out_type))


@importer("Bucketize")
def bucketize(op: Writer, x: ir.Value, *, boundaries: Any) -> ir.Value:
    edges = op.const(np.array(list(boundaries), np.float32))
    if x.dtype != T.FLOAT:
        x, edges = op.cast(x, T.DOUBLE), op.cast(edges, T.DOUBLE)
    above = op.Not(op.Less(op.Unsqueeze(x, [-1]), edges))  # NaN is above all
    return op.ReduceSum(op.cast(above, T.INT32), [-1], keepdims=0)
