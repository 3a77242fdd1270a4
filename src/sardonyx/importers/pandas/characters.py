"""Strings as matrices of code points: what operators of ONNX cannot do to strings, exactly.

A column is int32 [rows, length], left-justified and padded with -1. Every function here takes and
gives such columns; `of_text` and `where` bring constants and columns together.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
import pandas as pd

from sardonyx.frames import END
from sardonyx.importers.pandas.emission import (
    INT32,
    INT64,
    ML,
    Emission,
    Rep,
)

CASED = 0x20000  # no character from here on has a case, and none is white space
FEW_RANGES = 12
Ranges = tuple[tuple[int, int], ...]


def of_text(em: Emission, rep: Rep) -> Rep:
    """A constant string as characters; other strings are fed as characters where they are read."""
    if rep.kind == "chars":
        return rep
    value = rep.data.const_value
    if value is None or value.size != 1:
        return em.refuse("the characters of this column are not known to the graph")
    text = bytes(value.string_data()[0]).decode() if hasattr(value, "string_data") else str(value)
    missing = rep.missing
    if missing is not None:
        missing = em.op.Reshape(missing, em.ints([1]))
    return Rep("chars", em.points([text]), missing)


def width(em: Emission, data: ir.Value) -> ir.Value:
    return em.op.Shape(data, start=1, end=2)


def lengths(em: Emission, data: ir.Value) -> ir.Value:
    """The number of characters in each row, int64."""
    present = em.op.Cast(em.op.GreaterOrEqual(data, np.int32(0)), to=int(INT64))
    return em.op.ReduceSum(present, [1], keepdims=0)


def places(em: Emission, data: ir.Value) -> ir.Value:
    """0, 1, … along the characters, int64 [length]."""
    size = em.op.Squeeze(width(em, data), em.ints([0]))
    return em.op.Range(em.ints(0), size, em.ints(1))


def column(em: Emission, value: ir.Value) -> ir.Value:
    """[rows] as [rows, 1]."""
    return em.op.Unsqueeze(value, em.ints([1]))


def widened(em: Emission, data: ir.Value, size: ir.Value) -> ir.Value:
    """Padded to a width that is at least its own."""
    more = em.op.Sub(size, width(em, data))
    pads = em.op.Concat(em.ints([0, 0, 0]), more, axis=0)
    return em.op.Pad(data, pads, np.int32(END))


def same_width(em: Emission, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    size = em.op.Max(width(em, a), width(em, b))
    return widened(em, a, size), widened(em, b, size)


def where(em: Emission, condition: ir.Value, a: Rep, b: Rep) -> Rep:
    x, y = same_width(em, a.data, b.data)
    missing = None
    if a.missing is not None or b.missing is not None:
        never = em.bools(False)
        missing = em.choose(condition, a.missing or never, b.missing or never)
    return Rep("chars", em.op.Where(column(em, condition), x, y), missing)


def equal(em: Emission, left: Rep, right: Rep) -> ir.Value:
    x, y = same_width(em, of_text(em, left).data, of_text(em, right).data)
    differs = em.op.Cast(em.op.Not(em.op.Equal(x, y)), to=int(INT64))
    return em.op.Equal(em.op.ReduceMax(differs, [1], keepdims=0), em.ints(0))


def contains(em: Emission, text: Rep, part: Rep) -> ir.Value:
    """Whether the characters of one column stand somewhere in those of another, row by row."""
    op = em.op
    inner = width(em, part.data)
    padded = op.Pad(text.data, op.Concat(em.ints([0, 0, 0]), inner, axis=0), np.int32(END))
    starts, offsets = places(em, text.data), places(em, part.data)
    at = op.Add(op.Unsqueeze(starts, em.ints([1])), offsets)  # [length, length of the part]
    windows = op.Gather(padded, at, axis=1)
    pattern = op.Unsqueeze(part.data, em.ints([1]))
    same = op.Or(op.Equal(windows, pattern), op.Less(pattern, np.int32(0)))
    hits = op.ReduceMin(op.Cast(same, to=int(INT64)), [2], keepdims=0)
    return op.Greater(op.ReduceMax(hits, [1], keepdims=0), em.ints(0))


def compact(em: Emission, data: ir.Value, keep: ir.Value) -> ir.Value:
    """The characters that are kept, left-justified; as wide as the longest row needs."""
    op = em.op
    number = op.Cast(keep, to=int(INT64))
    order = op.CumSum(number, em.ints(1))
    size = width(em, data)
    place = op.Where(keep, op.Sub(order, em.ints(1)), size)
    shape = op.Concat(op.Shape(data, start=0, end=1), op.Add(size, em.ints([1])), axis=0)
    empty = op.ConstantOfShape(shape, value=ir.tensor(np.array([END], np.int32)))
    filled = op.ScatterElements(empty, place, data, axis=1)
    count = op.ReduceSum(number, [1], keepdims=0)
    longest = op.ReduceMax(op.Concat(count, em.ints([1]), axis=0), [0], keepdims=1)
    return op.Slice(filled, em.ints([0]), longest, em.ints([1]))


def chosen(em: Emission, rep: Rep, keep: ir.Value) -> Rep:
    return rep.but(data=compact(em, rep.data, keep))


def concatenate(em: Emission, left: Rep, right: Rep) -> Rep:
    """Strings one after the other; missing where one of them is."""
    op = em.op
    if left.kind == right.kind == "text":
        missing = em.either(left.missing, right.missing)
        return Rep("text", op.StringConcat(left.data, right.data), missing)
    left, right = of_text(em, left), of_text(em, right)
    column_ = left if left.data.const_value is None else right
    count = op.Shape(column_.data, start=0, end=1)
    parts = []
    for rep in (left, right):
        if rep.data.const_value is not None:
            shape = op.Concat(count, width(em, rep.data), axis=0)
            parts.append(op.Expand(rep.data, shape))
        else:
            parts.append(rep.data)
    joined = op.Concat(*parts, axis=1)
    keep = op.GreaterOrEqual(joined, np.int32(0))
    return Rep("chars", compact(em, joined, keep), em.either(left.missing, right.missing))


def of_integer(em: Emission, value: ir.Value) -> ir.Value:
    """The decimal digits of int64, as characters."""
    op = em.op
    negative = op.Less(value, em.ints(0))
    powers = em.ints([10**k for k in range(18, -1, -1)])
    # The remainder of the negative keeps INT64_MIN correct, whose absolute value does not exist.
    below = column(em, op.Where(negative, value, op.Neg(value)))
    quotient = op.Div(below, powers)
    digits = op.Neg(op.Sub(quotient, op.Mul(op.Div(quotient, em.ints(10)), em.ints(10))))
    starts = op.Greater(op.CumSum(digits, em.ints(1)), em.ints(0))
    last = em.bools([False] * 18 + [True])
    keep = op.Or(starts, last)
    sign = column(em, op.Where(negative, em.ints(ord("-")), em.ints(END)))
    points = op.Concat(sign, op.Add(digits, em.ints(ord("0"))), axis=1)
    keep = op.Concat(column(em, negative), keep, axis=1)
    return compact(em, op.Cast(points, to=int(INT32)), keep)


# -- sets of characters -------------------------------------------------------------


def ranges_of(points: Iterable[int]) -> Ranges:
    """Code points as inclusive ranges."""
    result: list[list[int]] = []
    for point in sorted(set(points)):
        if result and point == result[-1][1] + 1:
            result[-1][1] = point
        else:
            result.append([point, point])
    return tuple((a, b) for a, b in result)


def member(em: Emission, data: ir.Value, ranges: Ranges) -> ir.Value:
    """Whether each character is in one of the ranges; the padding is not."""
    op = em.op
    if len(ranges) > FEW_RANGES:
        table = np.zeros(ranges[-1][1] + 2, np.bool_)
        for low, high in ranges:
            table[low : high + 1] = True
        at = op.Where(op.Less(data, np.int32(0)), np.int32(len(table) - 1), data)
        return op.Gather(op.const(table), op.Min(at, np.int32(len(table) - 1)))
    result = None
    for low, high in ranges:
        if low == high:
            test = op.Equal(data, np.int32(low))
        else:
            test = op.And(
                op.GreaterOrEqual(data, np.int32(low)), op.LessOrEqual(data, np.int32(high))
            )
        result = test if result is None else op.Or(result, test)
    if result is None:
        return op.Less(data, np.int32(END))
    return result


@functools.cache
def _cased_characters() -> tuple[str, ...]:
    points = (chr(c) for c in range(CASED) if not 0xD800 <= c < 0xE000)
    return tuple(c for c in points if not c == c.lower() == c.upper() == c.title() == c.casefold())


@functools.cache
def _all_characters() -> tuple[str, ...]:
    return tuple(chr(c) for c in range(CASED) if not 0xD800 <= c < 0xE000)


@functools.cache
def case_table(dtype: Any, method: str, before: str = "") -> dict[str, str]:
    """What pandas makes of each character that has a case, after the text `before`.

    pandas itself is asked, because its strings of Arrow and of Python differ (ß, for one).
    """
    characters = _cased_characters()
    series = pd.Series([before + c for c in characters], dtype=dtype)
    changed = getattr(series.str, method)().str.slice(len(before))
    return {a: b for a, b in zip(characters, changed, strict=True) if a != b}


@functools.cache
def accepted(dtype: Any, method: str, *arguments: Any) -> Ranges:
    """The characters of which a test of pandas' strings (isdigit, …) says yes."""
    characters = _all_characters()
    answers = getattr(pd.Series(list(characters), dtype=dtype).str, method)(*arguments)
    return ranges_of(ord(c) for c, yes in zip(characters, answers, strict=True) if yes)


@functools.cache
def stripped(dtype: Any) -> Ranges:
    """The white space that strip removes."""
    characters = _all_characters()
    rest = pd.Series(list(characters), dtype=dtype).str.strip()
    return ranges_of(ord(c) for c, left in zip(characters, rest, strict=True) if not left)


def substituted(em: Emission, data: ir.Value, table: dict[str, str]) -> ir.Value:
    """Each character replaced by those of the table, which may be more than one."""
    op = em.op
    if not table:
        return data
    wide = op.Cast(data, to=int(INT64))
    keys = [ord(k) for k in table]
    first = [ord(v[0]) - k if v else END - k for k, v in zip(keys, table.values(), strict=True)]
    result = op.Add(wide, _encoded(em, wide, keys, first, 0))
    longest = max(len(v) for v in table.values())
    if longest <= 1 and all(table.values()):
        return op.Cast(result, to=int(INT32))
    parts = [result]
    for place in range(1, longest):
        more = [ord(v[place]) if len(v) > place else END for v in table.values()]
        parts.append(_encoded(em, wide, keys, more, END))
    stacked = op.Concat(*(op.Unsqueeze(p, em.ints([2])) for p in parts), axis=2)
    shape = op.Concat(
        op.Shape(data, start=0, end=1), op.Mul(width(em, data), em.ints([longest])), axis=0
    )
    flat = op.Cast(op.Reshape(stacked, shape, allowzero=1), to=int(INT32))
    return compact(em, flat, op.GreaterOrEqual(flat, np.int32(0)))


def _encoded(
    em: Emission, data: ir.Value, keys: list[int], values: list[int], default: int
) -> ir.Value:
    attributes = {
        "keys_tensor": ir.tensor(np.array(keys, np.int64), name="keys"),
        "values_tensor": ir.tensor(np.array(values, np.int64), name="values"),
        "default_tensor": ir.tensor(np.array([default], np.int64), name="default"),
    }
    result = em.op.call("LabelEncoder", [data], attributes, domain=ML)
    result.type, result.shape = ir.TensorType(INT64), data.shape
    return result


# -- operations ---------------------------------------------------------------------


def sliced(em: Emission, rep: Rep, start: int | None, stop: int | None) -> Rep:
    """As Python slices, with steps of one."""
    op = em.op
    place, size = places(em, rep.data), column(em, lengths(em, rep.data))

    def bound(value: int) -> ir.Value:
        return em.ints(value) if value >= 0 else op.Add(size, em.ints(value))

    keep = op.GreaterOrEqual(rep.data, np.int32(0))
    if start:
        keep = op.And(keep, op.GreaterOrEqual(place, bound(start)))
    if stop is not None:
        keep = op.And(keep, op.Less(place, bound(stop)))
    return chosen(em, rep, keep)


def character(em: Emission, rep: Rep, index: int) -> Rep:
    """The character at one place; missing where the string is too short."""
    op = em.op
    size = lengths(em, rep.data)
    short = op.LessOrEqual(size, em.ints(index if index >= 0 else -index - 1))
    at = em.ints(index) if index >= 0 else column(em, op.Add(size, em.ints(index)))
    keep = op.And(op.Equal(places(em, rep.data), at), op.GreaterOrEqual(rep.data, np.int32(0)))
    return Rep("chars", compact(em, rep.data, keep), em.either(rep.missing, short))


def strip(em: Emission, rep: Rep, ranges: Ranges, left: bool, right: bool) -> Rep:
    op = em.op
    present = op.GreaterOrEqual(rep.data, np.int32(0))
    solid = op.Cast(op.And(present, op.Not(member(em, rep.data, ranges))), to=int(INT64))
    keep = present
    if left:
        keep = op.And(keep, op.Greater(op.CumSum(solid, em.ints(1)), em.ints(0)))
    if right:
        back = op.CumSum(solid, em.ints(1), reverse=1)
        keep = op.And(keep, op.Greater(back, em.ints(0)))
    return chosen(em, rep, keep)


def all_of(em: Emission, rep: Rep, ranges: Ranges) -> ir.Value:
    """Whether a string is not empty and all its characters are in the ranges."""
    op = em.op
    count = op.ReduceSum(op.Cast(member(em, rep.data, ranges), to=int(INT64)), [1], keepdims=0)
    size = lengths(em, rep.data)
    return op.And(op.Equal(count, size), op.Greater(size, em.ints(0)))


def to_text(em: Emission, data: ir.Value, limit: int = 64) -> ir.Value:
    """ASCII characters as strings, at most `limit` (a power of two) of them."""
    op = em.op
    table = em.texts([chr(c) for c in range(128)] + [""])
    at = op.Where(op.Less(data, np.int32(0)), np.int32(128), op.Min(data, np.int32(127)))
    padded = op.Pad(at, em.ints([0, 0, 0, limit]), np.int32(128))
    texts = op.Gather(table, op.Slice(padded, em.ints([0]), em.ints([limit]), em.ints([1])))
    while limit > 1:  # neighbours are joined until one string is left
        pair = [
            op.Slice(texts, em.ints([s]), em.ints([limit]), em.ints([1]), em.ints([2]))
            for s in (0, 1)
        ]
        texts = op.StringConcat(*pair)
        limit //= 2
    return op.Squeeze(texts, em.ints([1]))


@functools.cache
def accepted_before(dtype: Any) -> Ranges:
    """The characters after which title writes a small letter."""
    texts = pd.Series([c + "a" for c in _all_characters()], dtype=dtype).str.title()
    pairs = zip(_all_characters(), texts, strict=True)
    return ranges_of(ord(c) for c, text in pairs if text[-1] == "a")
