"""apply and map of Python functions: the function runs on values that stand for any row.

`if` on such a value is answered both ways, one run for each path through the function; the paths
come together in `Where`. What a path returns is a constant or something computed from the row.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas import characters
from sardonyx.importers.pandas.column import Column, constant, is_column, is_scalar, record
from sardonyx.importers.pandas.emission import INT64, Emission, Rep
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.recorder import (
    Proxy,
    call,
    has_rule,
    holds_booleans,
    refuse,
    rule,
    trace,
)
from sardonyx.importers.pandas.rules.reductions import ACROSS
from sardonyx.importers.pandas.rules.ufuncs import choose_objects

LARGEST = 512  # paths


class Scalar(Column):
    """The value of one row: a column that answers as a number or a string does."""

    is_value = True

    @property
    def is_text(self) -> bool:
        values = self.step.value
        if isinstance(values.dtype, pd.StringDtype):
            return True
        return values.dtype == np.dtype(object) and not holds_booleans(values)

    def __getattr__(self, name: str) -> Any:
        if self.is_text and has_rule("str", name) and hasattr(str, name):
            demand(self.notna, AttributeError(f"'float' object has no attribute '{name}'"))
            return text_method(self, name)
        if name in TIMES and self.step.value.dtype.kind == "M":
            result = getattr(self.dt, name)
            return (lambda: result) if name == "weekday" else result
        if name in ("total_seconds", "strftime"):
            return getattr(self.dt, name)
        if name in ("dt", "str", "fillna", "clip", "astype", "isna", "notna", "where", "round"):
            return super().__getattr__(name)
        if name == "is_integer":
            refuse("is_integer has no rule")
        return refuse(f"{name} of a value of one row has no rule")

    def __getitem__(self, key: Any) -> Any:
        if self.is_text:
            demand(self.notna, TypeError("'float' object is not subscriptable"))
        if self.is_text and isinstance(key, int):
            least = key + 1 if key >= 0 else -key
            demand(lambda: self.str.len() >= least, IndexError("string index out of range"))
        return self.str[key]

    def __contains__(self, part: Any) -> bool:  # type: ignore[override]
        if isinstance(part, Scalar) and part.is_text:
            return bool(Scalar(holds_text(self, part).step, None))
        if not isinstance(part, str):
            refuse("`in` with something that is no string has no rule")
        return bool(self.str.contains(part, regex=False))

    def __bool__(self) -> bool:
        dtype = self.step.value.dtype
        if dtype.kind != "b":
            empty: Any = "" if self.is_text else 0
            return bool(call("Series", "ne", self, empty))
        decide = trace().decide
        if decide is None:
            refuse("`if` on a value of a row is only known inside apply")
        return decide(self)

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, float) and not other.is_integer():
            refuse(
                "Python gives complex numbers for negative numbers to a fractional power",
                "np.sqrt and np.power give missing values",
            )
        return call("Series", "pow", self, other)

    def __len__(self) -> int:
        refuse("len of a value has no rule here", "use .str.len() of the column")

    def __hash__(self) -> int:  # type: ignore[override]
        refuse(
            "a value of a row is looked up in a dict or set",
            "map(dict) looks values up; isin(list) tests for them",
        )

    def __iter__(self) -> Any:
        refuse("a loop over the characters of a string has no rule", "use the .str methods")

    def __str__(self) -> str:
        """A mark in the text that is being formatted; `joined` puts the value in its place."""
        marks = trace().marks
        mark = f"{MARK}{len(marks)}{MARK}"
        marks[mark] = self
        return mark

    def __format__(self, specification: str) -> str:
        if specification:
            refuse("a format of numbers inside a text has no rule", "round and convert before")
        return str(self)


def holds_text(whole: Any, part: Any) -> Column:
    """Whether the text of one column is somewhere in that of another."""

    def emit(em: Emission, a: Rep, b: Rep) -> Rep:
        if a.kind != "chars" or b.kind != "chars":
            em.refuse("`in` is recorded for two texts")
        missing = em.either(a.missing, b.missing)
        held = characters.contains(em, a, b)
        return Rep("bool", held if missing is None else em.op.And(held, em.op.Not(missing)))

    def replay(a: pd.Series, b: pd.Series) -> pd.Series:
        pairs = zip(a, b, strict=True)
        answers = [isinstance(x, str) and isinstance(y, str) and y in x for x, y in pairs]
        return pd.Series(answers, index=a.index, dtype=bool)

    return record("in", [Column(whole.step), Column(part.step)], replay, emit, chars=True)


def code_point(value: Any) -> Any:
    """`ord` of a text of one character."""

    def emit(em: Emission, a: Rep) -> Rep:
        first = em.op.Slice(a.data, em.ints([0]), em.ints([1]), em.ints([1]))
        return Rep("int", em.op.Cast(em.op.Squeeze(first, em.ints([1])), to=int(INT64)))

    def replay(a: pd.Series) -> pd.Series:
        return a.map(ord).astype("int64")

    column = Column(value.step)
    demand(lambda: value.str.len() == 1, TypeError("ord() expected a character"))
    return Scalar(record("ord", [column], replay, emit, chars=True).step, None)


MARK = "\ue001"


def written(value: Any) -> Any:
    """A value as Python writes it in a text; a missing string is written nan."""
    text = Column(value.step).astype("str")
    return Scalar((text.fillna("nan") if value.is_text else text).step, None)


def joined(text: str) -> Any:
    """A formatted text in which values of the row stand for their marks."""
    if MARK not in text:
        return text
    result: Any = ""
    for part in re.split(f"({MARK}[0-9]+{MARK})", text):
        piece = written(trace().marks[part]) if part.startswith(MARK) else part
        result = piece if isinstance(result, str) and not result else result + piece
    return result


TIMES = ("year", "month", "day", "hour", "minute", "second", "weekday", "dayofweek", "quarter",
         "dayofyear")  # fmt: skip


def text_method(value: Scalar, name: str) -> Callable[..., Any]:
    """Python's methods of strings by those of pandas."""

    def method(*arguments: Any) -> Any:
        if any(isinstance(a, str) and MARK in a for a in arguments):
            refuse("a text of the row is searched for in another")
        if name == "replace" and len(arguments) == 2:
            return value.str.replace(*arguments, regex=False)
        if name == "split":
            return Parts(value.str.split(*arguments))
        if name == "count":
            return value.str.count(re.escape(arguments[0]))
        return getattr(value.str, name)(*arguments)

    return method


class Parts(Proxy):
    """The list that `split` gives inside a function."""

    _owner = "list"

    def __init__(self, pieces: Any):
        self.pieces = pieces

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.sliced(key)
        least = key + 1 if key >= 0 else -key
        demand(lambda: self.size() >= least, IndexError("list index out of range"))
        return Scalar(self.pieces.str[key].step, None)

    def sliced(self, key: slice) -> Any:
        refuse("only one part of a list can be taken at a time", "take parts by their place")

    def __add__(self, other: Any) -> Any:
        refuse("lists are joined", "take parts by their place")

    def size(self) -> Any:
        return Scalar(self.pieces.str.len().step, None)

    def __iter__(self) -> Any:
        """One part after the other; whether there is one more is a path of its own."""
        place = 0
        while bool(self.size() > place):
            yield Scalar(self.pieces.str[place].step, None)
            place += 1

    def __contains__(self, part: Any) -> bool:  # type: ignore[override]
        return bool(Scalar(self.pieces.str.has(part).step, None))


class RaisedOnRow(Exception):
    """A path on which Python raises: no value is expected of rows that take it."""


def demand(test: Callable[[], Any], error: Exception) -> None:
    """Raise in a function with `try` what Python raises where a test of the row fails."""
    if not trace().catches:
        return
    condition = test()
    if not bool(Scalar(condition.step, None)):
        kind = type(error)
        raise type(kind.__name__, (RaisedOnRow, kind), {})(*error.args)


class Row(Proxy):
    """A row in `df.apply(function, axis=1)`."""

    _owner = "Series"

    def __init__(self, frame: Frame):
        self.frame = frame

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            return Row(self.frame[key])
        return value_of(self.frame[key]).named(key)

    def __getattr__(self, name: str) -> Any:
        if name in self.frame.series:
            return self[name]
        if name in (
            "sum",
            "mean",
            "max",
            "min",
            "std",
            "count",
            "any",
            "all",
            "median",
            "idxmax",
            "idxmin",
        ):
            return lambda **options: Scalar(getattr(self.frame, name)(axis=1, **options).step, None)
        if name in ("isnull", "isna", "notnull", "notna"):
            return lambda: Row(getattr(self.frame, name)())
        if name == "get":
            return lambda key, default=None: self[key] if key in self.frame.series else default
        if name == "index":
            return self.frame.labels
        return refuse(f"{name} of a row has no rule", "take values of the row by their column")

    def __contains__(self, key: Any) -> bool:  # type: ignore[override]
        return key in self.frame.series

    def __iter__(self) -> Any:
        return iter([self[name] for name in self.frame.series])

    def __len__(self) -> int:
        return len(self.frame.series)


def value_of(column: Any) -> Any:
    """The value that stands for any row of a column; its strings are those of Python."""
    is_text = isinstance(column.step.value.dtype, pd.StringDtype)
    plain = Column(column.step, column.label)
    return Scalar((plain.astype(object) if is_text else plain).step, column.label)


def trace_function(self: Any, function: Callable[..., Any], ignores_missing: bool = False,
                   arguments: tuple[Any, ...] = (), options: Any = None) -> Any:  # fmt: skip
    """`series.apply(function)`: the function on a value that stands for any row."""
    if function in (str, int, float, bool):
        result = self.astype(function)
    elif function is len:
        result = self.str.len()
    elif isinstance(function, np.ufunc):
        result = function(self)
    elif getattr(function, "__objclass__", None) is str:  # str.lower, str.strip, ...
        result = as_column(text_method(value_of(self), function.__name__)(*arguments), self)
    elif isinstance(self.step.value.dtype, pd.CategoricalDtype) or self.step.value.dtype == bool:
        result = _tabulated(self, function, arguments, options or {})
    else:
        from sardonyx.importers.pandas.rules.splitting import Pieces

        argument = Parts(self) if isinstance(self, Pieces) else value_of(self)
        inside = rebound(function)
        with catching(function):
            result = explored(lambda: inside(argument, *arguments, **(options or {})), self)
    if ignores_missing:
        result = result.where(self.notna())
    return result.named(self.label)


def trace_rows(function: Callable[..., Any], columns: list[Any]) -> Any:
    """`[function(a, b) for a, b in zip(columns)]`."""
    if len({c.rows for c in columns}) > 1:
        refuse("columns of different sets of rows are gone through together")
    inside, values = rebound(function), [value_of(c) for c in columns]
    with catching(function):
        return explored(lambda: inside(*values), columns[0]).named(None)


def _tabulated(self: Any, function: Any, arguments: Any, options: Any) -> Any:
    """A column with few possible values: the function is asked for each."""
    dtype = self.step.value.dtype
    levels = [False, True] if dtype.kind == "b" else list(dtype.categories)
    table = {level: function(level, *arguments, **options) for level in levels}
    return self.map(table)


def rebound(function: Any) -> Any:
    """The function with Python's own functions (len, int, …) replaced by those that know rows."""
    from sardonyx.importers.pandas.namespace import rebound as rebind

    return rebind(function, inside_rows=True)


@contextmanager
def catching(function: Any) -> Iterator[None]:
    """Raise errors of rows while a function that has `try`, or calls one that has, is traced."""
    current = trace()
    outer, current.catches = current.catches, current.catches or has_try(function)
    try:
        yield
    finally:
        current.catches = outer


def has_try(function: Any, seen: set[Any] | None = None) -> bool:
    seen = set() if seen is None else seen
    code = getattr(function, "__code__", None)
    if code is None or code in seen:
        return False
    seen.add(code)
    if any(i.opname == "PUSH_EXC_INFO" for i in dis.get_instructions(code)):
        return True
    cells = [c.cell_contents for c in function.__closure__ or () if c != types.CellType()]
    names = [function.__globals__.get(n) for n in code.co_names]
    return any(has_try(f, seen) for f in (*cells, *names) if isinstance(f, types.FunctionType))


class Paths:
    """The exploration of a function: one run for each way through its conditions."""

    def __init__(self, run: Callable[[], Any], like: Any):
        self.run, self.like, self.count = run, like, 0

    def attempt(self, prefix: list[bool]) -> Any:
        """The result of the path, or the condition that is not answered yet.

        `except` of the function may take what is raised here: the condition and the refusals are
        noted outside.
        """
        current, conditions = trace(), 0
        before = len(current.refusals)
        undecided: list[Undecided] = []

        def decide(condition: Any) -> bool:
            nonlocal conditions
            conditions += 1
            if conditions <= len(prefix) and not undecided:
                return prefix[conditions - 1]
            undecided.append(Undecided(condition))
            raise undecided[0]

        outer, current.decide = current.decide, decide
        try:
            result = self.run()
        except RaisedOnRow:
            result = RAISES
        except BaseException:
            if not undecided:
                raise
        finally:
            current.decide = outer
        if undecided:
            del current.refusals[before:]
            return undecided[0]
        if current.refusals[before:]:
            raise current.refusals[before]
        return result

    def visit(self, prefix: list[bool]) -> Any:
        self.count += 1
        if self.count > LARGEST:
            refuse("the function has too many paths", "use np.select, or map with a dict")
        result = self.attempt(prefix)
        if not isinstance(result, Undecided):
            return result
        yes, no = self.visit([*prefix, True]), self.visit([*prefix, False])
        if yes is RAISES or no is RAISES:
            return no if yes is RAISES else yes
        return chosen(result.condition, yes, no, self.like)


RAISES = object()  # the result of a path on which Python raises


def explored(run: Callable[[], Any], like: Any) -> Any:
    """All paths through a function, put together by the conditions on which they part."""
    result = Paths(run, like).visit([])
    if result is RAISES:
        refuse("the function raises on every row")
    return as_column(result, like)


class Undecided(BaseException):
    """A condition that the path so far does not answer."""

    def __init__(self, condition: Any):
        self.condition = condition


def as_column(value: Any, like: Any) -> Any:
    value = joined(value) if isinstance(value, str) else value
    if is_column(value):
        column = Column(value.step, None)
        return column.astype("str") if _holds_texts(column.step.value) else column
    if not is_scalar(value):
        refuse(f"the function returns a {type(value).__name__}", "return one value")
    return constant(value, like.rows, len(like.step.value if is_column(like) else like.real()))


def _holds_texts(values: pd.Series) -> bool:
    present = values.dropna() if values.dtype == np.dtype(object) else []
    return len(present) > 0 and all(isinstance(v, str) for v in present)


def chosen(condition: Any, yes: Any, no: Any, like: Any) -> Any:
    yes, no = (joined(v) if isinstance(v, str) else _plain(v) for v in (yes, no))
    same = is_scalar(yes) and is_scalar(no) and type(yes) is type(no)
    if same and (yes == no or (yes != yes and no != no)):
        return yes
    column = Column(condition.step, None)
    yes, no = (Column(v.step, None) if is_column(v) else v for v in (yes, no))
    result = choose_objects(column, _plain(yes), _plain(no))
    return Scalar(result.step, None)


def _plain(value: Any) -> Any:
    if value is None:
        return np.nan
    if not is_column(value) and not is_scalar(value):
        refuse(f"the function returns a {type(value).__name__}", "return one value")
    return value


@rule("Series")
def apply(self: Any, func: Any, args: Any = (), **options: Any) -> Any:
    if isinstance(func, str):
        return getattr(self, func)(*args, **options)
    return trace_function(self, func, arguments=tuple(args), options=options)


@rule("DataFrame", "apply")
def apply_to_frame(self: Any, func: Any, axis: Any = 0, args: Any = (), **options: Any) -> Any:
    if axis in (1, "columns"):
        if getattr(func, "__name__", "") in ACROSS and not hasattr(func, "__code__"):
            return getattr(self, func.__name__)(axis=1)
        inside = rebound(func)
        with catching(func):
            return explored(lambda: inside(Row(self), *args, **options), self)
    if isinstance(func, str):
        return getattr(self, func)(*args, **options)
    results = {n: func(c, *args, **options) for n, c in self.series.items()}
    if any(is_column(v) for v in results.values()):
        return Frame(results, self.rows, self.length)
    return pd.Series(results)


@rule("DataFrame", "map", "applymap")
def map_of_frame(self: Any, func: Any) -> Any:
    return self.each(lambda c: trace_function(c, func))


@rule("DataFrame", "transform")
def transform(self: Any, func: Any) -> Any:
    return self.each(lambda c: c.transform(func))


@rule("Series", "transform")
def transform_of_column(self: Any, func: Any) -> Any:
    if isinstance(func, str):
        return getattr(self, func)()
    if isinstance(func, np.ufunc):
        return func(self)
    return refuse("Series.transform with a Python function has no rule", "use apply")


@rule("numpy")
def vectorize(pyfunc: Any) -> Any:
    refuse("np.vectorize has no rule", "use Series.apply")
