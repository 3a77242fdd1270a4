"""QuantizeLinear and DequantizeLinear: one scale per tensor, per index of an axis, or per block.

DynamicQuantizeLinear is ONNX's function body in terms of these. Products of quantized matrices are
in `math/quantized.py`, convolutions in `nn/quantized.py`.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.lower.driver import lowering
from sardonyx.lower.tensor.cast import convert
from sardonyx.lower.xp import SMALL_FLOATS, SMALL_INTEGERS, is_float, positive

INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
FAR = 1 << 20  # beyond every level of 16 bits, zero point included; exact in float32


@lowering("QuantizeLinear")
def quantize_linear(
    xp,
    x,
    y_scale,
    y_zero_point=None,
    *,
    axis,
    block_size,
    output_dtype,
    precision,
    saturate,
    dtypes,
):
    compute = np.dtype(ir.DataType(precision).numpy()) if precision else quotient_type(xp, y_scale)
    target = dtypes[0]
    scale = per_element(xp, xp.cast(y_scale, FLOAT64), x, axis, block_size)
    # In double, then rounded: XLA divides by one number as a product with its reciprocal, which is
    # off by a bit of float32 and moves ties.
    level = xp.cast(xp.divide(xp.cast(x, FLOAT64), scale), compute)
    zero_point = (
        None if y_zero_point is None else per_element(xp, y_zero_point, x, axis, block_size)
    )
    if target in SMALL_FLOATS:
        if zero_point is not None:
            level = xp.add(level, xp.cast(zero_point, compute))
        return convert(xp, level, target, saturate)
    return to_levels(xp, level, zero_point, target)


def to_levels(xp, level, zero_point, dtype):
    """Real levels rounded, moved by the zero point, and limited to what an integer type holds."""
    near = xp.cast(xp.round(level), FLOAT32)
    limit = xp.scalar(FAR, near)
    whole = xp.cast(xp.clip(near, xp.negative(limit), limit), INT32)
    if zero_point is not None:
        whole = xp.add(whole, xp.cast(zero_point, INT32))
    info = ml_dtypes.iinfo(dtype)
    low, high = (xp.scalar(int(v), whole) for v in (info.min, info.max))
    return xp.cast(xp.clip(whole, low, high), dtype)


@lowering("DequantizeLinear")
def dequantize_linear(xp, x, x_scale, x_zero_point=None, *, axis, block_size, output_dtype, dtypes):
    # Exact in float32: the result is rounded once, to the type of the output.
    compute = FLOAT64 if xp.dtype(x_scale) == FLOAT64 else FLOAT32
    scale = per_element(xp, xp.cast(x_scale, compute), x, axis, block_size)
    if x_zero_point is not None:
        between = compute if is_float(xp.dtype(x)) else INT32
        zero_point = per_element(xp, xp.cast(x_zero_point, between), x, axis, block_size)
        x = xp.subtract(xp.cast(x, between), zero_point)
    return xp.cast(xp.multiply(xp.cast(x, compute), scale), dtypes[0] or xp.dtype(x_scale))


def quotient_type(xp, scale) -> np.dtype:
    """The type that a quotient is rounded to: the scale's, where it has fractions."""
    dtype = xp.dtype(scale)
    return dtype if is_float(dtype) and dtype not in SMALL_FLOATS else FLOAT32


def per_element(xp, parameter, x, axis, block_size):
    """A scale or a zero point in a shape that broadcasts over `x`."""
    rank = xp.rank(x)
    if block_size:
        axis = positive(axis, rank)
        places = xp.arange(0, xp.shape(x)[axis], 1, INT64)
        block = xp.floor_divide(places, xp.scalar(block_size, places))
        return xp.take(wide(xp, parameter), block, axis)
    if xp.rank(parameter) == 0 or rank == 0:
        return xp.reshape(parameter, ())
    # A vector of one element also applies to the whole tensor, whatever the axis is.
    if xp.shape(parameter) == (1,):
        return xp.reshape(parameter, (1,) * rank)
    form = [1] * rank
    form[positive(axis, rank)] = -1
    return xp.reshape(parameter, form)


def wide(xp, x):
    """Integers below 32 bits as int32: not every framework can gather the small types."""
    dtype = xp.dtype(x)
    small = dtype in SMALL_INTEGERS or (not is_float(dtype) and dtype.itemsize < 4)
    return xp.cast(x, INT32) if small else x
