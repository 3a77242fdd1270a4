"""Lowerings of ONNX's family logical: comparisons, bools, bits."""

from __future__ import annotations

from sardonyx.lower.engine import lower, table

table(
    {
        "And": lambda xp, a, b: xp.logical_and(a, b),
        "BitwiseAnd": lambda xp, a, b: xp.bitwise_and(a, b),
        "BitwiseNot": lambda xp, x: xp.bitwise_not(x),
        "BitwiseOr": lambda xp, a, b: xp.bitwise_or(a, b),
        "BitwiseXor": lambda xp, a, b: xp.bitwise_xor(a, b),
        "Greater": lambda xp, a, b: xp.greater(a, b),
        "GreaterOrEqual": lambda xp, a, b: xp.greater_equal(a, b),
        "Less": lambda xp, a, b: xp.less(a, b),
        "LessOrEqual": lambda xp, a, b: xp.less_equal(a, b),
        "Not": lambda xp, x: xp.logical_not(x),
        "Or": lambda xp, a, b: xp.logical_or(a, b),
        "Xor": lambda xp, a, b: xp.logical_xor(a, b),
    },
    __name__,
)


@lower("Equal", sizes=True)
def equal(xp, a, b):
    return xp.equal(a, b)


@lower("BitShift")
def bit_shift(xp, x, y, *, direction):
    return xp.left_shift(x, y) if direction == "LEFT" else xp.right_shift(x, y)
