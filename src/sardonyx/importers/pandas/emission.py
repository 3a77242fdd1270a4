"""Emission: steps become nodes of ONNX; a column is a `Rep`, one or two tensors over its rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pandas as pd

from sardonyx.build import Builder
from sardonyx.frames import END, MISSING_CHARACTER, MISSING_INT, MISSING_TEXT
from sardonyx.importers.pandas.recorder import Rows, Step, holds_booleans, refuse

DOUBLE, FLOAT = ir.DataType.DOUBLE, ir.DataType.FLOAT
INT64, INT32, BOOL = ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL
STRING = ir.DataType.STRING
ML = "ai.onnx.ml"
TEXTS = ("text", "chars")


@dataclass(frozen=True)
class Rep:
    """A column in the graph.

    kind      float, int, bool, datetime, timedelta, category, text, chars
    data      float: double or float, NaN is missing · int, datetime, timedelta: int64 · bool
              category: int64 codes · text: string · chars: int32 [rows, length], padded with -1
    missing   bool, for text, chars and nullable columns; None: nothing is missing
    unit, timezone, categories, ordered    what the type has beside its values
    """

    kind: str
    data: ir.Value
    missing: ir.Value | None = None
    unit: str = ""
    timezone: str = ""
    categories: Any = None
    ordered: bool = False
    nullable: bool = False

    def but(self, **changes: Any) -> Rep:
        return replace(self, **changes)


def kind_of(dtype: Any) -> str:
    """The kind of a column of pandas."""
    if isinstance(dtype, pd.CategoricalDtype):
        return "category"
    if isinstance(dtype, (pd.StringDtype,)) or dtype == np.dtype(object):
        return "text"
    kinds = {"f": "float", "i": "int", "u": "int", "b": "bool", "M": "datetime", "m": "timedelta"}
    if getattr(dtype, "kind", "") not in kinds or str(dtype) in ("float16", "uint64", "UInt64"):
        refuse(f"columns of dtype {dtype} have no rule", "convert the column before")
    return kinds[dtype.kind]


def is_nullable(dtype: Any) -> bool:
    return hasattr(dtype, "na_value") and getattr(dtype, "kind", "") in "iufb"


def is_nullable_text(dtype: Any) -> bool:
    """Whether tests of a missing string are missing themselves: the dtype "string" has pd.NA."""
    return isinstance(dtype, pd.StringDtype) and dtype.na_value is pd.NA


def unit_of(dtype: Any) -> str:
    return getattr(dtype, "unit", None) or np.datetime_data(dtype)[0]


class Emission:
    """Builds the graph of the steps that the results need."""

    def __init__(self, characters: set[Step]):
        self.op = Builder()
        self.reps: dict[Step, Rep] = {}
        self.inputs: dict[Step, ir.Value] = {}
        self.characters = characters
        self.step: Step | None = None
        self.counts: dict[Rows, ir.Value] = {}
        self.base: ir.Value | None = None
        self.nothings: set[ir.Value] = set()

    # -- walking -------------------------------------------------------------------

    def rep(self, step: Step) -> Rep:
        pending = [step]
        while pending:
            top = pending[-1]
            waiting = [s for s in top.inputs if s not in self.reps]
            if top in self.reps or not waiting:
                pending.pop()
                if top not in self.reps:
                    self.reps[top] = self._emit(top)
            else:
                pending.extend(waiting)
        return self.reps[step]

    def _emit(self, step: Step) -> Rep:
        outer, self.step = self.step, step
        try:
            with self.op.named(f"{step.name}_{step.place.line}"):
                return step.emit(self, *(self.reps[s] for s in step.inputs))
        finally:
            self.step = outer

    def refuse(self, reason: str, hint: str | None = None) -> Any:
        refuse(reason, hint, self.step.place if self.step else None)

    @property
    def dtype(self) -> Any:
        """The dtype that the column has in the training frame."""
        assert self.step is not None
        return self.step.value.dtype

    # -- rows ----------------------------------------------------------------------

    def count(self, rows: Rows) -> ir.Value:
        """The number of rows, as an int64 of shape [1]."""
        if rows not in self.counts:
            if rows.keep is None and rows.base is not None:
                return self.count(rows.base)
            if rows.parts:
                counts = [self.count(part) for part in rows.parts]
                self.counts[rows] = functools.reduce(self.op.Add, counts)
                return self.counts[rows]
            if rows.keep is None:
                assert self.base is not None
                self.counts[rows] = self.op.Shape(self.base, start=0, end=1)
            else:
                keep = self.op.Cast(self.rep(rows.keep).data, to=int(INT64))
                self.counts[rows] = self.op.ReduceSum(keep, np.array([0], np.int64), keepdims=1)
        return self.counts[rows]

    def expand(self, rep: Rep, rows: Rows) -> Rep:
        """A single value in every row."""
        count = self.count(rows)
        is_nothing = self.is_nothing(rep)
        if rep.kind == "text" and self.step in self.characters:
            from sardonyx.importers.pandas import characters

            rep = characters.of_text(self, rep)
        if rep.kind == "chars":
            width = self.op.Shape(rep.data, start=-1)
            data = self.op.Expand(rep.data, self.op.Concat(count, width, axis=0))
        else:
            data = self.op.Expand(rep.data, count)
        if is_nothing:
            self.nothings.add(data)
        missing = None if rep.missing is None else self.op.Expand(rep.missing, count)
        return rep.but(data=data, missing=missing)

    def like(self, rep: Rep, other: Rep) -> Rep:
        """A single value in as many rows as `other` has; columns stay as they are."""
        if self.rank(rep) == self.rank(other) or rep.data is other.data:
            return rep
        shape = self.op.Shape(other.data, start=0, end=1)
        data = self.op.Expand(rep.data, shape)
        missing = None if rep.missing is None else self.op.Expand(rep.missing, shape)
        return rep.but(data=data, missing=missing)

    def rank(self, rep: Rep) -> int:
        shape = rep.data.shape
        return 1 if shape is None else len(shape) - (rep.kind == "chars")

    # -- constants -----------------------------------------------------------------

    def texts(self, values: Any) -> ir.Value:
        """A constant tensor of strings."""
        array = np.asarray(values, object)
        encoded = [str(v).encode() for v in array.reshape(-1)]
        key = ("text", array.shape, tuple(encoded))
        constants = self.op.root.constants
        if key not in constants:
            name = self.op.fresh("text")
            tensor = ir.StringTensor(encoded, shape=ir.Shape(array.shape), name=name)
            constants[key] = ir.Value(
                name=name, shape=tensor.shape, type=ir.TensorType(STRING), const_value=tensor
            )
        return constants[key]

    def ints(self, values: Any) -> ir.Value:
        return self.op.const(np.asarray(values, np.int64))

    def doubles(self, values: Any) -> ir.Value:
        return self.op.const(np.asarray(values, np.float64))

    def bools(self, values: Any) -> ir.Value:
        return self.op.const(np.asarray(values, np.bool_))

    def points(self, values: Any) -> ir.Value:
        """Strings as a constant matrix of code points."""
        return self.op.const(points_of(values))

    def scalar(self, value: Any, dtype: Any = None) -> Rep:
        """One value as a rep without rows (rank 0; characters: [1, length])."""
        if isinstance(value, str):
            return Rep("text", self.texts(value))
        if isinstance(value, (bool, np.bool_)):
            return Rep("bool", self.bools(value))
        if isinstance(value, (pd.Timestamp, np.datetime64)) or value is pd.NaT:
            stamp = pd.Timestamp(value)
            unit = unit_of(dtype) if dtype is not None and dtype.kind in "M" else stamp.unit
            zone = str(stamp.tz) if getattr(stamp, "tz", None) else ""
            return Rep("datetime", self.ints(ticks(stamp, unit)), unit=unit, timezone=zone)
        if isinstance(value, (pd.Timedelta, np.timedelta64)) or hasattr(value, "total_seconds"):
            delta = pd.Timedelta(value)
            unit = unit_of(dtype) if dtype is not None and dtype.kind == "m" else delta.unit
            return Rep("timedelta", self.ints(ticks(delta, unit)), unit=unit)
        if isinstance(value, (int, np.integer)):
            return Rep("int", self.ints(int(value)))
        if isinstance(value, (float, np.floating)):
            return Rep("float", self.doubles(float(value)))
        if value is None or value is pd.NA:
            return Rep("float", self.doubles(np.nan))
        return self.refuse(f"a constant of type {type(value).__name__} has no rule")

    def operand(self, value: Any, dtype: Any = None) -> Rep:
        return value if isinstance(value, Rep) else self.scalar(value, dtype)

    # -- conversions ---------------------------------------------------------------

    def missing(self, rep: Rep) -> ir.Value:
        """Where a column is missing, as booleans."""
        op = self.op
        if rep.kind == "float" and rep.missing is None:
            return op.IsNaN(rep.data)
        if rep.kind in ("datetime", "timedelta"):
            return op.Equal(rep.data, self.ints(MISSING_INT))
        if rep.kind == "category":
            return op.Less(rep.data, self.ints(0))
        if rep.missing is not None:
            return op.Or(rep.missing, op.IsNaN(rep.data)) if rep.kind == "float" else rep.missing
        if self.rank(rep) == 0 and rep.kind != "chars":
            return self.bools(False)
        return op.Expand(self.bools(False), op.Shape(rep.data, start=0, end=1))

    def may_miss(self, rep: Rep) -> bool:
        return rep.missing is not None or rep.kind not in ("int", "bool", *TEXTS)

    def double(self, rep: Rep, to: ir.DataType = DOUBLE) -> ir.Value:
        """A numeric column as floats, NaN where it is missing."""
        if rep.kind not in ("float", "int", "bool"):
            self.refuse(f"a number is needed here, and this is a column of {NAMES[rep.kind]}")
        data = self.op.cast(rep.data, to)
        if rep.missing is not None:
            data = self.op.Where(rep.missing, self.op.const(np.nan, to), data)
        return data

    def int64(self, rep: Rep) -> ir.Value:
        return self.op.cast(rep.data, INT64)

    def either(self, *masks: ir.Value | None) -> ir.Value | None:
        """Where one of the masks holds; None if there are none."""
        result: ir.Value | None = None
        for mask in masks:
            if mask is not None and mask is not result:
                result = mask if result is None else self.op.Or(result, mask)
        return result

    def float_type(self) -> ir.DataType:
        """float32 only where pandas computes in it."""
        return FLOAT if str(self.dtype).lower() == "float32" else DOUBLE

    def floats(self, data: ir.Value, missing: ir.Value | None = None) -> Rep:
        return Rep("float", data, missing)

    def where(self, condition: ir.Value, a: Rep, b: Rep) -> Rep:
        """Row by row `a` or `b`, brought to one kind."""
        if self.is_nothing(a) and self.is_nothing(b):
            return a
        a, b = self.unify(a, b)
        if a.kind == "chars":
            from sardonyx.importers.pandas import characters

            return characters.where(self, condition, a, b)
        missing = None
        if a.missing is not None or b.missing is not None:
            never = self.bools(False)
            missing = self.choose(condition, a.missing or never, b.missing or never)
        return a.but(data=self.choose(condition, a.data, b.data), missing=missing)

    def choose(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """Where, also for booleans, which onnxruntime's Where does not take."""
        op = self.op
        if a.dtype != BOOL:
            return op.Where(condition, a, b)
        return op.Or(op.And(condition, a), op.And(op.Not(condition), b))

    def unify(self, a: Rep, b: Rep) -> tuple[Rep, Rep]:
        """Two reps of one kind, as NumPy and pandas promote them."""
        if a.kind != b.kind:
            a, b = self._toward(a, b), self._toward(b, a)
        if a.kind == "float":
            to = self.float_type()
            return a.but(data=self.op.cast(a.data, to)), b.but(data=self.op.cast(b.data, to))
        if a.kind in ("datetime", "timedelta") and a.unit != b.unit:
            unit = finest(a.unit, b.unit)
            return self.in_unit(a, unit), self.in_unit(b, unit)
        if a.kind == "category" and not a.categories.equals(b.categories):
            return self.decoded(a), self.decoded(b)
        if a.kind != b.kind:
            self.refuse(
                f"{NAMES[a.kind]} and {NAMES[b.kind]} are in one column",
                "a column of ONNX has one type: fill and choose with values of the column's own",
            )
        return a, b

    def _toward(self, rep: Rep, other: Rep) -> Rep:
        """`rep` as a kind in which `other` can be expressed too."""
        kinds = {rep.kind, other.kind}
        if kinds <= {"int", "bool"}:
            return rep.but(kind="int", data=self.int64(rep))
        if kinds <= {"float", "int", "bool"}:
            return Rep("float", self.double(rep, self.float_type()))
        if self.is_nothing(rep):
            return self.nothing(other)
        if self.is_nothing(other):
            return rep
        if rep.kind == "category" and other.kind != "category":
            return self._toward(self.decoded(rep), other)
        if kinds == {"text", "chars"}:
            from sardonyx.importers.pandas import characters

            return characters.of_text(self, rep)
        return rep

    def is_nothing(self, rep: Rep) -> bool:
        """Whether a rep is the constant that means missing in every kind."""
        value = rep.data.const_value
        return rep.data in self.nothings or (
            rep.kind == "float"
            and value is not None
            and value.size == 1
            and bool(np.isnan(value.numpy()).all())
        )

    def nothing(self, like: Rep) -> Rep:
        """The missing value of another rep's kind."""
        if like.kind in ("datetime", "timedelta"):
            return like.but(data=self.ints(MISSING_INT), missing=None)
        if like.kind == "category":
            return like.but(data=self.ints(-1))
        if like.kind == "text":
            return like.but(data=self.texts(""), missing=self.bools(True))
        if like.kind == "chars":
            return like.but(
                data=self.op.const(np.full((1, 1), END, np.int32)), missing=self.bools([True])
            )
        return Rep("float", self.op.const(np.nan, self.float_type()))

    def in_unit(self, rep: Rep, unit: str) -> Rep:
        """Times in a finer unit."""
        if rep.unit == unit:
            return rep
        factor = TICKS[unit] // TICKS[rep.unit]
        value = rep.data.const_value
        if value is not None:
            number = int(value.numpy())
            data = self.ints(number if number == MISSING_INT else number * factor)
            return rep.but(data=data, unit=unit)
        scaled = self.op.Mul(rep.data, self.ints(factor))
        data = self.op.Where(self.missing(rep), self.ints(MISSING_INT), scaled)
        return rep.but(data=data, unit=unit)

    def decoded(self, rep: Rep) -> Rep:
        """The values of a categorical column."""
        from sardonyx.importers.pandas.lookup import gather

        return gather(self, rep.data, pd.Series(rep.categories))


NAMES = {
    "float": "numbers", "int": "integers", "bool": "booleans", "datetime": "datetimes",
    "timedelta": "timedeltas", "category": "categories", "text": "strings", "chars": "strings",
}  # fmt: skip
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def finest(*units: str) -> str:
    return max(units, key=lambda u: TICKS[u])


def ticks(value: Any, unit: str) -> int:
    """A Timestamp or Timedelta as a number of units."""
    if value is pd.NaT:
        return MISSING_INT
    if getattr(value, "tz", None) is not None:
        value = value.tz_convert("UTC").tz_localize(None)
    fine = value.as_unit("ns") if unit == "ns" else value
    number = int(fine.as_unit(finest(unit, fine.unit)).to_numpy().astype("int64"))
    scale = TICKS[finest(unit, fine.unit)] // TICKS[unit]
    if number % scale:
        refuse(f"{value} cannot be expressed in the column's unit {unit}")
    return number // scale


def points_of(values: Any) -> np.ndarray:
    """Strings as a matrix of code points, padded; at least one wide."""
    values = [str(v) for v in values]
    width = max([len(v) for v in values] + [1])
    array = np.full((len(values), width), END, np.int32)
    for row, value in zip(array, values, strict=True):
        row[: len(value)] = [ord(c) for c in value]
    return array


def input_rep(em: Emission, step: Step, name: str) -> Rep:
    """The graph input of a column of the frame."""
    dtype = step.value.dtype
    if holds_booleans(step.value):
        value = _input(em, step, name, INT64, ir.Shape(["rows"]))
        missing = em.op.Equal(value, em.ints(MISSING_INT))
        return Rep("bool", em.op.Equal(value, em.ints(1)), missing)
    kind, op = kind_of(dtype), em.op
    if kind == "text" and step in em.characters:
        value = _input(em, step, name, INT32, ir.Shape(["rows", f"length of {name}"]))
        first = op.Slice(value, em.ints([0]), em.ints([1]), em.ints([1]))
        missing = op.Squeeze(op.Equal(first, np.int32(MISSING_CHARACTER)), em.ints([1]))
        data = op.Max(value, np.int32(END))
        return Rep("chars", data, missing, nullable=is_nullable_text(dtype))
    types = {"float": em_float(dtype), "bool": BOOL, "text": STRING}
    element = INT64 if is_nullable(dtype) and kind == "bool" else types.get(kind, INT64)
    value = _input(em, step, name, element, ir.Shape(["rows"]))
    if kind == "text":
        missing = op.Equal(value, em.texts(MISSING_TEXT))
        return Rep("text", value, missing, nullable=is_nullable_text(dtype))
    if kind in ("datetime", "timedelta"):
        zone = str(getattr(dtype, "tz", None) or "")
        return Rep(kind, value, unit=unit_of(dtype), timezone=zone)
    if kind == "category":
        return Rep(kind, value, categories=dtype.categories, ordered=bool(dtype.ordered))
    if is_nullable(dtype):
        is_missing = op.IsNaN(value) if kind == "float" else op.Equal(value, em.ints(MISSING_INT))
        data = value if kind == "float" else op.Where(is_missing, em.ints(0), value)
        data = op.Cast(data, to=int(BOOL)) if kind == "bool" else data
        return Rep(kind, data, is_missing, nullable=True)
    return Rep(kind, value)


def em_float(dtype: Any) -> ir.DataType:
    return FLOAT if str(dtype).lower() == "float32" else DOUBLE


def _input(em: Emission, step: Step, name: str, element: Any, shape: ir.Shape) -> ir.Value:
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(element))
    em.op.reserve([name])
    em.inputs[step] = value
    if em.base is None:
        em.base = value
    return value


def output_tensor(em: Emission, rep: Rep) -> ir.Value:
    """The one tensor that a column gives: missing values as the schema writes them."""
    op, data, missing = em.op, rep.data, rep.missing
    if rep.kind == "text":
        return data if missing is None else op.Where(missing, em.texts(MISSING_TEXT), data)
    if rep.kind == "chars":
        data = op.Pad(data, em.ints([0, 0, 0, 1]), np.int32(END))
        if missing is None:
            return data
        mark = op.Unsqueeze(missing, em.ints([1]))
        return op.Where(mark, np.int32(MISSING_CHARACTER), data)
    if rep.kind == "float":
        return em.double(rep, data.dtype)  # type: ignore[arg-type]
    if missing is None:
        return data
    return op.Where(missing, em.ints(MISSING_INT), em.int64(rep))
