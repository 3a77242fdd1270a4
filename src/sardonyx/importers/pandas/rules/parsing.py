"""Dates from strings and numbers: pd.to_datetime and pd.to_timedelta, with the frozen format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from sardonyx.frames import MISSING_INT
from sardonyx.importers.pandas import characters, lookup, regex, search
from sardonyx.importers.pandas.column import is_column, record
from sardonyx.importers.pandas.emission import INT64, TICKS, Emission, Rep, unit_of
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.recorder import freeze, refuse, rule
from sardonyx.importers.pandas.rules.calendar import Days
from sardonyx.importers.pandas.rules.dates import DAY, NAMES_OF, is_leap, month_length
from sardonyx.importers.pandas.rules.reshape import data_frame
from sardonyx.importers.pandas.rules.strings import span
from sardonyx.importers.pandas.zones import days_from_civil

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
FULL_MONTHS = NAMES_OF["month_name"][1].lower().split()
DIRECTIVES = {
    "Y": r"([0-9][0-9][0-9][0-9])", "y": r"([0-9][0-9])", "m": r"(1[0-2]|0[1-9]|[1-9])",
    "d": r"(3[0-1]|[1-2][0-9]|0[1-9]|[1-9]| [1-9])", "H": r"(2[0-3]|[0-1][0-9]|[0-9])",
    "I": r"(1[0-2]|0[1-9]|[1-9])", "M": r"([0-5][0-9]|[0-9])", "S": r"(6[0-1]|[0-5][0-9]|[0-9])",
    "f": r"([0-9]{1,9})", "p": r"([aA][mM]|[pP][mM])",
    "b": f"((?:{'|'.join(MONTHS)}))", "B": f"((?:{'|'.join(FULL_MONTHS)}))",
}  # fmt: skip
NOTHING = ["", "NaT", "nat", "NAT", "nan", "NaN", "NAN", "<NA>", "N/A", "NA"]


@rule("pandas")
def to_datetime(
    arg: Any, errors: str = "raise", dayfirst: bool = False, yearfirst: bool = False,
    utc: bool = False, format: Any = None, unit: Any = None, origin: Any = "unix",
) -> Any:  # fmt: skip
    if isinstance(arg, (Frame, Mapping)):
        return _of_parts(arg if isinstance(arg, Frame) else data_frame(arg), errors)
    if isinstance(arg, Days) and arg.form == "%Y-%m-%d":
        return arg.moments.named(arg.label)
    if not is_column(arg):
        refuse("pd.to_datetime of something that is no column has no rule")
    if utc:
        moment = to_datetime(arg, errors, dayfirst, yearfirst, False, format, unit, origin)
        zone = getattr(moment.step.value.dtype, "tz", None)
        return moment.dt.tz_localize("UTC") if zone is None else moment.dt.tz_convert("UTC")
    if errors not in ("raise", "coerce") or origin != "unix" or yearfirst:
        refuse("pd.to_datetime with these arguments has no rule")
    value = arg.step.value
    if value.dtype.kind == "M":
        return arg
    if value.dtype.kind in "iuf":
        return _from_number(arg, unit or "ns", errors)
    pattern = format or _guess(value, dayfirst)

    def replay(a: pd.Series) -> pd.Series:
        return pd.to_datetime(a, errors=errors, format=pattern)

    return record(
        "to_datetime",
        [arg],
        replay,
        lambda em, a: _parse(em, a, pattern),
        chars=True,
        label=arg.label,
    )


PARTS = ("year", "month", "day", "hour", "minute", "second")


def _of_parts(frame: Frame, errors: str) -> Any:
    """A frame with columns year, month, day and, if need be, hour, minute and second."""
    columns = {str(n).lower().rstrip("s"): c for n, c in frame.series.items()}
    if not set(PARTS[:3]) <= set(columns) or not set(columns) <= set(PARTS):
        refuse("pd.to_datetime of a frame is recorded for year, month, day, hour, minute, second")
    names = [n for n in PARTS if n in columns]

    def replay(*values: pd.Series) -> pd.Series:
        return pd.to_datetime(pd.DataFrame(dict(zip(names, values, strict=True))), errors=errors)

    def emit(em: Emission, *reps: Rep) -> Rep:
        op, ints = em.op, em.ints
        valid, parts = em.bools(True), {}
        limits = {"year": (-290_000, 290_000), "month": (1, 12), "day": (1, 31)}
        for name, rep in zip(names, reps, strict=True):
            if name not in limits and rep.kind != "int":
                em.refuse(f"the {name} may have a fraction or be missing", "convert to int before")
            value = em.double(rep)
            low, high = limits.get(name, (-(2.0**50), 2.0**50))
            inside = op.And(
                op.GreaterOrEqual(value, em.doubles(low)), op.LessOrEqual(value, em.doubles(high))
            )
            inside = op.And(inside, op.Equal(value, op.Floor(value)))
            valid = op.And(valid, inside)
            parts[name] = op.Cast(op.Where(inside, value, em.doubles(low)), to=int(INT64))
        year, month, day = (parts[n] for n in PARTS[:3])
        valid = op.And(valid, op.LessOrEqual(day, month_length(em, month, is_leap(em, year))))
        seconds = op.Mul(days_from_civil(em, year, month, day), ints(DAY))
        for name, size in (("hour", 3600), ("minute", 60), ("second", 1)):
            if name in parts:
                seconds = op.Add(seconds, op.Mul(parts[name], ints(size)))
        unit = unit_of(em.dtype)
        data = op.Mul(seconds, ints(TICKS[unit]))
        return Rep("datetime", op.Where(valid, data, ints(MISSING_INT)), unit=unit)

    return record("to_datetime", [columns[n] for n in names], replay, emit).named(None)


def _guess(value: pd.Series, dayfirst: bool) -> str:
    """The format that pandas would guess from the first string; it is frozen."""
    first = next((v for v in value if isinstance(v, str)), None)
    if first is None:
        refuse("pd.to_datetime of a column without strings has no rule")
    guess = pd.tseries.api.guess_datetime_format(first, dayfirst=dayfirst)
    if guess is None:
        refuse("the format of the dates cannot be guessed", "pass format=...")
    return freeze("to_datetime format", guess)


def _from_number(arg: Any, unit: str, errors: str) -> Any:
    scale = {"s": "s", "ms": "ms", "us": "us", "ns": "ns", "D": "s"}.get(unit)
    if scale is None:
        refuse(f"pd.to_datetime(unit={unit!r}) has no rule")

    def replay(a: pd.Series) -> pd.Series:
        return pd.to_datetime(a, unit=unit, errors=errors)

    def emit(em: Emission, a: Rep) -> Rep:
        target = unit_of(em.dtype)
        factor = (DAY if unit == "D" else 1) * TICKS[target]
        divisor = TICKS[scale] if unit != "D" else 1
        if a.kind == "int" and a.missing is None and factor % divisor == 0:
            return Rep("datetime", em.op.Mul(a.data, em.ints(factor // divisor)), unit=target)
        return em.refuse("numbers that may have fractions become datetimes", "convert to int first")

    return record("to_datetime", [arg], replay, emit, label=arg.label)


def _parse(em: Emission, a: Rep, form: str) -> Rep:
    pattern, names = _pattern_of(em, form)
    if a.kind != "chars":
        em.refuse("only strings are parsed as dates")
    program = regex.compiled(rf"\A(?:{pattern})\Z", re.IGNORECASE)
    match = search.search(em, a, program)
    parts = {n: _group(em, a, match, i + 1, n) for i, n in enumerate(names)}
    return _assembled(em, a, match.success, parts, unit_of(em.dtype))


def _pattern_of(em: Emission, form: str) -> tuple[str, list[str]]:
    if form in ("ISO8601", "mixed"):
        em.refuse(f"the format {form} stands for several", "pass one format")
    pattern, names, rest = "", [], iter(form)
    for character in rest:
        if character != "%":
            pattern += re.escape(character)
            continue
        directive = next(rest, "")
        if directive not in DIRECTIVES:
            em.refuse(f"the directive %{directive} of the format has no rule")
        pattern += DIRECTIVES[directive]
        names.append(directive)
    return pattern, names


def _group(em: Emission, a: Rep, match: search.Search, group: int, name: str) -> Any:
    """The number that a group of digits (or a word) stands for."""
    op = em.op
    part = span(em, a, match, group)
    if name in ("b", "B", "p"):
        words = {"b": MONTHS, "B": FULL_MONTHS, "p": ["am", "pm"]}[name]
        upper = {chr(c): chr(c + 32) for c in range(65, 91)}
        lower = part.but(data=characters.substituted(em, part.data, upper))
        return lookup.position(em, lower, words)
    digits = lookup.fitted(em, part.data, 9)
    value = em.ints(0)
    for place in range(9 if name == "f" else 4):
        digit = op.Squeeze(
            op.Slice(digits, em.ints([place]), em.ints([place + 1]), em.ints([1])), em.ints([1])
        )
        digit = op.Cast(digit, to=int(INT64))
        is_blank = op.Equal(digit, em.ints(32))
        digit = op.Where(is_blank, em.ints(48), digit)
        present = op.GreaterOrEqual(digit, em.ints(0))
        more = op.Add(op.Mul(value, em.ints(10)), op.Sub(digit, em.ints(48)))
        padded = op.Mul(value, em.ints(10)) if name == "f" else value
        value = op.Where(present, more, padded)
    return value


def _assembled(em: Emission, a: Rep, is_match: Any, parts: dict[str, Any], unit: str) -> Rep:
    op, ints = em.op, em.ints
    year = parts.get("Y", ints(1900))
    if "y" in parts:
        year = op.Add(parts["y"], op.Where(op.Less(parts["y"], ints(69)), ints(2000), ints(1900)))
    month = parts.get("m", ints(1))
    for name in ("b", "B"):
        month = op.Add(parts[name], ints(1)) if name in parts else month
    month = op.Min(op.Max(month, ints(1)), ints(12))
    day = parts.get("d", ints(1))
    valid = op.LessOrEqual(day, month_length(em, month, is_leap(em, year)))
    hour = parts.get("H", ints(0))
    if "I" in parts:
        hour = op.Mod(parts["I"], ints(12))
        hour = op.Add(hour, op.Mul(parts.get("p", ints(0)), ints(12)))
    seconds = op.Mul(days_from_civil(em, year, month, day), ints(DAY))
    for value, size in ((hour, 3600), (parts.get("M", ints(0)), 60), (parts.get("S", ints(0)), 1)):
        seconds = op.Add(seconds, op.Mul(value, ints(size)))
    data = op.Mul(seconds, ints(TICKS[unit]))
    if "f" in parts:
        data = op.Add(data, op.Div(parts["f"], ints(10**9 // TICKS[unit])))
    valid = op.And(op.And(valid, is_match), op.Less(lookup.position(em, a, NOTHING), ints(0)))
    if a.missing is not None:
        valid = op.And(valid, op.Not(a.missing))
    return Rep("datetime", op.Where(valid, data, ints(MISSING_INT)), unit=unit)


@rule("pandas")
def to_timedelta(arg: Any, unit: str = "ns", errors: str = "raise") -> Any:
    if not is_column(arg) or errors != "raise" or arg.step.value.dtype.kind not in "iuf":
        refuse("pd.to_timedelta is recorded for columns of numbers only")
    sizes = {"D": DAY, "d": DAY, "h": 3600, "H": 3600, "m": 60, "min": 60, "s": 1}

    def emit(em: Emission, a: Rep) -> Rep:
        target = unit_of(em.dtype)
        is_whole = a.kind == "int" or arg.step.value.dtype.kind in "iu"
        if unit not in sizes or not is_whole:
            em.refuse(
                "pd.to_timedelta of fractions or of this unit has no rule", "use whole numbers"
            )
        missing = em.missing(a) if em.may_miss(a) else None
        number = a.data if a.kind == "int" else em.op.Cast(a.data, to=int(INT64))
        data = em.op.Mul(number, em.ints(sizes[unit] * TICKS[target]))
        if missing is not None:  # whole numbers in the training frame, missing in other rows
            data = em.op.Where(missing, em.ints(MISSING_INT), data)
        return Rep("timedelta", data, unit=target)

    return record(
        "to_timedelta", [arg], lambda a: pd.to_timedelta(a, unit=unit), emit, label=arg.label
    )
