"""What depends on the order of rows or on the whole batch: recorded on request only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas.column import Column, record
from sardonyx.importers.pandas.emission import DOUBLE, INT64, NAMES, Emission, Rep
from sardonyx.importers.pandas.frame import Frame, filtered
from sardonyx.importers.pandas.recorder import Proxy, Rows, needs_order, refuse, rule


@rule("Series")
def shift(self: Any, periods: int = 1, fill_value: Any = None) -> Any:
    needs_order("shift")
    amount = int(periods)

    def emit(em: Emission, a: Rep) -> Rep:
        op = em.op
        if a.kind not in ("float", "int", "datetime"):
            em.refuse(f"shift of {NAMES[a.kind]} has no rule")
        rep = a if a.kind == "datetime" else Rep("float", em.double(a, em.float_type()))
        missing = em.nothing(rep).data
        pad = op.Expand(missing, em.ints([abs(amount)]))
        count = op.Shape(rep.data)
        joined = (
            op.Concat(pad, rep.data, axis=0) if amount > 0 else op.Concat(rep.data, pad, axis=0)
        )
        start = em.ints([0 if amount > 0 else abs(amount)])
        return rep.but(data=op.Slice(joined, start, op.Add(start, count), em.ints([0])))

    if fill_value is not None:
        refuse("shift(fill_value=...) has no rule", "use fillna after it")
    return record("shift", [self], lambda a: a.shift(amount), emit, label=self.label)


@rule("Series")
def diff(self: Any, periods: int = 1) -> Any:
    needs_order("diff")
    return (self - self.shift(periods)).named(self.label)


@rule("Series")
def pct_change(self: Any, periods: int = 1) -> Any:
    needs_order("pct_change")
    return (self / self.shift(periods) - 1).named(self.label)


@rule("Series")
def cumsum(self: Any) -> Any:
    needs_order("cumsum")

    def emit(em: Emission, a: Rep) -> Rep:
        op = em.op
        if a.kind in ("int", "bool"):
            return Rep("int", op.CumSum(em.int64(a), em.ints(0)))
        x = em.double(a)
        is_missing = op.IsNaN(x)
        total = op.CumSum(op.Where(is_missing, em.doubles(0.0), x), em.ints(0))
        return Rep("float", op.Where(is_missing, x, total))

    return record("cumsum", [self], lambda a: a.cumsum(), emit, label=self.label)


# -- sorting ------------------------------------------------------------------------


@rule("DataFrame")
def sort_values(
    self: Any, by: Any, *, ascending: Any = True, na_position: str = "last",
    kind: str = "quicksort", ignore_index: bool = False, inplace: bool = False,
) -> Any:  # fmt: skip
    needs_order("sort_values")
    names = by if isinstance(by, list) else [by]
    upward = ascending if isinstance(ascending, list) else [ascending] * len(names)
    keys = [self.series[n] for n in names]
    rows = Rows(None, self.rows)
    columns = {n: _moved(c, keys, upward, na_position, rows) for n, c in self.series.items()}
    result = Frame(columns, rows, self.length)
    if not inplace:
        return result
    self.replace_all(result)
    return None


@rule("Series", "sort_values")
def sort_values_of_column(self: Any, *, ascending: bool = True, na_position: str = "last") -> Any:
    needs_order("sort_values")
    return _moved(self, [self], [ascending], na_position, Rows(None, self.rows))


def _moved(column: Any, keys: list[Any], upward: list[bool], na_position: str, rows: Rows) -> Any:
    def emit(em: Emission, a: Rep, *reps: Rep) -> Rep:
        order = None
        for rep, up in reversed(list(zip(reps, upward, strict=True))):
            order = _sorted_further(em, rep, up, na_position, order)
        missing = None if a.missing is None else em.op.Gather(a.missing, order, axis=0)
        return a.but(data=em.op.Gather(a.data, order, axis=0), missing=missing)

    def replay(a: pd.Series, *values: pd.Series) -> pd.Series:
        table = pd.DataFrame(dict(enumerate(values)), index=a.index)
        names = list(range(len(values)))
        stable = {"kind": "stable"} if len(values) == 1 else {}
        order = table.sort_values(names, ascending=upward, na_position=na_position, **stable)
        return a.loc[order.index]

    return record("sort_values", [column, *keys], replay, emit, rows=rows, label=column.label)


def _sorted_further(em: Emission, rep: Rep, upward: bool, na_position: str, order: Any) -> Any:
    """A stable order by one more key: ties stay in the order before."""
    op = em.op
    if rep.kind == "chars":
        em.refuse("sorting by strings whose characters are read has no rule", "sort before")
    is_missing = op.Cast(em.missing(rep), to=int(INT64)) if em.may_miss(rep) else None
    value = em.int64(rep) if rep.kind in ("bool", "datetime", "timedelta") else rep.data
    if rep.kind == "float":
        value = op.Where(op.IsNaN(value), op.const(0.0, value.dtype), value)
    if rep.kind == "text":  # the place among the strings of the batch, in order
        _, _, value, _ = op.Unique(value, axis=0, sorted=1, outputs=4)
    for key, up in ((value, upward), (is_missing, na_position == "last")):
        if key is None:
            continue
        moved = key if order is None else op.Gather(key, order)
        _, places = op.TopK(moved, op.Shape(moved), axis=0, largest=int(not up), outputs=2)
        order = places if order is None else op.Gather(order, places)
    return order


# -- duplicates ---------------------------------------------------------------------


@rule("DataFrame")
def drop_duplicates(
    self: Any, subset: Any = None, *, keep: str = "first", inplace: bool = False,
    ignore_index: bool = False,
) -> Any:  # fmt: skip
    result = filtered(self, ~duplicated(self, subset, keep))
    if not inplace:
        return result
    self.replace_all(result)
    return None


@rule("DataFrame")
def duplicated(self: Any, subset: Any = None, keep: str = "first") -> Any:
    needs_order("duplicated")
    if keep != "first":
        refuse(f"keep={keep!r} has no rule", 'keep="first" has one')
    names = (
        list(self.series) if subset is None else subset if isinstance(subset, list) else [subset]
    )

    def emit(em: Emission, *reps: Rep) -> Rep:
        op = em.op
        code: Any = None
        for rep in reps:
            for part in distinguishing(em, rep):
                code = part if code is None else combined(em, code, part)
        _, first, _, _ = op.Unique(code, axis=0, outputs=4)
        marks = op.Expand(em.ints(1), op.Shape(code))
        marks = op.ScatterElements(marks, first, op.Mul(first, em.ints(0)), axis=0)
        return Rep("bool", op.Equal(marks, em.ints(1)))

    def replay(*values: pd.Series) -> pd.Series:
        return pd.DataFrame(dict(enumerate(values))).duplicated()

    columns = [self.series[n] for n in names]
    return Column(record("duplicated", columns, replay, emit).step, None)


def distinguishing(em: Emission, rep: Rep) -> list[Any]:
    """Tensors that are equal exactly where the values are; missing values are equal."""
    op = em.op
    if rep.kind == "chars":
        em.refuse("duplicates of strings whose characters are read have no rule")
    parts = [op.Cast(em.missing(rep), to=int(INT64))] if em.may_miss(rep) else []
    value = em.int64(rep) if rep.kind == "bool" else rep.data
    if rep.kind == "float":
        value = op.Where(op.IsNaN(value), op.const(0.0, value.dtype), value)
    if rep.kind == "text" and rep.missing is not None:
        value = op.Where(rep.missing, em.texts(""), value)
    _, _, number, _ = op.Unique(value, axis=0, outputs=4)
    return [*parts, number]


def combined(em: Emission, a: Any, b: Any) -> Any:
    size = em.op.Add(em.op.ReduceMax(em.op.Concat(b, em.ints([0]), axis=0), [0]), em.ints([1]))
    return em.op.Add(em.op.Mul(a, size), b)


# -- ranks and windows --------------------------------------------------------------


@rule("Series")
def rank(self: Any, method: str = "average", pct: bool = False, ascending: bool = True) -> Any:
    needs_order("rank")
    if method not in ("average", "min", "max", "dense"):
        refuse(f"rank(method={method!r}) has no rule")

    def emit(em: Emission, a: Rep) -> Rep:
        op = em.op
        x = em.double(a)
        is_missing = op.IsNaN(x)
        x = x if ascending else op.Neg(x)
        levels, _, place, _ = op.Unique(
            op.Where(is_missing, em.doubles(np.inf), x), axis=0, outputs=4
        )
        valid = op.Cast(op.Not(is_missing), to=int(DOUBLE))
        zeros = op.Expand(em.doubles(0.0), op.Shape(levels))
        count = op.ScatterElements(zeros, place, valid, axis=0, reduction="add")
        if method == "dense":
            count = op.Sign(count)
        result = op.Gather(_ranks(em, method, count), place)
        if pct:
            total = op.ReduceSum(count if method == "dense" else valid, [0], keepdims=1)
            result = op.Div(result, total)
        return Rep("float", op.Where(is_missing, em.doubles(np.nan), result))

    def replay(a: pd.Series) -> pd.Series:
        return a.rank(method=method, pct=pct, ascending=ascending)

    return record("rank", [self], replay, emit, label=self.label)


def _ranks(em: Emission, method: str, count: Any) -> Any:
    """The rank of each level, from how often each occurs."""
    op = em.op
    upto = op.CumSum(count, em.ints(0))
    if method == "min":
        return op.Add(op.Sub(upto, count), em.doubles(1.0))
    if method == "average":
        return op.Sub(upto, op.Div(op.Sub(count, em.doubles(1.0)), em.doubles(2.0)))
    return upto


class Window(Proxy):
    """`series.rolling(window)`."""

    _owner = "Rolling"

    def __init__(self, column: Column, size: int, least: int):
        self.column, self.size, self.least = column, size, least


@rule("Series")
def rolling(self: Any, window: int, min_periods: Any = None) -> Any:
    needs_order("rolling")
    if not isinstance(window, int) or window < 1:
        refuse("rolling is recorded for a number of rows")
    return Window(self, window, window if min_periods is None else min_periods)


def _windowed(name: str, reduce: Callable[[Emission, Any, Any, Any], Any]) -> None:
    def method(self: Any) -> Any:
        def emit(em: Emission, a: Rep) -> Rep:
            op = em.op
            x = em.double(a)
            before = op.Expand(em.doubles(np.nan), em.ints([self.size - 1]))
            padded = op.Concat(before, x, axis=0) if self.size > 1 else x
            count = op.Shape(x)
            parts = [
                op.Slice(padded, em.ints([s]), op.Add(count, em.ints([s])), em.ints([0]))
                for s in range(self.size)
            ]
            table = op.Concat(*(op.Unsqueeze(p, em.ints([1])) for p in parts), axis=1)
            valid = op.Not(op.IsNaN(table))
            number = op.ReduceSum(op.Cast(valid, to=int(DOUBLE)), [1], keepdims=0)
            few = op.Less(number, em.doubles(float(max(self.least, 1))))
            return Rep("float", op.Where(few, em.doubles(np.nan), reduce(em, table, valid, number)))

        def replay(a: pd.Series) -> pd.Series:
            return getattr(a.rolling(self.size, min_periods=self.least), name)()

        return record(f"rolling.{name}", [self.column], replay, emit, label=self.column.label)

    rule("Rolling", name)(method)


def _sum(em: Emission, table: Any, valid: Any, number: Any) -> Any:
    return em.op.ReduceSum(em.op.Where(valid, table, em.doubles(0.0)), [1], keepdims=0)


def _mean(em: Emission, table: Any, valid: Any, number: Any) -> Any:
    return em.op.Div(_sum(em, table, valid, number), number)


def _variance(em: Emission, table: Any, valid: Any, number: Any) -> Any:
    op = em.op
    mean = op.Unsqueeze(_mean(em, table, valid, number), em.ints([1]))
    off = op.Where(valid, op.Sub(table, mean), em.doubles(0.0))
    total = op.ReduceSum(op.Mul(off, off), [1], keepdims=0)
    free = op.Sub(number, em.doubles(1.0))
    free = op.Where(op.Greater(free, em.doubles(0.0)), free, em.doubles(np.nan))
    return op.Div(total, free)


_windowed("sum", _sum)
_windowed("mean", _mean)
_windowed("var", _variance)
_windowed("std", lambda em, *rest: em.op.Sqrt(_variance(em, *rest)))
_windowed(
    "max",
    lambda em, t, v, n: em.op.ReduceMax(em.op.Where(v, t, em.doubles(-np.inf)), [1], keepdims=0),
)
_windowed(
    "min",
    lambda em, t, v, n: em.op.ReduceMin(em.op.Where(v, t, em.doubles(np.inf)), [1], keepdims=0),
)


def _needs_order(name: str) -> None:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        needs_order(name)
        refuse(f"{name} has no rule")

    rule("Series", name)(method)


for _name in ("cumprod", "cummax", "cummin", "expanding", "ewm"):
    _needs_order(_name)
