"""Types that a framework has but few functions of: they are computed in wider ones, and uint64 in
the bits of int64.

Sums and products are the same bits. What depends on the order of numbers is not: adding 2^63,
which flips the first bit, turns the order of unsigned numbers into that of signed ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.lower.xp import COMPARISONS

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


class Widening:
    """Functions on types that a framework computes with; results are of the type of the input.

    wide     -- type → the wider one in which it is computed
    uint64   -- the framework's uint64, of which `unsigned` has the functions
    cast     -- cast(x, type)
    """

    def __init__(
        self, wide: dict[Any, Any], uint64: Any, cast: Callable[..., Any], unsigned: Unsigned
    ):
        self.wide, self.uint64, self.cast, self.unsigned = wide, uint64, cast, unsigned.functions

    def widened(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function called `name`, on any type."""
        keeps = name not in COMPARISONS and not name.startswith(("logical", "is"))

        def call(*xs: Any) -> Any:
            dtype = xs[0].dtype
            wide = self.wide.get(dtype)
            if wide is None:
                return function(*xs)
            apply = self.unsigned.get(name, function) if dtype == self.uint64 else function
            y = apply(*(self.cast(x, wide) for x in xs))
            return self.cast(y, dtype) if keeps else y

        return call

    def in_wide(self, function: Callable[[Any], Any], x: Any) -> Any:
        """`function` of one tensor."""
        wide = self.wide.get(x.dtype)
        return function(x) if wide is None else self.cast(function(self.cast(x, wide)), x.dtype)

    def ordered(self, x: Any) -> Any:
        """Numbers in the order of `x`, of a type that the framework compares."""
        wide = self.cast(x, self.wide[x.dtype]) if x.dtype in self.wide else x
        return flipped(wide) if x.dtype == self.uint64 else wide

    def in_order(self, function: Callable[[Any], Any], x: Any) -> Any:
        """`function`, for which only the order of the elements counts."""
        if x.dtype == self.uint64:
            return self.cast(flipped(function(self.ordered(x))), x.dtype)
        return self.in_wide(function, x)
