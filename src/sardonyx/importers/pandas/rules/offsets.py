"""Offsets of the calendar: `datetime + pd.DateOffset(months=1)`, month ends and beginnings."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sardonyx.frames import MISSING_INT
from sardonyx.importers.pandas.column import Column, record
from sardonyx.importers.pandas.emission import INT64, Emission, Rep
from sardonyx.importers.pandas.recorder import refuse
from sardonyx.importers.pandas.rules.dates import clock, floor_div, is_leap, month_length
from sardonyx.importers.pandas.zones import days_from_civil


def is_offset(value: Any) -> bool:
    """Whether a value moves datetimes by months."""
    if isinstance(value, (pd.offsets.MonthEnd, pd.offsets.MonthBegin)):
        return True
    return isinstance(value, pd.DateOffset) and set(value.kwds) & {"months", "years"} != set()


def moved(column: Column, offset: Any, sign: int) -> Column:
    """Datetimes moved by an offset, forward or back."""
    offset = offset if sign > 0 else -offset
    if getattr(offset, "normalize", False):
        refuse("an offset with normalize=True has no rule", "use .dt.normalize()")
    if getattr(column.step.value.dtype, "tz", None) is not None:
        refuse("times of a zone are moved by months", "take the clock time first")
    if type(offset) is pd.DateOffset and not set(offset.kwds) <= {"months", "years"}:
        refuse(f"the offset {offset!r} has no rule", "add months first, then pd.Timedelta")

    def emit(em: Emission, a: Rep) -> Rep:
        if a.kind != "datetime":
            em.refuse("an offset of the calendar is added to something that is no datetime")
        return _emitted(em, a, offset)

    def replay(a: pd.Series) -> pd.Series:
        return a + offset

    return record("offset", [column], replay, emit, label=column.label)


def _emitted(em: Emission, a: Rep, offset: Any) -> Rep:
    op, ints, parts = em.op, em.ints, clock(em, a)
    year, month, day, last = (
        op.Cast(parts.get(n), to=int(INT64)) for n in ("year", "month", "day", "days_in_month")
    )
    months = _months(em, offset, day, last)
    total = op.Add(op.Add(op.Mul(year, ints(12)), op.Sub(month, ints(1))), months)
    year = floor_div(em, total, 12)
    month = op.Add(op.Sub(total, op.Mul(year, ints(12))), ints(1))
    last = month_length(em, month, is_leap(em, year))
    if type(offset) is pd.offsets.MonthBegin:
        day = ints(1)
    else:
        day = last if type(offset) is pd.offsets.MonthEnd else op.Min(day, last)
    days = days_from_civil(em, year, month, day)
    data = op.Add(op.Mul(days, ints(parts.day_length)), parts.get("within"))
    return a.but(data=op.Where(parts.missing, ints(MISSING_INT), data))


def _months(em: Emission, offset: Any, day: Any, last: Any) -> Any:
    """How many months later the result is; a day inside a month counts to its end or beginning."""
    op, ints, count = em.op, em.ints, int(offset.n)
    if type(offset) is pd.offsets.MonthEnd:
        if count <= 0:
            return ints(count)
        return op.Where(op.Equal(day, last), ints(count), ints(count - 1))
    if type(offset) is pd.offsets.MonthBegin:
        if count > 0:
            return ints(count)
        return op.Where(op.Equal(day, ints(1)), ints(count), ints(count + 1))
    return ints(count * (12 * offset.kwds.get("years", 0) + offset.kwds.get("months", 0)))
