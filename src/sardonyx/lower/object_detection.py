"""Lowerings of ONNX's family object_detection: RoiAlign and NonMaxSuppression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.lower.driver import lowering

INT64 = np.dtype(np.int64)
BOOL = np.dtype(bool)


# -- RoiAlign -----------------------------------------------------------------------


@dataclass
class Samples:
    """The samples of all regions along one axis: (regions, bins, samples) unless said.

    low, high -- the pixels around a sample
    weights   -- the shares of these two; zero for a sample off the image
    exists    -- (regions, 1, samples): regions may differ in how many samples a bin has
    count     -- (regions,): how many that is
    """

    low: Any
    high: Any
    weights: tuple[Any, Any]
    exists: Any
    count: Any


@lowering("RoiAlign")
def roi_align(xp, x, rois, batch_indices, *, mode, output_height, output_width, **settings):
    batch, channels, height, width = xp.shape(x)
    rois = xp.cast(rois, xp.dtype(x))
    rows = samples(xp, rois, 1, output_height, height, **settings)
    columns = samples(xp, rois, 0, output_width, width, **settings)
    # Channels last: one sample is one row of a table of pixels.
    pixels = xp.reshape(xp.transpose(x, (0, 2, 3, 1)), [batch * height * width, channels])
    owner = xp.reshape(xp.cast(batch_indices, INT64), [-1, 1, 1, 1, 1])
    first = owner * xp.full((), height * width, INT64)
    down, across = (3, 4), (1, 2)  # where the axes (bins, samples) of the other direction go
    corners = []
    for y, tall in zip((rows.low, rows.high), rows.weights):
        for z, wide in zip((columns.low, columns.high), columns.weights):
            line = xp.expand_dims(y, down) * xp.full((), width, INT64)
            at = first + line + xp.expand_dims(z, across)
            share = xp.expand_dims(tall, down) * xp.expand_dims(wide, across)
            weighted = xp.take(pixels, at, 0) * xp.expand_dims(share, (5,))
            corners.append(weighted)  # (regions, bins, samples, bins, samples, channels)
    exists = xp.logical_and(
        xp.expand_dims(rows.exists, (3, 4, 5)), xp.expand_dims(columns.exists, (1, 2, 5))
    )
    reduce = largest if mode == "max" else mean
    pooled = reduce(xp, corners, exists, rows.count * columns.count)
    return xp.transpose(pooled, (0, 3, 1, 2))


def samples(
    xp, rois, start, bins, size, *, sampling_ratio, spatial_scale, coordinate_transformation_mode
):
    half_pixel = coordinate_transformation_mode == "half_pixel"
    low, high = (
        xp.index(rois, 1, c, c + 1) * spatial_scale - (0.5 if half_pixel else 0.0)
        for c in (start, start + 2)
    )
    length = high - low if half_pixel else xp.maximum(high - low, xp.scalar(1, low))
    step = length / bins  # (regions, 1)
    one = xp.scalar(1, step)
    count = xp.full_like(step, sampling_ratio) if sampling_ratio > 0 else xp.ceil(step)
    whole = xp.maximum(count, one)
    most = sampling_ratio
    if most <= 0:
        most = xp.static(xp.cast(xp.max(whole), INT64)).reshape(-1)[0]
    dtype = xp.dtype(rois)
    index = xp.cast(xp.reshape(xp.arange(0, most, 1, INT64), [1, 1, -1]), dtype)
    bin_index = xp.cast(xp.reshape(xp.arange(0, bins, 1, INT64), [1, bins, 1]), dtype)
    step3, whole3 = (xp.expand_dims(v, (2,)) for v in (step, whole))
    place = xp.expand_dims(low, (2,)) + bin_index * step3 + (index + 0.5) * step3 / whole3
    exists = xp.less(index, xp.expand_dims(count, (2,)))
    return around(xp, place, size, exists, xp.squeeze(whole, (1,)))


def around(xp, place, size, exists, count) -> Samples:
    """The two pixels around each place, and their shares."""
    zero = xp.scalar(0, place)
    end = xp.cast(xp.full((), size, INT64), xp.dtype(place))
    on_image = xp.logical_and(
        xp.greater_equal(place, xp.scalar(-1, place)), xp.less_equal(place, end)
    )
    place = xp.clip(place, zero, end - 1)
    floor = xp.floor(place)
    low = xp.cast(floor, INT64)
    high = xp.minimum(low + 1, xp.full((), size - 1, INT64))
    after = place - floor
    weights = tuple(xp.where(on_image, v, zero) for v in (1 - after, after))
    return Samples(low, high, weights, exists, count)


def mean(xp, corners, exists, count):
    total = corners[0] + corners[1] + corners[2] + corners[3]
    total = xp.where(exists, total, xp.scalar(0, total))
    return xp.sum(total, (2, 4)) / xp.reshape(count, [-1, 1, 1, 1])


def largest(xp, corners, exists, count):
    """The largest weighted pixel: ONNX compares those, not the interpolated samples."""
    best = corners[0]
    for other in corners[1:]:
        best = xp.maximum(best, other)
    best = xp.max(xp.where(exists, best, xp.scalar(-np.inf, best)), (2, 4))
    return xp.where(xp.equal(best, xp.scalar(-np.inf, best)), xp.scalar(0, best), best)


# -- NonMaxSuppression ----------------------------------------------------------------


@dataclass
class Boxes:
    """Boxes by their lower and upper corners, each (batch, boxes), and their areas."""

    low: tuple[Any, Any]
    high: tuple[Any, Any]
    area: Any


def boxes_of(xp, boxes, center_point_box: int) -> Boxes:
    a, b, c, d = (xp.squeeze(part, (2,)) for part in xp.split(boxes, [1] * 4, 2))
    if center_point_box:  # x, y, width, height
        low, high = (b - d / 2, a - c / 2), (b + d / 2, a + c / 2)
    else:  # any two opposite corners
        low = (xp.minimum(a, c), xp.minimum(b, d))
        high = (xp.maximum(a, c), xp.maximum(b, d))
    return Boxes(low, high, (high[0] - low[0]) * (high[1] - low[1]))


def overlaps(xp, boxes: Boxes, chosen, threshold):
    """Which boxes overlap too much with one chosen per class: (batch, classes, boxes)."""
    zero = xp.scalar(0, boxes.area)

    def pick(v):
        return xp.expand_dims(xp.take_along(v, chosen, 1), (2,))

    shared = None
    for low, high in zip(boxes.low, boxes.high):
        top = xp.minimum(pick(high), xp.expand_dims(high, (1,)))
        side = xp.maximum(top - xp.maximum(pick(low), xp.expand_dims(low, (1,))), zero)
        shared = side if shared is None else shared * side
    union = pick(boxes.area) + xp.expand_dims(boxes.area, (1,)) - shared
    safe = xp.where(xp.greater(union, zero), union, xp.scalar(1, union))
    return xp.greater(shared / safe, threshold)


@lowering("NonMaxSuppression", static=("max_output_boxes_per_class",))
def non_max_suppression(
    xp,
    boxes,
    scores,
    max_output_boxes_per_class=None,
    iou_threshold=None,
    score_threshold=None,
    *,
    center_point_box,
):
    """The best box of every class, again and again; what overlaps with it leaves the race."""
    limit = 0 if max_output_boxes_per_class is None else max_output_boxes_per_class.reshape(-1)[0]
    available = xp.shape(scores)[2]
    if isinstance(limit, (int, np.integer)) and isinstance(available, int):
        limit = min(int(limit), available)
    if isinstance(limit, int) and limit <= 0:
        return xp.zeros([0, 3], INT64)
    corners = boxes_of(xp, boxes, center_point_box)
    threshold = xp.scalar(0, scores) if iou_threshold is None else xp.reshape(iou_threshold, [])
    out = xp.scalar(-np.inf, scores)
    if score_threshold is not None:
        scores = xp.where(xp.greater(scores, xp.reshape(score_threshold, [])), scores, out)
    number = xp.reshape(xp.arange(0, available, 1, INT64), [1, 1, available])

    def pick(state, row):
        (race,) = state
        best = xp.argmax(race, 2)
        valid = xp.greater(xp.max(race, 2), out)
        suppressed = xp.logical_or(
            overlaps(xp, corners, best, threshold), xp.equal(number, xp.expand_dims(best, (2,)))
        )
        return (xp.where(suppressed, out, race),), (best, valid)

    rounds = xp.arange(0, limit, 1, INT64)
    _, (best, valid) = xp.scan(pick, (scores,), (rounds,), (INT64, BOOL))
    best, valid = (xp.transpose(v, (1, 2, 0)) for v in (best, valid))
    chosen = xp.nonzero(valid)  # batch, class, round
    _, classes, count = xp.shape(best)
    batch, label, turn = (xp.squeeze(v, (0,)) for v in xp.split(chosen, [1] * 3, 0))
    flat = (batch * xp.full((), classes, INT64) + label) * xp.full((), count, INT64) + turn
    return xp.stack([batch, label, xp.take(xp.reshape(best, [-1]), flat, 0)], 1)
