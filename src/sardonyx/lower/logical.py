"""Lowerings of ONNX's family logical: comparisons, bools, bits."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering, table

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


@lowering("Equal", sizes=True)
def equal(xp, a, b):
    return xp.equal(a, b)


@lowering("BitShift")
def bit_shift(xp, x, y, *, direction):
    # Shifting by the width or more, or by a negative number, which counts as a large one, leaves
    # nothing but the sign; frameworks leave it undefined.
    bits = np.iinfo(xp.dtype(x)).bits
    zero, most = xp.scalar(0, y), xp.scalar(bits - 1, y)
    out = xp.logical_or(xp.less(y, zero), xp.greater(y, most))
    near = xp.clip(y, zero, most)
    if direction == "LEFT":
        return xp.where(out, xp.scalar(0, x), xp.left_shift(x, near))
    signs = xp.negative(xp.cast(xp.less(x, xp.scalar(0, x)), xp.dtype(x)))
    return xp.where(out, signs, xp.right_shift(x, near))
