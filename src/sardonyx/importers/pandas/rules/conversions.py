"""Types: astype, rounding, numbers from strings and strings from numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas import characters, decimals, lookup, regex, search
from sardonyx.importers.pandas.column import is_column, record
from sardonyx.importers.pandas.emission import (
    DOUBLE,
    FLOAT,
    INT32,
    INT64,
    NAMES,
    Emission,
    Rep,
    is_nullable,
)
from sardonyx.importers.pandas.recorder import refuse, rule

NUMBER = r"[ \t\n\r\x0b\x0c]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\n\r\x0b\x0c]*"
INFINITY = r"[ \t\n\r\x0b\x0c]*[+-]?[iI][nN][fF]([iI][nN][iI][tT][yY])?[ \t\n\r\x0b\x0c]*"
WIDTHS = {"int8": 3, "int16": 5, "int32": 6, "uint8": 2, "uint16": 4, "uint32": 12}


@rule("Series")
def astype(self: Any, dtype: Any, errors: str = "raise", copy: Any = None) -> Any:
    if errors != "raise":
        refuse("astype(errors='ignore') has no rule")
    if isinstance(dtype, dict):
        dtype = dtype[self.label]
    if dtype == "category" or isinstance(dtype, pd.CategoricalDtype):
        from sardonyx.importers.pandas.rules.categories import categorical

        return categorical(self, dtype)
    if isinstance(self.step.value.dtype, pd.StringDtype) and _is_time(dtype):
        from sardonyx.importers.pandas.rules.parsing import to_datetime

        return to_datetime(self)
    is_float = self.step.value.dtype == np.dtype(float) and _is_string(dtype)
    return record(
        "astype", [self], lambda a: a.astype(dtype), converted, label=self.label, chars=is_float
    )


def _is_string(dtype: Any) -> bool:
    try:
        return isinstance(pd.api.types.pandas_dtype(dtype), pd.StringDtype)
    except TypeError:
        return False


def _is_time(dtype: Any) -> bool:
    try:
        return pd.api.types.pandas_dtype(dtype).kind == "M"
    except TypeError:
        return False


def converted(em: Emission, a: Rep) -> Rep:
    """A column as the type that it has in the training frame."""
    dtype = em.dtype
    if a.kind == "category":
        is_text = isinstance(dtype, pd.StringDtype)
        is_interval = isinstance(a.categories, pd.IntervalIndex)
        if is_text and is_interval and a.categories.left.dtype.kind in "iu":
            em.refuse(
                "pandas writes intervals of integers as (1, 2], and as (1.0, 2.0] where a "
                "row of the batch is in no interval",
                "give labels to pd.cut, or edges that are floats",
            )
        if is_text and not (a.categories.dtype.kind in "iuf" and _misses(em)):
            return lookup.gather(em, a.data, pd.Series([str(i) for i in a.categories], dtype="str"))
        a = em.decoded(a)
    if isinstance(dtype, pd.StringDtype):
        return to_text(em, a)
    if dtype == np.dtype(object):
        return a
    kind = getattr(dtype, "kind", "")
    if kind == "f":
        return _to_float(em, a, FLOAT if str(dtype).lower() == "float32" else DOUBLE)
    if kind in "iu":
        return _to_integer(em, a, dtype)
    if kind == "b":
        return _to_bool(em, a)
    if kind in "Mm":
        from sardonyx.importers.pandas.rules.dates import to_unit

        return to_unit(em, a, dtype)
    return em.refuse(f"astype({dtype}) has no rule")


def _misses(em: Emission) -> bool:
    """Whether a value is missing in the training frame: integers are then written as 1.0."""
    return em.step is None or bool(em.step.inputs[0].value.isna().any())


def _to_float(em: Emission, a: Rep, to: Any) -> Rep:
    if a.kind in ("text", "chars"):
        return Rep("float", em.op.cast(parsed(em, a), to))
    if a.kind in ("datetime", "timedelta"):
        em.refuse("datetimes are converted to numbers", "subtract a Timestamp and use .dt")
    return Rep("float", em.double(a, to), a.missing if a.nullable else None)


def _to_integer(em: Emission, a: Rep, dtype: Any) -> Rep:
    op, name = em.op, str(dtype).lower()
    if name == "uint64":
        em.refuse("uint64 has no rule", "int64 has one")
    if a.kind in ("text", "chars"):
        a = Rep("float", parsed(em, a))
    if a.kind in ("datetime", "timedelta"):
        return Rep("int", a.data)
    missing = a.missing
    if a.kind == "float" and is_nullable(dtype):
        missing = em.either(missing, op.IsNaN(a.data))
        a = a.but(data=op.Where(op.IsNaN(a.data), op.const(0.0, a.data.dtype), a.data))
    data = a.data
    if name in WIDTHS:
        # The processor converts floats to 32 bits first, which shows where a value is too large.
        if a.kind == "float" and name != "uint32":
            data = op.Cast(data, to=int(INT32))
        data = op.Cast(op.cast(data, INT64) if a.kind != "float" else data, to=WIDTHS[name])
    return Rep("int", op.Cast(data, to=int(INT64)), missing, nullable=is_nullable(dtype))


def _to_bool(em: Emission, a: Rep) -> Rep:
    if a.kind in ("text", "chars"):
        empty = lookup.position(em, a.but(missing=None), [""])
        held = em.op.Less(empty, em.ints(0))
        return Rep("bool", held if a.missing is None else em.op.Or(held, a.missing))
    if a.kind not in ("int", "float", "bool"):
        em.refuse(f"astype(bool) of {NAMES[a.kind]} has no rule")
    if a.kind == "bool":
        return a
    return Rep("bool", em.op.Not(em.op.Equal(a.data, em.op.const(0, a.data.dtype))), a.missing)


def to_text(em: Emission, a: Rep) -> Rep:
    """Strings of a column, as pandas writes them."""
    if a.kind in ("text", "chars"):
        return a
    in_characters = em.step is not None and em.step in em.characters
    if a.kind == "bool":
        place = em.op.Cast(a.data, to=int(INT64))
        rep = lookup.gather(em, place, pd.Series(["False", "True"]))
        return rep.but(missing=a.missing)
    if a.kind == "int":
        if in_characters:
            return Rep("chars", characters.of_integer(em, a.data), a.missing)
        return Rep("text", em.op.Cast(a.data, to=8), a.missing)
    source = em.step.inputs[0].value.dtype if em.step is not None else None
    if a.kind == "float" and source is not None and source.kind in "iu":
        missing = em.missing(a)  # integers in the training frame, missing in some other rows
        whole = em.op.Cast(em.op.Where(missing, em.op.const(0.0, a.data.dtype), a.data), to=7)
        return to_text(em, Rep("int", whole, missing))
    if a.kind == "float" and in_characters and source == np.dtype(float):
        data = em.double(a)
        return Rep("chars", decimals.of_double(em, data), em.op.IsNaN(data))
    return em.refuse(
        f"{NAMES[a.kind]} become strings in a way that no operator has"
        + (" (or integers that may be missing)" if a.kind == "float" else ""),
        "fill what is missing and convert to int before astype(str)",
    )


def parsed(em: Emission, a: Rep) -> Any:
    """Strings as doubles; NaN where they are no number, as in pd.to_numeric(errors="coerce")."""
    op = em.op
    if a.kind == "text":
        number, infinite = (op.RegexFullMatch(a.data, pattern=p) for p in (NUMBER, INFINITY))
        minus = op.RegexFullMatch(a.data, pattern=r"\s*-(.|\n)*")
        text = op.Where(number, a.data, em.texts("0"))
    else:
        blank = characters.ranges_of(ord(c) for c in " \t\n\r\x0b\x0c")
        a = characters.strip(em, a, blank, True, True)
        number, infinite = (
            search.search(em, a, regex.compiled(rf"\A(?:{p})\Z")).success
            for p in (NUMBER, INFINITY)
        )
        first = op.Slice(a.data, em.ints([0]), em.ints([1]), em.ints([1]))
        minus = op.Squeeze(op.Equal(first, np.int32(45)), em.ints([1]))
        zero = op.const(np.full((1, 1), 48, np.int32))
        plain = characters.where(em, number, Rep("chars", a.data), Rep("chars", zero))
        text = characters.to_text(em, plain.data)
    value = op.Cast(text, to=int(DOUBLE))
    size = op.Where(minus, em.doubles(-np.inf), em.doubles(np.inf))
    value = op.Where(number, value, op.Where(infinite, size, em.doubles(np.nan)))
    return value if a.missing is None else op.Where(a.missing, em.doubles(np.nan), value)


@rule("pandas")
def to_numeric(arg: Any, errors: str = "raise", downcast: Any = None) -> Any:
    if not is_column(arg):
        refuse("pd.to_numeric of something that is no column has no rule")
    if errors not in ("raise", "coerce"):
        refuse(f"errors={errors!r} has no rule", 'errors="coerce" has one')

    def replay(a: pd.Series) -> pd.Series:
        return pd.to_numeric(a, errors=errors, downcast=downcast)

    def emit(em: Emission, a: Rep) -> Rep:
        if a.kind in ("text", "chars"):
            return Rep("float", em.op.cast(parsed(em, a), em.float_type()))
        if a.kind not in ("int", "float", "bool"):
            em.refuse(f"pd.to_numeric of {NAMES[a.kind]} has no rule")
        return a

    return record("to_numeric", [arg], replay, emit, label=arg.label)


@rule("Series", "round")
def round_(self: Any, decimals: int = 0) -> Any:
    def emit(em: Emission, a: Rep) -> Rep:
        op = em.op
        if a.kind in ("int", "bool") and decimals >= 0:
            return a
        if a.kind != "float":
            em.refuse(f"rounding {NAMES[a.kind]} has no rule")
        if decimals == 0:
            return a.but(data=op.Round(a.data))
        scale = op.const(10.0 ** abs(decimals), a.data.dtype)
        if decimals > 0:
            return a.but(data=op.Div(op.Round(op.Mul(a.data, scale)), scale))
        return a.but(data=op.Mul(op.Round(op.Div(a.data, scale)), scale))

    return record("round", [self], lambda a: a.round(decimals), emit, label=self.label)


@rule("Series", "abs")
def abs_(self: Any) -> Any:
    return abs(self).named(self.label)


@rule("Series")
def convert_dtypes(self: Any) -> Any:
    refuse("convert_dtypes chooses types by the values", "use astype")


@rule("Series")
def infer_objects(self: Any, copy: Any = None) -> Any:
    return self


@rule("DataFrame", "infer_objects")
def infer_objects_of_frame(self: Any, copy: Any = None) -> Any:
    return self.copy()
