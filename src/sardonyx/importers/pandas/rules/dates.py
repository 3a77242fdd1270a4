"""Datetimes and timedeltas: the `.dt` accessor, parsing, and units. All by integer arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.frames import MISSING_INT
from sardonyx.importers.pandas import lookup
from sardonyx.importers.pandas.column import Column, record
from sardonyx.importers.pandas.emission import (
    DOUBLE,
    INT32,
    INT64,
    NAMES,
    TICKS,
    Emission,
    Rep,
    kind_of,
    unit_of,
)
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.recorder import Proxy, refuse, rule
from sardonyx.importers.pandas.zones import DAY, floor_div, local, moments, offsets


class Dates(Proxy):
    """`series.dt`."""

    _owner = "dt"

    def __init__(self, column: Column):
        self.column = column


@rule("Series", "dt", is_property=True)
def dt_(self: Any) -> Any:
    if self.step.value.dtype.kind not in "Mm":
        raise AttributeError("Can only use .dt accessor with datetimelike values")
    return Dates(self)


def _refuse_local(self: Any, name: str) -> None:
    """Clock times of a zone other than UTC happen twice, or not at all, once a year."""
    zone = getattr(self.column.step.value.dtype, "tz", None)
    if zone is not None and str(zone) != "UTC":
        refuse(
            f"{name} in the local time of {zone} has no rule",
            "take the clock time first, with .dt.tz_localize(None)",
        )


def modulo(em: Emission, a: Any, b: int) -> Any:
    """The remainder of `floor_div`."""
    return em.op.Sub(a, em.op.Mul(floor_div(em, a, b), em.op.const(b, a.dtype)))


class Clock:
    """The parts of datetimes, each computed once; what a missing one gives is not looked at.

    Days fit into 32 bits, in which division is faster than in 64.
    """

    def __init__(self, em: Emission, rep: Rep):
        self.em, self.missing = em, em.missing(rep)
        self.ticks = TICKS[rep.unit]
        self.data = rep.data
        self.day_length = DAY * self.ticks
        self.memo: dict[str, Any] = {}

    def small(self, value: int) -> Any:
        return self.em.op.const(np.int32(value))

    def number(self, name: str) -> Any:
        """A part as doubles, NaN where it is missing: 1 / 1 keeps a number, 0 / 0 removes it."""
        op = self.em.op
        if "present" not in self.memo:
            held = op.Cast(op.Not(self.missing), to=int(DOUBLE))
            self.memo["present"] = op.Div(held, held)
        return op.Mul(op.Cast(self.get(name), to=int(DOUBLE)), self.memo["present"])

    def get(self, name: str) -> Any:
        if name not in self.memo:
            self.memo[name] = getattr(self, f"_{name}")()
        return self.memo[name]

    def _days(self) -> Any:
        return self.em.op.Cast(self.get("long_days"), to=int(INT32))

    def _long_days(self) -> Any:
        return floor_div(self.em, self.data, self.day_length)

    def _within(self) -> Any:
        whole = self.em.op.Mul(self.get("long_days"), self.em.ints(self.day_length))
        return self.em.op.Sub(self.data, whole)

    def _units(self, seconds: int) -> Any:
        return self.em.op.Div(self.get("within"), self.em.ints(seconds * self.ticks))

    def _hour(self) -> Any:
        return self._units(3600)

    def _minutes(self) -> Any:
        return self._units(60)

    def _minute(self) -> Any:
        whole = self.em.op.Mul(self.get("hour"), self.em.ints(60))
        return self.em.op.Sub(self.get("minutes"), whole)

    def _second(self) -> Any:
        whole = self.em.op.Mul(self.get("minutes"), self.em.ints(60))
        return self.em.op.Sub(self._units(1), whole)

    def _microsecond(self) -> Any:
        rest = self.em.op.Mod(self.data, self.em.ints(self.ticks))
        if self.ticks <= 10**6:
            return self.em.op.Mul(rest, self.em.ints(10**6 // self.ticks))
        return self.em.op.Div(rest, self.em.ints(self.ticks // 10**6))

    def _nanosecond(self) -> Any:
        return (
            self.em.op.Mod(self.data, self.em.ints(1000)) if self.ticks == 10**9 else self._zero()
        )

    def _zero(self) -> Any:
        return self.em.op.Mul(self.data, self.em.ints(0))

    def _dayofweek(self) -> Any:
        return modulo(self.em, self.em.op.Add(self.get("days"), self.small(3)), 7)

    # Years start in March here, so that the leap day is the last; 146,097 days are 400 years.
    def _shifted(self) -> Any:
        return self.em.op.Add(self.get("days"), self.small(719468))

    def _era(self) -> Any:
        return floor_div(self.em, self.get("shifted"), 146097)

    def _day_of_era(self) -> Any:
        op = self.em.op
        return op.Sub(self.get("shifted"), op.Mul(self.get("era"), self.small(146097)))

    def _year_of_era(self) -> Any:
        op, ints, day = self.em.op, self.small, self.get("day_of_era")
        leap = op.Sub(day, op.Div(day, ints(1460)))
        leap = op.Add(leap, op.Div(day, ints(36524)))
        leap = op.Sub(leap, op.Div(day, ints(146096)))
        return op.Div(leap, ints(365))

    def _day_of_shifted_year(self) -> Any:
        op, ints, year = self.em.op, self.small, self.get("year_of_era")
        before = op.Add(op.Mul(year, ints(365)), op.Div(year, ints(4)))
        before = op.Sub(before, op.Div(year, ints(100)))
        return op.Sub(self.get("day_of_era"), before)

    def _shifted_month(self) -> Any:
        op, ints = self.em.op, self.small
        return op.Div(op.Add(op.Mul(self.get("day_of_shifted_year"), ints(5)), ints(2)), ints(153))

    def _day(self) -> Any:
        op, ints, month = self.em.op, self.small, self.get("shifted_month")
        before = op.Div(op.Add(op.Mul(month, ints(153)), ints(2)), ints(5))
        return op.Add(op.Sub(self.get("day_of_shifted_year"), before), ints(1))

    def _month(self) -> Any:
        op, ints, month = self.em.op, self.small, self.get("shifted_month")
        return op.Where(op.Less(month, ints(10)), op.Add(month, ints(3)), op.Sub(month, ints(9)))

    def _year(self) -> Any:
        op, ints = self.em.op, self.small
        year = op.Add(self.get("year_of_era"), op.Mul(self.get("era"), ints(400)))
        early = op.LessOrEqual(self.get("month"), ints(2))
        return op.Add(year, op.Cast(early, to=int(INT32)))

    def _quarter(self) -> Any:
        return self.em.op.Div(self.em.op.Add(self.get("month"), self.small(2)), self.small(3))

    def _is_leap_year(self) -> Any:
        return is_leap(self.em, self.get("year"))

    def _days_in_month(self) -> Any:
        return month_length(self.em, self.get("month"), self.get("is_leap_year"))

    def _dayofyear(self) -> Any:
        op, ints = self.em.op, self.small
        lengths = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30]
        before = op.const(np.cumsum(lengths).astype(np.int32))
        day = op.Add(op.Gather(before, op.Sub(self.get("month"), ints(1))), self.get("day"))
        late = op.And(self.get("is_leap_year"), op.Greater(self.get("month"), ints(2)))
        return op.Add(day, op.Cast(late, to=int(INT32)))

    def _thursday(self) -> Clock:
        """The Thursday of the ISO week, whose year and day of the year give the week."""
        op, ints = self.em.op, self.small
        days = op.Add(self.get("days"), op.Sub(ints(3), self.get("dayofweek")))
        other = Clock(self.em, Rep("datetime", self.data, unit="s"))
        other.memo["days"] = days
        return other

    def _week(self) -> Any:
        op, ints = self.em.op, self.small
        day = self.get("thursday").get("dayofyear")
        return op.Add(op.Div(op.Sub(day, ints(1)), ints(7)), ints(1))

    def _isoyear(self) -> Any:
        return self.get("thursday").get("year")

    def _isoday(self) -> Any:
        return self.em.op.Add(self.get("dayofweek"), self.small(1))


def is_leap(em: Emission, year: Any) -> Any:
    op = em.op

    def divides(number: int) -> Any:
        rest = op.Mod(year, op.const(number, year.dtype))
        return op.Equal(rest, op.const(0, year.dtype))

    return op.And(divides(4), op.Or(op.Not(divides(100)), divides(400)))


def month_length(em: Emission, month: Any, leap: Any) -> Any:
    op = em.op
    table = op.const([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], month.dtype)
    days = op.Gather(table, op.Sub(month, op.const(1, month.dtype)))
    longer = op.And(leap, op.Equal(month, op.const(2, month.dtype)))
    return op.Add(days, op.Cast(longer, to=int(month.dtype)))


def clock(em: Emission, rep: Rep) -> Clock:
    """One clock per column and graph: parts that several calls ask for are computed once."""
    rep = local(em, rep)
    clocks = em.__dict__.setdefault("clocks", {})
    key = (id(rep.data), rep.unit)
    if key not in clocks:
        clocks[key] = (Clock(em, rep), rep)
    return clocks[key][0]


PARTS = {
    "year": "year", "month": "month", "day": "day", "hour": "hour", "minute": "minute",
    "second": "second", "microsecond": "microsecond", "nanosecond": "nanosecond",
    "dayofweek": "dayofweek", "day_of_week": "dayofweek", "weekday": "dayofweek",
    "dayofyear": "dayofyear", "day_of_year": "dayofyear", "quarter": "quarter",
    "days_in_month": "days_in_month", "daysinmonth": "days_in_month",
}  # fmt: skip


def _part(name: str, part: str) -> None:
    def get(self: Any) -> Any:
        def emit(em: Emission, a: Rep) -> Rep:
            if a.kind != "datetime":
                em.refuse(f".dt.{name} of {NAMES[a.kind]} has no rule")
            return Rep("float", clock(em, a).number(part))

        return _record(name, self, lambda a: getattr(a.dt, name), emit)

    rule("dt", name, is_property=True)(get)


def _record(name: str, self: Any, replay: Callable[..., Any], emit: Callable[..., Any]) -> Any:
    return record(f"dt.{name}", [self.column], replay, emit, label=self.column.label)


for _name, _source in PARTS.items():
    _part(_name, _source)


def _flag(name: str, test: Callable[[Emission, Clock], Any]) -> None:
    def get(self: Any) -> Any:
        def emit(em: Emission, a: Rep) -> Rep:
            parts = clock(em, a)
            return Rep("bool", em.op.And(test(em, parts), em.op.Not(parts.missing)))

        return _record(name, self, lambda a: getattr(a.dt, name), emit)

    rule("dt", name, is_property=True)(get)


def _first_day(em: Emission, c: Clock) -> Any:
    return em.op.Equal(c.get("day"), c.small(1))


def _last_day(em: Emission, c: Clock) -> Any:
    return em.op.Equal(c.get("day"), c.get("days_in_month"))


def _month_is(em: Emission, c: Clock, months: list[int]) -> Any:
    table = [number in months for number in range(13)]
    return em.op.Gather(em.bools(table), c.get("month"))


_flag("is_leap_year", lambda em, c: c.get("is_leap_year"))
_flag("is_month_start", _first_day)
_flag("is_month_end", _last_day)
_flag(
    "is_quarter_start", lambda em, c: em.op.And(_first_day(em, c), _month_is(em, c, [1, 4, 7, 10]))
)
_flag("is_quarter_end", lambda em, c: em.op.And(_last_day(em, c), _month_is(em, c, [3, 6, 9, 12])))
_flag("is_year_start", lambda em, c: em.op.And(_first_day(em, c), _month_is(em, c, [1])))
_flag("is_year_end", lambda em, c: em.op.And(_last_day(em, c), _month_is(em, c, [12])))


@rule("dt")
def isocalendar(self: Any) -> Any:
    parts = {"year": "isoyear", "week": "week", "day": "isoday"}

    def column(name: str) -> Any:
        def emit(em: Emission, a: Rep) -> Rep:
            c = clock(em, a)
            value = em.op.Cast(c.get(parts[name]), to=int(INT64))
            return Rep("int", value, c.missing, nullable=True)

        return _record("isocalendar", self, lambda a: a.dt.isocalendar()[name], emit)

    return Frame({n: column(n) for n in parts}, self.column.rows)


NAMES_OF = {
    "day_name": ("dayofweek", "Monday Tuesday Wednesday Thursday Friday Saturday Sunday", 0),
    "month_name": (
        "month",
        "January February March April May June July August September October November December",
        1,
    ),
}


def _word(name: str) -> None:
    def method(self: Any) -> Any:
        part, words, first = NAMES_OF[name]

        def emit(em: Emission, a: Rep) -> Rep:
            c = clock(em, a)
            number = em.op.Cast(c.get(part), to=int(INT64))
            place = em.op.Where(c.missing, em.ints(-1), em.op.Sub(number, em.ints(first)))
            return lookup.gather(em, place, pd.Series(words.split(), dtype="str"))

        return _record(name, self, lambda a: getattr(a.dt, name)(), emit)

    rule("dt", name)(method)


_word("day_name")
_word("month_name")


def seconds_of(freq: Any) -> int | None:
    """The length of a fixed frequency (3h, 15min, D) in seconds."""
    try:
        length = pd.Timedelta(pd.tseries.frequencies.to_offset(freq))
    except ValueError:
        return None
    seconds = int(length.total_seconds())
    return seconds if seconds > 0 and length == pd.Timedelta(seconds=seconds) else None


def _rounding(name: str) -> None:
    def method(self: Any, freq: str) -> Any:
        seconds = seconds_of(freq)
        if seconds is None:
            refuse(f".dt.{name}({freq!r}) has no rule", "a number of days, hours or minutes has")

        def emit(em: Emission, a: Rep) -> Rep:
            op = em.op
            size = seconds * TICKS[a.unit]
            missing = em.missing(a)
            a = local(em, a)
            x = op.Where(missing, em.ints(0), a.data)
            rest = op.Mod(x, em.ints(size))
            low = op.Sub(x, rest)
            up = op.Add(low, em.ints(size))
            if name == "floor":
                value = low
            elif name == "ceil":
                value = op.Where(op.Equal(rest, em.ints(0)), x, up)
            else:  # halves go to the even multiple
                twice = op.Mul(rest, em.ints(2))
                odd = op.Equal(op.Mod(op.Div(low, em.ints(size)), em.ints(2)), em.ints(1))
                tie = op.And(op.Equal(twice, em.ints(size)), odd)
                value = op.Where(op.Or(op.Greater(twice, em.ints(size)), tie), up, low)
            return a.but(data=op.Where(missing, em.ints(MISSING_INT), value))

        _refuse_local(self, f".dt.{name}")
        return _record(name, self, lambda a: getattr(a.dt, name)(freq), emit)

    rule("dt", name)(method)


for _round in ("floor", "ceil", "round"):
    _rounding(_round)


WRITTEN = {"q": "quarter", "m": "month", "d": "day", "H": "hour", "M": "minute", "S": "second"}


@rule("dt")
def strftime(self: Any, date_format: str) -> Any:
    parts = re.findall(r"%.|[^%]+", date_format)
    directives = {"Y", "y", "A", "B", "a", "b", *WRITTEN} - {"q"}
    unknown = [p for p in parts if p[0] == "%" and p[1:] not in directives]
    if unknown:
        refuse(f"the directive {unknown[0]} has no rule")

    def emit(em: Emission, a: Rep) -> Rep:
        return formatted(em, a, date_format)

    return _record("strftime", self, lambda a: a.dt.strftime(date_format).astype("str"), emit)


def formatted(em: Emission, a: Rep, form: str) -> Rep:
    """Datetimes as text; %q stands for the quarter."""
    from sardonyx.importers.pandas import characters

    c, result = clock(em, a), None
    for part in re.findall(r"%.|[^%]+", form):
        rep = _written(em, c, part)
        result = rep if result is None else characters.concatenate(em, result, rep)
    if result is None:
        em.refuse("an empty format")
    return result.but(missing=c.missing)  # type: ignore[union-attr]


def _written(em: Emission, c: Clock, part: str) -> Rep:
    """One directive of a format, or the text between them."""
    if part[0] != "%":
        return em.scalar(part)
    name = part[1:]

    def whole(source: str) -> Any:
        """A part, in which a missing date must not leave the tables."""
        value = em.op.Cast(c.get(source), to=int(INT64))
        return em.op.Where(c.missing, em.ints(1), value)

    two = pd.Series([f"{n:02d}" for n in range(100)], dtype="str")
    if name in ("A", "a", "B", "b"):
        source, words, first = NAMES_OF["day_name" if name in "Aa" else "month_name"]
        table = [w if name in "AB" else w[:3] for w in words.split()]
        return lookup.gather(
            em, em.op.Sub(whole(source), em.ints(first)), pd.Series(table, dtype="str")
        )
    if name == "Y":
        high = lookup.gather(em, em.op.Div(whole("year"), em.ints(100)), two)
        return _pair(em, high, lookup.gather(em, em.op.Mod(whole("year"), em.ints(100)), two))
    if name == "q":
        one = pd.Series([str(n) for n in range(10)], dtype="str")
        return lookup.gather(em, whole("quarter"), one)
    if name == "y":
        return lookup.gather(em, em.op.Mod(whole("year"), em.ints(100)), two)
    return lookup.gather(em, whole(WRITTEN[name]), two)


def _pair(em: Emission, a: Rep, b: Rep) -> Rep:
    from sardonyx.importers.pandas import characters

    return characters.concatenate(em, a, b)


@rule("dt")
def normalize(self: Any) -> Any:
    return self.floor("D")


# -- timedeltas ---------------------------------------------------------------------


@rule("dt")
def total_seconds(self: Any) -> Any:
    def emit(em: Emission, a: Rep) -> Rep:
        seconds = em.op.Div(em.op.Cast(a.data, to=int(DOUBLE)), em.doubles(float(TICKS[a.unit])))
        return Rep("float", em.op.Where(em.missing(a), em.doubles(np.nan), seconds))

    return _record("total_seconds", self, lambda a: a.dt.total_seconds(), emit)


def _delta_part(name: str, divisor: Callable[[int], int], modulus: int | None) -> None:
    def get(self: Any) -> Any:
        def emit(em: Emission, a: Rep) -> Rep:
            if a.kind != "timedelta":
                em.refuse(f".dt.{name} of {NAMES[a.kind]} has no rule")
            missing = em.missing(a)
            value = floor_div(em, a.data, divisor(TICKS[a.unit]))
            if modulus is not None:
                value = em.op.Mod(value, em.ints(modulus))
            value = em.op.Cast(value, to=int(DOUBLE))
            return Rep("float", em.op.Where(missing, em.doubles(np.nan), value))

        return _record(name, self, lambda a: getattr(a.dt, name), emit)

    rule("dt", name, is_property=True)(get)


_delta_part("days", lambda ticks: DAY * ticks, None)
_delta_part("seconds", lambda ticks: ticks, DAY)


def to_unit(em: Emission, a: Rep, dtype: Any) -> Rep:
    """A datetime or timedelta in another unit, or a number taken for one."""
    unit, kind = unit_of(dtype), kind_of(dtype)
    if a.kind == kind:
        if TICKS[unit] >= TICKS[a.unit]:
            return em.in_unit(a, unit)
        missing = em.missing(a)
        size = TICKS[a.unit] // TICKS[unit]
        data = floor_div(em, em.op.Where(missing, em.ints(0), a.data), size)
        return a.but(data=em.op.Where(missing, em.ints(MISSING_INT), data), unit=unit)
    if a.kind == "int" and a.missing is None:
        return Rep(kind, a.data, unit=unit)
    return em.refuse(f"{NAMES[a.kind]} become {dtype}, which has no rule")


@rule("dt")
def tz_localize(self: Any, tz: Any, ambiguous: str = "raise", nonexistent: str = "raise") -> Any:
    if not {ambiguous, nonexistent} <= {"raise", "NaT"}:
        refuse("clock times that a zone shows twice, or never, are chosen", 'pass "NaT"')
    zone = None if tz is None else _zone(tz)
    how = {"ambiguous": ambiguous, "nonexistent": nonexistent}

    def emit(em: Emission, a: Rep) -> Rep:
        if zone is None:
            return local(em, a).but(timezone="")
        return a.but(timezone="UTC") if zone == "UTC" else moments(em, a, zone)

    return _record("tz_localize", self, lambda a: a.dt.tz_localize(tz, **how), emit)


@rule("dt")
def tz_convert(self: Any, tz: Any) -> Any:
    if getattr(self.column.step.value.dtype, "tz", None) is None:
        raise TypeError("Cannot convert tz-naive timestamps, use tz_localize to localize")
    if tz is None:
        return self.tz_convert("UTC").dt.tz_localize(None)
    name = _zone(tz)
    return _record(
        "tz_convert", self, lambda a: a.dt.tz_convert(tz), lambda em, a: a.but(timezone=name)
    )


def _zone(tz: Any) -> str:
    """The name of a time zone that the system knows."""
    name = str(tz)
    try:
        offsets("UTC" if name == "UTC" else name)
    except (KeyError, ValueError, OSError):
        refuse(f"the time zone {name} is not known", "use a name such as Europe/Paris")
    return name


@rule("dt")
def as_unit(self: Any, unit: str) -> Any:
    return _record(
        "as_unit", self, lambda a: a.dt.as_unit(unit), lambda em, a: to_unit(em, a, em.dtype)
    )
