"""groupby: statistics of groups are tables of the training frame; transforms look them up."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sardonyx.importers.pandas.column import Column, is_column
from sardonyx.importers.pandas.frame import Frame, filtered
from sardonyx.importers.pandas.recorder import Proxy, freeze, needs_order, refuse, rule, trace
from sardonyx.importers.pandas.rules.calendar import Days
from sardonyx.importers.pandas.rules.labels import Labelled, LabelledColumn
from sardonyx.importers.pandas.rules.reductions import Grouped, of_groups

AGGREGATIONS = (
    "mean", "median", "sum", "min", "max", "std", "var", "count", "size", "nunique", "first",
    "last", "prod", "sem", "skew", "quantile", "agg", "aggregate", "describe", "value_counts",
    "any", "all", "unique", "idxmax", "idxmin", "corr", "apply",
)  # fmt: skip
BY_ROW = (
    "shift", "cumsum", "cumcount", "cumprod", "cummax", "cummin", "diff", "pct_change", "rank",
    "rolling", "expanding", "ewm", "ffill", "bfill", "head", "tail", "nth", "resample", "sample",
)  # fmt: skip


class Groups(Proxy):
    """A groupby: its keys as columns, the columns that are looked at, and pandas' own."""

    _owner = "GroupBy"

    def __init__(
        self, keys: list[Column], columns: Any, real: Any, frame: Any, options: dict[str, Any]
    ):
        self.keys, self.columns, self.real = keys, columns, real
        self.frame, self.options = frame, options

    def __getattr__(self, name: str) -> Any:
        series = getattr(self.__dict__.get("columns"), "series", {})
        if name in series and name not in AGGREGATIONS:
            return self[name]
        return super().__getattr__(name)

    def __getitem__(self, key: Any) -> Groups:
        if not isinstance(self.columns, Frame):
            raise KeyError(key)
        chosen = self.columns[key] if not isinstance(key, tuple) else self.columns[list(key)]
        return Groups(self.keys, chosen, self.real[key], self.frame, self.options)

    def __iter__(self) -> Any:
        refuse("iteration over groups has no graph", "use agg or transform")


@rule("DataFrame")
def groupby(
    self: Any, by: Any = None, *, level: Any = None, as_index: bool = True, sort: bool = True,
    group_keys: bool = True, observed: bool = True, dropna: bool = True,
) -> Any:  # fmt: skip
    if level is not None and isinstance(self, Labelled):
        return _by_level(self, level, sort=sort, observed=observed, dropna=dropna)
    parts = by if isinstance(by, list) else [by]
    if any(isinstance(p, pd.Grouper) for p in parts):
        real = self.real().groupby(by, as_index=as_index, sort=sort, observed=observed)
        return Groups([], self, real, None, {})
    keys = [p if is_column(p) else self.series[p] for p in parts]
    keys = [k.moments if isinstance(k, Days) else k for k in keys]
    real_parts = [p.value if is_column(p) else p for p in parts]
    real_by = real_parts if isinstance(by, list) else real_parts[0]
    options = {
        "as_index": as_index, "sort": sort, "group_keys": group_keys, "observed": observed,
        "dropna": dropna,
    }  # fmt: skip
    return Groups(keys, self, self.real().groupby(real_by, **options), self, options)


@rule("Series", "groupby")
def groupby_of_column(
    self: Any, by: Any = None, *, level: Any = None, sort: bool = True, group_keys: bool = True,
    observed: bool = True, dropna: bool = True,
) -> Any:  # fmt: skip
    if level is not None and isinstance(self, LabelledColumn):
        return _by_level(self, level, sort=sort, observed=observed, dropna=dropna)
    parts = by if isinstance(by, list) else [by]
    if not all(is_column(p) for p in parts):
        refuse("a column is grouped by columns only")
    real_by = [p.value for p in parts] if isinstance(by, list) else by.value
    options = {"sort": sort, "group_keys": group_keys, "observed": observed, "dropna": dropna}
    return Groups(parts, self, self.value.groupby(real_by, **options), None, options)


def _by_level(self: Any, level: Any, **options: Any) -> Any:
    """Groups of the labels that `set_index` gave."""
    levels = level if isinstance(level, list) else [level]
    labels = self.label_columns
    keys = [list(labels.values())[i] if isinstance(i, int) else labels[i] for i in levels]
    real = self.labelled_real().groupby(level=level, **options)
    return Groups(keys, self, real, None, options)


def _aggregation(name: str) -> None:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return freeze(f"groupby.{name}", getattr(self.real, name)(*arguments, **options))

    rule("GroupBy", name)(method)


for _name in AGGREGATIONS:
    _aggregation(_name)


def _by_row(name: str) -> None:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        needs_order(f"groupby.{name}")
        refuse(
            f"groupby.{name} has no rule",
            "shift, diff, pct_change, cumcount and cumsum within groups have one",
        )

    rule("GroupBy", name)(method)


for _name in BY_ROW:
    if _name not in ("shift", "diff", "pct_change", "cumcount", "cumsum"):  # see sequences.py
        _by_row(_name)


@rule("GroupBy", "ngroups", is_property=True)
def ngroups(self: Any) -> Any:
    return freeze("groupby.ngroups", self.real.ngroups)


@rule("GroupBy", "groups", is_property=True)
def groups(self: Any) -> Any:
    refuse("the rows of groups are rows of the training frame", "use size() or agg")


@rule("GroupBy")
def transform(self: Any, func: Any, *arguments: Any, **options: Any) -> Any:
    if isinstance(self.columns, Frame):
        names = [n for n in self.columns.series if not any(n == k.label for k in self.keys)]
        if func == "size":
            return _transformed(
                self, next(iter(self.columns.series.values())), func, arguments, options
            )
        return Frame(
            {
                n: _transformed(self, self.columns.series[n], func, arguments, options)
                for n in names
            },
            self.columns.rows,
            self.columns.length,
        )
    return _transformed(self, self.columns, func, arguments, options)


def _transformed(self: Any, column: Any, func: Any, arguments: Any, options: Any) -> Any:
    if callable(func) and getattr(func, "__name__", "") in AGGREGATIONS and not _is_user_code(func):
        func = func.__name__
    if isinstance(func, str):
        if func in BY_ROW:
            needs_order(f"transform({func!r})")
        if func not in AGGREGATIONS or func in ("agg", "aggregate", "apply", "describe"):
            refuse(f"transform({func!r}) has no rule")
        values = [k.step.value for k in self.keys]
        grouped = column.step.value.groupby(
            values, observed=True, dropna=self.options.get("dropna", True)
        )
        table = freeze(f"groupby.{func}", getattr(grouped, func)(*arguments, **options))
        return Column(of_groups(column, self.keys, table).step, column.label)
    if not callable(func):
        refuse("transform of several functions has no rule")
    group = Grouped(column.step, column.label)
    group.__dict__["keys"] = self.keys
    outer, trace().inside_group = trace().inside_group, True
    try:
        result = func(group, *arguments, **options)
    finally:
        trace().inside_group = outer
    if not is_column(result):
        refuse("the function of transform gives the same value in every group")
    values = [k.step.value for k in self.keys]
    sizes = column.step.value.groupby(values, observed=True).size()
    present = Column(of_groups(column, self.keys, sizes).step, None).notna()
    return Column(Column(result.step, column.label).where(present).step, column.label)


def _is_user_code(func: Any) -> bool:
    return not (getattr(func, "__module__", "") or "numpy").startswith(("numpy", "builtins"))


@rule("GroupBy", "filter")
def filter_(self: Any, func: Any, dropna: bool = True) -> Any:
    """The rows of the groups of which the function said yes in the training frame."""
    if len(self.keys) != 1 or self.frame is None or not dropna:
        refuse("filter of groups is recorded for one key")
    answers = {key: bool(func(part)) for key, part in self.real}
    freeze("groupby.filter", answers)
    groups = [k[0] if isinstance(k, tuple) else k for k, yes in answers.items() if yes]
    return filtered(self.frame, self.keys[0].isin(groups))


@rule("GroupBy")
def pipe(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(self, *args, **kwargs)


@rule("GroupBy")
def ngroup(self: Any) -> Any:
    if len(self.keys) != 1 or not self.options.get("sort", True):
        refuse("ngroup is recorded for one sorted key")
    levels = sorted(self.keys[0].step.value.dropna().unique())
    table = freeze("groupby.ngroup", pd.Series(range(len(levels)), index=levels))
    return self.keys[0].map(table).fillna(-1).astype("int64").named(None)
