"""New frames and series: the constructors, concat, and tables of counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from sardonyx.importers.pandas.column import Column, constant, is_column, is_scalar
from sardonyx.importers.pandas.frame import Frame, Labels
from sardonyx.importers.pandas.recorder import Proxy, freeze, refuse, rule
from sardonyx.importers.pandas.rules.longer import rows_below


def data_frame(data: Any = None, index: Any = None, columns: Any = None, dtype: Any = None) -> Any:
    """`pd.DataFrame(...)` with something recorded in it, or an empty one to be filled."""
    rows = index.rows if isinstance(index, Labels) else None
    length = index.length if isinstance(index, Labels) else 0
    if isinstance(data, Frame):
        frame = data.copy() if columns is None else data.select(columns)
    elif is_column(data):
        frame = data.to_frame(columns[0] if columns is not None else None)
    elif data is None:
        frame = Frame({}, rows, length)
    elif isinstance(data, Mapping):
        frame = _of_mapping(data, rows, length)
        frame = frame if columns is None else frame.select(columns)
    else:
        frame = refuse("a frame of rows or arrays has no rule", "build it from a dict of columns")
    if rows is not None and frame.rows is not rows:
        refuse("a frame is built of columns of other rows")
    return frame if dtype is None else frame.astype(dtype)


def _of_mapping(data: Mapping[Any, Any], rows: Any, length: int) -> Frame:
    frame = Frame({}, rows, length)
    for value in data.values():
        if is_column(value) and frame.rows is None:
            frame.rows, frame.length = value.rows, len(value.step.value)
    for name, value in data.items():
        frame[name] = value
    return frame


def series(data: Any = None, index: Any = None, dtype: Any = None, name: Any = None) -> Any:
    """`pd.Series(...)` of something recorded, or of one value over recorded rows."""
    if is_column(data):
        column = data if name is None else data.named(name)
    elif isinstance(index, Labels) and is_scalar(data):
        column = constant(data, index.rows, index.length).named(name)
    else:
        column = refuse("a series of an array has no rule", "compute it from columns")
    return column if dtype is None else column.astype(dtype)


@rule("pandas")
def concat(
    objs: Any, *, axis: Any = 0, join: str = "outer", ignore_index: bool = False, keys: Any = None,
    sort: bool = False,
) -> Any:  # fmt: skip
    parts = list(objs.values()) if isinstance(objs, Mapping) else list(objs)
    if axis not in (1, "columns"):
        if keys is not None or join != "outer" or isinstance(objs, Mapping):
            refuse("rows of several frames are put below each other with these arguments")
        if not all(isinstance(p, Proxy) for p in parts):
            refuse("rows of the training frame are put below those of the batch")
        return rows_below(parts, ignore_index)
    if keys is not None and not isinstance(objs, Mapping) and not all(map(is_column, parts)):
        refuse("concat(keys=...) has no rule for frames")
    result: dict[Any, Column] = {}
    rows = next((p.rows for p in parts if isinstance(p, Proxy)), None)
    for number, part in enumerate(parts):
        if isinstance(part, Frame):
            columns = dict(part.series)
        elif is_column(part):
            label = keys[number] if keys is not None else part.label
            columns = {number if label is None else label: part}
        else:
            refuse("a table of the training frame is put beside columns", "merge it by a key")
        for name, column in columns.items():
            if name in result:
                refuse(f"two columns are called {name!r}")
            result[name] = column
    if ignore_index:
        result = dict(enumerate(result.values()))
    return Frame(
        result, rows, next(p.length for p in parts if isinstance(p, Frame)) if not result else 0
    )


def _real(value: Any) -> Any:
    """The training values of an argument."""
    if is_column(value):
        return value.value
    if isinstance(value, Frame):
        return value.real()
    if isinstance(value, (list, tuple)):
        return type(value)(_real(v) for v in value)
    return value


def _table(name: str) -> None:
    def function(*arguments: Any, **options: Any) -> Any:
        real = getattr(pd, name)
        named = {k: _real(v) for k, v in options.items()}
        return freeze(f"pd.{name}", real(*map(_real, arguments), **named))

    rule("pandas", name)(function)


for _name in ("crosstab", "pivot_table", "pivot", "unique"):
    _table(_name)


def _missing(name: str, method: str) -> None:
    def function(obj: Any) -> Any:
        return getattr(obj, method)()

    rule("pandas", name)(function)


for _name, _method in {
    "isna": "isna",
    "isnull": "isna",
    "notna": "notna",
    "notnull": "notna",
}.items():
    _missing(_name, _method)


def _reshapes(owner: str, name: str) -> None:
    def method(*_: Any, **__: Any) -> Any:
        refuse(
            f"{name} makes other rows out of the rows of a batch",
            "reduce first (groupby, pivot_table), then map or merge the table",
        )

    rule(owner, name)(method)


for _name in ("unstack", "transpose", "explode", "T"):
    _reshapes("DataFrame", _name)
for _name in ("unstack", "explode"):
    _reshapes("Series", _name)
_reshapes("pandas", "wide_to_long")
