"""Rules of special functions, computed in double precision whatever the operand is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.importers.coefficients import (
    I0E_FAR,
    I0E_NEAR,
    I1E_FAR,
    I1E_NEAR,
    LANCZOS,
    LANCZOS_G,
)
from sardonyx.importers.special import log1p, normal_quantile
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType
F = np.float64


def _in_double(name: str) -> Callable[[Callable[..., ir.Value]], Callable[..., ir.Value]]:
    """Register a function of a double as the rule of an operator for every type."""

    def register(function: Callable[..., ir.Value]) -> Callable[..., ir.Value]:
        def rule(op: Writer, x: ir.Value) -> ir.Value:
            return op.cast(function(op, op.cast(x, T.DOUBLE)), x.dtype)

        importer(name)(rule)
        return function

    return register


def _shifted(op: Writer, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """Whether x < 1/2 is reflected, the argument less one, t of Lanczos, and its logarithm."""
    reflect = op.Less(x, F(0.5))
    z = op.Where(reflect, op.Neg(x), op.Sub(x, F(1)))
    middle = F(LANCZOS_G + 0.5)
    log_t = op.Add(log1p(op, op.Div(z, middle)), F(math.log(middle)))
    return reflect, z, op.Add(z, middle), log_t


def _terms(op: Writer, z: ir.Value, power: int) -> ir.Value:
    """The sum of Lanczos's coefficients over (z + i), or over its square."""
    total: ir.Value | None = None
    for i, c in enumerate(LANCZOS[1:]):
        base = op.Add(z, F(i + 1))
        term = op.Div(F(c), base if power == 1 else op.Mul(base, base))
        total = term if total is None else op.Add(total, term)
    assert total is not None
    return total


@_in_double("Lgamma")
def lgamma(op: Writer, x: ir.Value) -> ir.Value:
    reflect, z, t, log_t = _shifted(op, x)
    total = op.Log(op.Add(_terms(op, z, 1), F(LANCZOS[0])))
    scale = op.Sub(op.Add(z, F(0.5)), op.Div(t, log_t))
    log_y = op.Add(op.Add(op.Mul(scale, log_t), total), F(0.5 * math.log(2 * math.pi)))
    size = op.Abs(x)
    fraction = op.Sub(size, op.Floor(size))
    fraction = op.Where(op.Greater(fraction, F(0.5)), op.Sub(F(1), fraction), fraction)
    log_sine = op.Log(op.Sin(op.Mul(fraction, F(math.pi))))
    reflected = op.Sub(op.Sub(F(math.log(math.pi)), log_sine), log_y)
    reflected = op.Where(op.IsInf(log_sine), op.Neg(log_sine), reflected)
    y = op.Where(reflect, reflected, log_y)
    return op.Where(op.IsInf(x), F(np.inf), y)


@_in_double("Digamma")
def digamma(op: Writer, x: ir.Value) -> ir.Value:
    reflect, z, t, log_t = _shifted(op, x)
    share = op.Div(_terms(op, z, 2), op.Add(_terms(op, z, 1), F(LANCZOS[0])))
    y = op.Sub(op.Sub(log_t, share), op.Div(F(LANCZOS_G), t))
    angle = op.Mul(op.Add(x, op.Abs(op.Floor(op.Add(x, F(0.5))))), F(math.pi))
    turned = op.Sub(y, op.Div(op.Mul(op.Cos(angle), F(math.pi)), op.Sin(angle)))
    pole = op.And(op.LessOrEqual(x, F(0)), op.Equal(x, op.Floor(x)))
    result = op.Where(pole, F(np.nan), op.Where(reflect, turned, y))
    return op.Where(op.Equal(x, F(np.inf)), x, op.Where(op.Equal(x, F(0)), F(-np.inf), result))


@importer("Erfinv")
def erfinv(op: Writer, x: ir.Value) -> ir.Value:
    if x.dtype == T.DOUBLE:
        raise Refusal("the function in float64")
    p = op.Add(op.Mul(op.cast(x, T.DOUBLE), F(0.5)), F(0.5))  # exact
    return op.cast(op.Mul(ndtri(op, p), F(math.sqrt(0.5))), x.dtype)


@_in_double("Ndtri")
def ndtri(op: Writer, p: ir.Value) -> ir.Value:
    inside = op.And(op.Greater(p, F(0)), op.Less(p, F(1)))
    y = normal_quantile(op, op.Where(inside, p, F(0.5)))
    edge = op.Where(
        op.Equal(p, F(0)), F(-np.inf), op.Where(op.Equal(p, F(1)), F(np.inf), F(np.nan))
    )
    return op.Where(inside, y, edge)


def _chebyshev(op: Writer, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    b0: ir.Value = op.const(F(0))
    b1 = b2 = b0
    for c in coefficients:
        b2, b1 = b1, b0
        b0 = op.Add(op.Sub(op.Mul(x, b1), b2), F(c))
    return op.Mul(op.Sub(b0, b2), F(0.5))


def _bessel(order: int, scaled: bool) -> Callable[[Writer, ir.Value], ir.Value]:
    near, far = (I0E_NEAR, I0E_FAR) if order == 0 else (I1E_NEAR, I1E_FAR)

    def rule(op: Writer, x: ir.Value) -> ir.Value:
        if x.dtype == T.DOUBLE:
            raise Refusal("the function in float64")
        size = op.Abs(op.cast(x, T.DOUBLE))
        small, large = op.Min(size, F(8)), op.Max(size, F(8))
        a = _chebyshev(op, op.Sub(op.Mul(small, F(0.5)), F(2)), near)
        b = _chebyshev(op, op.Sub(op.Div(F(32), large), F(2)), far)
        a = op.Mul(small, a) if order else a
        y = op.Where(op.LessOrEqual(size, F(8)), a, op.Div(b, op.Sqrt(large)))
        y = y if scaled else op.Mul(y, op.Exp(size))
        y = op.Mul(y, op.Sign(op.cast(x, T.DOUBLE))) if order else y
        return op.cast(y, x.dtype)

    return rule


for _order in (0, 1):
    importer(f"BesselI{_order}e")(_bessel(_order, True))
    importer(f"BesselI{_order}")(_bessel(_order, False))
