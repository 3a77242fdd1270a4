"""Rules that change the size of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

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


@importer("ResizeBicubic", "ResizeArea")
def resize_by_product(op: Writer, x: ir.Value, size: ir.Value, *, node: Any) -> ir.Value:
    """A product with a matrix per axis, whose entries TensorFlow computes.

    Its coefficients are rounded to a table, which Resize's are not.
    """
    target = op.known(size, "a size")
    sides = [d for d in list(x.shape)[1:3] if isinstance(d, int)] if x.shape is not None else []
    if len(sides) != 2:
        raise Refusal("an image of free size")
    image = op.channels_first(op.cast(x, T.FLOAT))
    rows, columns = (_matrix(node, o, int(n)) for o, n in zip(sides, target, strict=True))
    y = op.MatMul(op.const(rows), image)
    y = op.MatMul(y, op.const(columns.T.copy()))
    return op.channels_last(y)


def _matrix(node: Any, old: int, new: int) -> np.ndarray:
    """[new, old]: how much each old pixel counts for each new one."""
    function = getattr(tf.raw_ops, node.type)
    names = ("align_corners", "half_pixel_centers")
    attributes = {a.name for a in node.op_def.attr}
    options = {n: node.get_attr(n) for n in names if n in attributes}
    unit = np.eye(old, dtype=np.float32).reshape(1, old, 1, old)
    y = function(images=unit, size=[new, 1], **options)
    return y.numpy().reshape(new, old)
