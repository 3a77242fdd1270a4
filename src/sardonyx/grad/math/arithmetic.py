"""Two or more inputs that broadcast; the driver undoes the broadcasting."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import FLOATS, Builder, constant
from sardonyx.grad.driver import gradient_rule


@gradient_rule("Add", broadcasts=True)
def add(op, g, a, b):
    return g, g


@gradient_rule("Sub", broadcasts=True)
def sub(op, g, a, b):
    return g, op.Neg(g)


@gradient_rule("Mul", broadcasts=True)
def mul(op, g, a, b):
    return g * b, g * a


@gradient_rule("Div", broadcasts=True)
def div(op, g, a, b, *, out):
    da = g / b
    return da, op.Neg(da * out[0])


@gradient_rule("Mod", broadcasts=True)
def mod(op, g, a, b, *, fmod, out):
    # The quotient of the forward itself, floored or truncated: no second rounding decision.
    quotient = op.Round((a - out[0]) / b)
    if not fmod:
        # A number modulo an infinity of the other sign is that infinity: the quotient is -1.
        quotient = op.Where(op.IsInf(out[0]), -1.0, quotient)
    return g, op.Neg(g * quotient)


@gradient_rule("Sum", broadcasts=True)
def sum_(op, g, *xs):
    return [g] * len(xs)


@gradient_rule("Mean", broadcasts=True)
def mean(op, g, *xs):
    share = g if len(xs) == 1 else g / float(len(xs))
    return [share] * len(xs)


@gradient_rule("Max", "Min", broadcasts=True)
def extremum(op, g, *xs, out):
    """All operands that reach the extremum share its gradient equally."""
    if len(xs) == 1:
        return [g]
    is_extreme = [op.Equal(x, out[0]) for x in xs]
    share = g / op.Sum(*[op.cast(c, g.dtype) for c in is_extreme])
    return [op.Where(c, share, 0.0) for c in is_extreme]


@gradient_rule("Pow", broadcasts=True)
def pow_(op, g, x, exponent, *, out):
    power = constant(exponent)
    if power is not None and power.size == 1:
        dx = _power(op, g, x, out[0], float(power.reshape(())))
    else:
        e = op.cast(exponent, x.dtype)
        less = e - 1.0
        if power is None or not np.all(power):
            # x^0 = 1 for every x, so that 0 · x^0 is 0 even at 0 and at infinity.
            less = op.Where(op.Equal(e, 0.0), 0.0, less)
        dx = g * (e * op.Pow(x, less))
    if exponent.dtype not in FLOATS:
        return dx, None
    base = op.cast(x, exponent.dtype)
    flat = op.And(op.Equal(base, 0.0), op.GreaterOrEqual(exponent, 0.0))
    return dx, op.cast(g * out[0], exponent.dtype) * op.Log(op.Where(flat, 1.0, base))


def _power(op: Builder, g: ir.Value, x: ir.Value, y: ir.Value, exponent: float) -> ir.Value:
    """The gradient to the base for an exponent known while building."""
    if exponent == 0.0:
        return g * 0.0
    if exponent == 1.0:
        return g
    if exponent == 2.0:
        return g * (x * 2.0)
    if exponent == 3.0:
        return g * (x * x * 3.0)
    if exponent == 0.5:
        return g / (y * 2.0)
    if exponent == -1.0:
        return op.Neg(g * (y * y))
    return g * (op.Pow(x, exponent - 1.0) * exponent)


@gradient_rule("Expand", broadcasts=True)
def expand(op, g, x, shape):
    return g
