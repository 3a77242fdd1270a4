"""uint64 in the bits of int64, for frameworks that have few functions of it.

Sums and products are the same bits. What depends on the order of numbers is not: adding 2^63,
which flips the first bit, turns the order of unsigned numbers into that of signed ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SIGN = -(1 << 63)


class Unsigned:
    """Functions of uint64 as functions of int64 tensors, out of a few that a framework gives.

    divide, shift -- the quotient rounded down, the arithmetic shift to the right
    where         -- where(condition, a, b)
    """

    def __init__(
        self, divide: Callable[..., Any], shift: Callable[..., Any], where: Callable[..., Any]
    ):
        self.divide, self.shift, self.where = divide, shift, where
        self.functions: dict[str, Callable[..., Any]] = {
            "less": self.less,
            "less_equal": lambda a, b: flipped(a) <= flipped(b),
            "greater": lambda a, b: self.less(b, a),
            "greater_equal": lambda a, b: flipped(a) >= flipped(b),
            "maximum": lambda a, b: where(self.less(a, b), b, a),
            "minimum": lambda a, b: where(self.less(a, b), a, b),
            "floor_divide": self.quotient,
            "divide": self.quotient,
            "remainder": lambda a, b: a - self.quotient(a, b) * b,
            "fmod": lambda a, b: a - self.quotient(a, b) * b,
            "right_shift": self.right_shift,
        }

    def less(self, a: Any, b: Any) -> Any:
        return flipped(a) < flipped(b)

    def halved(self, a: Any) -> Any:
        half = self.shift(a, a * 0 + 1)
        return self.where(a < 0, half + SIGN, half)

    def quotient(self, a: Any, b: Any) -> Any:
        twice = self.divide(self.halved(a), b) * 2
        rest = a - twice * b
        small = twice + self.where(self.less(rest, b), b * 0, b * 0 + 1)
        return self.where(b < 0, self.where(self.less(a, b), b * 0, b * 0 + 1), small)

    def right_shift(self, a: Any, b: Any) -> Any:
        a, b = a + b * 0, b + a * 0
        return self.where(b > 0, self.shift(self.halved(a), b - 1), a)


def flipped(x: Any) -> Any:
    return x + SIGN
