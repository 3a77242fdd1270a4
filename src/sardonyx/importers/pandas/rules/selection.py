"""Frames: choosing, adding, renaming and removing columns and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas.column import Column, constant, is_column, is_scalar
from sardonyx.importers.pandas.frame import Frame, Labels, filtered, kept
from sardonyx.importers.pandas.recorder import Proxy, Rows, freeze, needs_order, refuse, rule
from sardonyx.importers.pandas.rules.labels import (
    Labelled,
    LabelledColumn,
    column_with_labels,
    with_labels,
)
from sardonyx.importers.pandas.rules.sideways import SIDEWAYS

# Methods that a frame applies to every column; a dict or series gives each column its argument.
BY_COLUMN = (
    "isna", "isnull", "notna", "notnull", "round", "abs", "isin", "clip",
    "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "div", "truediv", "floordiv", "mod",
    "pow", "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow",
    "__and__", "__or__", "__xor__", "__rand__", "__ror__", "__rxor__",
    "cumsum", "cumprod", "cummax", "cummin", "shift", "diff", "pct_change", "rank", "rolling",
    "expanding", "ewm",
)  # fmt: skip


def _by_column(name: str) -> None:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        axis = options.pop("axis", None)
        if axis not in (None, 0, "index", 1, "columns"):
            refuse(f"axis={axis!r} has no rule")
        if axis in (1, "columns") and name in SIDEWAYS:
            return SIDEWAYS[name](self, *arguments, **options)
        if name == "abs":
            return self.each(abs)
        along_rows = axis in (0, "index")
        results = {}
        for label, column in self.series.items():
            if name == "round" and arguments and isinstance(arguments[0], dict):
                results[label] = (
                    column.round(arguments[0][label]) if label in arguments[0] else column
                )
                continue
            chosen = [argument_of(a, label, along_rows, name) for a in arguments]
            named = {k: argument_of(v, label, along_rows, name) for k, v in options.items()}
            results[label] = getattr(column, name)(*chosen, **named)
        return Frame(results, self.rows, self.length)

    rule("DataFrame", name)(method)


def argument_of(value: Any, label: Any, along_rows: bool = False, name: str = "") -> Any:
    """The part of an argument that belongs to one column."""
    if isinstance(value, Frame):
        if label not in value.series:
            refuse(f"the column {label!r} is in one of the two frames only")
        return value.series[label]
    if is_column(value) and not along_rows:
        refuse("a frame and a column are combined by the names of columns", "pass axis=0")
    if isinstance(value, (pd.Series, dict)) and name not in ("isin",):
        if label not in value:
            refuse(f"the column {label!r} is not in the table that is combined with the frame")
        return value[label]
    if isinstance(value, dict):
        return value.get(label, [])
    return value


for _name in BY_COLUMN:
    _by_column(_name)


@rule("DataFrame", "__getitem__")
def getitem(self: Any, key: Any) -> Any:
    if is_column(key):
        return filtered(self, key)
    if isinstance(key, Proxy):
        refuse("a frame as a condition has no rule here", "use where or mask")
    if isinstance(key, slice):
        return _first_rows(self, key)
    if isinstance(key, (pd.Series, np.ndarray)) and key.dtype == bool:
        refuse("rows are chosen by an array of the training frame")
    if isinstance(key, (list, pd.Index, np.ndarray, pd.Series)):
        return self.select(key)
    if key not in self.series:
        raise KeyError(key)
    return self.series[key]


def _first_rows(self: Any, key: slice) -> Any:
    if key == slice(None):
        return self.copy()
    needs_order("a slice of rows")
    return refuse("a slice of rows has no rule", "choose rows by a condition")


@rule("DataFrame", "__setitem__")
def setitem(self: Any, key: Any, value: Any) -> None:
    if is_column(key):
        for name in list(self.series):
            self.series[name] = self.series[name].mask(key, value)
        return
    if isinstance(key, Frame):
        for name, condition in key.series.items():
            self.series[name] = self.series[name].mask(condition, value)
        return
    if isinstance(key, (list, pd.Index, np.ndarray)):
        names = list(key)
        parts = list(value.series.values()) if isinstance(value, Frame) else value
        parts = parts if isinstance(parts, (list, tuple)) else [parts] * len(names)
        if len(parts) != len(names):
            refuse("as many columns must be assigned as there are names")
        for name, part in zip(names, parts, strict=True):
            _set(self, name, part)
        return
    _set(self, key, value)


def _set(self: Any, name: Any, value: Any) -> None:
    if isinstance(value, Frame):
        if len(value.series) != 1:
            refuse("a frame of several columns is assigned to one")
        (value,) = value.series.values()
    if self.rows is None and is_column(value):
        self.rows, self.length = value.rows, len(value.step.value)
    column = self.column_of(value)
    self.series[name] = Column(column.step, name) if type(column) is Column else column.named(name)


@rule("DataFrame")
def copy(self: Any, deep: bool = True) -> Any:
    return Frame(self.series, self.rows, self.length)


@rule("Series", "copy")
def copy_of_column(self: Any, deep: bool = True) -> Any:
    return self.named(self.label)


@rule("DataFrame")
def assign(self: Any, **columns: Any) -> Any:
    result = self.copy()
    for name, value in columns.items():
        result[name] = value(result) if callable(value) and not isinstance(value, Proxy) else value
    return result


@rule("DataFrame")
def pipe(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return func(self, *args, **kwargs)


rule("Series", "pipe")(pipe)


@rule("DataFrame", "columns", is_property=True)
def columns_(self: Any) -> Any:
    return self.labels


@rule("DataFrame")
def keys(self: Any) -> Any:
    return self.labels


@rule("DataFrame")
def items(self: Any) -> Any:
    return list(self.series.items())


@rule("DataFrame", "dtypes", is_property=True)
def dtypes(self: Any) -> Any:
    return self.real().dtypes


@rule("DataFrame", "shape", is_property=True)
def shape(self: Any) -> Any:
    return (freeze("len", self.length), len(self.series))


@rule("DataFrame", "empty", is_property=True)
def empty(self: Any) -> bool:
    return False


@rule("DataFrame", "ndim", is_property=True)
def ndim(self: Any) -> int:
    return 2


@rule("DataFrame", "index", is_property=True)
def index(self: Any) -> Any:
    if self.rows is None:
        refuse("the frame has no rows yet")
    return Labels(self.rows, self.length)


@rule("DataFrame", "values", is_property=True)
def values(self: Any) -> Any:
    return self


@rule("DataFrame")
def to_numpy(self: Any) -> Any:
    return self


@rule("DataFrame")
def info(self: Any) -> None:
    return None


@rule("DataFrame")
def get(self: Any, key: Any, default: Any = None) -> Any:
    return self.series.get(key, default)


@rule("DataFrame")
def pop(self: Any, item: Any) -> Any:
    return self.series.pop(item)


@rule("DataFrame")
def insert(self: Any, loc: int, column: Any, value: Any) -> None:
    self[column] = value
    items = [(k, c) for k, c in self.series.items() if k != column]
    items.insert(loc, (column, self.series[column]))
    self.series = dict(items)


def _changed(self: Any, result: Any, inplace: bool) -> Any:
    if not inplace:
        return result
    self.replace_all(result)
    return None


@rule("DataFrame")
def drop(
    self: Any, labels: Any = None, *, axis: Any = 0, index: Any = None, columns: Any = None,
    inplace: bool = False, errors: str = "raise",
) -> Any:  # fmt: skip
    if columns is None and axis in (1, "columns"):
        columns = labels
    if columns is None or index is not None:
        refuse("rows are dropped by their labels", "choose rows by a condition")
    names = [columns] if is_scalar(columns) or isinstance(columns, tuple) else list(columns)
    absent = [n for n in names if n not in self.series]
    if absent and errors == "raise":
        raise KeyError(f"{absent} not found in axis")
    return _changed(self, self.select([n for n in self.series if n not in names]), inplace)


@rule("DataFrame")
def rename(
    self: Any, mapper: Any = None, *, columns: Any = None, axis: Any = None, inplace: bool = False
) -> Any:
    table = columns if columns is not None else mapper if axis in (1, "columns") else None
    if table is None:
        refuse("rows are renamed")
    new = {n: (table(n) if callable(table) else table.get(n, n)) for n in self.series}
    if len(set(new.values())) < len(new):
        refuse("a frame with two columns of one name has no rule")
    result = Frame({new[n]: c for n, c in self.series.items()}, self.rows, self.length)
    return _changed(self, result, inplace)


@rule("DataFrame")
def add_prefix(self: Any, prefix: str) -> Any:
    return Frame({f"{prefix}{n}": c for n, c in self.series.items()}, self.rows, self.length)


@rule("DataFrame")
def add_suffix(self: Any, suffix: str) -> Any:
    return Frame({f"{n}{suffix}": c for n, c in self.series.items()}, self.rows, self.length)


@rule("DataFrame")
def set_axis(self: Any, labels: Any, *, axis: Any = 0) -> Any:
    if axis not in (1, "columns"):
        refuse("new labels of rows have no rule")
    return Frame(dict(zip(labels, self.series.values(), strict=True)), self.rows, self.length)


@rule("DataFrame")
def reindex(self: Any, *, columns: Any = None, fill_value: Any = np.nan) -> Any:
    if columns is None:
        refuse("reindex of rows has no rule")
    result = {n: self.series.get(n) for n in columns}
    return Frame(
        {
            n: constant(fill_value, self.rows, self.length) if c is None else c
            for n, c in result.items()
        },
        self.rows,
        self.length,
    )


@rule("DataFrame", "filter")
def filter_(
    self: Any, items: Any = None, like: Any = None, regex: Any = None, axis: Any = None
) -> Any:
    if axis in (0, "index"):
        refuse("filter of rows by their labels has no rule")
    return self.select(self.real().filter(items, like, regex).columns)


@rule("DataFrame")
def select_dtypes(self: Any, include: Any = None, exclude: Any = None) -> Any:
    return self.select(self.real().select_dtypes(include, exclude).columns)


@rule("DataFrame")
def fillna(self: Any, value: Any = None, *, inplace: bool = False) -> Any:
    def fill(label: Any, column: Any) -> Any:
        if isinstance(value, (dict, pd.Series)):
            return column.fillna(value[label]) if label in value else column
        return column.fillna(argument_of(value, label))

    result = {n: fill(n, c) for n, c in self.series.items()}
    return _changed(self, Frame(result, self.rows, self.length), inplace)


@rule("DataFrame")
def replace(
    self: Any, to_replace: Any = None, value: Any = None, *, inplace: bool = False,
    regex: Any = False,
) -> Any:  # fmt: skip
    def change(label: Any, column: Any) -> Any:
        nested = isinstance(to_replace, dict) and any(
            isinstance(v, dict) for v in to_replace.values()
        )
        if nested:
            return column.replace(to_replace[label], regex=regex) if label in to_replace else column
        if isinstance(to_replace, dict) and value is not None:
            return (
                column.replace(to_replace[label], value, regex=regex)
                if label in to_replace
                else column
            )
        return column.replace(to_replace, value, regex=regex)

    result = {n: change(n, c) for n, c in self.series.items()}
    return _changed(self, Frame(result, self.rows, self.length), inplace)


def _choice(name: str) -> None:
    def method(self: Any, cond: Any, other: Any = np.nan) -> Any:
        if callable(cond) and not isinstance(cond, Proxy):
            cond = cond(self)
        results = {
            n: getattr(c, name)(
                cond if is_column(cond) else argument_of(cond, n), argument_of(other, n)
            )
            for n, c in self.series.items()
        }
        return Frame(results, self.rows, self.length)

    rule("DataFrame", name)(method)


_choice("where")
_choice("mask")


@rule("DataFrame")
def astype(self: Any, dtype: Any, errors: str = "raise") -> Any:
    if isinstance(dtype, (dict, pd.Series)):
        return Frame(
            {n: c.astype(dtype[n], errors) if n in dtype else c for n, c in self.series.items()},
            self.rows,
            self.length,
        )
    return self.each(lambda c: c.astype(dtype, errors))


# -- rows ---------------------------------------------------------------------------


@rule("DataFrame")
def dropna(
    self: Any, *, axis: Any = 0, how: Any = "any", thresh: Any = None, subset: Any = None,
    inplace: bool = False, ignore_index: bool = False,
) -> Any:  # fmt: skip
    if axis in (1, "columns"):
        kept_names = self.real().dropna(
            axis=1, how=how, **({} if thresh is None else {"thresh": thresh}), subset=subset
        )
        freeze("dropna(axis=1)", list(kept_names.columns))
        return _changed(self, self.select(kept_names.columns), inplace)
    if thresh is not None:
        refuse("dropna(thresh=...) has no rule for rows")
    names = list(self.series) if subset is None else [subset] if isinstance(subset, str) else subset
    present = self.select(names).notna()
    mask = present.all(axis=1) if how == "any" else present.any(axis=1)
    return _changed(self, filtered(self, mask), inplace)


@rule("DataFrame")
def query(self: Any, expr: str, *, inplace: bool = False) -> Any:
    from sardonyx.importers.pandas.rules.expressions import evaluate

    return _changed(self, filtered(self, evaluate(self, expr)), inplace)


@rule("DataFrame")
def reset_index(self: Any, level: Any = None, *, drop: bool = False, inplace: bool = False) -> Any:
    if not drop and isinstance(self, Labelled) and level is None:
        return _changed(self, with_labels(self), inplace)
    if not drop:
        refuse(
            "reset_index turns the labels of rows into a column",
            "pass drop=True, or keep the column that you need",
        )
    return _changed(self, self.copy(), inplace)


@rule("Series", "reset_index")
def reset_index_of_column(
    self: Any, level: Any = None, *, drop: bool = False, name: Any = None
) -> Any:
    if not drop and isinstance(self, LabelledColumn) and level is None:
        return column_with_labels(self, name)
    if not drop:
        refuse("reset_index turns the labels of rows into a column", "pass drop=True")
    return self.named(self.label)


@rule("Series", "dropna")
def dropna_of_column(self: Any, ignore_index: bool = False) -> Any:
    mask = self.notna()
    return kept(self, mask, Rows(mask.step, self.rows))


def _moves_rows(owner: str, name: str) -> None:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        needs_order(name)
        refuse(f"{name} has no rule")

    rule(owner, name)(method)


for _name in (
    "head",
    "tail",
    "nlargest",
    "nsmallest",
):
    for _owner in ("DataFrame", "Series"):
        _moves_rows(_owner, _name)
_moves_rows("Series", "sort_index")
_moves_rows("Series", "drop_duplicates")
_moves_rows("Series", "duplicated")


@rule("DataFrame")
def sort_index(self: Any, *, axis: Any = 0, ascending: bool = True) -> Any:
    if axis not in (1, "columns"):
        needs_order("sort_index")
        refuse("labels of rows are not part of the graph")
    return self.select(self.labels.sort_values(ascending=ascending))


@rule("DataFrame")
def sample(self: Any, *_: Any, **__: Any) -> Any:
    refuse("sample draws random rows")


rule("Series", "sample")(sample)


def _iterates(name: str) -> None:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        refuse(
            f"{name} goes over rows one by one",
            "write it for whole columns, or use apply with a lambda",
        )

    rule("DataFrame", name)(method)


for _name in ("iterrows", "itertuples"):
    _iterates(_name)


# -- properties of columns ----------------------------------------------------------


@rule("Series", "name", is_property=True)
def name_(self: Any) -> Any:
    return self.label


@rule("Series", "dtype", is_property=True)
def dtype_(self: Any) -> Any:
    return self.step.value.dtype


rule("Series", "dtypes", is_property=True)(dtype_)


@rule("Series", "values", is_property=True)
def values_of_column(self: Any) -> Any:
    return self


@rule("Series", "to_numpy")
def to_numpy_of_column(self: Any, dtype: Any = None) -> Any:
    return self if dtype is None else self.astype(dtype)


@rule("Series", "shape", is_property=True)
def shape_of_column(self: Any) -> Any:
    return (freeze("len", len(self.step.value)),)


@rule("Series", "size", is_property=True)
def size_of_column(self: Any) -> Any:
    return freeze("len", len(self.step.value))


@rule("Series", "ndim", is_property=True)
def ndim_of_column(self: Any) -> int:
    return 1


@rule("Series", "index", is_property=True)
def index_of_column(self: Any) -> Any:
    return Labels(self.rows, len(self.step.value))


@rule("Series", "rename")
def rename_of_column(self: Any, index: Any = None) -> Any:
    if not is_scalar(index):
        refuse("rename of rows has no rule")
    return self.named(index)


@rule("Series")
def to_frame(self: Any, name: Any = None) -> Any:
    label = name if name is not None else self.label if self.label is not None else 0
    return Frame({label: self}, self.rows)


@rule("Series")
def squeeze(self: Any) -> Any:
    return self


@rule("DataFrame", "squeeze")
def squeeze_of_frame(self: Any, axis: Any = None) -> Any:
    return next(iter(self.series.values())) if len(self.series) == 1 else self


@rule("Series")
def to_dict(self: Any) -> Any:
    if isinstance(self, LabelledColumn):
        return freeze(f"{self.label}.to_dict", self.labelled_real().to_dict())
    return tolist(self)


@rule("Series", "tolist", "to_list", "items")
def tolist(self: Any, *_: Any) -> Any:
    refuse(
        "the values of a column are not known while the function is recorded",
        "unique() gives the values of the training frame",
    )
