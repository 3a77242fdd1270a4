"""Rows in the order of the batch within each group: `groupby(...).shift()` and its like.

The rows are put together by group in a stable order, computed on, and put back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from sardonyx.importers.pandas.column import Column, record
from sardonyx.importers.pandas.emission import INT64, NAMES, Emission, Rep
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.recorder import needs_order, refuse, rule
from sardonyx.importers.pandas.rules.order import combined, distinguishing


class Sorted:
    """The rows of a batch by group."""

    def __init__(self, em: Emission, keys: list[Rep]):
        self.em, op = em, em.op
        code = None
        for part in (p for key in keys for p in distinguishing(em, key)):
            code = part if code is None else combined(em, code, part)
        self.code, _ = op.Unique(code, axis=0, outputs=4)[2], None
        _, self.order = op.TopK(self.code, op.Shape(code), axis=0, largest=0, outputs=2)
        self.groups = op.Gather(self.code, self.order)
        self.is_missing = None
        for key in keys:
            if em.may_miss(key):
                self.is_missing = em.either(self.is_missing, em.missing(key))

    def back(self, value: Any) -> Any:
        """Values in the order of the groups, in the order of the batch again."""
        op = self.em.op
        return op.ScatterElements(value, self.order, value, axis=0)

    def earlier(self, value: Any, amount: int, missing: Any) -> Any:
        """The value `amount` rows before in the same group; `missing` where there is none."""
        em, op, value = self.em, self.em.op, self.em.op.Gather(value, self.order)
        shifted = self._moved(value, amount, missing)
        group = self._moved(self.groups, amount, em.ints(-1))
        return self.back(op.Where(op.Equal(group, self.groups), shifted, missing))

    def _moved(self, value: Any, amount: int, missing: Any) -> Any:
        em, op = self.em, self.em.op
        pad = op.Expand(missing, em.ints([abs(amount)]))
        joined = op.Concat(*((pad, value) if amount > 0 else (value, pad)), axis=0)
        start = em.ints([0 if amount > 0 else abs(amount)])
        return op.Slice(joined, start, op.Add(start, op.Shape(value)), em.ints([0]))

    def before(self, total: Any) -> Any:
        """A running total before the first row of each row's group, in the order of the groups."""
        em, op = self.em, self.em.op
        ones = op.Expand(em.ints(1), op.Shape(self.groups))
        zeros = op.Expand(em.ints(0), op.Shape(self.groups))
        count = op.ScatterElements(zeros, self.groups, ones, axis=0, reduction="add")
        first = op.Gather(op.CumSum(count, em.ints(0), exclusive=1), self.groups)
        padded = op.Concat(em.ints([0]), total, axis=0)
        return op.Gather(padded, first)


def _by_group(
    self: Any, column: Any, name: str, replay: Callable[[Any], pd.Series],
    emit: Callable[[Emission, Rep, Sorted], Rep],
) -> Any:  # fmt: skip
    """One column, computed within the groups; missing where the key is."""

    def build(em: Emission, a: Rep, *keys: Rep) -> Rep:
        rows = Sorted(em, list(keys))
        result = emit(em, a, rows)
        if rows.is_missing is None:
            return result
        return em.where(rows.is_missing, em.nothing(result), result)

    def again(a: pd.Series, *keys: pd.Series) -> pd.Series:
        return replay(a.groupby(list(keys), observed=True))

    plain = Column(column.step, column.label)
    return record(f"groupby.{name}", [plain, *self.keys], again, build, label=column.label)


def _each(self: Any, name: str, compute: Callable[[Any], Any]) -> Any:
    needs_order(f"groupby.{name}")
    if not isinstance(self.columns, Frame):
        return compute(self.columns)
    names = [n for n in self.columns.series if not any(n == k.label for k in self.keys)]
    return Frame({n: compute(self.columns.series[n]) for n in names}, self.columns.rows)


@rule("GroupBy")
def shift(self: Any, periods: int = 1) -> Any:
    amount = int(periods)

    def emit(em: Emission, a: Rep, rows: Sorted) -> Rep:
        if a.kind not in ("float", "int", "datetime", "timedelta", "text"):
            em.refuse(f"groupby.shift of {NAMES[a.kind]} has no rule")
        if a.kind == "int":
            a = Rep("float", em.double(a))
        none = em.nothing(a)
        data = rows.earlier(a.data, amount, none.data)
        if a.kind != "text":
            return a.but(data=data)
        absent = op_missing(em, a)
        missing = em.op.Cast(rows.earlier(absent, amount, em.ints(1)), to=9)
        return a.but(data=data, missing=missing)

    return _each(
        self, "shift", lambda c: _by_group(self, c, "shift", lambda g: g.shift(amount), emit)
    )


def op_missing(em: Emission, rep: Rep) -> Any:
    return em.op.Cast(em.missing(rep), to=int(INT64))


@rule("GroupBy")
def diff(self: Any, periods: int = 1) -> Any:
    def compute(column: Any) -> Any:
        part = type(self)(self.keys, column, None, None, self.options)
        return (Column(column.step) - part.shift(periods)).named(column.label)

    return _each(self, "diff", compute)


@rule("GroupBy")
def pct_change(self: Any, periods: int = 1) -> Any:
    def compute(column: Any) -> Any:
        part = type(self)(self.keys, column, None, None, self.options)
        return (Column(column.step) / part.shift(periods) - 1).named(column.label)

    return _each(self, "pct_change", compute)


@rule("GroupBy")
def cumcount(self: Any, ascending: bool = True) -> Any:
    needs_order("groupby.cumcount")
    if not ascending:
        refuse("cumcount(ascending=False) has no rule")

    def emit(em: Emission, a: Rep, rows: Sorted) -> Rep:
        ones = em.op.Expand(em.ints(1), em.op.Shape(rows.groups))
        total = em.op.CumSum(ones, em.ints(0))
        number = em.op.Sub(em.op.Sub(total, rows.before(total)), em.ints(1))
        return Rep("int", rows.back(number))

    return _by_group(self, self.keys[0], "cumcount", lambda g: g.cumcount(), emit).named(None)


@rule("GroupBy")
def cumsum(self: Any) -> Any:
    def emit(em: Emission, a: Rep, rows: Sorted) -> Rep:
        if a.kind not in ("int", "bool") or a.missing is not None:
            em.refuse(
                "groupby.cumsum has a rule for integers",
                "sums of floats differ by the rounding of the groups before; round to integers",
            )
        total = em.op.CumSum(em.op.Gather(em.int64(a), rows.order), em.ints(0))
        return Rep("int", rows.back(em.op.Sub(total, rows.before(total))))

    return _each(self, "cumsum", lambda c: _by_group(self, c, "cumsum", lambda g: g.cumsum(), emit))
