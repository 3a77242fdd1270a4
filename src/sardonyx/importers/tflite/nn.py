"""Convolutions, pools and products of TensorFlow Lite.

Images have their channels last there: each rule turns them around ONNX's operator, and the layout
plan then removes the turns that cancel out.
"""

from __future__ import annotations

import numpy as np

from sardonyx.build import constant
from sardonyx.importers.tflite.rules import Unsupported, known, rank, rule, sizes
from sardonyx.passes.layout.axes import to_first, to_last

SAME, VALID = 0, 1


def first(op, x):
    return op.Transpose(x, perm=to_first(rank(x)))


def last(op, x):
    return op.Transpose(x, perm=to_last(rank(x)))


def padding(node):
    return "SAME_UPPER" if node["padding"] == SAME else "VALID"


def strides(node):
    return [node["stride_h"], node["stride_w"]]


@rule("CONV_2D")
def conv_2d(op, node, x, w, b=None):
    kernel = node.turned(op, node.inputs[1], lambda a: a.transpose(0, 3, 1, 2), 0)
    channels = sizes(x)[-1]
    depth = sizes(kernel)[1]
    if not isinstance(channels, int) or channels % depth:
        raise Unsupported("the number of channels does not fit the kernel")
    dilations = [node["dilation_h_factor"], node["dilation_w_factor"]]
    settings = {"strides": strides(node), "dilations": dilations, "group": channels // depth}
    return last(op, op.Conv(first(op, x), kernel, b, auto_pad=padding(node), **settings))


@rule("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(op, node, x, w, b=None):
    kernel = node.turned(op, node.inputs[1], lambda a: a.transpose(3, 0, 1, 2), 0)
    channels = sizes(x)[-1]
    if not isinstance(channels, int):
        raise Unsupported("the number of channels is not known")
    dilations = [node["dilation_h_factor"], node["dilation_w_factor"]]
    settings = {"strides": strides(node), "dilations": dilations, "group": channels}
    return last(op, op.Conv(first(op, x), kernel, b, auto_pad=padding(node), **settings))


@rule("CONV_3D")
def conv_3d(op, node, x, w, b=None):
    kernel = node.turned(op, node.inputs[1], lambda a: a.transpose(4, 3, 0, 1, 2), 0)
    steps = [node["stride_d"], node["stride_h"], node["stride_w"]]
    dilations = [node[f"dilation_{axis}_factor"] for axis in "dhw"]
    settings = {"strides": steps, "dilations": dilations}
    return last(op, op.Conv(first(op, x), kernel, b, auto_pad=padding(node), **settings))


@rule("TRANSPOSE_CONV")
def transpose_conv(op, node, shape, w, x, b=None):
    kernel = node.turned(op, node.inputs[1], lambda a: a.transpose(3, 0, 1, 2), 1)
    return _transposed(op, node, shape, kernel, x, b, strides(node))


@rule("CONV_3D_TRANSPOSE")
def conv_3d_transpose(op, node, shape, w, x, b=None):
    if any(node[f"dilation_{axis}_factor"] != 1 for axis in "dhw"):
        raise Unsupported("a transposed convolution with dilations")
    kernel = node.turned(op, node.inputs[1], lambda a: a.transpose(4, 3, 0, 1, 2), 1)
    steps = [node["stride_d"], node["stride_h"], node["stride_w"]]
    return _transposed(op, node, shape, kernel, x, b, steps)


def _sizes_of_image(node, shape):
    """The size of a result; where its batch is free, its shape is put together from numbers."""
    maker = shape.producer()
    if constant(shape) is None and maker is not None and maker.op_type == "Concat":
        parts = [number for value in maker.inputs for number in _numbers(value)]
    else:
        parts = known(shape, "the size of the result").tolist()
    if len(parts) != len(node.outputs[0].shape) or None in parts[1:-1]:
        raise Unsupported("the size of the result depends on data")
    return parts[1:-1]


def _numbers(value):
    """A part of a shape: its numbers, or one None if it is not known."""
    while constant(value) is None and value.producer() is not None:
        if value.producer().op_type not in ("Unsqueeze", "Cast", "Identity"):
            break
        value = value.producer().inputs[0]
    array = constant(value)
    return [None] if array is None else array.reshape(-1).tolist()


def _transposed(op, node, shape, kernel, x, b, steps):
    target = _sizes_of_image(node, shape)
    before, after, extra = [], [], []
    for size, extent, stride, size_of_output in zip(
        sizes(x)[1:-1], sizes(kernel)[2:], steps, target, strict=True
    ):
        if not isinstance(size, int):
            raise Unsupported("the size of the image is not known")
        whole = (size - 1) * stride + extent
        cut = max(whole - size_of_output, 0)
        begin = cut // 2 if node["padding"] == SAME else 0
        before.append(begin)
        after.append(cut - begin)
        extra.append(max(size_of_output - whole, 0))
    settings = {"strides": steps, "pads": before + after, "output_padding": extra}
    return last(op, op.ConvTranspose(first(op, x), kernel, b, **settings))


def pool_settings(node):
    kernel = [node["filter_height"], node["filter_width"]]
    return {"kernel_shape": kernel, "strides": strides(node), "auto_pad": padding(node)}


@rule("MAX_POOL_2D")
def max_pool_2d(op, node, x):
    return last(op, op.MaxPool(first(op, x), **pool_settings(node)))


@rule("AVERAGE_POOL_2D")
def average_pool_2d(op, node, x):
    return last(op, op.AveragePool(first(op, x), count_include_pad=0, **pool_settings(node)))


@rule("L2_POOL_2D")
def l2_pool_2d(op, node, x):
    squares = op.AveragePool(first(op, op.Mul(x, x)), count_include_pad=0, **pool_settings(node))
    return last(op, op.Sqrt(squares))


@rule("FULLY_CONNECTED")
def fully_connected(op, node, x, w, b=None):
    if node.get("weights_format", 0):
        raise Unsupported("its weights are shuffled")
    try:
        matrix = node.turned(op, node.inputs[1], lambda a: a.T, 1)
    except Unsupported:  # computed weights, as of products of two matrices
        matrix = op.swap(w)
    width, sizes_of_x = sizes(matrix)[0], sizes(x)[-1:]
    joins = isinstance(sizes_of_x[0], int) and sizes_of_x[0] != width if sizes_of_x else True
    if joins or (not node.get("keep_num_dims") and rank(x) != 2):
        x = op.reshape(x, [-1, width])
    y = op.MatMul(x, matrix)
    return y if b is None else op.Add(y, b)


@rule("BATCH_MATMUL")
def batch_matmul(op, node, a, b):
    a = op.swap(a) if node["adj_x"] else a
    return op.MatMul(a, op.swap(b) if node["adj_y"] else b)


@rule("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(op, node, x):
    size = 2 * node["radius"] + 1
    settings = {"alpha": node["alpha"] * size, "beta": node["beta"], "bias": node["bias"]}
    return last(op, op.LRN(first(op, x), size=size, **settings))


def resized(op, node, x, size, **settings):
    target = known(size, "the size of the result").astype(np.int64)
    whole = np.array([1, 1, *target], np.int64)
    shape = op.dims(x)
    if not isinstance(shape[0], int) or not isinstance(shape[3], int):
        scale = op.join([shape[0], shape[3], *map(int, target)])
    else:
        whole[:2] = shape[0], shape[3]
        scale = op.const(whole)
    return last(op, op.Resize(first(op, x), None, None, scale, **settings))


def coordinates(node):
    if node.get("half_pixel_centers"):
        return "half_pixel"
    return "align_corners" if node.get("align_corners") else "asymmetric"


@rule("RESIZE_BILINEAR")
def resize_bilinear(op, node, x, size):
    mode = coordinates(node)
    return resized(op, node, x, size, mode="linear", coordinate_transformation_mode=mode)


@rule("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest_neighbor(op, node, x, size):
    mode = coordinates(node)
    rounding = "floor" if mode == "asymmetric" else "round_prefer_ceil"
    settings = {"coordinate_transformation_mode": mode, "nearest_mode": rounding}
    return resized(op, node, x, size, mode="nearest", **settings)


@rule("DEPTH_TO_SPACE")
def depth_to_space(op, node, x):
    return last(op, op.DepthToSpace(first(op, x), blocksize=node["block_size"], mode="DCR"))


@rule("SPACE_TO_DEPTH")
def space_to_depth(op, node, x):
    return last(op, op.SpaceToDepth(first(op, x), blocksize=node["block_size"]))
