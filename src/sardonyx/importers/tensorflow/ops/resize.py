"""Rules that resize images between neighboring pixels; `resampling` has those by weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Writer

T = ir.DataType


def _target(op: Writer, x: ir.Value, size: ir.Value, image: ir.Value) -> ir.Value:
    """All four sizes of the result, channels first."""
    return op.Concat(op.join([op.dim(image, 0), op.dim(image, 1)]), op.int64(size), axis=0)


def _mode(align_corners: bool, half_pixel_centers: bool) -> str:
    if align_corners:
        return "align_corners"
    return "half_pixel" if half_pixel_centers else "asymmetric"


@importer("ResizeBilinear")
def resize_bilinear(
    op: Writer, x: ir.Value, size: ir.Value, *, align_corners: bool, half_pixel_centers: bool
) -> ir.Value:
    image = op.channels_first(op.cast(x, T.FLOAT))
    y = op.Resize(
        image,
        None,
        None,
        _target(op, x, size, image),
        mode="linear",
        coordinate_transformation_mode=_mode(align_corners, half_pixel_centers),
    )
    return op.channels_last(y)


@importer("ResizeNearestNeighbor")
def resize_nearest_neighbor(
    op: Writer,
    x: ir.Value,
    size: ir.Value,
    *,
    align_corners: bool,
    half_pixel_centers: bool,
    node: Any,
) -> ir.Value:
    target = constant(size)
    sides = [d for d in list(x.shape)[1:3] if isinstance(d, int)] if x.shape is not None else []
    if target is not None and len(sides) == 2:
        for axis, old in enumerate(sides, 1):
            places = _places(old, int(target[axis - 1]), align_corners, half_pixel_centers)
            if not np.array_equal(places, np.arange(old)):
                x = op.Gather(x, places, axis=axis)
        return x
    image = op.channels_first(x)
    near = "floor" if not (align_corners or half_pixel_centers) else "round_prefer_ceil"
    y = op.Resize(
        image,
        None,
        None,
        _target(op, x, size, image),
        mode="nearest",
        nearest_mode=near,
        coordinate_transformation_mode=_mode(align_corners, half_pixel_centers),
    )
    return op.channels_last(y)


def _places(old: int, new: int, align_corners: bool, half_pixel_centers: bool) -> np.ndarray:
    """The pixel of the old image for each of the new one, computed by TensorFlow."""
    numbers = np.arange(old, dtype=np.float32).reshape(1, old, 1, 1)
    y = tf.raw_ops.ResizeNearestNeighbor(
        images=numbers,
        size=[new, 1],
        align_corners=align_corners,
        half_pixel_centers=half_pixel_centers,
    )
    return np.round(y.numpy().reshape(-1)).astype(np.int64)
