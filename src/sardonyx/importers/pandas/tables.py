"""Tables inside a function of rows: dicts, series and frames that a value of a row is a key of."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sardonyx.importers.pandas.column import Column
from sardonyx.importers.pandas.recorder import refuse
from sardonyx.importers.pandas.rules.apply import Scalar, demand
from sardonyx.importers.pandas.rules.merge import looked_up


def is_of_row(key: Any) -> bool:
    """Whether a key, or a part of it, is a value of a row."""
    return isinstance(key, Scalar) or (isinstance(key, tuple) and any(map(is_of_row, key)))


class Table(dict):  # type: ignore[type-arg]
    """A dict of the user that a value of a row can be looked up in."""

    def __getitem__(self, key: Any) -> Any:
        if not is_of_row(key):
            return super().__getitem__(key)
        if self and all(isinstance(v, dict) for v in self.values()):
            return Level({(k, i): v for k, inner in self.items() for i, v in inner.items()}, (key,))
        demand(lambda: self.holds(key), KeyError("key"))
        return self.value(key)

    def get(self, key: Any, default: Any = None) -> Any:
        if not is_of_row(key):
            return super().get(key, default)
        if key not in self:
            return default
        return self[key]

    def __contains__(self, key: Any) -> bool:
        if is_of_row(key):
            return bool(self.holds(key))
        return super().__contains__(key)

    def holds(self, key: Any) -> Any:
        """Whether the table has the key, as a value of the row."""
        if isinstance(key, Scalar):
            return Scalar(Column(key.step).isin(list(self)).step, None)
        return Scalar(self._of_parts(key, 1.0).notna().step, None)

    def value(self, key: Any) -> Any:
        if isinstance(key, Scalar):
            return Scalar(Column(key.step).map(dict(self)).step, None)
        return Scalar(self._of_parts(key, None).step, None)

    def _of_parts(self, key: tuple[Any, ...], constant: Any) -> Column:
        """The value of a key of several parts, or a constant for each that is there."""
        rows = [i for i, part in enumerate(key) if isinstance(part, Scalar)]
        pairs = [
            ([k[i] for i in rows], v)
            for k, v in self.items()
            if isinstance(k, tuple)
            and len(k) == len(key)
            and all(i in rows or k[i] == key[i] for i in range(len(key)))
        ]
        if not pairs:
            refuse("a table without a key of this form is asked for the value of a row")
        keys = pd.DataFrame([k for k, _ in pairs])
        values = [v if constant is None else constant for _, v in pairs]
        return looked_up([Column(key[i].step) for i in rows], keys, pd.Series(values))


class Level:
    """A table of several levels of keys, of which some are given: `table[a][b]`."""

    def __init__(self, table: dict[Any, Any], key: tuple[Any, ...]):
        self.table, self.key = Table(table), key

    def __getitem__(self, key: Any) -> Any:
        key = (*self.key, *(key if isinstance(key, tuple) else (key,)))
        count = len(next(iter(self.table)))
        return Level(self.table, key) if len(key) < count else self.table[key]

    def get(self, key: Any, default: Any = None) -> Any:
        return self.table.get((*self.key, key), default)

    def __contains__(self, key: Any) -> bool:
        return (*self.key, key) in self.table


class Frozen:
    """Data of the training frame; what a class below does not answer for a row, pandas answers."""

    def __init__(self, real: Any):
        self.__dict__.update(_real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __len__(self) -> int:
        return len(self._real)

    def __iter__(self) -> Any:
        return iter(self._real)


class FrozenSeries(Frozen):
    """A series of the training frame that a value of a row can be looked up in by its label."""

    def __init__(self, real: pd.Series):
        super().__init__(real)
        self.__dict__.update(_table=Table(real.to_dict()))

    def __getattr__(self, name: str) -> Any:
        if name == "index":
            return FrozenLabels(self._real.index)
        if name in ("loc", "at"):
            return self
        return super().__getattr__(name)

    def __getitem__(self, key: Any) -> Any:
        if not is_of_row(key):
            return self._real[key]
        if self._real.index.nlevels == 1:
            return self._table[key]
        return Level(self._table, ())[key]

    def get(self, key: Any, default: Any = None) -> Any:
        source = self._table if is_of_row(key) else self._real
        return source.get(key, default)

    def __contains__(self, key: Any) -> bool:
        return key in self._table


class FrozenLabels(Frozen):
    """The labels of such a series: `in` takes the value of a row."""

    def __getitem__(self, key: Any) -> Any:
        return self._real[key]

    def __contains__(self, key: Any) -> bool:
        if is_of_row(key):
            return bool(Table(dict.fromkeys(self._real)).holds(key))
        return key in self._real


class FrozenFrame(Frozen):
    """A table of the training frame: `table.loc[value of a row, column]`."""

    def __getattr__(self, name: str) -> Any:
        if name == "index":
            return FrozenLabels(self._real.index)
        if name in ("loc", "at"):
            return FrozenRows(self._real)
        if name in self._real.columns:
            return self[name]
        return super().__getattr__(name)

    def __getitem__(self, key: Any) -> Any:
        if is_of_row(key):
            return Level(_by_column(self._real), (key,))
        value = self._real[key]
        return FrozenSeries(value) if isinstance(value, pd.Series) else value


class FrozenRows:
    """`table.loc` and `table.at`."""

    def __init__(self, real: pd.DataFrame):
        self.real = real

    def __getitem__(self, key: Any) -> Any:
        if not is_of_row(key):
            return self.real.loc[key]
        levels = self.real.index.nlevels
        row, column = key, None
        if isinstance(key, tuple) and len(key) == 2 and (levels == 1 or isinstance(key[0], tuple)):
            row, column = key
        parts = row if isinstance(row, tuple) else (row,)
        if column is not None and not is_of_row(column):
            return FrozenSeries(self.real[column])[parts if levels > 1 else parts[0]]
        table = Level(_by_row(self.real), parts)
        return table if column is None else table[column]


def _by_row(real: pd.DataFrame) -> dict[Any, Any]:
    """The cells of a table by the label of their row and the name of their column."""
    labels = [k if isinstance(k, tuple) else (k,) for k in real.index]
    return {
        (*label, name): value
        for name in real.columns
        for label, value in zip(labels, real[name], strict=True)
    }


def _by_column(real: pd.DataFrame) -> dict[Any, Any]:
    return {(key[-1], *key[:-1]): value for key, value in _by_row(real).items()}


def frozen(value: Any) -> Any:
    """What stands for a constant of the user in a function of rows."""
    if type(value) is dict:
        return Table(value)
    if isinstance(value, pd.Series) and value.index.is_unique:
        return FrozenSeries(value)
    if isinstance(value, pd.DataFrame) and value.index.is_unique and value.columns.nlevels == 1:
        return FrozenFrame(value)
    if isinstance(value, pd.Index):
        return FrozenLabels(value)
    return value
