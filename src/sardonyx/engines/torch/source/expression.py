"""Expressions of generated Python: text with holes for values, numbers and sizes.

Nothing here comes from a model but numbers, which are written with `repr`, and values, whose names
are chosen in `forward.py` out of a fixed alphabet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

import onnx_ir as ir

from sardonyx.lower.sizes import ORDERS, Order

# How tightly an expression binds.
ATOM, POWER, UNARY, PRODUCT, SUM, BITS, COMPARISON = 100, 90, 85, 80, 70, 60, 50
NOT, LOOSE = 40, 0


@dataclass(frozen=True)
class Hole:
    """The place of a value; in parentheses if what fills it binds less than `floor`."""

    value: ir.Value
    floor: int = LOOSE


@dataclass(frozen=True)
class Dim:
    """The place of a size: that of an axis of a value."""

    value: ir.Value
    axis: int


@dataclass(frozen=True)
class Literal:
    """A number; where the instances of a class differ in it, it becomes an argument `hint`.

    lead  -- what is written before it (", stride=")
    usual -- the value that needs not be written at all
    """

    value: Any
    hint: str = "size"
    lead: str = ""
    usual: Any = None

    def __str__(self) -> str:
        return "" if self.is_usual else self.lead + written(self.value)

    @property
    def is_usual(self) -> bool:
        return self.usual is not None and self.value == self.usual


Part = str | Hole | Dim | Literal


@dataclass(frozen=True)
class Expression:
    parts: tuple[Part, ...]
    rank: int = ATOM

    @property
    def values(self) -> list[ir.Value]:
        return [p.value for p in self.parts if isinstance(p, (Hole, Dim))]

    @property
    def is_hole(self) -> bool:
        """Whether it is a value and nothing else: what fills it says how tightly it binds."""
        return len(self.parts) == 1 and isinstance(self.parts[0], Hole)


def written(value: Any) -> str:
    """A number, a tuple of numbers or a plain word as Python writes it."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(_shortest(value))
        return f'float("{value}")'
    if isinstance(value, (list, tuple)):
        inner = ", ".join(written(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, (int, str)):
        return repr(value) if isinstance(value, int) else f'"{value}"'
    raise TypeError(f"{type(value).__name__} has no literal")


def _shortest(value: float) -> float:
    """The shortest decimal of the same single-precision value: 1e-05, not 9.99999974737875e-06."""
    single = _single(value)
    if single != value:
        return value
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if _single(short) == single:
            return short
    return value


def _single(value: float) -> float:
    import numpy as np

    with np.errstate(all="ignore"):
        return float(np.float32(value))


@dataclass(frozen=True)
class Size:
    """A size that only a run tells, and what is computed of such sizes.

    is_natural -- whether it is certainly not negative
    """

    parts: tuple[Part, ...]
    rank: int = ATOM
    atom: Dim | None = field(default=None, compare=False)
    is_natural: bool = field(default=False, compare=False)

    @staticmethod
    def read(value: ir.Value, place: int | None = None) -> Size:
        """A number that a tensor holds, at a place of it or alone."""
        where = () if place is None else (f"[{place}]",)
        return Size(("int(", Hole(value, ATOM), *where, ")"))

    @staticmethod
    def of(value: ir.Value, axis: int) -> Size:
        dim = Dim(value, axis)
        return Size((dim,), ATOM, dim, True)

    def _join(self, other: Any, sign: str, rank: int, swapped: bool = False) -> Any:
        if not isinstance(other, (Size, int)) and not hasattr(other, "__index__"):
            return NotImplemented
        left, right = (other, self) if swapped else (self, other)
        natural = sign != "-" and is_natural(self) and is_natural(other)
        parts = (*_parts(left, rank), f" {sign} ", *_parts(right, rank + 1))
        return Size(parts, rank, is_natural=natural)

    def __add__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._join(other, "+", SUM)

    def __radd__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._join(other, "+", SUM, True)

    def __sub__(self, other: Any) -> Any:
        return self if _is(other, 0) else self._join(other, "-", SUM)

    def __rsub__(self, other: Any) -> Any:
        return self._join(other, "-", SUM, True)

    def __mul__(self, other: Any) -> Any:
        return self if _is(other, 1) else self._join(other, "*", PRODUCT)

    def __rmul__(self, other: Any) -> Any:
        return self if _is(other, 1) else self._join(other, "*", PRODUCT, True)

    def __floordiv__(self, other: Any) -> Any:
        return self if _is(other, 1) else self._join(other, "//", PRODUCT)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._join(other, "//", PRODUCT, True)

    def __neg__(self) -> Size:
        return Size(("-", *_parts(self, UNARY)), UNARY)


def is_natural(size: Any) -> bool:
    return size.is_natural if isinstance(size, Size) else int(size) >= 0


def _called(name: str, a: Any, b: Any, natural: bool) -> Size:
    parts = (f"{name}(", *_parts(a, LOOSE), ", ", *_parts(b, LOOSE), ")")
    return Size(parts, is_natural=natural)


def _larger(a: Any, b: Any) -> Size:
    return _called("max", a, b, is_natural(a) or is_natural(b))


def _smaller(a: Any, b: Any) -> Size:
    return _called("min", a, b, is_natural(a) and is_natural(b))


def _is_at_least(a: Any, b: Any) -> bool:
    """Whether a ≥ b is certain."""
    return a == b or (is_natural(a) and not isinstance(b, Size) and int(b) <= 0)


ORDERS[Size] = Order(_larger, _smaller, _is_at_least)


def _is(value: Any, number: int) -> bool:
    return not isinstance(value, Size) and int(value) == number


def _parts(value: Any, floor: int) -> tuple[Part, ...]:
    if not isinstance(value, Size):
        return (Literal(int(value)),)
    return value.parts if value.rank >= floor else ("(", *value.parts, ")")


def joined(items: Iterable[tuple[Part, ...]]) -> tuple[Part, ...]:
    """Lists of parts with commas between them."""
    parts_out: list[Part] = []
    for i, parts in enumerate(items):
        parts_out += ([", "] if i else []) + list(parts)
    return tuple(parts_out)


def build(template: str, *args: Any, rank: int = ATOM) -> Expression:
    """An expression out of `"F.relu({0})"`; a hole before a dot or a bracket must bind tightly."""
    pieces = list(Formatter().parse(template))
    parts: list[Part] = []
    for i, (text, name, floor, _) in enumerate(pieces):
        if text:
            parts.append(text)
        if name is None:
            continue
        after = pieces[i + 1][0] if i + 1 < len(pieces) else ""
        least = int(floor) if floor else (ATOM if after[:1] in (".", "[") and after else LOOSE)
        parts += _filled(args[int(name)], least)
    return Expression(tuple(parts), rank)


def _filled(arg: Any, floor: int) -> Iterator[Part]:
    if isinstance(arg, ir.Value):
        yield Hole(arg, floor)
    elif isinstance(arg, Expression) and arg.is_hole:
        (hole,) = arg.parts
        yield Hole(hole.value, max(floor, hole.floor))  # type: ignore[union-attr]
    elif isinstance(arg, Expression):
        yield from arg.parts if arg.rank >= floor else ("(", *arg.parts, ")")
    elif isinstance(arg, Size):
        yield from _parts(arg, floor)
    elif isinstance(arg, tuple) and arg and isinstance(arg[0], (str, Hole, Dim, Literal)):
        yield from arg
    elif isinstance(arg, (Hole, Dim, Literal, str)):
        negative = (
            isinstance(arg, Literal) and isinstance(arg.value, (int, float)) and arg.value < 0
        )
        yield from ("(", arg, ")") if negative and floor > UNARY else (arg,)
    else:
        yield Literal(arg)


def binary(sign: str, a: Any, b: Any, rank: int) -> Expression:
    return build(f"{{0:{rank}}} {sign} {{1:{rank + 1}}}", a, b, rank=rank)
