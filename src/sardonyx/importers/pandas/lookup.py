"""Tables: the position of a value among frozen keys, and the frozen value at a position.

Mappings, joins, group statistics, category codes, dummies and membership are all of these two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pandas as pd

from sardonyx.frames import MISSING_INT
from sardonyx.importers.pandas.emission import (
    BOOL,
    INT64,
    ML,
    Emission,
    Rep,
    kind_of,
    points_of,
    ticks,
    unit_of,
)


def position(em: Emission, rep: Rep, keys: Any) -> ir.Value:
    """The position of each value among `keys` (distinct), -1 where it is none of them.

    A missing key matches missing values.
    """
    keys = list(keys)
    present = [(i, k) for i, k in enumerate(keys) if not is_missing(k)]
    absent = [i for i, k in enumerate(keys) if is_missing(k)]
    place = _position(em, rep, present) if present else None
    minus = em.ints(-1)
    if not em.may_miss(rep) or (place is not None and not absent and _is_no_key(em, rep)):
        return place if place is not None else _everywhere(em, rep, minus)
    missing = em.missing(rep)
    at_missing = em.ints(absent[0] if absent else -1)
    return em.op.Where(missing, at_missing, place if place is not None else minus)


def _is_no_key(em: Emission, rep: Rep) -> bool:
    """Whether what stands for a missing value can be none of the keys."""
    if rep.kind == "text":
        return any(rep.data is v for v in em.inputs.values())  # which holds MISSING_TEXT
    return rep.missing is None and rep.kind in ("float", "datetime", "timedelta")


def is_missing(key: Any) -> bool:
    return bool(pd.api.types.is_scalar(key) and pd.isna(key))


def _everywhere(em: Emission, rep: Rep, value: ir.Value) -> ir.Value:
    return em.op.Expand(value, em.op.Shape(rep.data, start=0, end=1))


def _position(em: Emission, rep: Rep, keys: list[tuple[int, Any]]) -> ir.Value:
    if rep.kind == "category":
        table = np.full(len(rep.categories) + 1, -1, np.int64)
        for number, key in keys:
            where = np.flatnonzero([_equal(c, key) for c in rep.categories])
            table[where] = number
        codes = em.op.Where(em.op.Less(rep.data, em.ints(0)), em.ints(len(table) - 1), rep.data)
        return em.op.Gather(em.ints(table), codes)
    if rep.kind in ("text", "chars"):
        return _position_of_text(em, rep, [(i, k) for i, k in keys if isinstance(k, str)])
    if rep.kind == "float":
        numbers = [(i, float(k)) for i, k in keys if _is_number(k)]
        return encode(em, em.double(rep), [k for _, k in numbers], [i for i, _ in numbers])
    if rep.kind in ("int", "bool"):
        pairs = [(i, int(k)) for i, k in keys if _is_number(k) and _is_whole(k)]
    else:
        make = pd.Timestamp if rep.kind == "datetime" else pd.Timedelta
        pairs = [(i, ticks(make(k), rep.unit)) for i, k in keys]
    return encode(em, em.int64(rep), [k for _, k in pairs], [i for i, _ in pairs])


def _is_number(key: Any) -> bool:
    return isinstance(key, (int, float, np.number, np.bool_))


def _is_whole(key: Any) -> bool:
    return float(key).is_integer() and abs(float(key)) < 2**63


def _equal(a: Any, b: Any) -> bool:
    numbers = _is_number(a) and _is_number(b)
    return bool(a == b) if numbers or type(a) is type(b) else False


def encode(em: Emission, data: ir.Value, keys: list[Any], numbers: list[int]) -> ir.Value:
    """LabelEncoder from numbers or strings to positions; -1 by default."""
    if not keys:
        return em.op.Expand(em.ints(-1), em.op.Shape(data, start=0, end=1))
    attributes = {
        "keys_tensor": _key_tensor(data, keys),
        "values_tensor": ir.tensor(np.array(numbers, np.int64), name="values"),
        "default_tensor": ir.tensor(np.array([-1], np.int64), name="default"),
    }
    result = em.op.call("LabelEncoder", [data], attributes, domain=ML)
    result.type, result.shape = ir.TensorType(INT64), data.shape
    return result


def _position_of_text(em: Emission, rep: Rep, pairs: list[tuple[int, str]]) -> ir.Value:
    if rep.kind == "text":
        return encode(em, rep.data, [k for _, k in pairs], [i for i, _ in pairs])
    if not pairs:
        return _everywhere(em, rep, em.ints(-1))
    return _position_of_characters(em, rep, pairs)


def _position_of_characters(em: Emission, rep: Rep, pairs: list[tuple[int, str]]) -> ir.Value:
    """By a hash of the code points, which the matching row of the table then confirms."""
    op, table = em.op, points_of([k for _, k in pairs])
    width = table.shape[1]
    data = fitted(em, rep.data, width + 1)  # the place after the longest key must be the end
    table = np.pad(table, ((0, 0), (0, 1)), constant_values=-1)
    seed = 0
    while True:
        weights = np.random.default_rng(seed).integers(1, 2**40, width + 1, np.int64)
        hashes = (table.astype(np.int64) * weights).sum(axis=1)
        if len(set(hashes.tolist())) == len(hashes):
            break
        seed += 1
    products = op.Mul(op.Cast(data, to=int(INT64)), em.ints(weights))
    row = encode(
        em, op.ReduceSum(products, [1], keepdims=0), hashes.tolist(), list(range(len(table)))
    )
    match = op.Gather(op.const(table), op.Max(row, em.ints(0)), axis=0)
    differs = op.ReduceMax(op.Cast(op.Not(op.Equal(match, data)), to=int(INT64)), [1], keepdims=0)
    number = op.Gather(em.ints([i for i, _ in pairs]), op.Max(row, em.ints(0)))
    unknown = op.Or(op.Less(row, em.ints(0)), op.Cast(differs, to=int(BOOL)))
    return op.Where(unknown, em.ints(-1), number)


def fitted(em: Emission, data: ir.Value, width: int) -> ir.Value:
    """Characters cut or padded to a number of columns."""
    op = em.op
    padded = op.Pad(data, em.ints([0, 0, 0, width]), np.int32(-1))
    return op.Slice(padded, em.ints([0]), em.ints([width]), em.ints([1]))


def together(em: Emission, reps: list[Rep], keys: pd.DataFrame) -> ir.Value:
    """The row of a table of keys that several columns match, -1 where none does."""
    if len(reps) == 1:
        return position(em, reps[0], keys.iloc[:, 0])
    combined, codes = None, np.zeros(len(keys), np.int64)
    unknown = None
    for rep, name in zip(reps, range(keys.shape[1]), strict=True):
        levels, each = distinct(keys.iloc[:, name])
        place = position(em, rep, levels)
        is_missing = em.op.Less(place, em.ints(0))
        unknown = is_missing if unknown is None else em.op.Or(unknown, is_missing)
        codes = codes * len(levels) + each
        combined = (
            place
            if combined is None
            else em.op.Add(em.op.Mul(combined, em.ints(len(levels))), place)
        )
    assert combined is not None and unknown is not None
    row = encode(em, combined, codes.tolist(), list(range(len(keys))))
    return em.op.Where(unknown, em.ints(-1), row)


def distinct(values: pd.Series) -> tuple[list[Any], np.ndarray]:
    """The distinct values of a series, a missing one included, and the position of each."""
    codes, levels = pd.factorize(values.astype(object), use_na_sentinel=False)
    return list(levels), codes


def gather(em: Emission, codes: ir.Value, values: pd.Series) -> Rep:
    """The value at each position; missing at -1. Integers become floats, as in a left join.

    Gather counts from the end where an index is negative: the missing value is the last.
    """
    op, dtype, at = em.op, values.dtype, codes
    kind = kind_of_values(em, values)
    if kind in ("float", "int", "bool_numbers"):
        numbers = values.astype(object).where(values.notna(), np.nan).astype(float).to_numpy()
        table = np.append(numbers, np.nan)
        if str(dtype) == "float32":
            return Rep("float", op.Gather(op.const(table.astype(np.float32)), at))
        return Rep("float", op.Gather(em.doubles(table), at))
    if kind in ("datetime", "timedelta"):
        unit, zone = unit_of(dtype), str(getattr(dtype, "tz", None) or "")
        table = np.append(values.astype("int64").to_numpy(), MISSING_INT)
        return Rep(kind, op.Gather(em.ints(table), at), unit=unit, timezone=zone)
    if kind == "category":
        table = np.append(values.cat.codes.to_numpy().astype(np.int64), -1)
        levels = values.cat.categories
        data = op.Gather(em.ints(table), at)
        return Rep(kind, data, categories=levels, ordered=bool(values.cat.ordered))
    is_missing = np.append(values.isna().to_numpy(), True)
    missing = op.Gather(em.bools(is_missing), at)
    if kind == "bool":
        table = np.append(values.fillna(False).to_numpy().astype(bool), False)
        return Rep("bool", op.Gather(em.bools(table), at), missing)
    texts = [*values.astype(object).where(values.notna(), "").tolist(), ""]
    if em.step is not None and em.step in em.characters:
        return Rep("chars", op.Gather(em.points(texts), at, axis=0), missing)
    return Rep("text", op.Gather(em.texts(texts), at), missing)


def looked_up(em: Emission, rep: Rep, keys: Any, values: pd.Series) -> Rep:
    """The value of the key that each row has: one operator where that suffices."""
    keys = list(keys)
    simple = rep.kind in ("int", "text", "float") and (not em.may_miss(rep) or _is_no_key(em, rep))
    kind = kind_of_values(em, values)
    if not simple or kind not in ("int", "float") or str(values.dtype) == "float32":
        return gather(em, position(em, rep, keys), values)
    numbers = values.astype(object).where(values.notna(), np.nan).astype(float)
    allowed = {"text": lambda k: isinstance(k, str), "float": _is_number}.get(
        rep.kind, lambda k: _is_number(k) and _is_whole(k)
    )
    pairs = [(k, v) for k, v in zip(keys, numbers, strict=True) if not is_missing(k) and allowed(k)]
    if len(pairs) < len([k for k in keys if not is_missing(k)]) or any(map(is_missing, keys)):
        return gather(em, position(em, rep, keys), values)
    if not pairs:
        return gather(em, position(em, rep, keys), values)
    attributes = {
        "keys_tensor": _key_tensor(rep.data, [k for k, _ in pairs]),
        "values_tensor": ir.tensor(np.array([v for _, v in pairs], np.float64), name="values"),
        "default_tensor": ir.tensor(np.array([np.nan]), name="default"),
    }
    data = em.op.cast(rep.data, ir.DataType.DOUBLE) if rep.kind == "float" else rep.data
    result = em.op.call("LabelEncoder", [data], attributes, domain=ML)
    result.type, result.shape = ir.TensorType(ir.DataType.DOUBLE), data.shape
    return Rep("float", result)


def _key_tensor(data: ir.Value, keys: list[Any]) -> Any:
    if data.dtype == ir.DataType.STRING:
        shape = ir.Shape([len(keys)])
        return ir.StringTensor([k.encode() for k in keys], shape=shape, name="keys")
    kind = np.int64 if data.dtype == INT64 else np.float64
    return ir.tensor(np.array(keys, kind), name="keys")


def kind_of_values(em: Emission, values: pd.Series) -> str:
    """The kind of a frozen series; columns of Python objects are looked into."""
    if values.dtype != np.dtype(object):
        return kind_of(values.dtype)
    kinds = {type(v) for v in values if not is_missing(v)}
    if all(issubclass(k, str) for k in kinds):
        return "text" if kinds else "float"
    if all(issubclass(k, (bool, np.bool_)) for k in kinds):
        return "bool"
    if all(issubclass(k, (int, float, np.number)) and k is not bool for k in kinds):
        return "float"
    if all(issubclass(k, pd.Interval) for k in kinds):
        em.refuse("a table of intervals has no rule", "give labels to pd.cut")
    return em.refuse("a table of values of several types has no rule")
