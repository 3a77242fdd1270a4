"""`set_index`: columns that stand beside a frame as labels, until they are asked for."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sardonyx.importers.pandas.column import Column
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.recorder import Proxy, freeze, refuse, rule
from sardonyx.importers.pandas.rules.longer import stacked

REDUCTIONS = (
    "mean", "median", "sum", "min", "max", "std", "var", "count", "size", "nunique", "first",
    "last", "agg", "quantile", "ohlc",
)  # fmt: skip


class Labelled(Frame):
    """A frame whose rows are labelled by columns."""

    def __init__(self, series: Any, rows: Any, length: int, labels: dict[Any, Column]):
        super().__init__(series, rows, length)
        self.__dict__["label_columns"] = labels

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        if isinstance(part, Frame) and part.rows is self.rows:
            return Labelled(part.series, part.rows, part.length, self.label_columns)
        if isinstance(part, Column) and part.rows is self.rows:
            return labelled(part, self.label_columns)
        return part

    def labelled_real(self) -> pd.DataFrame:
        return self.real().set_axis(index_of(self.label_columns), axis=0)


class LabelledColumn(Column):
    """A column of such a frame; as a table, it is that of the training frame."""

    label_columns: dict[Any, Column]

    def labelled_real(self) -> pd.Series:
        if any(c.rows is not self.rows for c in self.label_columns.values()):
            refuse("a column has labels of other rows")
        return self.value.set_axis(index_of(self.label_columns))


def labelled(column: Column, labels: dict[Any, Column]) -> LabelledColumn:
    result = LabelledColumn(column.step, column.label)
    result.__dict__["label_columns"] = labels
    return result


def index_of(labels: dict[Any, Column]) -> pd.Index:
    values = [c.step.value for c in labels.values()]
    if len(values) == 1:
        return pd.Index(values[0], name=next(iter(labels)))
    return pd.MultiIndex.from_arrays(values, names=list(labels))


@rule("DataFrame")
def set_index(self: Any, keys: Any, *, drop: bool = True, inplace: bool = False) -> Any:
    names = keys if isinstance(keys, list) else [keys]
    if inplace or any(isinstance(n, Proxy) for n in names):
        refuse("set_index is recorded for names of columns, without inplace=True")
    labels = {n: self.series[n] for n in names}
    series = {n: c for n, c in self.series.items() if not drop or n not in names}
    return Labelled(series, self.rows, self.length, labels)


def with_labels(self: Any) -> Frame:
    """`reset_index()`: the labels as the first columns."""
    overlap = [n for n in self.label_columns if n in self.series]
    if overlap:
        raise ValueError(f"cannot insert {overlap[0]}, already exists")
    return Frame({**self.label_columns, **self.series}, self.rows, self.length)


class Stacked(LabelledColumn):
    """What `stack` gives: its labels are rows repeated, and the names of columns."""


@rule("DataFrame")
def stack(self: Any) -> Any:
    labels = self.label_columns if isinstance(self, Labelled) else {}
    repeated, values = stacked(self, labels)
    result = Stacked(values.step, None)
    result.__dict__["label_columns"] = repeated
    result.__dict__["is_whole"] = bool(labels)
    return result


def column_with_labels(self: Any, name: Any) -> Frame:
    if isinstance(self, Stacked) and not self.__dict__["is_whole"]:
        refuse(
            "reset_index turns the numbers of rows into a column",
            "use melt, or set_index of a column before stack",
        )
    if any(c.rows is not self.rows for c in self.label_columns.values()):
        refuse("a column has labels of other rows")
    label = name if name is not None else 0 if self.label is None else self.label
    return Frame({**self.label_columns, label: Column(self.step, label)}, self.rows)


# -- periods ------------------------------------------------------------------------


class Resampled(Proxy):
    """`resample`: its reductions are tables of the training frame, by period."""

    _owner = "Resampler"

    def __init__(self, real: Any):
        self.real = real

    def __getitem__(self, key: Any) -> Resampled:
        return Resampled(self.real[key])


def _reduction(name: str) -> None:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return freeze(f"resample.{name}", getattr(self.real, name)(*arguments, **options))

    rule("Resampler", name)(method)


for _name in REDUCTIONS:
    _reduction(_name)


def _resample(self: Any, freq: Any, on: Any = None, **options: Any) -> Any:
    if on is not None:
        return Resampled(self.real().resample(freq, on=on, **options))
    if not isinstance(self, (Labelled, LabelledColumn)):
        refuse(
            "resample needs the times as labels of the rows",
            "set_index of the column of times, or pass on=...; the result is a table of the "
            "training frame, to map or merge",
        )
    return Resampled(self.labelled_real().resample(freq, **options))


@rule("DataFrame", "resample")
def resample(self: Any, rule: Any, on: Any = None, closed: Any = None, label: Any = None) -> Any:
    return _resample(self, rule, on, closed=closed, label=label)


@rule("Series", "resample")
def resample_of_column(self: Any, rule: Any, closed: Any = None, label: Any = None) -> Any:
    return _resample(self, rule, closed=closed, label=label)
