"""Products of quantized matrices."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.quantization import to_levels

INT32, FLOAT32, FLOAT64 = (np.dtype(t) for t in (np.int32, np.float32, np.float64))


@lowering("MatMulInteger")
def matmul_integer(xp, a, b, a_zero_point=None, b_zero_point=None):
    return xp.cast(product(xp, a, b, a_zero_point, b_zero_point), INT32)


@lowering("QLinearMatMul")
def qlinear_matmul(
    xp, a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point, *, dtypes
):
    total = product(xp, a, b, a_zero_point, b_zero_point)
    rank = xp.rank(total)
    factor = xp.multiply(
        of_rows(xp, real(xp, a_scale), rank), of_columns(xp, real(xp, b_scale), rank)
    )
    level = xp.multiply(total, xp.divide(factor, of_rows(xp, real(xp, y_scale), rank)))
    return to_levels(xp, level, of_rows(xp, y_zero_point, rank), dtypes[0])


def product(xp, a, b, a_zero_point, b_zero_point):
    """The exact product of shifted integers, in float64: on GPUs torch has none of integers."""
    shifted_a, shifted_b = xp.cast(a, FLOAT64), xp.cast(b, FLOAT64)
    if a_zero_point is not None:
        zero = of_rows(xp, xp.cast(a_zero_point, FLOAT64), xp.rank(a))
        shifted_a = xp.subtract(shifted_a, zero)
    if b_zero_point is not None:
        zero = of_columns(xp, xp.cast(b_zero_point, FLOAT64), xp.rank(b))
        shifted_b = xp.subtract(shifted_b, zero)
    return xp.matmul(shifted_a, shifted_b)


def real(xp, scale):
    """A scale for the product in float64, rounded to float32 at most."""
    return xp.cast(xp.cast(scale, FLOAT32), FLOAT64)


def of_rows(xp, parameter, rank):
    """A scalar, or a vector with an element for each row of a matrix of `rank` axes."""
    if xp.rank(parameter) != 1:
        return parameter
    if rank < 2 or xp.shape(parameter) == (1,):
        return xp.reshape(parameter, ())
    return xp.reshape(parameter, (-1, 1))


def of_columns(xp, parameter, rank):
    if xp.rank(parameter) == 1 and (rank < 2 or xp.shape(parameter) == (1,)):
        return xp.reshape(parameter, ())
    return parameter
