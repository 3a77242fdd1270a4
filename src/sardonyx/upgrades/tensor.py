"""Adapters of ONNX's family `tensor`, in opset order."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.upgrades.driver import feed, ints, like, put, take, upgrade


@upgrade("Pad", to=2)
def pad_1_2(op, node):
    put(node, pads=take(node, "paddings"))


@upgrade("Split", to=2)
def split_1_2(op, node):
    put(node, axis=take(node, "axis", 0))
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        feed(node, node.inputs[0], op.Cast(node.inputs[1], to=int(ir.DataType.INT64)))


@upgrade("Concat", to=4)
def concat_1_4(op, node):
    put(node, axis=take(node, "axis", 1))


@upgrade("Reshape", to=5)
def reshape_1_5(op, node):
    take(node, "consumed_inputs")
    feed(node, node.inputs[0], ints(op, take(node, "shape", ())))


@upgrade("Cast", to=6)
def cast_1_6(op, node):
    put(node, to=int(ir.DataType[take(node, "to").upper()]))


@upgrade("Tile", to=6)
def tile_1_6(op, node):
    x, tiles, axis = node.inputs
    once = op.ConstantOfShape(op.Shape(op.Shape(x)), value=ir.tensor(np.array([1], np.int64)))
    tiles, axis = (op.Reshape(op.Cast(v, to=int(ir.DataType.INT64)), [1]) for v in (tiles, axis))
    feed(node, x, op.ScatterElements(once, axis, tiles, axis=0))


@upgrade("Upsample", to=7)
def upsample_1_7(op, node):
    scales = (1.0, 1.0, take(node, "height_scale"), take(node, "width_scale"))
    mode = take(node, "mode", "nearest")
    put(node, scales=scales, mode="linear" if mode == "bilinear" else mode)


@upgrade("Upsample", to=9)
def upsample_7_9(op, node):
    feed(node, node.inputs[0], op.const(np.array(take(node, "scales"), np.float32)))


@upgrade("Upsample", to=10)
def upsample_9_10(op, node):
    x, scales = node.inputs
    mode = take(node, "mode", "nearest")
    return resize_10(op, x, scales, "linear" if mode == "bilinear" else mode, "floor")


@upgrade("Slice", to=10)
def slice_1_10(op, node):
    starts, ends = take(node, "starts"), take(node, "ends")
    axes = take(node, "axes", range(len(starts)))
    feed(node, node.inputs[0], ints(op, starts), ints(op, ends), ints(op, axes))


@upgrade("Scatter", to=11)
def scatter_9_11(op, node):
    node.op_type = "ScatterElements"


@upgrade("Pad", to=11, shapes=True)
def pad_2_11(op, node):
    x, value = node.inputs[0], take(node, "value", 0.0)
    feed(node, x, ints(op, take(node, "pads")), like(op, value, x) if value else None)


@upgrade("Resize", to=11)
def resize_10_11(op, node):
    """Before 11, `nearest` takes the pixel below when growing and the one above when shrinking."""
    x, scales = node.inputs
    mode = take(node, "mode", "nearest")
    if mode != "nearest":
        return resize_10(op, x, scales, mode, "floor")
    factors = constant(scales)
    if factors is None or (factors.min() < 1 < factors.max()):
        smaller = resize_10(op, x, op.Min(scales, 1.0), mode, "ceil")
        return resize_10(op, smaller, op.Max(scales, 1.0), mode, "floor")
    return resize_10(op, x, scales, mode, "ceil" if factors.min() < 1 else "floor")


def resize_10(op, x, scales, mode, nearest_mode):
    """What Resize did at version 10, and Upsample before it."""
    return op.Resize(
        *(x, None, scales),
        mode=mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode=nearest_mode if mode == "nearest" else None,
    )


@upgrade("Resize", to=13)
def resize_11_13(op, node):
    """`scales` is left out where `sizes` is given, `roi` where nothing reads it.

    `tf_half_pixel_for_nn` is no longer listed from 13 on. The form in which TensorFlow's converter
    writes it reads otherwise; any other stays as it is, which onnxruntime takes.
    """
    x, roi, scales, sizes = (*node.inputs, None, None)[:4]
    text = node.attributes.get_string
    transform = text("coordinate_transformation_mode", "half_pixel")
    nearest = text("mode", "nearest") == "nearest" and text("nearest_mode") == "floor"
    if transform == "tf_half_pixel_for_nn" and nearest:
        put(node, coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_ceil")
    crops = transform == "tf_crop_and_resize"
    feed(node, x, roi if crops else None, scales if sizes is None else None, sizes)


@upgrade("Squeeze", "Unsqueeze", to=13)
def squeeze_11_13(op, node):
    feed(node, node.inputs[0], ints(op, take(node, "axes")))


@upgrade("Split", to=13)
def split_11_13(op, node):
    if "split" in node.attributes:
        feed(node, node.inputs[0], ints(op, take(node, "split")))


@upgrade("Split", to=18)
def split_13_18(op, node):
    if len(node.inputs) < 2 or node.inputs[1] is None:
        put(node, num_outputs=len(node.outputs))


@upgrade("GridSample", to=20)
def gridsample_16_20(op, node):
    mode = take(node, "mode", "bilinear")
    put(node, mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))
