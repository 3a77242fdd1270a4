"""Frame: what stands for a pandas DataFrame in the recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas.column import (
    Column,
    array_function,
    constant,
    give_operators,
    is_column,
    is_scalar,
    record,
)
from sardonyx.importers.pandas.emission import Emission, Rep
from sardonyx.importers.pandas.recorder import (
    RULES,
    Proxy,
    Rows,
    attribute,
    call,
    freeze,
    refuse,
)


class Frame(Proxy):
    """A frame: columns by name, all over the same rows."""

    _owner = "DataFrame"
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 1e6

    def __init__(self, columns: dict[Any, Column], rows: Rows | None, length: int = 0):
        self.series = {name: column.named(name) for name, column in columns.items()}
        self.rows = rows
        self.length = length
        for column in columns.values():
            if rows is not None and column.rows is not rows:
                refuse(
                    "columns of different sets of rows are put into one frame",
                    "compute the columns before rows are removed, or filter the whole frame",
                )
            self.length = len(column.step.value)

    def real(self) -> pd.DataFrame:
        """The frame over the training rows."""
        frame = pd.DataFrame({k: c.step.value for k, c in enumerate(self.series.values())})
        if not self.series:
            frame = pd.DataFrame(index=pd.RangeIndex(self.length))
        frame.columns = self.labels
        return frame

    @property
    def labels(self) -> pd.Index:
        return pd.Index(list(self.series))

    def each(self, function: Callable[[Column], Any], names: Iterable[Any] | None = None) -> Frame:
        """A frame of the same columns, each changed by a function."""
        columns = set(self.series) if names is None else set(names)
        return Frame(
            {k: function(c) if k in columns else c for k, c in self.series.items()},
            self.rows,
            self.length,
        )

    def select(self, names: Iterable[Any]) -> Frame:
        names = list(names)
        absent = [n for n in names if n not in self.series]
        if absent:
            raise KeyError(f"{absent} not in the columns")
        if len(set(names)) < len(names):
            refuse("a frame with two columns of one name has no rule")
        return Frame({n: self.series[n] for n in names}, self.rows, self.length)

    def replace_all(self, other: Frame) -> None:
        """Become another frame, for `inplace=True`."""
        self.series, self.rows, self.length = dict(other.series), other.rows, other.length

    def column_of(self, value: Any) -> Column:
        """A value as a column over the rows of this frame."""
        if is_column(value):
            if self.rows is not None and value.rows is not self.rows:
                refuse(
                    "a column of other rows is assigned, which pandas aligns by the index",
                    "compute the column before rows are removed or moved",
                )
            return value
        if isinstance(value, Labels):
            refuse("the row labels are not data of the graph")
        if is_scalar(value):
            if self.rows is None:
                refuse("one value is assigned to a frame without rows", "assign a column first")
            return constant(value, self.rows, self.length)
        if isinstance(value, (np.ndarray, list, pd.Series)) and len(value) == self.length:
            refuse(
                "an array with one value per row of the training frame does not fit other rows",
                "compute it from the columns, or assign one value",
            )
        return refuse(f"a {type(value).__name__} cannot become a column")

    def __getattr__(self, name: str) -> Any:
        series = self.__dict__.get("series", {})
        if name in series and ("DataFrame", name) not in RULES:
            return series[name]
        return attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("series", "rows", "length") and name in self.__dict__.get("series", {}):
            self[name] = value
            return
        if name == "columns":
            self.series = dict(
                zip(
                    value,
                    (c.named(n) for n, c in zip(value, self.series.values(), strict=True)),
                    strict=True,
                )
            )
            return
        if name not in ("series", "rows", "length"):
            refuse(
                f"setting the attribute {name} of a frame has no rule", f'write df["{name}"] = …'
            )
        super().__setattr__(name, value)

    def __getitem__(self, key: Any) -> Any:
        return call("DataFrame", "__getitem__", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        call("DataFrame", "__setitem__", self, key, value)

    def __delitem__(self, key: Any) -> None:
        del self.series[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self.series))

    def __contains__(self, key: Any) -> bool:  # type: ignore[override]
        return key in self.series

    def __len__(self) -> int:
        return freeze("len", self.length)

    def __matmul__(self, other: Any) -> Any:
        return call("DataFrame", "dot", self, other)

    def __neg__(self) -> Any:
        return self.each(lambda c: -c)

    def __invert__(self) -> Any:
        return self.each(lambda c: ~c)

    def __abs__(self) -> Any:
        return self.each(abs)

    def __repr__(self) -> str:
        return f"<Frame {list(self.series)}>"

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ("numpy", ufunc.__name__) not in RULES:
            refuse(f"np.{ufunc.__name__} of a frame has no rule")
        return call("numpy", ufunc.__name__, *inputs)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return array_function(function, arguments, options)


give_operators(Frame)


class Labels(Proxy):
    """`df.index`: the rows that a new series or frame is to have."""

    _owner = "Index"

    def __init__(self, rows: Rows, length: int):
        self.rows, self.length = rows, length

    def __len__(self) -> int:
        return freeze("len", self.length)


def filtered(frame: Frame, mask: Column) -> Frame:
    """The rows of a frame in which a column holds."""
    rows = Rows(mask.step, frame.rows)
    return Frame({n: kept(c, mask, rows) for n, c in frame.series.items()}, rows)


def as_mask(keep: pd.Series) -> pd.Series:
    """A condition as plain booleans: what is missing does not hold."""
    return keep.fillna(False).astype(bool) if hasattr(keep.dtype, "na_value") else keep.astype(bool)


def kept(column: Column, mask: Column, rows: Rows) -> Column:
    """The rows of a column in which another holds."""

    def emit(em: Emission, a: Rep, keep: Rep) -> Rep:
        from sardonyx.importers.pandas.rules.ufuncs import truth

        condition = truth(em, keep)
        missing = None if a.missing is None else em.op.Compress(a.missing, condition, axis=0)
        return a.but(data=em.op.Compress(a.data, condition, axis=0), missing=missing)

    if column.rows is not mask.rows:
        refuse("rows are chosen by a column of other rows")
    return record(
        "filter", [column, mask], lambda a, keep: a[as_mask(keep)], emit, rows=rows,
        label=column.label,
    )  # fmt: skip


def any_proxy(*values: Any) -> bool:
    """Whether something recorded is among arguments, also inside lists and dicts."""
    for value in values:
        if isinstance(value, Proxy):
            return True
        if isinstance(value, dict) and any_proxy(*value.values()):
            return True
        if isinstance(value, (list, tuple)) and any_proxy(*value):
            return True
    return False
