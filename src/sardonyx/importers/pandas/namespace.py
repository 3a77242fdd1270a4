"""The names that a function sees while it is recorded.

The function runs with `pd`, `np` and its own helper functions replaced by recording ones, wherever
it refers to them: as globals, in closures, by an import inside. Random numbers, clocks, files and
the network are refused. pandas itself is not patched.
"""

from __future__ import annotations

import builtins
import datetime
import functools
import math
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from sardonyx.importers.pandas.column import Column, is_column
from sardonyx.importers.pandas.frame import Frame, any_proxy
from sardonyx.importers.pandas.recorder import Proxy, call, has_rule, refuse
from sardonyx.importers.pandas.rules import patterns
from sardonyx.importers.pandas.rules.apply import (
    Parts,
    Scalar,
    code_point,
    demand,
    trace_rows,
    written,
)
from sardonyx.importers.pandas.rules.conversions import INFINITY, NUMBER
from sardonyx.importers.pandas.rules.reshape import data_frame, series
from sardonyx.importers.pandas.source import ROWS, TABLE, recompiled
from sardonyx.importers.pandas.tables import Table, frozen

OUTSIDE = {
    **dict.fromkeys(["random", "secrets", "uuid"], "random numbers"),
    **dict.fromkeys(["time"], "the clock"),
    **dict.fromkeys(
        ["io", "pathlib", "shutil", "tempfile", "glob", "pickle", "sqlite3", "csv"], "files"
    ),
    **dict.fromkeys(["joblib", "dill", "json5"], "files"),
    **dict.fromkeys(["requests", "urllib", "socket", "http", "httpx", "ftplib"], "the network"),
    **dict.fromkeys(["subprocess", "multiprocessing", "threading", "os", "sys"], "the system"),
}
NOW = ("now", "today")


def outside(what: str, name: str) -> NoReturn:
    refuse(
        f"{name} reads {what}: a graph gives the same result for the same rows",
        "compute it before, and pass the result in as a column or a constant",
    )


class Outside:
    """A module that must not be used inside the function."""

    def __init__(self, name: str, what: str):
        self.__dict__.update(_name=name, _what=what)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        outside(self._what, f"{self._name}.{name}")


class _Type(type):
    """A class in the place of one of pandas': isinstance knows both, calling it may record."""

    real: Any
    proxy: Any
    make: Callable[..., Any]

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.real) or (
            cls.proxy is not None and isinstance(value, cls.proxy)
        )

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, cls.real)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return cls.make(*arguments, **options)

    def __getattr__(cls, name: str) -> Any:
        if name in ("now", "today", "utcnow"):
            outside("the clock", f"{cls.__name__}.{name}")
        if name == "strptime":
            return _strptime
        return getattr(cls.real, name)


def _strptime(text: Any, form: str) -> Any:
    """A date of the text of a row, as pandas parses it by the same format."""
    if not isinstance(text, Scalar):
        return datetime.datetime.strptime(text, form)
    column = Column(text.step, None).astype("str")
    moment = call("pandas", "to_datetime", column, errors="coerce", format=form)
    demand(moment.notna, ValueError("time data does not match format"))
    return Scalar(moment.step, None)


def _type(name: str, real: Any, proxy: Any, make: Callable[..., Any]) -> Any:
    return _Type(name, (), {"real": real, "proxy": proxy, "make": staticmethod(make)})


def _data_frame(*arguments: Any, **options: Any) -> Any:
    empty = not arguments and set(options) <= {"index"}
    if any_proxy(*arguments, *options.values()) or (empty and options.get("index") is None):
        return data_frame(*arguments, **options)
    return pd.DataFrame(*arguments, **options)


def _series(*arguments: Any, **options: Any) -> Any:
    if any_proxy(*arguments, *options.values()):
        return series(*arguments, **options)
    return pd.Series(*arguments, **options)


def _categorical(*arguments: Any, **options: Any) -> Any:
    if any_proxy(*arguments, *options.values()):
        return call("pandas", "Categorical", *arguments, **options)
    return pd.Categorical(*arguments, **options)


def _timestamp(*arguments: Any, **options: Any) -> Any:
    if any(isinstance(a, str) and a.strip().lower() in NOW for a in arguments):
        outside("the clock", "pd.Timestamp")
    return pd.Timestamp(*arguments, **options)


def _date(real: Any) -> Callable[..., Any]:
    return lambda *arguments, **options: real(*arguments, **options)


DATA_FRAME = _type("DataFrame", pd.DataFrame, Frame, _data_frame)
SERIES = _type("Series", pd.Series, Column, _series)
CATEGORICAL = _type("Categorical", pd.Categorical, None, _categorical)
TIMESTAMP = _type("Timestamp", pd.Timestamp, None, _timestamp)
PERIOD = _type("Period", pd.Period, None, lambda *a, **k: pd.Period(*a, **k))
DATETIME = _type("datetime", datetime.datetime, None, _date(datetime.datetime))
DATE = _type("date", datetime.date, None, _date(datetime.date))
LIST = _type("list", list, None, lambda *a: _list(*a))
TYPES = {
    pd.DataFrame: DATA_FRAME,
    pd.Series: SERIES,
    pd.Categorical: CATEGORICAL,
    pd.Timestamp: TIMESTAMP,
    pd.Period: PERIOD,
    datetime.datetime: DATETIME,
    datetime.date: DATE,
}


class Space:
    """A module whose functions record when they are called with something recorded."""

    def __init__(self, module: types.ModuleType, name: str):
        self.__dict__.update(_module=module, _name=name)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, type) and value in TYPES:
            return TYPES[value]
        if self._name == "numpy":
            return _of_numpy(name, value)
        if self._name == "pandas":
            return _of_pandas(name, value)
        if self._name == "math" and callable(value):
            return _of_math(name, value)
        if self._name == "re":
            return patterns.of_module(name, value)
        return value


def _of_pandas(name: str, value: Any) -> Any:
    if name.startswith("read_") or name in ("ExcelFile", "HDFStore", "ExcelWriter"):
        outside("files", f"pd.{name}")
    if not isinstance(value, types.FunctionType):
        return value

    def function(*arguments: Any, **options: Any) -> Any:
        if any_proxy(*arguments, *options.values()):
            if not has_rule("pandas", name):
                refuse(f"pd.{name} has no rule")
            return call("pandas", name, *arguments, **options)
        if any(isinstance(a, str) and a.strip().lower() in NOW for a in arguments):
            outside("the clock", f"pd.{name}")
        return value(*arguments, **options)

    function.__name__ = name
    return function


def _of_numpy(name: str, value: Any) -> Any:
    if name == "random":
        return Outside("np.random", "random numbers")
    if name in ("load", "loadtxt", "genfromtxt", "fromfile", "save", "memmap", "savez"):
        outside("files", f"np.{name}")
    if name == "vectorize":
        refuse("np.vectorize has no rule", "use Series.apply")
    if name in REDUCIBLE:
        return Reducible(value)
    if name in ("array", "asarray", "ravel", "squeeze"):

        def array(x: Any, *arguments: Any, **options: Any) -> Any:
            if is_column(x) and not arguments and set(options) <= {"dtype"}:
                return x.astype(options["dtype"]) if options.get("dtype") else x
            return value(x, *arguments, **options)

        return array
    if name == "datetime64":

        def moment(*arguments: Any) -> Any:
            if arguments and arguments[0] in NOW:
                outside("the clock", "np.datetime64")
            return value(*arguments)

        return moment
    return value


REDUCIBLE = ("logical_and", "logical_or", "add", "multiply", "maximum", "minimum")


class Reducible:
    """A function of two columns whose `reduce` takes a list of them."""

    def __init__(self, real: Any):
        self.real = real

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.real(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def reduce(self, values: Any, *arguments: Any, **options: Any) -> Any:
        if any_proxy(values) and not isinstance(values, Proxy) and not arguments:
            return functools.reduce(self.real, values)
        return self.real.reduce(values, *arguments, **options)


def _of_math(name: str, value: Any) -> Any:
    names = {"fabs": "fabs", "pow": "power", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
             "atan2": "arctan2"}  # fmt: skip

    def function(*arguments: Any) -> Any:
        if not any_proxy(*arguments):
            return value(*arguments)
        if not any(isinstance(a, Scalar) for a in arguments):
            refuse(f"math.{name} takes one number", f"use np.{names.get(name, name)} for columns")
        if name in ("floor", "ceil", "trunc"):
            return getattr(np, name)(*arguments).astype("int64")
        if name == "log" and len(arguments) == 2:
            return np.log(arguments[0]) / math.log(arguments[1])
        ufunc = getattr(np, names.get(name, name), None)
        if ufunc is None:
            refuse(f"math.{name} has no rule")
        return ufunc(*arguments)

    return function


# -- Python's own functions, inside apply -------------------------------------------


class Builtin:
    """One of Python's types in a function of rows: it converts, and still is the type in tests."""

    def __init__(self, real: Any, function: Callable[..., Any]):
        self.real, self.function = real, function

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if any_proxy(*arguments):
            return self.function(*arguments, **options)
        return self.real(*arguments, **options)

    def __eq__(self, other: object) -> bool:
        return other is self.real or other is self

    def __hash__(self) -> int:
        return hash(self.real)


def _len(value: Any) -> Any:
    if isinstance(value, Parts | patterns.Matches):
        return value.size()
    if isinstance(value, Scalar):
        return Scalar(value.str.len().step, None)
    return builtins.len(value)


def _int(value: Any) -> Any:
    if value.is_text:
        _demand_number(value, r"\s*[+-]?[0-9]+\s*", "invalid literal for int()")
        return Scalar(_coerced(value, 0).astype("int64").step, None)
    demand(value.notna, ValueError("cannot convert float NaN to integer"))
    return Scalar(value.astype("int64").step, None)


def _coerced(value: Any, instead: float) -> Any:
    """Texts as numbers; Python raises where they are none, so that any number will do there."""
    numbers = call("pandas", "to_numeric", Column(value.step), errors="coerce")
    return numbers.fillna(instead) if instead == 0 else numbers.astype("float64")


def _float(value: Any) -> Any:
    if value.is_text:
        form = rf"{NUMBER}|{INFINITY}|\s*[+-]?[nN][aA][nN]\s*"
        _demand_number(value, form, "could not convert string to float")
        return Scalar(_coerced(value, np.nan).step, None)
    return Scalar(value.astype("float64").step, None)


def _demand_number(value: Any, form: str, message: str) -> None:
    demand(lambda: value.isna() | value.str.fullmatch(form, na=False), ValueError(message))


def _str(value: Any) -> Any:
    return written(value)


def _isinstance(value: Any, kinds: Any) -> bool:
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    reals = tuple(k.real if isinstance(k, (Builtin, _Type)) else k for k in several)
    if not isinstance(value, Scalar):
        return isinstance(value, (*reals, *(k for k in several if isinstance(k, _Type))))
    return issubclass(_kind(value, reals), reals)


def _kind(value: Scalar, kind: Any) -> type:
    """The type of a value of a row; a missing string is a float."""
    if value.is_text:
        return str if bool(value.notna()) else float
    kinds = {"f": float, "i": int, "u": int, "b": bool, "M": pd.Timestamp, "m": pd.Timedelta}
    return kinds[value.step.value.dtype.kind]


def _type_of(value: Any) -> Any:
    return _kind(value, ()) if isinstance(value, Scalar) else type(value)


INSIDE_ROWS: dict[str, Any] = {
    "len": _len,
    "int": Builtin(int, _int),
    "float": Builtin(float, _float),
    "str": Builtin(str, _str),
    "bool": Builtin(bool, bool),
    "ord": lambda value: code_point(value) if isinstance(value, Scalar) else ord(value),
    "isinstance": _isinstance,
    "type": _type_of,
}


# -- loops over rows ----------------------------------------------------------------


class Lines:
    """`zip` of columns: the rows of a comprehension."""

    def __init__(self, columns: list[Column]):
        self.columns = columns

    def __iter__(self) -> Any:
        return iter(self.columns[0])  # which refuses


def _zip(*parts: Any, **options: Any) -> Any:
    if not any(map(is_column, parts)):
        return zip(*parts, **options)
    if not all(map(is_column, parts)):
        refuse("zip of columns with something else has no rule")
    return Lines(list(parts))


def _map(function: Any, *parts: Any) -> Any:
    return (
        over_rows(function, _zip(*parts), True)
        if any(map(is_column, parts))
        else (map(function, *parts))
    )


def _list(*arguments: Any) -> Any:
    return arguments[0] if arguments and is_column(arguments[0]) else list(*arguments)


def over_rows(function: Any, rows: Any, many: bool) -> Any:
    """`[function(row) for row in rows]`: over columns, a column; a list otherwise."""
    rows = Lines([rows]) if is_column(rows) else rows
    if isinstance(rows, Lines):
        if not many and len(rows.columns) > 1:
            refuse("a row as a tuple has no rule", "write `for a, b in zip(...)`")
        return trace_rows(function, rows.columns)
    return [function(*row) if many else function(row) for row in rows]


# -- functions ----------------------------------------------------------------------

_LIBRARIES = (
    str(Path(pd.__file__).parents[1]),
    str(Path(types.__file__).parent),
    str(Path(__file__).parent),
)


def rebound(function: Any, inside_rows: bool = False, memo: dict[Any, Any] | None = None) -> Any:
    """A function of the user that sees the recording names; others are returned as they are."""
    memo = {} if memo is None else memo
    if not isinstance(function, types.FunctionType) or _is_library(function):
        return function
    if function in memo:
        return memo[function]
    names = _Names(inside_rows, memo)
    # Python takes the builtins of a function from its globals when the function is made.
    scope: dict[str, Any] = {
        **function.__globals__,
        "__builtins__": names.builtins(),
        ROWS: over_rows,
        TABLE: Table,
    }
    code = recompiled(function)
    code = _without_sets(code) if inside_rows else code
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(types.CellType() for _ in code.co_freevars) or None
    result = types.FunctionType(code, scope, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    memo[function] = result
    for name in _names_of(code):
        if name in scope:
            scope[name] = names.substitute(scope[name])
    for name, new in zip(code.co_freevars, closure or (), strict=True):
        try:
            new.cell_contents = names.substitute(cells[name].cell_contents)
        except ValueError:
            continue  # a variable that is not set yet
    return result


def _is_library(function: Any) -> bool:
    return function.__code__.co_filename.startswith((*_LIBRARIES, sys.prefix))


def _names_of(code: types.CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names_of, inner))


def _without_sets(code: types.CodeType) -> types.CodeType:
    """Constant sets become tuples: values of rows can be compared but have no hash."""
    constants = tuple(
        tuple(c)
        if isinstance(c, frozenset)
        else _without_sets(c)
        if isinstance(c, types.CodeType)
        else c
        for c in code.co_consts
    )
    return code.replace(co_consts=constants)


class _Names:
    def __init__(self, inside_rows: bool, memo: dict[Any, Any]):
        self.inside_rows, self.memo = inside_rows, memo

    def substitute(self, value: Any) -> Any:
        """What the function sees in the place of a value."""
        if isinstance(value, types.ModuleType):
            return self.module(value)
        if isinstance(value, type) and value in TYPES:
            return TYPES[value]
        if isinstance(value, type) and value.__module__.partition(".")[0] in OUTSIDE:
            what = OUTSIDE[value.__module__.partition(".")[0]]
            return lambda *_, **__: outside(what, value.__name__)
        if (getattr(value, "__module__", "") or "").startswith("numpy.random"):
            return lambda *_, **__: outside(
                "random numbers", getattr(value, "__name__", "np.random")
            )
        if isinstance(value, types.FunctionType):
            module, name = getattr(value, "__module__", "") or "", value.__name__
            if module.startswith("pandas.") and getattr(pd, name, None) is value:
                return _of_pandas(name, value)
            top = module.partition(".")[0]
            if top in OUTSIDE:
                return lambda *_, **__: outside(OUTSIDE[top], name)
            return rebound(value, self.inside_rows, self.memo)
        if isinstance(value, types.BuiltinFunctionType | types.MethodType):
            top = (getattr(value, "__module__", "") or "").partition(".")[0]
            if top == "math":
                return _of_math(str(value.__name__), value)
            owner = type(getattr(value, "__self__", None)).__module__ or ""
            if top in OUTSIDE or owner.startswith(("random", "numpy.random")):
                name = value.__name__
                return lambda *_, **__: outside(OUTSIDE.get(top, "random numbers"), name)
        if (type(value).__module__ or "").startswith(("numpy.random", "random")):
            return Outside(type(value).__name__, "random numbers")
        return self.constant(value) if self.inside_rows else value

    def constant(self, value: Any) -> Any:
        """What stands for a constant of the user in a function of rows."""
        return patterns.Pattern(value) if isinstance(value, re.Pattern) else frozen(value)

    def module(self, module: types.ModuleType) -> Any:
        top = module.__name__.partition(".")[0]
        if module is pd:
            return Space(pd, "pandas")
        if module is np:
            return Space(np, "numpy")
        if module in (math, datetime) or (module is re and self.inside_rows):
            return Space(module, module.__name__)
        if module.__name__.startswith("numpy.random"):
            return Outside("np.random", "random numbers")
        if top in OUTSIDE:
            return Outside(module.__name__, OUTSIDE[top])
        return module

    def builtins(self) -> dict[str, Any]:
        statement = builtins.__import__

        def load(name: str, *arguments: Any, **options: Any) -> Any:
            return self.module(statement(name, *arguments, **options))

        def refused(name: str) -> Callable[..., NoReturn]:
            return lambda *_, **__: outside("files", name)

        scope = dict(vars(builtins))
        scope.update({n: refused(n) for n in ("open", "input")}, __import__=load)
        scope.update(zip=_zip, map=_map, list=LIST)
        if self.inside_rows:
            scope.update(INSIDE_ROWS)
        return scope
