"""Convolutions of integers."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn.conv import convolved
from sardonyx.lower.nn.window import window_of

INT32 = np.dtype(np.int32)


def centred(xp, x, zero_point, axis: int):
    """`x` as int32 with its zero point subtracted, one for all or one per element of `axis`."""
    x = xp.cast(x, INT32)
    if zero_point is None:
        return x
    return xp.subtract(x, along(xp, xp.cast(zero_point, INT32), axis, xp.rank(x)))


def along(xp, vector, axis: int, rank: int):
    form = [1] * rank
    form[axis] = -1
    return xp.reshape(vector, form)


@lowering("ConvInteger")
def conv_integer(xp, x, w, x_zero_point=None, w_zero_point=None, *, group, **attributes):
    window = window_of(xp.shape(x)[2:], attributes, xp.shape(w)[2:])
    x, w = centred(xp, x, x_zero_point, 1), centred(xp, w, w_zero_point, 0)
    return convolved(xp, x, w, window, group)


@lowering("QLinearConv")
def qlinear_conv(
    xp,
    x,
    x_scale,
    x_zero_point,
    w,
    w_scale,
    w_zero_point,
    y_scale,
    y_zero_point,
    b=None,
    *,
    group,
    **attributes,
):
    window = window_of(xp.shape(x)[2:], attributes, xp.shape(w)[2:])
    dtype, wide, rank = xp.dtype(y_zero_point), xp.dtype(x_scale), xp.rank(x)
    total = convolved(
        xp, centred(xp, x, x_zero_point, 1), centred(xp, w, w_zero_point, 0), window, group
    )
    if b is not None:
        total = xp.add(total, along(xp, b, 1, rank))
    factor = xp.divide(xp.multiply(x_scale, w_scale), y_scale)
    y = xp.cast(total, wide) * along(xp, factor, 1, rank)
    y = xp.add(xp.round(y), xp.cast(xp.reshape(y_zero_point, []), wide))
    info = np.iinfo(dtype)
    return xp.cast(xp.clip(y, xp.scalar(info.min, y), xp.scalar(info.max, y)), dtype)
