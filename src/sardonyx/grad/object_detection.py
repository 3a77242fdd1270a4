"""Gradients of ONNX's `object_detection` family: RoiAlign."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim
from sardonyx.grad.driver import gradient_rule, no_gradient
from sardonyx.grad.nn.parts import by_parts

no_gradient("NonMaxSuppression")


@dataclass(frozen=True)
class Samples:
    """Where regions are sampled along one axis, each (region, bin, sample) unless noted.

    place     -- the coordinate, moved onto the image
    on_image  -- whether it was there: a sample off the image is zero
    exists    -- (region, 1, sample): regions differ in how many samples a bin has
    count     -- (region, 1): how many that is
    """

    place: ir.Value
    on_image: ir.Value
    exists: ir.Value
    count: ir.Value
    size: Dim
    bins: int


@gradient_rule("RoiAlign", refuses=(1,))
def roi_align(op, g, x, rois, batch_indices, *, mode, output_height, output_width, **settings):
    axes = [
        _samples(op, rois, start, bins, size, **settings)
        for start, bins, size in (
            (1, output_height, op.dim(x, 2)),
            (0, output_width, op.dim(x, 3)),
        )
    ]

    def forward(op, x):
        image = op.Gather(x, batch_indices, axis=0)
        if mode == "max":
            return _largest(op, image, *axes)
        rows, columns = (_means(op, axis) for axis in axes)
        return op.MatMul(
            op.MatMul(op.Unsqueeze(rows, [1]), image), op.swap(op.Unsqueeze(columns, [1]))
        )

    return *by_parts(op, (g,), (x,), forward), None, None


def _samples(
    op: Builder,
    rois: ir.Value,
    start: int,
    bins: int,
    size: Dim,
    *,
    sampling_ratio: int,
    spatial_scale: float,
    coordinate_transformation_mode: str,
) -> Samples:
    """The samples of all regions along one axis."""
    half_pixel = coordinate_transformation_mode == "half_pixel"
    low, high = (
        op.Slice(rois, [i], [i + 1], [1]) * spatial_scale - (0.5 if half_pixel else 0.0)
        for i in (start, start + 2)
    )
    length = high - low if half_pixel else op.Max(high - low, 1.0)
    step = length / float(bins)
    count = op.Ceil(step) if sampling_ratio <= 0 else op.fill(sampling_ratio, step)
    whole = op.Max(count, 1.0)
    if sampling_ratio > 0:
        index = op.const(np.arange(sampling_ratio), rois.dtype)
    else:
        most = op.cast(op.ReduceMax(whole, keepdims=0), ir.DataType.INT64)
        index = op.cast(op.Range(0, most, 1), rois.dtype)
    exists = op.Unsqueeze(op.Less(index, count), [1])
    bin_start = low + op.const(np.arange(bins)[None], rois.dtype) * step
    inner = (op.Unsqueeze(index, [0]) + 0.5) * step / whole
    place = op.Unsqueeze(bin_start, [2]) + op.Unsqueeze(inner, [1])
    end = op.cast(op.join([size]), rois.dtype)
    on_image = op.And(op.GreaterOrEqual(place, -1.0), op.LessOrEqual(place, end))
    return Samples(op.Min(op.Max(place, 0.0), end - 1.0), on_image, exists, whole, size, bins)


def _means(op: Builder, axis: Samples) -> ir.Value:
    """(region, bin, pixel): how much of each pixel is in the mean of a bin."""
    dtype = axis.place.dtype
    pixel = op.cast(op.Range(0, op.Squeeze(op.join([axis.size]), [0]), 1), dtype)
    near = op.Max(op.Sub(1.0, op.Abs(op.Unsqueeze(axis.place, [3]) - pixel)), 0.0)
    counted = op.cast(op.And(axis.on_image, axis.exists), dtype)
    return op.total(near * op.Unsqueeze(counted, [3]), [2]) / op.Unsqueeze(axis.count, [2])


def _largest(op: Builder, image: ir.Value, rows: Samples, columns: Samples) -> ir.Value:
    """The largest of the weighted pixels of a bin's samples (pixels, not interpolated samples).

    A sample off the image counts as zero. Ties go to the first.
    """
    (y, tall, there), (x, wide, here) = (_corners(op, axis) for axis in (rows, columns))
    down, across = [2, 4], [1, 3]
    at = op.Unsqueeze(y, down) * op.join([columns.size]) + op.Unsqueeze(x, across)
    share = op.Unsqueeze(tall, down) * op.Unsqueeze(wide, across)
    exists = op.And(op.Unsqueeze(there, down), op.Unsqueeze(here, across))
    exists = op.Expand(exists, op.Shape(at))
    bins = [0, 1, rows.bins * columns.bins, -1]
    at, share, exists = (op.Reshape(v, bins) for v in (at, share, exists))
    pixels = op.reshape(image, [0, 0, -1])
    channels = op.Expand(at, op.join([1, op.dim(image, 1), 1, 1]))
    corners = op.GatherElements(
        op.Unsqueeze(pixels, [2]), op.Reshape(channels, [0, 0, 1, -1]), axis=3
    )
    values = op.Where(exists, op.Reshape(corners, op.Shape(channels)) * share, -np.inf)
    best = op.ArgMax(values, axis=3, keepdims=1)
    largest = op.reshape(op.GatherElements(channels, best, axis=3), [0, 0, -1])
    weight = op.GatherElements(op.Expand(share, op.Shape(channels)), best, axis=3)
    picked = op.GatherElements(pixels, largest, axis=2) * op.reshape(weight, [0, 0, -1])
    return op.Reshape(picked, op.join([0, 0, rows.bins, columns.bins]))


def _corners(op: Builder, axis: Samples) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(region, bin, two per sample): pixels, their shares, and whether there is such a sample."""
    low = op.Floor(axis.place)
    last = op.join([axis.size]) - 1
    first = op.cast(low, ir.DataType.INT64)
    pixels = [first, op.Min(first + 1, last)]
    after = axis.place - low
    shares = [op.Where(axis.on_image, s, 0.0) for s in (op.Sub(1.0, after), after)]
    exists = op.Expand(axis.exists, op.Shape(axis.place))
    pair = [op.Concat(*(op.Unsqueeze(v, [3]) for v in part), axis=3) for part in (pixels, shares)]
    both = op.Concat(op.Unsqueeze(exists, [3]), op.Unsqueeze(exists, [3]), axis=3)
    return tuple(op.Reshape(v, [0, 0, -1]) for v in (*pair, both))  # type: ignore[return-value]
