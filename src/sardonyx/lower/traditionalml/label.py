"""Categories looked up in tables: other labels for them, or a column for each.

Numbers are found by a binary search that has no branches. Strings are numpy's business.
"""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.lookup import search
from sardonyx.lower.traditionalml.score import FLOAT32, INT64, ML
from sardonyx.lower.xp import is_float, is_string


def looked_up(xp, x, keys, values, default):
    """Elements of `x` replaced by the value of their key; the last of equal keys counts."""
    dtype = xp.dtype(x)
    if is_string(dtype) or is_string(values.dtype):
        return looked_up_text(x, keys, values, default)
    numbers = np.asarray(keys, dtype)
    y = xp.full(xp.shape(x), default, values.dtype)
    missing = np.isnan(numbers) if is_float(dtype) else np.zeros(len(numbers), bool)
    if (~missing).any():
        unique, last = np.unique(numbers[~missing][::-1], return_index=True)
        ordered = np.ascontiguousarray(values[~missing][::-1][last])
        at, present = search(xp, unique, x)
        y = xp.where(present, xp.take(xp.asarray(ordered), at, 0), y)
    if missing.any():
        y = xp.where(xp.isnan(x), xp.full((), values[missing][-1], values.dtype), y)
    return y


def looked_up_text(x, keys, values, default):
    table = {key_of(k): v for k, v in zip(keys, values)}
    y = np.empty(x.size, values.dtype)
    y[:] = [table.get(key_of(v), default) for v in x.flat]
    return y.reshape(x.shape)


def key_of(value):
    """A value as a key: numbers by value, and all NaN the same."""
    if isinstance(value, str):
        return value
    return None if value != value else float(value)


@lowering("LabelEncoder", domain=ML)
def label_encoder(
    xp,
    x,
    *,
    default_float,
    default_int64,
    default_string,
    default_tensor,
    keys_floats,
    keys_int64s,
    keys_strings,
    keys_tensor,
    values_floats,
    values_int64s,
    values_strings,
    values_tensor,
):
    keys = next(k for k in (keys_floats, keys_int64s, keys_strings, keys_tensor) if k is not None)
    default: object
    if values_strings is not None:
        values, default = np.array(values_strings, object), default_string
    elif values_int64s is not None:
        values, default = np.array(values_int64s, INT64), default_int64
    elif values_floats is not None:
        values, default = np.array(values_floats, FLOAT32), default_float
    else:
        values = plain(values_tensor)
        usual = "_Unused" if is_string(values.dtype) else -0.0 if is_float(values.dtype) else -1
        default = usual if default_tensor is None else plain(default_tensor)[0]
    return looked_up(xp, x, plain(keys), values, default)


def plain(values):
    """A vector; the strings of tensors are bytes."""
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind not in "OSU":
        return flat
    return np.array([v.decode() if isinstance(v, bytes) else v for v in flat], object)


@lowering("CategoryMapper", domain=ML)
def category_mapper(xp, x, *, cats_int64s, cats_strings, default_int64, default_string):
    if is_string(xp.dtype(x)):
        return looked_up(xp, x, cats_strings, np.array(cats_int64s, INT64), default_int64)
    return looked_up(xp, x, cats_int64s, np.array(cats_strings, object), default_string)


@lowering("OneHotEncoder", domain=ML)
def one_hot_encoder(xp, x, *, cats_int64s, cats_strings, zeros):
    # `zeros=0` asks to refuse what is in no category; a program of tensors cannot.
    if is_string(xp.dtype(x)):
        return (x[..., None] == np.array(cats_strings, object)).astype(FLOAT32)
    whole = xp.expand_dims(xp.cast(x, INT64), (xp.rank(x),))
    return xp.cast(xp.equal(whole, xp.asarray(np.array(cats_int64s, INT64))), FLOAT32)
