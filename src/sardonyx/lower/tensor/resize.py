"""Resize: each axis on its own, as a weighted sum of elements taken from it.

Where the sizes are known, places and weights are computed while building, in double precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.numpy_xp import numpy_arrays
from sardonyx.lower.tensor.cast import convert
from sardonyx.lower.xp import is_float, positive

FLOAT32, FLOAT64, INT64 = (np.dtype(t) for t in (np.float32, np.float64, np.int64))


@dataclass
class Axis:
    """One axis to resize: sizes before and after, the factor between, the region of interest."""

    index: int
    before: Any
    after: Any
    scale: Any  # None: after / before, to be computed while running
    start: float = 0.0
    end: float = 1.0


@lowering("Resize", static=("roi", "scales", "sizes"))
def resize(
    xp,
    x,
    roi=None,
    scales=None,
    sizes=None,
    *,
    antialias,
    axes,
    coordinate_transformation_mode,
    cubic_coeff_a,
    exclude_outside,
    extrapolation_value,
    keep_aspect_ratio_policy,
    mode,
    nearest_mode,
):
    rank, dtype = xp.rank(x), xp.dtype(x)
    chosen = list(range(rank)) if axes is None else [positive(a, rank) for a in axes]
    transform = coordinate_transformation_mode
    plan = resized_axes(
        xp.shape(x), chosen, roi, scales, sizes, transform, keep_aspect_ratio_policy
    )
    wide = dtype if is_float(dtype) or mode == "nearest" else FLOAT32
    y, extrapolated = xp.cast(x, wide), None
    for axis in plan:
        namespace = (
            numpy_arrays() if isinstance(axis.before, int) and isinstance(axis.after, int) else xp
        )
        at = places(namespace, axis, transform)
        if mode == "nearest":
            y = xp.take(y, xp.asarray(nearest(namespace, at, axis, nearest_mode)), axis.index)
        else:
            taps = weighted(namespace, at, axis, mode, cubic_coeff_a, antialias, exclude_outside)
            y = combine(xp, y, taps, axis)
        if transform == "tf_crop_and_resize":
            extrapolated = either(xp, extrapolated, beyond(xp, namespace, at, axis, rank))
    if extrapolated is not None:
        y = xp.where(extrapolated, xp.scalar(extrapolation_value, y), y)
    return y if wide == dtype else convert(xp, y, dtype)


def resized_axes(shape, chosen, roi, scales, sizes, transform, policy):
    """What happens to each axis that changes."""
    count = len(chosen)
    region = [(0.0, 1.0)] * count
    if transform == "tf_crop_and_resize":
        region = [(float(roi[i]), float(roi[count + i])) for i in range(count)]
    if sizes is not None and sizes.size:
        targets = sized(shape, chosen, sizes.tolist(), policy)
    else:
        targets = [
            (
                scaled(shape[a], float(s), e - b if transform == "tf_crop_and_resize" else 1.0),
                float(s),
            )
            for a, s, (b, e) in zip(chosen, scales.tolist(), region)
        ]
    resized = [
        Axis(a, shape[a], after, scale, begin, end)
        for a, (after, scale), (begin, end) in zip(chosen, targets, region)
    ]
    return [a for a in resized if not is_same(a)]


def is_same(axis):
    whole = (axis.start, axis.end) == (0.0, 1.0)
    return (whole and axis.scale == 1.0) or (
        whole and axis.scale is None and axis.before is axis.after
    )


def scaled(size, scale, extent):
    """A size times a factor, rounded down; of a symbolic size by exact fractions."""
    if isinstance(size, int):
        return math.floor(size * extent * scale)
    factor = Fraction(scale * extent).limit_denominator(10_000)
    return size * factor.numerator // factor.denominator


def sized(shape, chosen, sizes, policy):
    if policy == "stretch":
        return [
            (s, s / shape[a] if isinstance(s, int) and isinstance(shape[a], int) else None)
            for a, s in zip(chosen, sizes)
        ]
    factors = [s / shape[a] for a, s in zip(chosen, sizes)]
    scale = min(factors) if policy == "not_larger" else max(factors)
    return [(math.floor(scale * shape[a] + 0.5), scale) for a in chosen]


def places(ns, axis, transform):
    """Where in the given axis each element of the resized axis lies."""
    real = FLOAT64 if ns.name == "numpy" else FLOAT32
    at = ns.arange(0, axis.after, 1, real)
    before, after = (ns.full((), v, real) for v in (axis.before, axis.after))
    scale = after / before if axis.scale is None else ns.full((), axis.scale, real)
    width = scale * before
    one = ns.full((), 1, real)
    if transform == "asymmetric":
        return at / scale
    if transform == "align_corners":
        safe = ns.where(ns.equal(width, one), one, width - 1)
        return ns.where(ns.equal(width, one), at * 0, at * (before - 1) / safe)
    if transform == "tf_crop_and_resize":
        extent, first = axis.end - axis.start, axis.start * (before - 1)
        safe = ns.where(ns.equal(width, one), one, width - 1)
        middle = at * 0 + extent * (before - 1) / 2
        return ns.where(ns.equal(width, one), middle, at * extent * (before - 1) / safe) + first
    if transform == "half_pixel_symmetric":
        offset = before / 2 * (1 - after / width)
        return offset + (at + 0.5) / scale - 0.5
    half = (at + 0.5) / scale - 0.5
    if transform == "pytorch_half_pixel":
        return ns.where(ns.equal(after, one), at * 0 - 0.5, half)
    return half


def nearest(ns, at, axis, nearest_mode):
    rounded = {
        "round_prefer_floor": lambda: ns.ceil(at - 0.5),
        "round_prefer_ceil": lambda: ns.floor(at + 0.5),
        "floor": lambda: ns.floor(at),
        "ceil": lambda: ns.ceil(at),
    }[nearest_mode]()
    return inside(ns, ns.cast(rounded, INT64), axis)


def inside(ns, places, axis):
    return ns.clip(places, ns.full((), 0, INT64), ns.full((), axis.before - 1, INT64))


def weighted(ns, at, axis, mode, a, antialias, exclude_outside):
    """Pairs of places and weights, one per tap of the filter."""
    shrink = 1.0
    if antialias:
        shrink = min(axis.after / axis.before if axis.scale is None else axis.scale, 1.0)
    radius = 1 if mode == "linear" else 2
    kernel = triangle if mode == "linear" else lambda n, v: cubic(n, v, a)
    first = math.floor(-radius / shrink) + 1
    low = ns.floor(at)
    ratio = at - low
    taps = []
    for offset in range(first, first + 2 - 2 * first):
        place = ns.cast(low, INT64) + offset
        weight = kernel(ns, ns.abs((offset - ratio) * shrink))
        if exclude_outside:
            is_inside = ns.equal(place, inside(ns, place, axis))
            weight = ns.where(is_inside, weight, ns.scalar(0, weight))
        taps.append((inside(ns, place, axis), weight))
    if antialias or exclude_outside:
        total = sum(weight for _, weight in taps)
        taps = [(place, weight / total) for place, weight in taps]
    return taps


def triangle(ns, v):
    return ns.maximum(1 - v, ns.scalar(0, v))


def cubic(ns, v, a):
    near = ((a + 2) * v - (a + 3)) * v * v + 1
    far = ((a * v - 5 * a) * v + 8 * a) * v - 4 * a
    zero = ns.scalar(0, v)
    return ns.where(
        ns.less(v, ns.scalar(1, v)), near, ns.where(ns.less(v, ns.scalar(2, v)), far, zero)
    )


def combine(xp, x, taps, axis):
    form = [1] * xp.rank(x)
    form[axis.index] = axis.after
    total = None
    for place, weight in taps:
        factor = xp.reshape(xp.cast(xp.asarray(weight), xp.dtype(x)), form)
        part = xp.take(x, xp.asarray(place), axis.index) * factor
        total = part if total is None else total + part
    return total


def beyond(xp, ns, at, axis, rank):
    """Which elements of the resized axis lie outside of the given one; the mask broadcasts."""
    last = ns.cast(ns.full((), axis.before - 1, INT64), ns.dtype(at))
    mask = ns.logical_or(ns.less(at, ns.scalar(0, at)), ns.greater(at, last))
    form = [1] * rank
    form[axis.index] = axis.after
    return xp.reshape(xp.asarray(mask), form)


def either(xp, a, b):
    return b if a is None else xp.logical_or(a, b)
