"""Column: what stands for a pandas Series (or a NumPy array of rows) in the recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from sardonyx.importers.pandas.recorder import (
    RULES,
    Place,
    Proxy,
    Rows,
    Step,
    call,
    freeze,
    place,
    refuse,
    same_rows,
    trace,
)

OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
    "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow",
    "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
LOGICAL = ("and", "or", "xor", "rand", "ror", "rxor")


class Column(Proxy):
    """A column: a step of the recording, and the name that the series has."""

    _owner = "Series"
    is_value = False  # whether it stands for the value of one row
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 1e6

    def __init__(self, step: Step, name: Any = None):
        self.step = step
        self.label = name

    @property
    def value(self) -> pd.Series:
        """The values of the training frame."""
        return self.step.value.rename(self.label)

    @property
    def rows(self) -> Rows:
        return self.step.rows

    def named(self, name: Any) -> Column:
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.label = name
        return copy

    def derive(self, step: Step, name: Any = None) -> Column:
        """A column of the same kind as this one, over another step."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.step, copy.label = step, name
        return copy

    def __repr__(self) -> str:
        return f"<Column {self.label!r}: {self.step.value.dtype}>"

    def __len__(self) -> int:
        return freeze("len", len(self.step.value))

    def __bool__(self) -> bool:
        decide = trace().decide
        return decide(self) if decide is not None else super().__bool__()

    def __neg__(self) -> Any:
        return call("numpy", "negative", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return call("numpy", "absolute", self)

    def __invert__(self) -> Any:
        return call("numpy", "invert", self)

    def __round__(self, digits: int = 0) -> Any:
        return call("Series", "round", self, digits)

    def __getitem__(self, key: Any) -> Any:
        return call("Series", "__getitem__", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        call("Series", "__setitem__", self, key, value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            refuse(f"np.{ufunc.__name__} with {method} or options has no rule")
        if ("numpy", ufunc.__name__) not in RULES:
            refuse(f"np.{ufunc.__name__} has no rule")
        return call("numpy", ufunc.__name__, *inputs)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return array_function(function, arguments, options)


def array_function(function: Any, arguments: Any, options: Any) -> Any:
    name = function.__name__
    if ("numpy", name) not in RULES:
        refuse(f"np.{name} has no rule")
    return call("numpy", name, *arguments, **options)


def _operator(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return call(self._owner, name, self, other)

    return method


def give_operators(proxy: type) -> None:
    """Python's operators on a proxy are pandas' methods of the same meaning."""
    for name in OPERATORS:
        setattr(proxy, f"__{name}__", _operator(name))
    for name in LOGICAL:
        setattr(proxy, f"__{name}__", _operator(f"__{name}__"))


give_operators(Column)


def is_column(value: Any) -> bool:
    return isinstance(value, Column)


def is_scalar(value: Any) -> bool:
    """Whether a value can stand in every row as it is."""
    return not isinstance(value, Proxy) and (value is None or pd.api.types.is_scalar(value))


def check_operand(value: Any) -> Any:
    """A column or a scalar; an array or series of training rows is neither."""
    if is_column(value) or is_scalar(value):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value.item()
    if isinstance(value, Proxy):
        refuse(f"a {value._owner} cannot stand here")
    if isinstance(value, (pd.Series, np.ndarray, list, tuple, pd.Index)):
        refuse(
            "an array with one value per row of the training frame does not fit other rows",
            "compute it from the columns, or use one value for all rows",
        )
    refuse(f"a value of type {type(value).__name__} cannot be recorded")


def record(
    name: str,
    operands: Sequence[Any],
    replay: Callable[..., Any],
    emit: Callable[..., Any],
    *,
    chars: bool = False,
    rows: Rows | None = None,
    label: Any = None,
    check: bool = True,
    pure: bool = False,
) -> Column:
    """Record one step: `replay` and `emit` are called with the operands, steps replaced.

    replay(*values) gets the series of pandas, emit(em, *values) the values of the graph. Operands
    that are no columns are passed to both as they are. What is `pure` depends on the name and the
    operands alone: the same call gives the same step again.
    """
    columns = [o for o in operands if is_column(o)]
    key = (name, *(o.step if is_column(o) else (type(o), str(o)) for o in operands))
    if pure and key in trace().memo:
        origin = next((c for c in columns if type(c) is not Column), columns[0])
        return origin.derive(trace().memo[key], label or common_label(columns))
    steps = tuple(c.step for c in columns)
    place_of_step: Place = place()
    rows = rows or same_rows(steps)

    def filled(values: Sequence[Any]) -> list[Any]:
        remaining = iter(values)
        return [next(remaining) if is_column(o) else o for o in operands]

    def again(*values: pd.Series) -> pd.Series:
        result = replay(*filled(values))
        if isinstance(result, np.ndarray):
            result = pd.Series(result, index=values[0].index)
        return result

    def build(em: Any, *values: Any) -> Any:
        return emit(em, *filled(values))

    value = again(*(s.value for s in steps))
    if check and not isinstance(value, pd.Series):
        refuse(f"{name} gives a {type(value).__name__}")
    order = any(s.order for s in steps)
    step = Step(name, steps, again, build, value, rows, place_of_step, chars, order)
    if pure:
        trace().memo[key] = step
    origin = next((c for c in columns if type(c) is not Column), columns[0])
    return origin.derive(step, label if label is not None else common_label(columns))


def common_label(columns: Sequence[Column]) -> Any:
    labels = [c.label for c in columns]
    return labels[0] if all(type(x) is type(labels[0]) and x == labels[0] for x in labels) else None


def constant(value: Any, rows: Rows, length: int, dtype: Any = None) -> Column:
    """A column that has one value in every row."""

    def replay(index: pd.Index) -> pd.Series:
        series = pd.Series([value] * len(index), index=index, dtype=dtype)
        is_missing = series.dtype == np.dtype(object) and (value is None or not len(index))
        return series.astype(float) if is_missing else series

    series = replay(pd.RangeIndex(length))

    def emit(em: Any) -> Any:
        return em.expand(em.scalar(value, series.dtype), em.step.rows)

    step = Step("constant", (), replay, emit, series, rows, place(), of_index=True)
    return Column(step, None)


def unsupported(owner: str, name: str, reason: str, hint: str | None = None) -> None:
    """Register a rule that refuses with a reason of its own."""
    from sardonyx.importers.pandas.recorder import rule

    @rule(owner, name)
    def refused(*_: Any, **__: Any) -> NoReturn:
        refuse(f"{owner}.{name} {reason}", hint)
