"""Functions that onnxruntime has in float32 only, or not at all, in double from simpler ones."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import onnx_ir as ir

from .graph import Graph

FAR = 26.0  # erfc is below the smallest double from here on
DEGREE = 36
NEAR = 0.6  # below it, erf is a series


def expm1(g: Graph, x: ir.Value) -> ir.Value:
    """exp(x) - 1 without cancellation near zero: 2t / (1 - t) with t = tanh(x / 2)."""
    half = g.Tanh(g.Mul(x, g.number(0.5)))
    small = g.Div(g.Mul(g.number(2.0), half), g.Sub(g.number(1.0), half))
    near = g.Less(g.Abs(x), g.number(1.0))
    return g.Where(near, small, g.Sub(g.Exp(x), g.number(1.0)))


def ln1p(g: Graph, x: ir.Value) -> ir.Value:
    """log(u) x / (u - 1) with u = 1 + x: the rounding errors of u cancel (Kahan)."""
    u = g.Add(x, g.number(1.0))
    d = g.Sub(u, g.number(1.0))
    at_zero = g.Equal(d, g.number(0.0))
    ratio = g.Div(g.Mul(g.Log(u), x), g.Where(at_zero, g.number(1.0), d))
    infinite = g.IsInf(x, detect_negative=0)
    return g.Where(g.Or(at_zero, infinite), x, ratio)


def arctangent(g: Graph, x: ir.Value) -> ir.Value:
    """Halve the angle three times, then add up the series of odd powers."""
    infinite, sign = g.IsInf(x), g.Sign(x)
    large = g.Greater(g.Abs(x), g.number(1.0))
    # atan(x) = pi/2 - atan(1/x) for x > 1, so that squares stay small.
    y = g.Where(large, g.Div(g.number(1.0), x), x)
    for _ in range(3):
        root = g.Sqrt(g.Add(g.number(1.0), g.Mul(y, y)))
        y = g.Div(y, g.Add(g.number(1.0), root))
    square = g.Mul(y, y)
    series = g.number(0.0)
    for k in range(10, -1, -1):
        series = g.Add(g.number((-1.0) ** k / (2 * k + 1)), g.Mul(square, series))
    angle = g.Mul(g.Mul(y, series), g.number(8.0))
    right = g.Mul(sign, g.number(math.pi / 2))
    return g.Where(infinite, right, g.Where(large, g.Sub(right, angle), angle))


def arcsine(g: Graph, x: ir.Value) -> ir.Value:
    cosine = g.Sqrt(g.Mul(g.Sub(g.number(1.0), x), g.Add(g.number(1.0), x)))
    return arctangent(g, g.Div(x, cosine))


def arctangent_of(g: Graph, y: ir.Value, x: ir.Value) -> ir.Value:
    """The angle of a point."""
    zero = g.number(0.0)
    base = arctangent(g, g.Div(y, x))
    turn = g.Where(g.Less(y, zero), g.number(-math.pi), g.number(math.pi))
    out = g.Where(g.Less(x, zero), g.Add(base, turn), base)
    return g.Where(g.And(g.Equal(y, zero), g.Equal(x, zero)), zero, out)


@functools.cache
def _tail() -> tuple[float, ...]:
    """Chebyshev coefficients of log(erfc(z) / t) + z², t = 2 / (2 + z), over t in [t(FAR), 1]."""
    least = 2.0 / (2.0 + FAR)

    def exponent(u: np.ndarray) -> np.ndarray:
        t = least + (u + 1.0) * (1.0 - least) / 2.0
        z = 2.0 / t - 2.0
        return np.array([math.log(math.erfc(v) / s) + v * v for v, s in zip(z, t, strict=True)])

    fitted: Any = np.polynomial.chebyshev.chebinterpolate(exponent, DEGREE)  # type: ignore[type-var]
    return tuple(float(c) for c in fitted)


def complementary_error(g: Graph, z: ir.Value) -> ir.Value:
    """erfc for z >= 0."""
    z = g.Where(g.Greater(z, g.number(FAR)), g.number(FAR), z)
    t = g.Div(g.number(2.0), g.Add(z, g.number(2.0)))
    least = 2.0 / (2.0 + FAR)
    u = g.Sub(g.Mul(g.Sub(t, g.number(least)), g.number(2.0 / (1.0 - least))), g.number(1.0))
    twice = g.Mul(u, g.number(2.0))
    coefficients = _tail()
    b, b_before = g.number(0.0), g.number(0.0)
    for c in coefficients[:0:-1]:
        b, b_before = g.Add(g.Sub(g.Mul(twice, b), b_before), g.number(c)), b
    sum_of = g.Add(g.Sub(g.Mul(u, b), b_before), g.number(coefficients[0]))
    return g.Mul(t, g.Exp(g.Sub(sum_of, g.Mul(z, z))))


def error_function(g: Graph, x: ir.Value) -> ir.Value:
    """erf: a series near zero, where 1 - erfc would cancel."""
    size = g.Abs(x)
    far = g.Mul(g.Sign(x), g.Sub(g.number(1.0), complementary_error(g, size)))
    return g.Where(g.Less(size, g.number(NEAR)), _series(g, x), far)


def _series(g: Graph, x: ir.Value) -> ir.Value:
    """erf near zero."""
    square, term = g.Mul(x, x), g.number(0.0)
    for k in range(14, -1, -1):
        coefficient = (-1.0) ** k / (math.factorial(k) * (2 * k + 1))
        term = g.Add(g.number(coefficient), g.Mul(square, term))
    return g.Mul(g.Mul(x, term), g.number(2.0 / math.sqrt(math.pi)))


def standard_normal_cdf(g: Graph, z: ir.Value) -> ir.Value:
    """The standard normal distribution function, exact in the lower tail and a half at zero."""
    one_half, x = g.number(0.5), g.Mul(z, g.number(math.sqrt(0.5)))
    size = g.Abs(x)
    half = g.Mul(one_half, complementary_error(g, size))
    far = g.Where(g.Less(z, g.number(0.0)), half, g.Sub(g.number(1.0), half))
    near = g.Add(one_half, g.Mul(one_half, _series(g, x)))
    return g.Where(g.Less(size, g.number(NEAR)), near, far)


def standard_normal_pdf(g: Graph, z: ir.Value) -> ir.Value:
    power = g.Exp(g.Mul(g.number(-0.5), g.Mul(z, z)))
    return g.Mul(g.number(1.0 / math.sqrt(2.0 * math.pi)), power)
