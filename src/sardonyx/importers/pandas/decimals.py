"""Doubles as Python writes them: the shortest digits that stand for the number, exactly.

A double times a power of ten, as the sum of two doubles, gives 17 digits and what they leave over.
Fewer digits are enough if they are within half a unit in the last place of the number.
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.pandas import characters
from sardonyx.importers.pandas.emission import DOUBLE, INT32, INT64, Emission

DIGITS = 17
LOWEST, HIGHEST = -324, 308  # exponents of doubles
FAR = 250  # numbers beyond are brought nearer by a power of two, so that no product is too large
SPLIT = float(2**27 + 1)
END = -1


@functools.cache
def powers() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Tables over exponents: the first double from that power of ten on, the scale of its numbers,
    and, as two doubles, the factor that leaves 17 digits before the point.
    """
    plain, scale, high, low = [], [], [], []
    for exponent in range(LOWEST, HIGHEST + 2):
        plain.append(first_double(exponent))
        scale.append(2.0**200 if exponent < -FAR else 2.0**-200 if exponent > FAR else 1.0)
        exact = Fraction(10) ** (DIGITS - 1 - exponent) / Fraction(scale[-1])
        high.append(float(exact))
        low.append(float(exact - Fraction(high[-1])))
    return np.array(plain), np.array(scale), np.array(high), np.array(low)


def first_double(exponent: int) -> float:
    """The smallest double that is not below a power of ten."""
    if exponent > HIGHEST:
        return np.inf
    exact = Fraction(10) ** exponent
    near = float(exact)
    return near if Fraction(near) >= exact else float(np.nextafter(near, np.inf))


def product(em: Emission, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """a b as the rounded product and what rounding took, by Dekker's splitting."""
    op = em.op

    def halves(x: ir.Value) -> tuple[ir.Value, ir.Value]:
        scaled = op.Mul(x, em.doubles(SPLIT))
        high = op.Sub(scaled, op.Sub(scaled, x))
        return high, op.Sub(x, high)

    total = op.Mul(a, b)
    (a1, a2), (b1, b2) = halves(a), halves(b)
    rest = op.Sub(op.Mul(a1, b1), total)
    rest = op.Add(op.Add(rest, op.Mul(a1, b2)), op.Mul(a2, b1))
    return total, op.Add(rest, op.Mul(a2, b2))


def exponent_of(em: Emission, size: ir.Value) -> ir.Value:
    """The power of ten of the first digit: from the logarithm, then corrected by comparison."""
    op = em.op
    plain = em.doubles(powers()[0])
    guess = op.Floor(op.Mul(op.Log(size), em.doubles(1 / np.log(10))))
    guess = op.Cast(guess, to=int(INT64))
    guess = op.Min(op.Max(guess, em.ints(LOWEST)), em.ints(HIGHEST))

    def power(exponent: ir.Value) -> ir.Value:
        return op.Gather(plain, op.Sub(exponent, em.ints(LOWEST)))

    high = op.GreaterOrEqual(size, power(op.Add(guess, em.ints(1))))
    below = op.Less(size, power(guess))
    return op.Sub(op.Add(guess, op.Cast(high, to=int(INT64))), op.Cast(below, to=int(INT64)))


def half_unit(em: Emission, size: ir.Value) -> ir.Value:
    """Half the distance to the next double: what is added to the number until it changes."""
    op = em.op
    up = op.Floor(op.Mul(op.Log(size), em.doubles(1 / np.log(2))))
    unit = op.Pow(em.doubles(2.0), op.Sub(up, em.doubles(52.0)))
    # The logarithm may be one off next to a power of two: the unit must be what changes the number.
    smaller = op.Mul(unit, em.doubles(0.5))
    unit = op.Where(op.Equal(op.Add(size, unit), size), op.Mul(unit, em.doubles(2.0)), unit)
    is_smaller = op.Equal(op.Sub(op.Add(size, smaller), size), smaller)
    return op.Mul(op.Where(is_smaller, smaller, unit), em.doubles(0.5))


def shortest(em: Emission, size: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """17 digits (those behind the shortest are zero), how many count, and the exponent."""
    op = em.op
    exponent = exponent_of(em, size)
    at = op.Sub(exponent, em.ints(LOWEST))
    _, scale, high, low = (op.Gather(em.doubles(table), at) for table in powers())
    size = op.Mul(size, scale)
    total, rest = product(em, size, high)
    rest = op.Add(rest, op.Mul(size, low))
    more = op.Round(rest)
    whole = op.Add(op.Cast(total, to=int(INT64)), op.Cast(more, to=int(INT64)))
    left = op.Sub(rest, more)
    # Below the smallest normal number the distance between doubles stays the same.
    least = op.Mul(scale, em.doubles(2.0**-1074))
    half = op.Max(half_unit(em, size), op.Mul(least, em.doubles(0.5)))
    # What is exactly half way between two doubles stands for the even one.
    quarter = op.Div(size, op.Mul(half, em.doubles(4.0)))
    even = op.Equal(quarter, op.Floor(quarter))
    edge = op.Where(even, em.doubles(1 + 1e-12), em.doubles(1 - 1e-12))
    margin = op.Mul(op.Mul(half, high), edge)
    is_power = op.Equal(quarter, em.doubles(2.0**51))  # of two: doubles below are closer
    margin_below = op.Where(is_power, op.Mul(margin, em.doubles(0.5)), margin)
    number, count, zero = whole, em.ints(DIGITS), em.doubles(0.0)
    for digits in range(DIGITS - 1, 0, -1):
        unit = 10 ** (DIGITS - digits)
        middle = em.ints(unit // 2)
        if digits == DIGITS - 1:  # a 5 that was rounded up, or stands before an even digit, is less
            odd = op.Equal(op.Mod(op.Div(whole, em.ints(unit)), em.ints(2)), em.ints(1))
            is_up = op.Or(op.Greater(left, zero), op.And(op.Equal(left, zero), odd))
            middle = op.Where(is_up, middle, em.ints(unit // 2 - 1))
        rounded = op.Div(op.Add(whole, middle), em.ints(unit))
        candidate = op.Mul(rounded, em.ints(unit))
        if digits == DIGITS - 1:  # below a power of two there may be no margin where there is above
            lack = op.Cast(op.Sub(whole, candidate), to=int(DOUBLE))
            above = op.And(is_power, op.GreaterOrEqual(op.Add(lack, left), margin_below))
            candidate = op.Where(above, op.Add(candidate, em.ints(unit)), candidate)
        off = op.Sub(op.Cast(op.Sub(candidate, whole), to=int(DOUBLE)), left)
        fits = op.And(op.Less(off, margin), op.Less(op.Neg(off), margin_below))
        number = op.Where(fits, candidate, number)
        count = op.Where(fits, em.ints(digits), count)
    carried = op.Equal(number, em.ints(10**DIGITS))
    number = op.Where(carried, em.ints(10 ** (DIGITS - 1)), number)
    return number, count, op.Add(exponent, op.Cast(carried, to=int(INT64)))


def of_double(em: Emission, value: ir.Value) -> ir.Value:
    """Doubles as characters; NaN gives something that is not looked at."""
    op = em.op
    size = op.Abs(value)
    is_zero, infinite = op.Equal(size, em.doubles(0.0)), op.IsInf(value)
    odd = op.Or(op.Or(is_zero, infinite), op.IsNaN(value))
    number, count, exponent = shortest(em, op.Where(odd, em.doubles(1.0), size))
    number = op.Where(is_zero, em.ints(0), number)
    negative = op.Less(op.Where(is_zero, op.Div(em.doubles(1.0), value), value), em.doubles(0.0))
    scientific = op.Or(op.Less(exponent, em.ints(-4)), op.GreaterOrEqual(exponent, em.ints(16)))
    pieces = _layout(em, number, count, exponent, scientific)
    finite = [
        (point, op.And(keep, op.Not(infinite)) if keep is not None else op.Not(infinite))
        for point, keep in pieces
    ]
    word = [(em.ints(ord(c)), infinite) for c in "inf"]
    columns = [(em.ints(ord("-")), negative), *finite, *word]
    shape = op.Shape(value)
    points = [op.Unsqueeze(op.Expand(p, shape), em.ints([1])) for p, _ in columns]
    keeps = [op.Unsqueeze(op.Expand(k, shape), em.ints([1])) for _, k in columns]
    data = op.Cast(op.Concat(*points, axis=1), to=int(INT32))
    return characters.compact(em, data, op.Concat(*keeps, axis=1))


def _layout(em: Emission, number: Any, count: Any, exponent: Any, scientific: Any) -> list[Any]:
    """Every character that may occur, with the rows in which it does."""
    op = em.op
    plain = op.Not(scientific)
    small = op.And(plain, op.Less(exponent, em.ints(0)))
    pieces: list[Any] = [(em.ints(ord("0")), small), (em.ints(ord(".")), small)]
    for zeros in (2, 3, 4):  # 0.01, 0.001, 0.0001
        pieces.append((em.ints(ord("0")), op.And(small, op.LessOrEqual(exponent, em.ints(-zeros)))))
    # A number that is not small has a digit after the point, be it a zero.
    last = op.Sub(count, em.ints(1))
    least = op.Where(op.Or(scientific, small), em.ints(0), op.Add(exponent, em.ints(1)))
    last = op.Max(last, least)
    point_after = op.Where(scientific, em.ints(0), exponent)
    has_point = op.Or(
        op.And(plain, op.Not(small)), op.And(scientific, op.Greater(count, em.ints(1)))
    )
    for place in range(DIGITS):
        quotient = op.Div(number, em.ints(10 ** (DIGITS - 1 - place)))
        digit = op.Sub(quotient, op.Mul(op.Div(quotient, em.ints(10)), em.ints(10)))
        keep = op.LessOrEqual(em.ints(place), last)
        pieces.append((op.Add(digit, em.ints(ord("0"))), keep))
        pieces.append((em.ints(ord(".")), op.And(has_point, op.Equal(point_after, em.ints(place)))))
    power = op.Abs(exponent)
    sign = op.Where(op.Less(exponent, em.ints(0)), em.ints(ord("-")), em.ints(ord("+")))
    pieces += [(em.ints(ord("e")), scientific), (sign, scientific)]
    for size in (100, 10, 1):
        digit = op.Mod(op.Div(power, em.ints(size)), em.ints(10))
        keep = scientific
        if size == 100:
            keep = op.And(scientific, op.GreaterOrEqual(power, em.ints(100)))
        pieces.append((op.Add(digit, em.ints(ord("0"))), keep))
    return pieces
