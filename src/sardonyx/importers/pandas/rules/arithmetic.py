"""Arithmetic, comparisons and logic between columns and values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.frames import MISSING_INT
from sardonyx.importers.pandas.column import (
    Column,
    check_operand,
    is_column,
    record,
)
from sardonyx.importers.pandas.emission import (
    DOUBLE,
    INT64,
    NAMES,
    Emission,
    Rep,
    finest,
    unit_of,
)
from sardonyx.importers.pandas.recorder import refuse, rule

ARITHMETIC = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow,
}  # fmt: skip
COMPARISONS = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
LOGICAL = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
ALIASES = {"truediv": ["div", "divide"], "sub": ["subtract"], "mul": ["multiply"]}
UFUNCS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "eq": "equal",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip


def _define(name: str, function: Callable[..., Any], emit: Callable[..., Any]) -> None:
    def method(self: Any, other: Any, fill_value: Any = None) -> Any:
        if fill_value is not None:
            self = self.fillna(fill_value)
            other = other.fillna(fill_value) if is_column(other) else other
        return binary(name, function, emit, self, other)

    def reverse(self: Any, other: Any) -> Any:
        return binary(name, function, emit, check_operand(other), self)

    def ufunc(left: Any, right: Any) -> Any:
        frame = next((x for x in (left, right) if getattr(x, "_owner", "") == "DataFrame"), None)
        if frame is not None and frame is left:
            return getattr(frame, f"__{name}__")(right)
        if frame is not None:
            return getattr(frame, f"__r{name}__")(left)
        return binary(name, function, emit, left, right)

    rule("Series", name, *ALIASES.get(name, ()))(method)
    if name in ARITHMETIC:
        rule("Series", f"r{name}")(reverse)
    rule("numpy", UFUNCS[name])(ufunc)


def _define_logical(name: str, function: Callable[..., Any]) -> None:
    of_booleans = {"and": logical_and, "or": logical_or, "xor": logical_xor}[name]

    def emit(em: Emission, _: str, a: Any, b: Any) -> Rep:
        left, right = em.operand(a), em.operand(b)
        if left.kind == right.kind == "int" and left.missing is right.missing is None:
            return Rep("int", getattr(em.op, f"Bitwise{name.title()}")(left.data, right.data))
        return of_booleans(em, name, a, b)

    def method(self: Any, other: Any) -> Any:
        return binary(name, function, emit, self, other)

    def reverse(self: Any, other: Any) -> Any:
        return binary(name, function, emit, other, self)

    rule("Series", f"__{name}__")(method)
    rule("Series", f"__r{name}__")(reverse)
    rule("numpy", f"bitwise_{name}")(method)
    rule("numpy", f"logical_{name}")(method)


def _months() -> tuple[Any, Any]:
    from sardonyx.importers.pandas.rules.offsets import is_offset, moved

    return is_offset, moved


def binary(
    name: str, function: Callable[..., Any], emit: Callable[..., Any], left: Any, right: Any
) -> Any:
    if getattr(right, "_owner", "") == "DataFrame":
        return NotImplemented
    is_offset, moved = _months()
    offsets = [v for v in (left, right) if is_offset(v)]
    if offsets and name in ("add", "sub") and (name == "add" or is_column(left)):
        return moved(left if is_column(left) else right, offsets[0], 1 if name == "add" else -1)
    left, right = check_operand(left), check_operand(right)
    column = left if is_column(left) else right
    left, right = as_time(left, column), as_time(right, column)

    def replay(a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(a, b)

    label = column.label if not (is_column(left) and is_column(right)) else None
    return record(
        name, [left, right], replay, lambda em, a, b: emit(em, name, a, b), label=label, pure=True
    )


def as_time(value: Any, column: Column) -> Any:
    """A text that is compared with datetimes is a datetime."""
    if isinstance(value, str) and column.step.value.dtype.kind in "Mm":
        return (pd.Timestamp if column.step.value.dtype.kind == "M" else pd.Timedelta)(value)
    if not is_column(value) and hasattr(value, "freqstr") and hasattr(value, "n"):
        parts = getattr(value, "kwds", {})
        if parts and set(parts) <= {"weeks", "days", "hours", "minutes", "seconds"}:
            return pd.Timedelta(**parts) * value.n
        try:
            return pd.Timedelta(value)
        except ValueError:
            refuse(f"the offset {value!r} has no rule", "pd.Timedelta has one")
    return value


# -- arithmetic ---------------------------------------------------------------------


def arithmetic(em: Emission, name: str, a: Any, b: Any) -> Rep:
    left, right = em.operand(a), em.operand(b)
    kinds = {left.kind, right.kind}
    if "category" in kinds:
        em.refuse("arithmetic with categories has no meaning", "convert with astype first")
    if kinds & {"text", "chars"}:
        return _join(em, name, left, right)
    if kinds & {"datetime", "timedelta"}:
        return times(em, name, left, right)
    if kinds == {"bool"} and name in ("add", "mul"):
        emit = em.op.Or if name == "add" else em.op.And
        return Rep("bool", emit(left.data, right.data), em.either(left.missing, right.missing))
    if name == "truediv" or "float" in kinds or _divides_by_zero(name, right):
        return floats(em, name, left, right)
    if name == "pow" and not _is_small_power(right):
        em.refuse(
            "an integer to a power that is no small constant overflows as pandas does not",
            "convert one of them to float",
        )
    missing = em.either(left.missing, right.missing)
    data = INTEGERS[name](em, em.int64(left), em.int64(right))
    return wrapped(em, Rep("int", data, missing, nullable=left.nullable or right.nullable))


def _join(em: Emission, name: str, left: Rep, right: Rep) -> Rep:
    from sardonyx.importers.pandas import characters

    if em.is_nothing(left) or em.is_nothing(right):
        em.refuse("a string and a missing value are added")
    if name != "add" or not {left.kind, right.kind} <= {"text", "chars"}:
        em.refuse(
            f"{name} of {NAMES[left.kind]} and {NAMES[right.kind]} has no meaning",
            "numbers become strings with astype(str)",
        )
    return characters.concatenate(em, left, right)


def _divides_by_zero(name: str, right: Rep) -> bool:
    """Division by an integer that may be zero gives infinities in pandas: those are floats."""
    if name not in ("floordiv", "mod"):
        return False
    value = right.data.const_value
    return value is None or not value.numpy().all()


def _is_small_power(right: Rep) -> bool:
    value = right.data.const_value
    return value is not None and right.kind == "int" and 0 <= int(value.numpy()) <= 16


def wrapped(em: Emission, rep: Rep) -> Rep:
    """Integers of less than 64 bits wrap around, as they do in pandas."""
    dtype = str(em.dtype).lower()
    narrow = {"int8": 3, "int16": 5, "int32": 6, "uint8": 2, "uint16": 4, "uint32": 12}
    if rep.kind != "int" or dtype not in narrow:
        return rep
    data = em.op.Cast(em.op.Cast(rep.data, to=narrow[dtype]), to=int(INT64))
    return rep.but(data=data)


def _floor_divide_integers(em: Emission, a: Any, b: Any) -> Any:
    op, zero = em.op, em.ints(0)
    quotient = op.Div(a, b)  # truncates
    rest = op.Sub(a, op.Mul(quotient, b))
    turn = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(b, zero)))
    return op.Sub(quotient, op.Cast(turn, to=int(INT64)))


def _power_of_integer(em: Emission, a: Any, b: Any) -> Any:
    exponent = int(b.const_value.numpy())
    result = em.ints(1)
    for _ in range(exponent):
        result = em.op.Mul(result, a)
    return result


INTEGERS = {
    "add": lambda em, a, b: em.op.Add(a, b),
    "sub": lambda em, a, b: em.op.Sub(a, b),
    "mul": lambda em, a, b: em.op.Mul(a, b),
    "mod": lambda em, a, b: em.op.Mod(a, b),
    "floordiv": _floor_divide_integers,
    "pow": _power_of_integer,
}


def floats(em: Emission, name: str, left: Rep, right: Rep) -> Rep:
    to = em.float_type()
    missing = em.either(left.missing, right.missing) if left.nullable or right.nullable else None
    return Rep(
        "float", FLOAT_FUNCTIONS[name](em, em.double(left, to), em.double(right, to)), missing
    )


def remainder(em: Emission, a: Any, b: Any) -> Any:
    """The remainder with the sign of the divisor, as Python and NumPy have it."""
    op = em.op
    rest = op.Mod(a, b, fmod=1)
    zero = op.const(0.0, a.dtype)
    turn = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(b, zero)))
    return op.Where(turn, op.Add(rest, b), rest)


def floor_divide(em: Emission, a: Any, b: Any) -> Any:
    """NumPy's: the quotient without the remainder, rounded to the integer next to it."""
    op = em.op
    quotient = op.Div(op.Sub(a, remainder(em, a, b)), b)
    floor = op.Floor(quotient)
    half, one, zero = (op.const(c, a.dtype) for c in (0.5, 1.0, 0.0))
    floor = op.Where(op.Greater(op.Sub(quotient, floor), half), op.Add(floor, one), floor)
    return op.Where(op.Equal(b, zero), op.Div(a, b), floor)


def _power(em: Emission, a: Any, b: Any) -> Any:
    value = b.const_value
    if value is not None and float(value.numpy()) == 2.0:
        return em.op.Mul(a, a)
    if value is not None and float(value.numpy()) == 0.5:
        return em.op.Where(
            em.op.Equal(a, em.op.const(-np.inf, a.dtype)),
            em.op.const(np.inf, a.dtype),
            em.op.Sqrt(a),
        )
    return em.op.Pow(a, b)


FLOAT_FUNCTIONS = {
    "add": lambda em, a, b: em.op.Add(a, b),
    "sub": lambda em, a, b: em.op.Sub(a, b),
    "mul": lambda em, a, b: em.op.Mul(a, b),
    "truediv": lambda em, a, b: em.op.Div(a, b),
    "mod": remainder,
    "floordiv": floor_divide,
    "pow": _power,
}


# -- times --------------------------------------------------------------------------


def times(em: Emission, name: str, a: Rep, b: Rep) -> Rep:
    """Datetimes and timedeltas: differences, sums, and scaling by numbers."""
    if a.timezone != b.timezone and a.kind == b.kind == "datetime":
        em.refuse("datetimes of different time zones are combined")
    if {a.kind, b.kind} <= {"datetime", "timedelta"} and name in (
        "add",
        "sub",
        "truediv",
        "floordiv",
    ):
        return _between_times(em, name, a, b)
    if name == "mul" and {a.kind, b.kind} == {"timedelta", "int"}:
        delta = a if a.kind == "timedelta" else b
        return _guarded(em, delta, em.op.Mul(em.int64(a), em.int64(b)), a, b)
    if name in ("mul", "truediv") and (a.kind == "timedelta" or name == "mul"):
        delta = a if a.kind == "timedelta" else b
        factor = b if delta is a else a
        value = FLOAT_FUNCTIONS[name](em, em.op.Cast(delta.data, to=int(DOUBLE)), em.double(factor))
        whole = em.op.Cast(value, to=int(INT64))  # both truncate
        bad = em.op.Or(em.missing(delta), em.op.Or(em.op.IsNaN(value), em.op.IsInf(value)))
        return delta.but(data=em.op.Where(bad, em.ints(MISSING_INT), whole))
    return em.refuse(f"{name} of {NAMES[a.kind]} and {NAMES[b.kind]} has no rule")


def _between_times(em: Emission, name: str, a: Rep, b: Rep) -> Rep:
    unit = finest(a.unit, b.unit)
    if em.dtype.kind in "Mm":
        unit = finest(unit, unit_of(em.dtype))
    a, b = em.in_unit(a, unit), em.in_unit(b, unit)
    if name in ("truediv", "floordiv"):
        missing = em.op.Or(em.missing(a), em.missing(b))
        x, y = (em.op.Cast(t.data, to=int(DOUBLE)) for t in (a, b))
        quotient = FLOAT_FUNCTIONS[name](em, x, y)
        return Rep("float", em.op.Where(missing, em.doubles(np.nan), quotient))
    emit = em.op.Add if name == "add" else em.op.Sub
    kind = "datetime" if (a.kind != b.kind) else "timedelta"
    base = a if a.kind == "datetime" else b
    zone = base.timezone if kind == "datetime" else ""
    return _guarded(em, Rep(kind, a.data, unit=unit, timezone=zone), emit(a.data, b.data), a, b)


def _guarded(em: Emission, like: Rep, data: Any, *operands: Rep) -> Rep:
    is_missing = em.either(
        *(em.missing(r) for r in operands if r.kind in ("datetime", "timedelta"))
    )
    is_missing = em.either(is_missing, *(em.missing(r) for r in operands if r.kind == "float"))
    return like.but(data=em.op.Where(is_missing, em.ints(MISSING_INT), data))


# -- comparisons --------------------------------------------------------------------


def comparison(em: Emission, name: str, a: Any, b: Any) -> Rep:
    left, right = em.operand(a), em.operand(b)
    if left.kind == "category" or right.kind == "category":
        return _compare_categories(em, name, left, right, b if left.kind == "category" else a)
    if {left.kind, right.kind} & {"text", "chars"}:
        return _compare_texts(em, name, left, right, a, b)
    if {left.kind, right.kind} & {"datetime", "timedelta"}:
        if left.kind != right.kind or left.timezone != right.timezone:
            if em.is_nothing(left) or em.is_nothing(right):
                return Rep("bool", _constant_rows(em, left, right, name == "ne"))
            em.refuse(f"{NAMES[left.kind]} are compared with {NAMES[right.kind]}")
        unit = finest(left.unit, right.unit)
        left, right = em.in_unit(left, unit), em.in_unit(right, unit)
        is_missing = em.op.Or(em.missing(left), em.missing(right))
        return Rep(
            "bool", _or_missing(em, name, compare(em, name, left.data, right.data), is_missing)
        )
    if "float" in (left.kind, right.kind):
        to = left.data.dtype if left.data.dtype == right.data.dtype else DOUBLE
        x, y = em.op.cast(left.data, to), em.op.cast(right.data, to)
    elif left.kind == right.kind == "bool" and name in ("eq", "ne"):
        x, y = left.data, right.data
    else:
        x, y = em.int64(left), em.int64(right)
    missing = em.either(left.missing, right.missing)
    if missing is not None and not (left.nullable or right.nullable):  # NaN among objects
        return Rep("bool", _or_missing(em, name, compare(em, name, x, y), missing))
    return Rep("bool", compare(em, name, x, y), missing, nullable=missing is not None)


def compare(em: Emission, name: str, x: Any, y: Any) -> Any:
    op = em.op
    return {
        "eq": lambda: op.Equal(x, y),
        "ne": lambda: op.Not(op.Equal(x, y)),
        "lt": lambda: op.Less(x, y),
        "le": lambda: op.LessOrEqual(x, y),
        "gt": lambda: op.Greater(x, y),
        "ge": lambda: op.GreaterOrEqual(x, y),
    }[name]()


def _constant_rows(em: Emission, left: Rep, right: Rep, value: bool) -> Any:
    column = left if em.rank(left) else right
    return em.op.Expand(em.bools(value), em.op.Shape(column.data, start=0, end=1))


def _or_missing(em: Emission, name: str, result: Any, is_missing: Any) -> Any:
    """A comparison with something missing is false, and true for `!=`."""
    if is_missing is None:
        return result
    return (
        em.op.Or(result, is_missing) if name == "ne" else em.op.And(result, em.op.Not(is_missing))
    )


def _compare_texts(em: Emission, name: str, left: Rep, right: Rep, a: Any, b: Any) -> Rep:
    from sardonyx.importers.pandas import characters, lookup

    if name not in ("eq", "ne"):
        em.refuse("the alphabetical order of strings has no operator in ONNX")
    if not {left.kind, right.kind} <= {"text", "chars"}:
        return Rep("bool", _constant_rows(em, left, right, name == "ne"))
    is_missing = em.either(left.missing, right.missing)
    nullable = left.nullable or right.nullable
    if isinstance(a, str) or isinstance(b, str):
        column, text = (right, a) if isinstance(a, str) else (left, b)
        if column.kind == "chars" and not nullable:
            place = lookup.position(em, column, [text])
            is_equal = em.op.Equal(place, em.ints(0))
            return Rep("bool", em.op.Not(is_equal) if name == "ne" else is_equal)
    if "chars" in (left.kind, right.kind):
        equal = characters.equal(em, left, right)
        result = em.op.Not(equal) if name == "ne" else equal
    else:
        result = compare(em, name, left.data, right.data)
    if nullable:
        return Rep("bool", result, is_missing, nullable=True)
    return Rep("bool", _or_missing(em, name, result, is_missing))


def _compare_categories(em: Emission, name: str, left: Rep, right: Rep, other: Any) -> Rep:
    from sardonyx.importers.pandas import lookup

    if isinstance(other, Rep):
        return (
            comparison(em, name, em.decoded(left), em.decoded(right))
            if (left.kind == right.kind and name in ("eq", "ne"))
            else em.refuse("categories are compared with a column of another type")
        )
    column = left if left.kind == "category" else right
    if name in ("eq", "ne"):
        equal = em.op.Equal(lookup.position(em, column, [other]), em.ints(0))
        return Rep("bool", em.op.Not(equal) if name == "ne" else equal)
    if not column.ordered or column is right:
        em.refuse("categories without an order are compared")
    code = em.ints(int(column.categories.get_loc(other)))
    return Rep(
        "bool", em.op.And(compare(em, name, column.data, code), em.op.Not(em.missing(column)))
    )


# -- logic --------------------------------------------------------------------------


def _booleans(em: Emission, a: Any, b: Any) -> tuple[Rep, Rep]:
    left, right = em.operand(a), em.operand(b)
    if left.kind != "bool" or right.kind != "bool":
        em.refuse(
            f"a logical operator between {NAMES[left.kind]} and {NAMES[right.kind]} has no rule",
            "compare first, and put the comparisons in parentheses",
        )
    return left, right


def _no_objects(em: Emission, *sides: Rep) -> None:
    if any(side.missing is not None and not side.nullable for side in sides):
        em.refuse(
            "booleans among which some may be missing are combined, of which pandas makes False",
            "fill them with fillna(False), or pass na=False to the method that gave them",
        )


def logical_and(em: Emission, _: str, a: Any, b: Any) -> Rep:
    left, right = (
        side.but(data=em.op.And(side.data, em.op.Not(side.missing)), missing=None)
        if side.missing is not None and not side.nullable
        else side
        for side in _booleans(em, a, b)
    )
    data = em.op.And(left.data, right.data)
    missing = em.either(left.missing, right.missing)
    if missing is not None:  # false and missing is false
        for side in (left, right):
            certain = (
                em.op.Not(side.data)
                if side.missing is None
                else em.op.And(em.op.Not(side.missing), em.op.Not(side.data))
            )
            missing = em.op.And(missing, em.op.Not(certain))
    return Rep("bool", data, missing, nullable=missing is not None)


def logical_or(em: Emission, _: str, a: Any, b: Any) -> Rep:
    left, right = _booleans(em, a, b)
    _no_objects(em, left, right)
    missing = em.either(left.missing, right.missing)
    sides = []
    for side in (left, right):
        is_true = (
            side.data if side.missing is None else em.op.And(side.data, em.op.Not(side.missing))
        )
        sides.append(is_true)
    data = em.op.Or(*sides)
    if missing is not None:  # true or missing is true
        missing = em.op.And(missing, em.op.Not(data))
    return Rep("bool", data, missing, nullable=missing is not None)


def logical_xor(em: Emission, _: str, a: Any, b: Any) -> Rep:
    left, right = _booleans(em, a, b)
    _no_objects(em, left, right)
    missing = em.either(left.missing, right.missing)
    return Rep("bool", em.op.Xor(left.data, right.data), missing, nullable=missing is not None)


for _name, _function in ARITHMETIC.items():
    _define(_name, _function, arithmetic)
for _name, _function in COMPARISONS.items():
    _define(_name, _function, comparison)
for _name, _function in LOGICAL.items():
    _define_logical(_name, _function)


@rule("Series")
def between(self: Any, left: Any, right: Any, inclusive: str = "both") -> Any:
    lower = self >= left if inclusive in ("both", "left") else self > left
    upper = self <= right if inclusive in ("both", "right") else self < right
    return (lower & upper).named(self.label)


@rule("numpy")
def invert(self: Any) -> Any:
    def emit(em: Emission, a: Rep) -> Rep:
        if a.kind != "bool":
            em.refuse("`~` of a column that is not boolean has no rule", "compare first")
        return a.but(data=em.op.Not(a.data))

    if getattr(self, "_owner", "") == "DataFrame":
        return ~self
    return record("invert", [self], lambda a: ~a, emit, pure=True)


rule("numpy", "logical_not")(invert)
