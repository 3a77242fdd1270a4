"""NumPy's functions of arrays as nodes, computed in double, in int64 or on booleans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.special import expm1, log1p, sigmoid
from sardonyx.values import constant

F = np.float64


def _log_base(base: float) -> Callable[[Builder, ir.Value], ir.Value]:
    """A logarithm by another base; whole powers of the base come out whole, as in C."""

    def rule(op: Builder, x: ir.Value) -> ir.Value:
        value = op.Div(op.Log(x), F(np.log(base)))
        whole = op.Round(value)
        return op.Where(op.Equal(op.Pow(op.const(F(base)), whole), x), whole, value)

    return rule


UNARY: dict[str, Callable[[Builder, ir.Value], ir.Value]] = {
    "absolute": lambda op, x: op.Abs(x),
    "fabs": lambda op, x: op.Abs(x),
    "cbrt": lambda op, x: op.Mul(op.Sign(x), op.Pow(op.Abs(x), F(1 / 3))),
    "ceil": lambda op, x: op.Ceil(x),
    "cos": lambda op, x: op.Cos(x),
    "deg2rad": lambda op, x: op.Mul(x, F(np.pi / 180)),
    "degrees": lambda op, x: op.Mul(x, F(180 / np.pi)),
    "exp": lambda op, x: op.Exp(x),
    "exp2": lambda op, x: op.Pow(op.const(F(2)), x),
    "expit": sigmoid,
    "expm1": expm1,
    "floor": lambda op, x: op.Floor(x),
    "invert": lambda op, x: op.Not(x),
    "isfinite": lambda op, x: op.Not(op.Or(op.IsNaN(x), op.IsInf(x))),
    "isinf": lambda op, x: op.IsInf(x),
    "isnan": lambda op, x: op.IsNaN(x),
    "log": lambda op, x: op.Log(x),
    "log10": _log_base(10.0),
    "log1p": log1p,
    "log2": _log_base(2.0),
    "logical_not": lambda op, x: op.Not(x),
    "negative": lambda op, x: op.Neg(x),
    "positive": lambda op, x: op.Identity(x),
    "rad2deg": lambda op, x: op.Mul(x, F(180 / np.pi)),
    "radians": lambda op, x: op.Mul(x, F(np.pi / 180)),
    "reciprocal": lambda op, x: op.Reciprocal(x),
    "rint": lambda op, x: op.Round(x),
    "sign": lambda op, x: op.Where(op.IsNaN(x), x, op.Sign(x)),
    "sin": lambda op, x: op.Sin(x),
    "sqrt": lambda op, x: op.Sqrt(x),
    "square": lambda op, x: op.Mul(x, x),
    "tanh": lambda op, x: op.Tanh(x),
    "trunc": lambda op, x: op.Mul(op.Sign(x), op.Floor(op.Abs(x))),
}


def choose(op: Builder, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Where, also for booleans, which onnxruntime's Where does not take."""
    if a.dtype != ir.DataType.BOOL:
        return op.Where(condition, a, b)
    return op.Or(op.And(condition, a), op.And(op.Not(condition), b))


# -- two operands; `kind` is NumPy's letter for the type in which they are computed ----------------


def _plain(operator: str) -> Callable[..., ir.Value]:
    def rule(op: Builder, a: ir.Value, b: ir.Value, kind: str) -> ir.Value:
        if kind == "b":  # NumPy's + and * of booleans
            operator_of_bool = {"Add": "Or", "Mul": "And"}.get(operator)
            if operator_of_bool is None:
                raise refuse(f"a function of arrays computes {operator} of booleans")
            return getattr(op, operator_of_bool)(a, b)
        return getattr(op, operator)(a, b)

    return rule


def _check_divisor(b: ir.Value, kind: str) -> None:
    values = constant(b)
    if kind != "f" and (values is None or not np.all(values)):
        raise refuse("a function of arrays divides integers by what may be zero")


def remainder(op: Builder, a: ir.Value, b: ir.Value, kind: str) -> ir.Value:
    """The remainder with the sign of the divisor."""
    _check_divisor(b, kind)
    if kind != "f":
        return op.Mod(a, b)
    rest = op.Mod(a, b, fmod=1)
    other_side = op.And(op.Not(op.Equal(rest, F(0))), op.Xor(op.Less(rest, F(0)), op.Less(b, F(0))))
    return op.Where(other_side, op.Add(rest, b), rest)


def floor_divide(op: Builder, a: ir.Value, b: ir.Value, kind: str) -> ir.Value:
    rest = remainder(op, a, b, kind)
    quotient = op.Div(op.Sub(a, rest), b)
    if kind != "f":
        return quotient
    whole = op.Round(quotient)
    return op.Where(op.Equal(b, F(0)), op.Div(a, b), whole)


def power(op: Builder, a: ir.Value, b: ir.Value, kind: str) -> ir.Value:
    exponents = constant(b)
    if kind != "f" and (exponents is None or (exponents < 0).any()):
        raise refuse("a function of arrays computes powers of integers by what may be negative")
    if kind == "f" and exponents is not None and exponents.size == 1:
        single = float(exponents.reshape(()))
        if single in (0.5, 2.0):
            return op.Sqrt(a) if single == 0.5 else op.Mul(a, a)
    return op.Pow(a, b)


def _extreme(comparison: str, prefers_numbers: bool) -> Callable[..., ir.Value]:
    """The larger or the smaller; NaN wins, or loses, as in NumPy."""

    def rule(op: Builder, a: ir.Value, b: ir.Value, kind: str) -> ir.Value:
        if kind == "b":
            return op.Or(a, b) if comparison == "Greater" else op.And(a, b)
        first = getattr(op, comparison)(a, b)
        if kind == "f":
            first = op.Or(first, op.IsNaN(b if prefers_numbers else a))
        return op.Where(first, a, b)

    return rule


def _bits(of_bool: str) -> Callable[..., ir.Value]:
    def rule(op: Builder, a: ir.Value, b: ir.Value, kind: str) -> ir.Value:
        if kind != "b":
            raise refuse("a function of arrays combines the bits of integers")
        return getattr(op, of_bool)(a, b)

    return rule


BINARY: dict[str, Callable[..., ir.Value]] = {
    "add": _plain("Add"),
    "bitwise_and": _bits("And"),
    "bitwise_or": _bits("Or"),
    "bitwise_xor": _bits("Xor"),
    "divide": _plain("Div"),
    "floor_divide": floor_divide,
    "fmax": _extreme("Greater", True),
    "fmin": _extreme("Less", True),
    "hypot": lambda op, a, b, kind: op.Sqrt(op.Add(op.Mul(a, a), op.Mul(b, b))),
    "maximum": _extreme("Greater", False),
    "minimum": _extreme("Less", False),
    "multiply": _plain("Mul"),
    "power": power,
    "remainder": remainder,
    "subtract": _plain("Sub"),
}


def _comparison(operator: str) -> Callable[..., ir.Value]:
    def rule(op: Builder, a: ir.Value, b: ir.Value, kind: str) -> ir.Value:
        if kind == "b" and operator != "Equal":
            a, b = op.cast(a, ir.DataType.INT64), op.cast(b, ir.DataType.INT64)
        return getattr(op, operator)(a, b)

    return rule


def _logical(operator: str) -> Callable[..., ir.Value]:
    def rule(op: Builder, a: ir.Value, b: ir.Value, kind: str) -> ir.Value:
        return getattr(op, operator)(*(op.cast(v, ir.DataType.BOOL) for v in (a, b)))

    return rule


COMPARISONS: dict[str, Callable[..., ir.Value]] = {
    "equal": _comparison("Equal"),
    "greater": _comparison("Greater"),
    "greater_equal": _comparison("GreaterOrEqual"),
    "less": _comparison("Less"),
    "less_equal": _comparison("LessOrEqual"),
    "logical_and": _logical("And"),
    "logical_or": _logical("Or"),
    "logical_xor": _logical("Xor"),
    "not_equal": lambda op, a, b, kind: op.Not(op.Equal(a, b)),
}


# -- over the columns of each row ------------------------------------------------------------------


def _with_nan(operator: str) -> Callable[[Builder, ir.Value, int], ir.Value]:
    """ReduceMax and ReduceMin that give NaN where a value is NaN."""

    def rule(op: Builder, x: ir.Value, _: int) -> ir.Value:
        best = getattr(op, operator)(x, [1], keepdims=1)
        if x.dtype != ir.DataType.DOUBLE:
            return best
        has_nan = op.ReduceMax(op.cast(op.IsNaN(x), ir.DataType.INT64), [1], keepdims=1)
        return op.Where(op.cast(has_nan, ir.DataType.BOOL), F(np.nan), best)

    return rule


def variance(op: Builder, x: ir.Value, ddof: int) -> ir.Value:
    distance = op.Sub(x, op.ReduceMean(x, [1], keepdims=1))
    assert x.shape is not None and isinstance(x.shape[1], int)
    return op.Div(op.ReduceSum(op.Mul(distance, distance), [1], keepdims=1), F(x.shape[1] - ddof))


def _truth(operator: str) -> Callable[[Builder, ir.Value, int], ir.Value]:
    def rule(op: Builder, x: ir.Value, _: int) -> ir.Value:
        numbers = op.cast(op.cast(x, ir.DataType.BOOL), ir.DataType.INT64)
        return op.cast(getattr(op, operator)(numbers, [1], keepdims=1), ir.DataType.BOOL)

    return rule


REDUCTIONS: dict[str, Callable[[Builder, Any, int], ir.Value]] = {
    "all": _truth("ReduceMin"),
    "any": _truth("ReduceMax"),
    "max": _with_nan("ReduceMax"),
    "mean": lambda op, x, _: op.ReduceMean(x, [1], keepdims=1),
    "min": _with_nan("ReduceMin"),
    "prod": lambda op, x, _: op.ReduceProd(x, [1], keepdims=1),
    "std": lambda op, x, ddof: op.Sqrt(variance(op, x, ddof)),
    "sum": lambda op, x, _: op.ReduceSum(x, [1], keepdims=1),
    "var": variance,
}
