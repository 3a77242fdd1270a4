"""loc, iloc and square brackets: the rows and columns that a key stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas.column import Column, is_column, is_scalar
from sardonyx.importers.pandas.frame import Frame, Labels, filtered, kept
from sardonyx.importers.pandas.recorder import Proxy, Rows, Step, refuse, rule


class Indexer(Proxy):
    """`df.loc`, `df.iloc`, and those of a column."""

    def __init__(self, owner: Any, by_place: bool):
        self.owner, self.by_place = owner, by_place

    def _columns(self, key: Any) -> tuple[list[Any], bool]:
        """The names that the second part of a key stands for, and whether it is a single one."""
        names = list(self.owner.series)
        if self.by_place:
            chosen = np.array(names, object)[key]
            return (list(chosen), False) if isinstance(chosen, np.ndarray) else ([chosen], True)
        if isinstance(key, slice):
            start = 0 if key.start is None else names.index(key.start)
            stop = len(names) if key.stop is None else names.index(key.stop) + 1
            return names[start:stop], False
        if (
            isinstance(key, (pd.Series, np.ndarray, list))
            and len(key)
            and isinstance(next(iter(key)), (bool, np.bool_))
        ):
            return [n for n, yes in zip(names, list(key), strict=True) if yes], False
        if isinstance(key, (list, pd.Index, np.ndarray, pd.Series)):
            return list(key), False
        return [key], True

    def _rows(self, key: Any) -> Any:
        """None for all rows, or the column that chooses them."""
        if isinstance(key, slice) and key == slice(None):
            return None
        if callable(key) and not isinstance(key, Proxy):
            key = key(self.owner)
        if is_column(key):
            return key
        if isinstance(key, Labels):
            return None
        refuse(
            "rows are chosen by label or place, which other frames do not have",
            "choose rows by a condition",
        )

    def __getitem__(self, key: Any) -> Any:
        if is_column(self.owner):
            mask = self._rows(key)
            return (
                self.owner if mask is None else kept(self.owner, mask, Rows(mask.step, mask.rows))
            )
        row_key, column_key = key if isinstance(key, tuple) else (key, slice(None))
        mask = self._rows(row_key)
        names, single = self._columns(column_key)
        frame = self.owner.select(names)
        if mask is not None:
            frame = filtered(frame, mask)
        return frame.series[names[0]] if single else frame

    def __setitem__(self, key: Any, value: Any) -> None:
        if is_column(self.owner):
            mask = self._rows(key)
            self.owner.step = self.owner.mask(mask, value).step
            return
        row_key, column_key = key if isinstance(key, tuple) else (key, slice(None))
        mask = self._rows(row_key)
        names = (
            [column_key]
            if not self.by_place and is_scalar(column_key)
            else self._columns(column_key)[0]
        )
        for number, name in enumerate(names):
            part = value
            if isinstance(value, (list, tuple)):
                part = value[number]
            elif isinstance(value, Frame):
                part = list(value.series.values())[number]
            self._assign(name, mask, part)

    def _assign(self, name: Any, mask: Any, value: Any) -> None:
        frame = self.owner
        if mask is None:
            frame[name] = value
            return
        if is_column(value) and value.rows is not frame.rows:
            value = _before_filter(value, mask)
        if name not in frame.series:
            frame.series[name] = frame.column_of(np.nan).named(name)
        frame.series[name] = frame.series[name].mask(mask, value).named(name)


def _before_filter(value: Any, mask: Any) -> Any:
    """What was computed on chosen rows, for all rows: `df.loc[m, a] = df.loc[m, b] * 2`."""
    rows = value.rows
    if rows.keep is not mask.step:
        refuse(
            "a column of other rows is assigned, which pandas aligns by the index",
            "write the right-hand side for all rows; only the chosen rows take it",
        )
    memo: dict[Step, Step] = {}

    def whole(step: Step) -> Step:
        if step.rows is not rows:
            return step
        if step not in memo:
            if step.name == "filter":
                memo[step] = step.inputs[0]
            else:
                inputs = tuple(whole(s) for s in step.inputs)
                index = mask.step.value.index
                values = [index] if step.of_index else [s.value for s in inputs]
                again = replace(step, inputs=inputs, rows=mask.rows, value=step.replay(*values))
                memo[step] = again
        return memo[step]

    return Column(whole(value.step), value.label)


def _indexer(owner: str, name: str, by_place: bool) -> None:
    def get(self: Any) -> Any:
        return Indexer(self, by_place)

    rule(owner, name, is_property=True)(get)


for _owner in ("DataFrame", "Series"):
    _indexer(_owner, "loc", False)
    _indexer(_owner, "iloc", True)


@rule("Series", "__getitem__")
def getitem_of_column(self: Any, key: Any) -> Any:
    if is_column(key):
        return kept(self, key, Rows(key.step, key.rows))
    if isinstance(key, slice) and key == slice(None):
        return self
    return refuse("rows are chosen by label or place", "choose rows by a condition")


@rule("Series", "__setitem__")
def setitem_of_column(self: Any, key: Any, value: Any) -> None:
    if not is_column(key):
        refuse("rows are chosen by label or place", "choose rows by a condition")
    self.step = self.mask(key, value).step
