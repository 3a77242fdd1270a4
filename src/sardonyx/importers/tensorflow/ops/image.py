"""Rules of boxes in images and of colors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


# -- boxes ----------------------------------------------------------------------------------------


@importer("CropAndResize")
def crop_and_resize(
    op: Writer,
    image: ir.Value,
    boxes: ir.Value,
    box_ind: ir.Value,
    crop_size: ir.Value,
    *,
    method: str,
    extrapolation_value: float,
) -> ir.Value:
    """Pixels at the places of each box, interpolated; the flat image is gathered from."""
    image = op.cast(image, T.FLOAT)
    sizes = op.int64(crop_size)
    rows, inside_rows = _coordinates(op, boxes, 0, sizes, op.dim_value(image, 1))
    columns, inside_columns = _coordinates(op, boxes, 1, sizes, op.dim_value(image, 2))
    area = op.Mul(op.dim_value(image, 1), op.dim_value(image, 2))
    channels = op.dim(image, 3)
    flat = op.Reshape(image, op.join([-1, channels]))
    start = op.Unsqueeze(op.Mul(op.int64(box_ind), area), [1, 2])

    def pixels(row: ir.Value, column: ir.Value) -> ir.Value:
        down = op.Mul(op.cast(row, T.INT64), op.dim_value(image, 2))
        across = op.cast(column, T.INT64)
        place = op.Add(op.Add(start, op.Unsqueeze(down, [2])), op.Unsqueeze(across, [1]))
        return op.Gather(flat, place, axis=0)

    if method == "nearest":
        half = op.const(np.float32(0.5))
        y = pixels(op.Floor(op.Add(rows, half)), op.Floor(op.Add(columns, half)))
    else:
        y = _interpolated(op, rows, columns, pixels)
    inside = op.And(op.Unsqueeze(inside_rows, [2]), op.Unsqueeze(inside_columns, [1]))
    return op.Where(op.Unsqueeze(inside, [3]), y, op.const(np.float32(extrapolation_value)))


def _interpolated(op: Writer, rows: ir.Value, columns: ir.Value, pixels: Any) -> ir.Value:
    top, left = op.Floor(rows), op.Floor(columns)
    bottom, right = op.Ceil(rows), op.Ceil(columns)
    across = op.Unsqueeze(op.Sub(columns, left), [1, 3])
    down = op.Unsqueeze(op.Sub(rows, top), [2, 3])

    def mixed(row: ir.Value) -> ir.Value:
        first, last = pixels(row, left), pixels(row, right)
        return op.Add(first, op.Mul(op.Sub(last, first), across))

    upper, lower = mixed(top), mixed(bottom)
    return op.Add(upper, op.Mul(op.Sub(lower, upper), down))


def _coordinates(
    op: Writer, boxes: ir.Value, axis: int, sizes: ir.Value, size: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The places along one axis [boxes, count], kept inside; and whether they were."""
    count = op.element(sizes, axis)
    last = op.cast(op.Sub(size, [1]), T.FLOAT)
    first = op.part(boxes, 1, axis, axis + 1)
    end = op.part(boxes, 1, axis + 2, axis + 3)
    steps = op.cast(op.Max(op.Sub(count, [1]), [1]), T.FLOAT)
    step = op.Div(op.Mul(op.Sub(end, first), last), steps)
    places = op.Add(op.Mul(first, last), op.Mul(op.cast(op.count(count), T.FLOAT), step))
    middle = op.Mul(op.Mul(op.Add(first, end), op.const(np.float32(0.5))), last)
    places = op.Where(op.Greater(count, [1]), places, middle)
    zero = op.const(np.float32(0))
    inside = op.And(op.GreaterOrEqual(places, zero), op.LessOrEqual(places, last))
    return op.Min(op.Max(places, zero), last), inside


def _selected(
    op: Writer, boxes: ir.Value, scores: ir.Value, limit: ir.Value, *thresholds: ir.Value | None
) -> ir.Value:
    """The numbers of the boxes that are kept, best first, in int64."""
    iou, score = (*thresholds, None)[:2]
    rows = op.NonMaxSuppression(
        op.Unsqueeze(op.cast(boxes, T.FLOAT), [0]),
        op.Unsqueeze(op.cast(scores, T.FLOAT), [0, 1]),
        op.vector(limit),
        op.Reshape(op.cast(iou, T.FLOAT), [1]) if iou is not None else None,
        op.Reshape(op.cast(score, T.FLOAT), [1]) if score is not None else None,
    )
    return op.Squeeze(op.part(rows, 1, 2, 3), [1])


@importer("NonMaxSuppression")
def non_max_suppression(
    op: Writer, boxes: ir.Value, scores: ir.Value, limit: ir.Value, *, iou_threshold: float
) -> ir.Value:
    return op.cast(
        _selected(op, boxes, scores, limit, op.const(np.float32(iou_threshold))), T.INT32
    )


@importer("NonMaxSuppressionV2", "NonMaxSuppressionV3")
def non_max_suppression_v3(
    op: Writer,
    boxes: ir.Value,
    scores: ir.Value,
    limit: ir.Value,
    iou: ir.Value,
    score: ir.Value | None = None,
) -> ir.Value:
    return op.cast(_selected(op, boxes, scores, limit, iou, score), T.INT32)


@importer("NonMaxSuppressionV4")
def non_max_suppression_v4(
    op: Writer,
    boxes: ir.Value,
    scores: ir.Value,
    limit: ir.Value,
    iou: ir.Value,
    score: ir.Value,
    *,
    pad_to_max_output_size: bool,
) -> list[ir.Value]:
    chosen = _selected(op, boxes, scores, limit, iou, score)
    count = op.dim_value(chosen, 0)
    if pad_to_max_output_size:
        chosen = _padded(op, chosen, count, limit)
    return [op.cast(chosen, T.INT32), op.cast(op.Squeeze(count, [0]), T.INT32)]


def _padded(op: Writer, x: ir.Value, count: ir.Value, limit: ir.Value) -> ir.Value:
    return op.Pad(x, op.Concat([0], op.Sub(op.vector(limit), count), axis=0))


@importer("NonMaxSuppressionV5")
def non_max_suppression_v5(
    op: Writer,
    boxes: ir.Value,
    scores: ir.Value,
    limit: ir.Value,
    iou: ir.Value,
    score: ir.Value,
    sigma: ir.Value,
    *,
    pad_to_max_output_size: bool,
) -> list[ir.Value]:
    softness = constant(sigma)
    if softness is None or softness.reshape(-1)[0] != 0:
        raise Refusal("boxes that lose score instead of being dropped")
    chosen = _selected(op, boxes, scores, limit, iou, score)
    best = op.Gather(scores, chosen)
    count = op.dim_value(chosen, 0)
    if pad_to_max_output_size:
        chosen, best = (_padded(op, v, count, limit) for v in (chosen, best))
    return [op.cast(chosen, T.INT32), best, op.cast(op.Squeeze(count, [0]), T.INT32)]


@importer("CombinedNonMaxSuppression")
def combined_non_max_suppression(
    op: Writer,
    boxes: ir.Value,
    scores: ir.Value,
    per_class: ir.Value,
    total: ir.Value,
    iou: ir.Value,
    score: ir.Value,
    *,
    pad_per_class: bool,
    clip_boxes: bool,
) -> list[ir.Value]:
    """The best boxes of all classes of each image, padded with zeros.

    A matrix [images, candidates] has the score of each kept box at its place, and less than any
    score elsewhere: its largest elements are the result.
    """
    if boxes.shape is None or boxes.shape[2] != 1 or boxes.shape[0] is None:
        raise Refusal("boxes that differ from class to class")
    limit = int(op.known(total, "a number of boxes").reshape(-1)[0])
    classes, number = scores.shape[2], boxes.shape[1]  # type: ignore[index]
    if not isinstance(classes, int) or not isinstance(number, int):
        raise Refusal("a free number of boxes or classes")
    if pad_per_class:
        each = int(op.known(per_class, "a number of boxes").reshape(-1)[0])
        limit = min(limit, each * classes)
    flat_boxes = op.Squeeze(boxes, [2])
    by_class = op.Transpose(scores, perm=[0, 2, 1])
    rows = op.NonMaxSuppression(
        flat_boxes,
        by_class,
        op.vector(per_class),
        op.Reshape(iou, [1]),
        op.Reshape(score, [1]),
    )
    kept = op.GatherND(by_class, rows)
    low = op.const(np.float32(np.finfo(np.float32).min))
    spread = op.ScatterND(op.Expand(low, op.Shape(by_class)), rows, kept)
    candidates = op.Reshape(spread, [0, -1])  # [images, classes * boxes]
    many = min(limit, classes * number)
    values, places = op.TopK(candidates, [many], axis=1, outputs=2)
    valid = op.Greater(values, low)
    box = op.Mod(places, op.const(np.int64(number)))
    kind = op.Div(places, op.const(np.int64(number)))
    chosen_boxes = op.GatherND(flat_boxes, op.Unsqueeze(box, [-1]), batch_dims=1)
    if clip_boxes:
        chosen_boxes = op.Clip(chosen_boxes, op.like(0, chosen_boxes), op.like(1, chosen_boxes))
    zero = op.const(np.float32(0))
    results = [
        op.Where(op.Unsqueeze(valid, [-1]), chosen_boxes, zero),
        op.Where(valid, values, zero),
        op.Where(valid, op.cast(kind, T.FLOAT), zero),
    ]
    if many < limit:
        more = limit - many
        pads = ([0, 0, 0, 0, more, 0], [0, 0, 0, more], [0, 0, 0, more])
        results = [op.Pad(v, p) for v, p in zip(results, pads, strict=True)]
    count = op.ReduceSum(op.cast(valid, T.INT32), [1], keepdims=0)
    return [*results, count]


# -- colors ---------------------------------------------------------------------------------------


@importer("AdjustContrastv2")
def adjust_contrast_v2(op: Writer, x: ir.Value, factor: ir.Value) -> ir.Value:
    mean = op.ReduceMean(x, [-3, -2], keepdims=1)
    return op.Add(op.Mul(op.Sub(x, mean), op.cast(factor, x.dtype)), mean)


def _channels(op: Writer, x: ir.Value) -> Sequence[ir.Value]:
    return op.Split(x, None, axis=-1, num_outputs=3, outputs=3)


@importer("RGBToHSV")
def rgb_to_hsv(op: Writer, x: ir.Value) -> ir.Value:
    return op.Concat(*_hsv(op, x), axis=-1)


def _hsv(op: Writer, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    r, g, b = _channels(op, x)
    zero, one = op.like(0, x), op.like(1, x)
    value = op.Max(r, g, b)
    span = op.Sub(value, op.Min(r, g, b))
    bright = op.Greater(value, zero)
    saturation = op.Where(bright, op.Div(span, op.Where(bright, value, one)), zero)
    colored = op.Greater(span, zero)
    norm = op.Div(op.like(1 / 6, x), op.Where(colored, span, one))
    from_r = op.Mul(norm, op.Sub(g, b))
    from_g = op.Add(op.Mul(norm, op.Sub(b, r)), op.like(2 / 6, x))
    from_b = op.Add(op.Mul(norm, op.Sub(r, g)), op.like(4 / 6, x))
    hue = op.Where(op.Equal(r, value), from_r, op.Where(op.Equal(g, value), from_g, from_b))
    hue = op.Where(colored, hue, zero)
    hue = op.Where(op.Less(hue, zero), op.Add(hue, one), hue)
    return hue, saturation, value


@importer("HSVToRGB")
def hsv_to_rgb(op: Writer, x: ir.Value) -> ir.Value:
    return _rgb(op, *_channels(op, x))


def _rgb(op: Writer, hue: ir.Value, saturation: ir.Value, value: ir.Value) -> ir.Value:
    zero, one, two = (op.like(v, hue) for v in (0, 1, 2))
    turn = op.Mul(hue, op.like(6, hue))
    parts = []
    for offset, sign in ((3, 1), (2, -1), (4, -1)):
        distance = op.Abs(op.Sub(turn, op.like(offset, hue)))
        ramp = op.Sub(distance, one) if sign > 0 else op.Sub(two, distance)
        share = op.Min(op.Max(ramp, zero), one)
        kept = op.Add(op.Sub(one, saturation), op.Mul(saturation, share))
        parts.append(op.Mul(kept, value))
    return op.Concat(*parts, axis=-1)


@importer("AdjustHue")
def adjust_hue(op: Writer, x: ir.Value, delta: ir.Value) -> ir.Value:
    hue, saturation, value = _hsv(op, x)
    moved = op.Add(hue, op.cast(delta, x.dtype))
    return _rgb(op, op.Sub(moved, op.Floor(moved)), saturation, value)


@importer("AdjustSaturation")
def adjust_saturation(op: Writer, x: ir.Value, scale: ir.Value) -> ir.Value:
    hue, saturation, value = _hsv(op, x)
    scaled = op.Mul(saturation, op.cast(scale, x.dtype))
    scaled = op.Min(op.Max(scaled, op.like(0, x)), op.like(1, x))
    return _rgb(op, hue, scaled, value)
