"""Elements in another type."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import (
    SMALL_FLOATS,
    SMALL_INTEGERS,
    NotStatic,
    is_float,
    is_string,
    is_symbolic,
)

FLOAT32 = np.dtype(np.float32)


@lowering("Cast", sizes=True)
def cast(xp, x, *, to, saturate, round_mode, dtypes):
    if is_symbolic(x):
        if dtypes[0] not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise NotStatic
        return x  # sizes have no width
    return convert(xp, x, dtypes[0], saturate, round_mode)


@lowering("CastLike")
def cast_like(xp, x, like, *, saturate, round_mode, dtypes):
    return convert(xp, x, dtypes[0] or xp.dtype(like), saturate, round_mode)


def convert(xp, x, dtype, saturate=1, round_mode="up"):
    """The elements of `x` as ONNX casts them to `dtype`."""
    source = xp.dtype(x)
    if is_string(dtype) or is_string(source):
        return convert_text(x, dtype)
    if dtype in SMALL_FLOATS:
        wide = x if is_float(source) else xp.cast(x, FLOAT32)
        return xp.cast(round_to(xp, wide, dtype, saturate, round_mode), dtype)
    if dtype in SMALL_INTEGERS:
        return xp.cast(wrap(xp, xp.cast(x, np.dtype(np.int32)), dtype), dtype)
    return xp.cast(x, dtype)


def wrap(xp, x, dtype):
    """Integers reduced to the bits of a smaller type."""
    bits = ml_dtypes.iinfo(dtype).bits
    low = ml_dtypes.iinfo(dtype).min
    return xp.remainder(x - int(low), xp.full_like(x, 1 << bits)) + int(low)


def round_to(xp, x, dtype, saturate, round_mode):
    """Floats rounded to what a smaller type can hold: to nearest, ties to even."""
    info = ml_dtypes.finfo(dtype)
    x = xp.cast(x, FLOAT32)
    if dtype == np.dtype(ml_dtypes.float8_e8m0fnu):
        return round_exponent(xp, x, saturate, round_mode)
    size = xp.abs(x)
    smallest = 2.0 ** int(info.minexp)
    exponent = xp.floor(xp.log(xp.maximum(size, xp.scalar(smallest, x))) / float(np.log(2.0)))
    # log is not exact next to powers of two: one correction each way
    scale = xp.power(xp.scalar(2, x), exponent)
    bounded = xp.maximum(size, xp.scalar(smallest, x))
    scale = xp.where(xp.greater(scale, bounded), scale * 0.5, scale)
    scale = xp.where(xp.greater_equal(size, scale * 2), scale * 2, scale)
    step = scale * 2.0 ** -int(info.nmant)
    finite = xp.isfinite(x)
    rounded = xp.round(xp.where(finite, x, xp.scalar(0, x)) / step) * step
    return overflow(xp, x, rounded, finite, info, dtype, saturate)


def overflow(xp, x, rounded, finite, info, dtype, saturate):
    """What happens beyond the largest number, to infinities and to NaN."""
    largest = float(info.max)
    name = dtype.name
    if name == "float4_e2m1fn":
        limited = xp.clip(rounded, xp.scalar(-largest, x), xp.scalar(largest, x))
        ends = xp.where(xp.isnan(x), xp.scalar(-0.0, x), xp.sign(x) * largest)
        return xp.where(finite, limited, ends)
    nan = xp.scalar(np.nan, x)
    has_infinity = name == "float8_e5m2"
    sign = xp.sign(xp.where(xp.isnan(x), xp.scalar(0, x), x))
    if saturate:
        beyond = sign * largest
    else:
        beyond = sign * np.inf if has_infinity else nan
    over = xp.greater(xp.abs(rounded), xp.scalar(largest, x))
    y = xp.where(over, beyond, rounded)
    y = xp.where(finite, y, beyond)
    if name.endswith("fnuz"):
        y = xp.where(xp.equal(y, xp.scalar(0, x)), xp.scalar(0, x), y)
    return xp.where(xp.isnan(x), nan, y)


def round_exponent(xp, x, saturate, round_mode):
    """float8e8m0: a power of two, nothing else."""
    size = xp.abs(x)
    low, high = 2.0**-127, 2.0**127
    safe = xp.clip(size, xp.scalar(2.0**-126, x), xp.scalar(high, x))
    scale = xp.power(xp.scalar(2, x), xp.floor(xp.log(safe) / float(np.log(2.0))))
    scale = xp.where(xp.greater(scale, safe), scale * 0.5, scale)
    scale = xp.where(xp.greater_equal(safe * 0.5, scale), scale * 2, scale)
    if round_mode == "up":
        up = xp.greater(safe, scale)
    elif round_mode == "nearest":
        up = xp.greater_equal(safe, scale * 1.5)
    else:
        up = xp.greater(safe, xp.scalar(np.inf, x))
    y = xp.where(up, xp.minimum(scale, xp.scalar(high / 2, x)) * 2, scale)
    y = xp.where(xp.less(size, xp.scalar(2.0**-126, x)), xp.scalar(low, x), y)
    return xp.where(xp.isfinite(x), y, xp.scalar(np.nan, x))


def convert_text(x, dtype):
    """To and from strings: numpy's business in every engine."""
    x = np.asarray(x)
    if not is_string(dtype):
        plain = np.array([v.decode() if isinstance(v, bytes) else v for v in x.flat], dtype=object)
        wide = np.float64 if is_float(dtype) else np.int64
        return plain.astype(wide).astype(dtype).reshape(x.shape)
    if is_string(x.dtype):
        return x
    words = np.empty(x.size, object)
    words[:] = [text_of(v) for v in x.flat]
    return words.reshape(x.shape)


def text_of(value):
    dtype = np.asarray(value).dtype
    if not is_float(dtype):
        return str(int(value))
    return f"{float(value):.8g}" if dtype.itemsize < 8 else f"{float(value):.17g}"


@lowering("BitCast")
def bit_cast(xp, x, *, to, dtypes):
    return xp.bit_cast(x, dtypes[0])
