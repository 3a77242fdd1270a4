"""Days and periods: columns of objects that pandas writes as text, which is what the graph gives.

A column of `.dt.date` or `.dt.to_period` keeps the datetimes that it was made of; whatever is
computed from it is computed from those.
"""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd

from sardonyx.importers.pandas.column import Column, is_column, record
from sardonyx.importers.pandas.emission import Emission, Rep
from sardonyx.importers.pandas.recorder import Proxy, call, refuse, rule
from sardonyx.importers.pandas.rules.dates import formatted

PERIODS = {
    "D": "%Y-%m-%d", "M": "%Y-%m", "Q": "%YQ%q", "Y": "%Y", "A": "%Y", "h": "%Y-%m-%d %H:00",
    "Q-DEC": "%YQ%q", "Y-DEC": "%Y", "A-DEC": "%Y",
}  # fmt: skip


class Days(Column):
    """A column of `datetime.date` or `pandas.Period`: `moments` are their datetimes."""

    _owner = "days"
    moments: Column
    form: str

    def derive(self, step: Any, name: Any = None) -> Column:
        return Column(step, name)


def days(column: Column, moments: Column, form: str) -> Days:
    result = Days(column.step, column.label)
    result.__dict__.update(moments=moments, form=form)
    return result


@rule("dt", "date", is_property=True)
def date_(self: Any) -> Any:
    form = "%Y-%m-%d"
    column = record(
        "dt.date", [self.column], lambda a: a.dt.date,
        lambda em, a: formatted(em, a, form), chars=True, label=self.column.label,
    )  # fmt: skip
    return days(column, self.tz_localize(None).dt.normalize(), form)


@rule("dt", "time", is_property=True)
def time_(self: Any) -> Any:
    refuse(".dt.time gives Python objects, which no tensor holds", "use .dt.hour and .dt.minute")


@rule("dt")
def to_period(self: Any, freq: Any = None) -> Any:
    if freq not in PERIODS:
        refuse(f"periods of {freq!r} have no rule", "D, M, Q and Y have one")
    form = PERIODS[freq]
    column = record(
        "dt.to_period", [self.column], lambda a: a.dt.to_period(freq),
        lambda em, a: formatted(em, a, form), chars=True, label=self.column.label,
    )  # fmt: skip
    return days(column, self.tz_localize(None), form)


@rule("days")
def astype(self: Any, dtype: Any, errors: str = "raise", copy: Any = None) -> Any:
    if dtype in (object, "object"):
        return self
    if dtype in (str, "str", "string"):
        plain = Column(self.step, self.label)

        def emit(em: Emission, a: Rep) -> Rep:
            return a

        return record("astype", [plain], lambda a: a.astype(dtype), emit, chars=True,
                      label=self.label)  # fmt: skip
    return self.moments.astype(dtype).named(self.label)


class PeriodTimes(Proxy):
    """`.dt` of a column of periods or days."""

    _owner = "dt of periods"

    def __init__(self, column: Days):
        self.column = column


@rule("days", "dt", is_property=True)
def dt_(self: Any) -> Any:
    return PeriodTimes(self)


@rule("dt of periods", "to_timestamp", "start_time")
def to_timestamp(self: Any) -> Any:
    """The first moment of each period."""
    times = self.column.moments.dt.normalize()
    starts = {
        "%Y-%m-%d": lambda: times,
        "%Y-%m": lambda: times - _days(times.dt.day - 1),
        "%Y": lambda: times - _days(times.dt.dayofyear - 1),
    }
    if self.column.form not in starts:
        refuse("the start of these periods has no rule", "periods of days, months and years have")
    return starts[self.column.form]().named(self.column.label)


def _days(number: Any) -> Any:
    return call("pandas", "to_timedelta", number.fillna(0).astype("int64"), unit="D")


@rule("days")
def copy(self: Any, deep: bool = True) -> Any:
    return self.named(self.label)


@rule("days", "name", is_property=True)
def name_(self: Any) -> Any:
    return self.label


@rule("days", "dtype", is_property=True)
def dtype_(self: Any) -> Any:
    return self.step.value.dtype


@rule("days")
def rename(self: Any, index: Any = None) -> Any:
    return self.named(index)


def _of_moments(name: str) -> None:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.form != "%Y-%m-%d" and name not in MISSING:
            refuse(f"{name} of periods has no rule", "compute with the datetimes")
        plain = [moments_of(a) for a in arguments]
        result = getattr(self.moments, name)(*plain, **options)
        return result.named(self.label)

    rule("days", name)(method)


def moments_of(value: Any) -> Any:
    """The datetimes of days, or of a day."""
    if isinstance(value, Days):
        return value.moments
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return pd.Timestamp(value)
    if is_column(value) or isinstance(value, str):
        refuse("dates of Python are compared with something that is none of them")
    if isinstance(value, (list, tuple, set)):
        return [moments_of(v) for v in value]
    return value


MISSING = ("isna", "isnull", "notna", "notnull")
for _name in (*MISSING, "eq", "ne", "lt", "le", "gt", "ge", "sub",
              "rsub", "isin"):  # fmt: skip
    _of_moments(_name)
