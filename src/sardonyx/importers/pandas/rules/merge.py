"""merge and join with a constant table: a look-up of its rows by the keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas import lookup
from sardonyx.importers.pandas.column import Column, is_column, record
from sardonyx.importers.pandas.emission import Emission, Rep
from sardonyx.importers.pandas.frame import Frame, filtered
from sardonyx.importers.pandas.recorder import Proxy, freeze, refuse, rule


def _names(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, pd.Index)) else [value]


@rule("DataFrame")
def merge(
    self: Any, right: Any, how: str = "inner", on: Any = None, left_on: Any = None,
    right_on: Any = None, left_index: bool = False, right_index: bool = False, sort: bool = False,
    suffixes: Any = ("_x", "_y"), validate: Any = None, indicator: bool = False,
) -> Any:  # fmt: skip
    if isinstance(right, Proxy):
        refuse(
            "a frame that is computed row by row is merged: its rows are those of the batch",
            "merge with a table that was reduced, such as groupby(...).agg(...).reset_index()",
        )
    if left_index or sort or indicator or how not in ("left", "inner"):
        refuse(f"merge(how={how!r}) with these arguments has no rule", 'how="left" has one')
    right = right.to_frame() if isinstance(right, pd.Series) else right
    keys = _names(on) if on is not None else None
    left_keys = _names(left_on) if left_on is not None else keys
    if right_index:
        table = right.index.to_frame(index=False)
        values = right.reset_index(drop=True)
        shared: list[Any] = []
    else:
        if left_keys is None:
            keys = left_keys = [c for c in self.series if c in right.columns]
        right_keys = _names(right_on) if right_on is not None else keys
        if (on is not None and isinstance(right.index, pd.MultiIndex)) or not set(
            right_keys or ()
        ) <= set(right.columns):
            right = right.reset_index()
        right_keys = list(right_keys or ())
        table = right[right_keys].reset_index(drop=True)
        shared = [k for k, r in zip(left_keys, right_keys, strict=True) if k == r]
        values = right.drop(columns=shared).reset_index(drop=True)
    return _joined(self, left_keys or [], table, values, how, suffixes)


def _joined(
    self: Any,
    left_keys: list[Any],
    table: pd.DataFrame,
    values: pd.DataFrame,
    how: str,
    suffixes: Any,
) -> Any:
    if table.duplicated().any():
        refuse(
            "the keys of the table are not unique: the merge would multiply rows",
            "reduce the table to one row per key first",
        )
    freeze("merge", values.assign(**{f"key {n}": c for n, c in table.items()}))
    keys = [self.series[k] for k in left_keys]
    left = dict(self.series)
    overlap = [c for c in values.columns if c in left]
    renamed = {n: f"{n}{suffixes[0]}" if n in overlap and suffixes[0] else n for n in left}
    result = {renamed[n]: c for n, c in left.items()}
    for name in values.columns:
        label = f"{name}{suffixes[1]}" if name in overlap and suffixes[1] else name
        if label in result:
            refuse("a frame with two columns of one name has no rule")
        result[label] = looked_up(keys, table, values[name])
    frame = Frame(result, self.rows, self.length)
    if how == "left":
        return frame
    present = looked_up(keys, table, pd.Series(np.ones(len(table)))).notna()
    return filtered(frame, present)


def looked_up(keys: list[Column], table: pd.DataFrame, values: pd.Series) -> Column:
    """The values of the row of a table whose keys are those of each row."""

    def emit(em: Emission, *reps: Rep) -> Rep:
        if len(reps) == 1:
            return lookup.looked_up(em, reps[0], table.iloc[:, 0], values)
        return lookup.gather(em, lookup.together(em, list(reps), table), values)

    def replay(*parts: pd.Series) -> pd.Series:
        names = [f"key {k}" for k in range(len(parts))]
        left = pd.DataFrame(dict(zip(names, parts, strict=True)))
        right = table.set_axis(names, axis=1).assign(
            value=values.to_numpy() if values.dtype == np.dtype(object) else values.array
        )
        return left.merge(right, how="left", on=names)["value"].set_axis(parts[0].index)

    return Column(record("merge", keys, replay, emit).step, values.name)


@rule("pandas", "merge")
def merge_(left: Any, right: Any, how: str = "inner", **options: Any) -> Any:
    if not isinstance(left, Frame):
        refuse("a table is merged with the frame on its right", "put the frame on the left")
    return left.merge(right, how, **options)


@rule("DataFrame")
def join(
    self: Any, other: Any, on: Any = None, how: str = "left", lsuffix: str = "", rsuffix: str = ""
) -> Any:
    if is_column(other) or isinstance(other, Frame):
        return _beside(self, other, lsuffix, rsuffix)
    if on is None:
        refuse("a table is joined by row labels", "pass on=..., or merge by columns")
    other = other.to_frame() if isinstance(other, pd.Series) else other
    overlap = [c for c in other.columns if c in self.series]
    if overlap and not (lsuffix or rsuffix):
        raise ValueError(f"columns overlap but no suffix specified: {overlap}")
    return self.merge(other, how=how, left_on=on, right_index=True, suffixes=(lsuffix, rsuffix))


def _beside(self: Any, other: Any, lsuffix: str, rsuffix: str) -> Any:
    """Columns of the same rows."""
    parts = {other.label: other} if is_column(other) else dict(other.series)
    overlap = set(parts) & set(self.series)
    result = {f"{n}{lsuffix}" if n in overlap else n: c for n, c in self.series.items()}
    for name, column in parts.items():
        label = f"{name}{rsuffix}" if name in overlap else name
        if label in result:
            raise ValueError("columns overlap but no suffix specified")
        result[label] = column
    return Frame(result, self.rows, self.length)
