"""Dropout and Flatten."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import positive

BOOL = np.dtype(bool)


@lowering("Dropout", static=("training_mode",))
def dropout(xp, x, ratio=None, training_mode=None, *, seed, count):
    is_static = training_mode is None or training_mode.dtype != object
    if is_static and not (training_mode is not None and training_mode.reshape(-1)[0]):
        return (x, xp.full(xp.shape(x), True, BOOL))[:count]
    dtype = xp.dtype(x)
    share = xp.scalar(0.5, x) if ratio is None else xp.cast(xp.reshape(ratio, []), dtype)
    mask = xp.greater_equal(xp.uniform(xp.shape(x), dtype, 0.0, 1.0, seed), share)
    keep = 1 - share
    scale = 1 / xp.where(xp.equal(keep, xp.scalar(0, x)), xp.scalar(1, x), keep)
    y = xp.where(mask, x * scale, xp.scalar(0, x))
    if not is_static:  # a mode that only a run tells: the other one is computed too
        training = xp.not_equal(xp.from_sizes(training_mode), xp.from_sizes(training_mode * 0))
        training = xp.reshape(training, [])
        y, mask = xp.where(training, y, x), xp.logical_or(mask, xp.logical_not(training))
    return (y, mask)[:count]


@lowering("Flatten")
def flatten(xp, x, *, axis):
    sizes = xp.shape(x)
    axis = positive(axis, len(sizes))
    return xp.reshape(x, (xp.count(sizes[:axis]), xp.count(sizes[axis:])))
