"""Functions of text and of dates: tables over the values that a field lists, and days."""

from __future__ import annotations

import re
from collections.abc import Callable

import onnx_ir as ir

from .dates import shifted
from .document import Element
from .functions import function
from .graph import Column, Graph, constant, strings
from .literals import java_text
from .refusal import Refusal
from .text_index import lowered

BLANKS = "".join(map(chr, range(33)))  # what evaluators trim: no other kinds of space

# -- text: as tables over the finite values of a field ---------------------------------


def text_table(g: Graph, e: Element, a: Column, rule: Callable[[str], str]) -> Column:
    """A function of the strings that a column can have."""
    if a.finite is None:
        raise Refusal(e, f"{e.get('function')} of text without a list of its values has no table")
    images = {text: rule(text) for text in dict.fromkeys(a.finite)}
    entries = {g.code(text): g.code(image) for text, image in images.items()}
    codes = g.table(g.column(a.numbers), entries, float("nan"))
    literal = rule(a.literal) if a.literal is not None else None
    return Column(codes, "string", finite=tuple(images.values()), literal=literal)


def _as_finite(g: Graph, e: Element, a: Column) -> Column:
    """A constant number is the text that Java writes."""
    if a.is_text:
        return a
    if a.literal is None:
        raise Refusal(e, f"{e.get('function')} of a number has no table")
    return constant(g, java_text(a.literal, a.dtype), "string")


def _needed(e: Element, column: Column) -> str:
    if column.literal is None:
        raise Refusal(e, f"{e.get('function')} by a field has no table")
    return str(column.literal)


@function("uppercase")
def uppercase(g: Graph, e: Element, a: Column) -> Column:
    return text_table(g, e, _as_finite(g, e, a), str.upper)


@function("lowercase")
def lowercase(g: Graph, e: Element, a: Column) -> Column:
    return lowered(e, a) or text_table(g, e, _as_finite(g, e, a), str.lower)


@function("trimBlanks")
def trim_blanks(g: Graph, e: Element, a: Column) -> Column:
    return text_table(g, e, _as_finite(g, e, a), lambda s: s.strip(BLANKS))


@function("substring")
def substring(g: Graph, e: Element, a: Column, start: Column, length: Column) -> Column:
    first, count = int(float(_needed(e, start))) - 1, int(float(_needed(e, length)))
    if first < 0 or count < 0:
        raise Refusal(e, "positions in a text start at 1")
    return text_table(g, e, _as_finite(g, e, a), lambda s: s[first : first + count])


@function("replace")
def replace_rule(g: Graph, e: Element, a: Column, pattern: Column, by: Column) -> Column:
    a = _as_finite(g, e, a)
    regex = regular_expression(e, _needed(e, pattern), a.finite)
    parts = _replacement(e, _needed(e, by), regex.groups)

    def image(match: re.Match[str]) -> str:
        return "".join(p if isinstance(p, str) else match[p] or "" for p in parts)

    return text_table(g, e, a, lambda s: regex.sub(image, s))


def _replacement(e: Element, text: str, groups: int) -> list[str | int]:
    """A replacement as texts and numbers of groups: `$1` is a group, a backslash quotes."""
    parts: list[str | int] = []
    for match in re.finditer(r"\\(.)|\$([0-9]+)|([^\\$]+)|.", text, re.DOTALL):
        quoted, digits, plain = match.groups()
        if digits is None:
            parts.append(quoted or plain or groups + 1)
        else:  # as many digits as name a group; those behind them stand for themselves
            count = len(digits)
            while count > 1 and int(digits[:count]) > groups:
                count -= 1
            parts += [int(digits[:count]), digits[count:]]
    if any(isinstance(part, int) and part > groups for part in parts):
        raise Refusal(e, f"the replacement {text!r} refers to no group")
    return parts


@function("matches")
def matches(g: Graph, e: Element, a: Column, pattern: Column) -> Column:
    a = _as_finite(g, e, a)
    regex = regular_expression(e, _needed(e, pattern), a.finite)
    if a.finite is None:
        raise Refusal(e, "matches of text without a list of its values has no table")
    entries = {g.code(s): float(regex.search(s) is not None) for s in a.finite}
    return Column(g.table(g.column(a.numbers), entries, float("nan")), "boolean")


def regular_expression(e: Element, pattern: str, texts: tuple[str, ...] | None) -> re.Pattern[str]:
    """A pattern that means the same in Python and in Java; nested repetition is refused.

    Letters and digits are those of ASCII. What is the boundary of a word depends on the release of
    Java for all other letters.
    """
    flags = re.ASCII
    if pattern.startswith("(?i)"):
        pattern, flags = pattern[4:], re.ASCII | re.IGNORECASE
    if re.search(r"\\[0pPQEGZzhHvVRXk]|\(\?[^:]|[+*}]\+|&&|\[[^\]]*\[|[+*}]\)[+*{]", pattern):
        raise Refusal(e, f"the regular expression {pattern!r} is not supported")
    if re.search(r"\\[bB]", pattern) and not all(text.isascii() for text in texts or ()):
        raise Refusal(e, f"the regular expression {pattern!r} of letters outside of ASCII")
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise Refusal(e, f"the regular expression {pattern!r} is malformed") from error


@function("stringLength")
def string_length(g: Graph, e: Element, a: Column) -> Column:
    a = _as_finite(g, e, a)
    if a.finite is None:
        raise Refusal(e, "stringLength of text without a list of its values has no table")
    entries = {g.code(s): float(len(s)) for s in a.finite}
    return Column(g.table(g.column(a.numbers), entries, float("nan")), "integer")


COMBINATIONS = 100_000


@function("concat")
def concat(g: Graph, e: Element, *columns: Column) -> Column:
    parts = [c if c.is_text or c.literal is None else _as_finite(g, e, c) for c in columns]
    out = constant(g, "", "string")
    for part in parts:
        out = _joined(g, e, out, part)
    return out


def _joined(g: Graph, e: Element, a: Column, b: Column) -> Column:
    if not b.is_text:
        raise Refusal(e, "concat of a number has no table")
    if a.finite is None or b.finite is None:
        if (a.text is None and a.finite is None) or (b.text is None and b.finite is None):
            raise Refusal(e, "concat of text without a list of its values has no table")
        text = g.call("StringConcat", [strings(g, a), strings(g, b)])
        text.shape = ir.Shape(["N"])
        return Column(g.encode(text), "string", text=text)
    left, right = [*dict.fromkeys(a.finite)], [*dict.fromkeys(b.finite)]
    if (len(left) + 1) * (len(right) + 1) > COMBINATIONS:
        raise Refusal(e, "concat has too many combinations of values")
    if a.literal is not None and b.literal is not None:
        return constant(g, a.literal + b.literal, "string")
    # A missing part is an empty text: place 0 of each side.
    rows = {g.code(s): float(i + 1) for i, s in enumerate(left)}
    cols = {g.code(s): float(i + 1) for i, s in enumerate(right)}
    place = g.Add(
        g.Mul(g.table(g.column(a.numbers), rows, 0.0), g.number(len(right) + 1.0)),
        g.table(g.column(b.numbers), cols, 0.0),
    )
    images = {
        float(i * (len(right) + 1) + j): s + t
        for i, s in enumerate(["", *left])
        for j, t in enumerate(["", *right])
    }
    entries = {key: g.code(text) for key, text in images.items()}
    return Column(
        g.table(place, entries, float("nan")),
        "string",
        finite=tuple(dict.fromkeys(images.values())),
    )


@function("formatNumber")
def format_number(g: Graph, e: Element, a: Column, pattern: Column) -> Column:
    if a.literal is None:
        raise Refusal(e, "formatNumber of a field has no table")
    return constant(g, _needed(e, pattern) % int(a.literal), "string")


# -- dates ---------------------------------------------------------------------------


@function("dateDaysSinceYear")
def date_days_since_year(g: Graph, e: Element, a: Column, year: Column) -> Column:
    return _since(g, e, a, year, "days")


@function("dateSecondsSinceYear")
def date_seconds_since_year(g: Graph, e: Element, a: Column, year: Column) -> Column:
    return _since(g, e, a, year, "seconds")


def _since(g: Graph, e: Element, a: Column, year: Column, unit: str) -> Column:
    x = shifted(g, a, unit, int(float(_needed(e, year))))
    if x is None:
        raise Refusal(e, f"{e.get('function')} of a {a.dtype}")
    return Column(x, "integer")


@function("dateSecondsSinceMidnight")
def date_seconds_since_midnight(g: Graph, e: Element, a: Column) -> Column:
    if a.dtype not in ("time", "timeSeconds", "dateTime"):
        raise Refusal(e, f"dateSecondsSinceMidnight of a {a.dtype}")
    x = a.numbers
    if a.dtype == "dateTime":
        day = g.number(86400.0)
        x = g.Sub(x, g.Mul(day, g.Floor(g.Div(x, day))))
    return Column(x, "integer")
