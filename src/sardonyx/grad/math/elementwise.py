"""Smooth functions of one input, one line each; `y` is the forward output."""

from __future__ import annotations

import math

from sardonyx.grad.driver import formulas

UNARY = {
    "Abs": lambda op, g, x, y: g * op.Sign(x),
    "Acos": lambda op, g, x, y: op.Neg(g / op.Sqrt((1.0 - x) * (1.0 + x))),
    "Acosh": lambda op, g, x, y: g / op.Sqrt((x - 1.0) * (x + 1.0)),
    "Asin": lambda op, g, x, y: g / op.Sqrt((1.0 - x) * (1.0 + x)),
    "Asinh": lambda op, g, x, y: g / op.Sqrt(x * x + 1.0),
    "Atan": lambda op, g, x, y: g / (x * x + 1.0),
    "Atanh": lambda op, g, x, y: g / ((1.0 - x) * (1.0 + x)),
    "Cos": lambda op, g, x, y: op.Neg(g * op.Sin(x)),
    "Cosh": lambda op, g, x, y: g * op.Sinh(x),
    "Erf": lambda op, g, x, y: g * (op.Exp(op.Neg(x * x)) * (2.0 / math.sqrt(math.pi))),
    "Exp": lambda op, g, x, y: g * y,
    "Log": lambda op, g, x, y: g / x,
    "Neg": lambda op, g, x, y: op.Neg(g),
    "Reciprocal": lambda op, g, x, y: op.Neg(g * (y * y)),
    "Sigmoid": lambda op, g, x, y: g * (y * (1.0 - y)),
    "Sin": lambda op, g, x, y: g * op.Cos(x),
    "Sinh": lambda op, g, x, y: g * op.Cosh(x),
    "Softplus": lambda op, g, x, y: g * op.Sigmoid(x),
    "Sqrt": lambda op, g, x, y: g / (y * 2.0),
    "Tan": lambda op, g, x, y: g * (y * y + 1.0),
    "Tanh": lambda op, g, x, y: g * (1.0 - y * y),
}

formulas(UNARY, __name__)
