"""DeformConv: a convolution whose taps lie where another tensor says, between the pixels."""

from __future__ import annotations

import itertools

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn.conv import biased
from sardonyx.lower.nn.window import window_of

INT64 = np.dtype(np.int64)


@lowering("DeformConv")
def deform_conv(xp, x, w, offset, b=None, mask=None, *, group, offset_group, **attributes):
    batch, channels, *sizes = xp.shape(x)
    window = window_of(sizes, attributes, xp.shape(w)[2:])
    outputs = list(xp.shape(offset)[2:])
    rank, volume = window.rank, window.volume
    moves = xp.reshape(offset, [batch, offset_group, volume, rank, *outputs])
    at = [
        xp.squeeze(xp.index(moves, 3, axis, axis + 1), (3,))
        + base(xp, window, axis, outputs, offset)
        for axis in range(rank)
    ]  # each (batch, offset groups, taps, *outputs)
    images = xp.reshape(x, [batch, offset_group, channels // offset_group, xp.count(sizes)])
    columns = interpolated(xp, images, at, sizes)
    if mask is not None:
        columns = columns * xp.reshape(mask, [batch, offset_group, 1, -1])
    length = xp.count(outputs)
    features = xp.shape(w)[0]
    columns = xp.reshape(columns, [batch, group, channels // group * volume, length])
    kernel = xp.reshape(w, [1, group, features // group, channels // group * volume])
    y = xp.reshape(xp.matmul(kernel, columns), [batch, features, *outputs])
    return biased(xp, y, b)


def base(xp, window, axis: int, outputs, like):
    """Where each tap of each window would lie along an axis: (1, 1, taps, *outputs)."""
    taps = np.array(list(itertools.product(*(range(k) for k in window.kernel))), np.int64)
    first = xp.asarray(taps[:, axis] * window.dilations[axis] - window.before[axis])
    steps = xp.arange(0, outputs[axis], 1, INT64) * window.strides[axis]
    form = [1] * len(outputs)
    form[axis] = outputs[axis]
    steps = xp.reshape(steps, [1, 1, 1, *form])
    return xp.cast(
        xp.add(xp.reshape(first, [1, 1, -1, *[1] * len(outputs)]), steps), xp.dtype(like)
    )


def interpolated(xp, images, at, sizes):
    """`images` (batch, groups, channels, pixels) at places between the pixels; zero outside."""
    batch, groups, channels, _ = xp.shape(images)
    low = [xp.floor(a) for a in at]
    total = None
    for corner in itertools.product((0, 1), repeat=len(at)):
        index, weight, inside = None, None, None
        for a, first, up, size in zip(at, low, corner, sizes):
            place = xp.cast(first, INT64) + up
            share = a - first if up else 1 - (a - first)
            end = xp.full((), size - 1, INT64)
            there = xp.clip(place, xp.scalar(0, place), end)
            is_inside = xp.equal(place, there)
            index = there if index is None else index * xp.full((), size, INT64) + there
            weight = share if weight is None else weight * share
            inside = is_inside if inside is None else xp.logical_and(inside, is_inside)
        weight = xp.where(inside, weight, xp.scalar(0, weight))
        length = xp.size(index) // (batch * groups)
        index, weight = (xp.reshape(v, [batch, groups, 1, length]) for v in (index, weight))
        index = xp.broadcast_to(index, [batch, groups, channels, length])
        part = xp.take_along(images, index, 3) * weight
        total = part if total is None else total + part
    return total
