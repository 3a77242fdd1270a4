"""Dates: text such as 2024-02-29 or 2024-02-29T12:30:00 becomes a number of days or seconds.

A column of a date type holds days (dateDaysSince…), seconds (dateTimeSecondsSince…,
timeSeconds) or, for date, time and dateTime, days or seconds since 1970 (since midnight for time).
"""

from __future__ import annotations

import datetime
import re

import numpy as np
import onnx_ir as ir

from .document import Element
from .graph import Column, Graph
from .refusal import Refusal

DATES = ("date", "time", "dateTime")
_SINCE = re.compile(r"(dateDaysSince|dateTimeSecondsSince)(\[(\d{4})\]|(\d{4}))")


def epoch(dtype: str) -> tuple[str, int] | None:
    """`dateDaysSince[1960]` is days since 1960: ("days", 1960)."""
    match = _SINCE.fullmatch(dtype)
    if match is None:
        return None
    year = int(match.group(3) or match.group(4))
    return ("days" if match.group(1) == "dateDaysSince" else "seconds"), year


def days_before(year: int) -> int:
    """Days from 1970 to the first day of a year."""
    return (datetime.date(year, 1, 1) - datetime.date(1970, 1, 1)).days


def date_column(g: Graph, element: Element, text: ir.Value, dtype: str) -> Column:
    """The number of a date given as text; an empty text is missing."""
    is_missing = g.Equal(text, text_constant(g, ""))
    if dtype == "time" or dtype == "timeSeconds":
        clock = g.Where(is_missing, text_constant(g, "00:00:00"), text)
        numbers = _seconds(g, clock)
    elif dtype.startswith("dateTime"):
        moment = g.Where(is_missing, text_constant(g, "1970-01-01T00:00:00"), text)
        numbers = _moment(g, moment)
    else:
        numbers = _days(g, g.Where(is_missing, text_constant(g, "1970-01-01"), text))
    since = epoch(dtype)
    if since is not None:
        days = days_before(since[1])
        numbers = g.Sub(numbers, g.number(days * (86400.0 if since[0] == "seconds" else 1.0)))
    elif dtype not in ("date", "time", "dateTime", "timeSeconds"):
        raise Refusal(element, f"dataType {dtype} is not one of PMML")
    return Column(g.Where(is_missing, g.number(float("nan")), numbers), dtype)


def shifted(g: Graph, column: Column, unit: str, year: int) -> ir.Value | None:
    """A date as days or seconds since the beginning of a year; None if it is no such date."""
    kind = column.dtype
    since = epoch(kind)
    in_seconds = kind.startswith("dateTime")
    if not (kind == "date" or in_seconds or since):
        return None
    start = days_before(since[1]) if since else 0
    x = column.numbers
    if in_seconds:
        x = g.Add(x, g.number(start * 86400.0))
    else:
        x = g.Mul(g.Add(x, g.number(float(start))), g.number(86400.0))
    x = g.Sub(x, g.number(days_before(year) * 86400.0))
    return x if unit == "seconds" else g.Floor(g.Div(x, g.number(86400.0)))


def text_constant(g: Graph, text: str) -> ir.Value:
    key = ("text", text)
    if key not in g.root.constants:
        tensor = ir.StringTensor(np.array([text.encode()], object), name=g.fresh("text"))
        g.root.constants[key] = ir.Value(
            name=tensor.name,
            shape=ir.Shape([1]),
            type=ir.TensorType(ir.DataType.STRING),
            const_value=tensor,
        )
    return g.root.constants[key]


def _pieces(g: Graph, text: ir.Value, mark: str, count: int) -> list[ir.Value]:
    parts, _ = g.call("StringSplit", [text], {"delimiter": mark}, outputs=2)
    return [
        g.Reshape(g.Gather(parts, np.array([i]), axis=1), np.array([-1], np.int64))
        for i in range(count)
    ]


def _real(g: Graph, text: ir.Value) -> ir.Value:
    out = g.Cast(text, to=int(ir.DataType.DOUBLE))
    out.shape = ir.Shape(["N"])
    return out


def _days(g: Graph, text: ir.Value) -> ir.Value:
    """Days since 1970 of year-month-day, by the civil calendar."""
    year, month, day = (_real(g, p) for p in _pieces(g, text, "-", 3))
    early = g.LessOrEqual(month, g.number(2.0))
    y = g.Sub(year, g.Where(early, g.number(1.0), g.number(0.0)))
    shift = g.Add(month, g.Where(early, g.number(9.0), g.number(-3.0)))
    era = g.Floor(g.Div(y, g.number(400.0)))
    of_era = g.Sub(y, g.Mul(era, g.number(400.0)))
    of_year = g.Floor(g.Div(g.Add(g.Mul(shift, g.number(153.0)), g.number(2.0)), g.number(5.0)))
    of_year = g.Sub(g.Add(of_year, day), g.number(1.0))
    leaps = g.Sub(g.Floor(g.Div(of_era, g.number(4.0))), g.Floor(g.Div(of_era, g.number(100.0))))
    days = g.Add(g.Add(g.Mul(of_era, g.number(365.0)), leaps), of_year)
    return g.Sub(g.Add(days, g.Mul(era, g.number(146097.0))), g.number(719468.0))


def _seconds(g: Graph, text: ir.Value) -> ir.Value:
    hour, minute, second = (_real(g, p) for p in _pieces(g, text, ":", 3))
    out = g.Add(g.Mul(hour, g.number(3600.0)), g.Mul(minute, g.number(60.0)))
    return g.Add(out, second)


def _moment(g: Graph, text: ir.Value) -> ir.Value:
    day, clock = _pieces(g, text, "T", 2)
    return g.Add(g.Mul(_days(g, day), g.number(86400.0)), _seconds(g, clock))
