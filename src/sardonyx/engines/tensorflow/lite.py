"""Kernels for TensorFlow Lite: operators of the domain `LITE` in terms of functions of tensorflow
that its converter makes single operators of.

`to_tflite` moves nodes into this domain. Images have their channels last, and every size is known.
What the converter recognizes as one operator is a pattern: a comment says which.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from sardonyx.engines.tensorflow import nn, volumes
from sardonyx.lower import custom_native
from sardonyx.lower.driver import lowering
from sardonyx.lower.nn import norm
from sardonyx.lower.nn.window import window_of
from sardonyx.lower.tensor import resize as shared_resize
from sardonyx.lower.tensor.gather import gather as shared_gather
from sardonyx.passes.layout import LAST, Demands

LITE = "ai.sardonyx.lite"
CHANNELS_LAST = Demands(
    LAST,
    nn.WINDOWS | {"Resize", "DepthToSpace", "SpaceToDepth"},
    nn.WINDOWS | nn.NORMS | {"DepthToSpace", "SpaceToDepth"},
    LITE,
)


def kernel(*ops, **options):
    return lowering(*ops, domain=LITE, only="tensorflow", **options)


# -- windows ------------------------------------------------------------------------


@kernel("Conv")
def conv(xp, x, w, b=None, **attributes):
    window = window_of(xp.shape(x)[1:-1], attributes, xp.shape(w)[2:])
    group = attributes["group"]
    if not nn.is_plain(x, window.rank) or window.rank == 3:
        return nn.convolution_last(xp, x, w, b, **attributes)
    same = nn.is_same(window)
    y = x if same else zero_padded(x, window)
    padding = "SAME" if same else "VALID"
    strides, dilations = list(window.strides), list(window.dilations)
    kernels = np.transpose(known(w), [*range(2, window.rank + 2), 1, 0])
    if window.rank == 1:
        y, kernels = tf.expand_dims(y, 1), kernels[None]
        strides, dilations = [1, *strides], [1, *dilations]
    # The converter takes any strides and dilations; the checks of tensorflow's functions are for
    # its own kernels, which never run here.
    settings = {"strides": [1, *strides, 1], "padding": padding, "dilations": [1, *dilations, 1]}
    if group > 1 and x.shape[-1] == group:
        filters = kernels.reshape([*kernels.shape[:2], group, -1])
        y = tf.raw_ops.DepthwiseConv2dNative(input=y, filter=filters, **settings)
    else:
        y = tf.raw_ops.Conv2D(input=y, filter=kernels, **settings)
    y = y if b is None else tf.nn.bias_add(y, b)
    return tf.squeeze(y, [1]) if window.rank == 1 else y


def zero_padded(x, window):
    return tf.pad(x, [[0, 0], *zip(window.before, window.reach), [0, 0]]) if window.is_padded else x


def known(x):
    """The array behind a constant."""
    return x if isinstance(x, np.ndarray) else tf.get_static_value(x)


@kernel("ConvTranspose")
def conv_transpose(xp, x, w, b=None, **attributes):
    return nn.conv_transpose_last(xp, x, w, b, **attributes)


@kernel("MaxPool")
def max_pool(xp, x, *, nonnegative=0, **attributes):
    window = window_of(xp.shape(x)[1:-1], attributes)
    if not nonnegative or nn.is_same(window) or not nn.has_pool(x, window):
        return volumes.max_pool(xp, x, **attributes)
    # An infinity would spoil the range of a quantized tensor; nothing is less than zero here.
    inner = {**attributes, "pads": None, "auto_pad": "NOTSET"}
    return nn.max_pool_last(xp, zero_padded(x, window), **inner)


@kernel("AveragePool")
def average_pool(xp, x, **attributes):
    return volumes.average_pool(xp, x, **attributes)


@kernel("BatchNormalization")
def batch_normalization(xp, x, scale, b, input_mean, input_var, *, epsilon):
    scale, b, mean, var = (known(v).astype(np.float64) for v in (scale, b, input_mean, input_var))
    factor = scale / np.sqrt(var + epsilon)
    dtype = xp.dtype(x)
    return x * factor.astype(dtype) + (b - mean * factor).astype(dtype)


@kernel("InstanceNormalization")
def instance_normalization(xp, x, scale, b, *, epsilon):
    return nn.instance_normalization_last(xp, x, scale, b, epsilon=epsilon)


@kernel("LayerNormalization")
def layer_normalization(xp, x, scale, b=None, *, axis, epsilon, stash_type, count, dtypes):
    if count > 1:
        settings = {"axis": axis, "epsilon": epsilon, "stash_type": stash_type}
        return norm.layer_normalization(xp, x, scale, b, count=count, dtypes=dtypes, **settings)
    axes = list(range(axis % xp.rank(x), xp.rank(x)))
    mean = tf.reduce_mean(x, axes, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(x, mean), axes, keepdims=True)
    y = (x - mean) * tf.math.rsqrt(variance + epsilon) * scale
    return y if b is None else y + b


@kernel("LRN")
def lrn(xp, x, *, alpha, beta, bias, size):
    if size % 2 == 0 or x.shape.rank != 4:
        return custom_native.lrn_last(xp, x, alpha=alpha, beta=beta, bias=bias, size=size)
    return tf.nn.local_response_normalization(x, size // 2, bias, alpha / size, beta)


@kernel("DepthToSpace")
def depth_to_space(xp, x, *, blocksize, mode):
    if mode == "DCR":
        return tf.nn.depth_to_space(x, blocksize)
    batch, height, width, channels = x.shape
    inner = channels // blocksize**2
    y = tf.reshape(x, [batch * height, width, inner, blocksize, blocksize])
    y = tf.transpose(y, [0, 3, 1, 4, 2])
    return tf.reshape(y, [batch, height * blocksize, width * blocksize, inner])


@kernel("SpaceToDepth")
def space_to_depth(xp, x, *, blocksize):
    return tf.nn.space_to_depth(x, blocksize)


@kernel("Gather", either=("indices",))
def gather(xp, x, indices, *, axis):
    rank = x.shape.rank
    groups = shuffled_groups(known(indices), x.shape[-1]) if axis % rank == rank - 1 else 0
    if not groups:
        return shared_gather(xp, x, indices, axis=axis)
    # LiteRT moves the numbers of a GATHER one by one: this takes a fifth of its time.
    y = tf.transpose(tf.reshape(x, [-1, groups, x.shape[-1] // groups]), [0, 2, 1])
    return tf.reshape(y, x.shape)


def shuffled_groups(order, size):
    """The number of groups whose members are dealt out in turn; 0 where an order is another one."""
    if order is None or order.shape != (size,) or size < 4 or order[1] < 2 or size % order[1]:
        return 0
    groups = size // int(order[1])
    dealt = np.arange(size).reshape(groups, -1).T.reshape(-1)
    return groups if groups > 1 and np.array_equal(order, dealt) else 0


# -- activations --------------------------------------------------------------------


@kernel("Relu")
def relu(xp, x):
    return tf.nn.relu(x)


@kernel("Sigmoid")
def sigmoid(xp, x):
    return tf.math.sigmoid(x)


@kernel("Tanh")
def tanh(xp, x):
    return tf.math.tanh(x)


@kernel("Swish")
def swish(xp, x, *, alpha):
    return x * tf.math.sigmoid(x if alpha == 1.0 else x * alpha)


@kernel("Clip", either=("min", "max"))
def clip(xp, x, min=None, max=None):
    low, high = (None if v is None or tf.is_tensor(v) else float(v) for v in (min, max))
    if (low, high) == (0.0, 6.0) and x.dtype == tf.float32:
        return tf.nn.relu6(x)
    if low == 0.0 and max is None:
        return tf.nn.relu(x)
    x = x if min is None else tf.maximum(x, xp.cast(xp.asarray(min), xp.dtype(x)))
    return x if max is None else tf.minimum(x, xp.cast(xp.asarray(max), xp.dtype(x)))


@kernel("LeakyRelu")
def leaky_relu(xp, x, *, alpha):
    return tf.nn.leaky_relu(x, alpha)


@kernel("PRelu")
def prelu(xp, x, slope):
    if slope.shape.rank == x.shape.rank > 1 and slope.shape[0] == 1:
        slope = tf.squeeze(slope, 0)  # else the converter does not recognize it
    return tf.nn.relu(x) + (-slope) * tf.nn.relu(-x)  # PRELU


@kernel("HardSwish")
def hard_swish(xp, x):
    return x * tf.nn.relu6(x + 3.0) * (1 / 6)  # HARD_SWISH


@kernel("HardSigmoid")
def hard_sigmoid(xp, x, *, alpha, beta):
    inner = x if math.isclose(alpha, 1 / 6, rel_tol=1e-6) else x * (6 * alpha)
    return tf.nn.relu6(inner + 6 * beta) * (1 / 6)  # ADD with RELU6, MUL


@kernel("Gelu")
def gelu(xp, x, *, approximate):
    return tf.nn.gelu(x, approximate == "tanh")  # GELU


@kernel("Softmax")
def softmax(xp, x, *, axis):
    return tf.nn.softmax(x, axis)


@kernel("LogSoftmax")
def log_softmax(xp, x, *, axis):
    return tf.nn.log_softmax(x, axis)


@kernel("Elu")
def elu(xp, x, *, alpha):
    if alpha == 1.0:
        return tf.nn.elu(x)
    return tf.nn.relu(x) + alpha * tf.nn.elu(tf.minimum(x, 0.0))


ERF = (  # x·P(x²)/Q(x²) up to 4, to the last digits of float32
    (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
     -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
    (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
     -1.42647390514189e-02),
)  # fmt: skip


@kernel("Erf")
def erf(xp, x):
    x = tf.clip_by_value(x, -4.0, 4.0)
    square = x * x
    numerator, denominator = (horner(square, terms) for terms in ERF)
    return x * numerator / denominator


def horner(x, terms):
    total = x * terms[0] + terms[1]
    for term in terms[2:]:
        total = total * x + term
    return total


# -- sizes --------------------------------------------------------------------------


@kernel("Resize", static=("roi", "scales", "sizes"))
def resize(xp, x, roi=None, scales=None, sizes=None, **attributes):
    attributes.setdefault("axes", None)
    shape, axes = list(x.shape), attributes["axes"]
    chosen = list(range(len(shape))) if axes is None else list(axes)
    transform, mode = attributes["coordinate_transformation_mode"], attributes["mode"]
    policy = attributes["keep_aspect_ratio_policy"]
    plan = shared_resize.resized_axes(shape, chosen, roi, scales, sizes, transform, policy)
    inside = len(shape) == 4 and all(a.index in (1, 2) for a in plan)
    options = resize_options(plan, transform, mode, attributes) if inside else None
    if options is None or x.dtype != tf.float32:
        return shared_resize.resize(xp, x, roi, scales, sizes, **attributes)
    after = {a.index: a.after for a in plan}
    size = [after.get(1, shape[1]), after.get(2, shape[2])]
    function = tf.raw_ops.ResizeBilinear if mode == "linear" else tf.raw_ops.ResizeNearestNeighbor
    return function(images=x, size=size, **options)


def resize_options(plan, transform, mode, attributes):
    """The settings of tensorflow's own resizing that gives the same numbers; None if none does."""
    if mode == "cubic" or (attributes["antialias"] and any(a.scale < 1 for a in plan)):
        return None
    choices = [(False, True), (False, False), (True, False)]
    for corners, centers in choices:
        if all(is_same_axis(a, transform, mode, attributes, corners, centers) for a in plan):
            return {"align_corners": corners, "half_pixel_centers": centers}
    return None


def is_same_axis(axis, transform, mode, attributes, corners, centers):
    """Whether an axis is sampled at the same places, computed for every element."""
    ns = shared_resize.numpy_arrays()
    at = np.asarray(shared_resize.places(ns, axis, transform), np.float64)
    scale = axis.before / axis.after
    if corners and axis.after > 1:
        scale = (axis.before - 1) / (axis.after - 1)
    places = np.arange(axis.after, dtype=np.float64)
    if mode == "linear":
        theirs = (places + 0.5) * scale - 0.5 if centers else places * scale
        last = axis.before - 1
        return np.allclose(np.clip(at, 0, last), np.clip(theirs, 0, last), rtol=0, atol=1e-6)
    index = shared_resize.nearest(ns, at, axis, attributes["nearest_mode"])
    theirs = (places + 0.5) * scale if centers else places * scale
    rounded = np.floor(theirs + 0.5) if corners else np.floor(theirs)
    return np.array_equal(np.asarray(index), np.clip(rounded, 0, axis.before - 1))


@kernel("Pad", static=("pads", "axes"), either=("constant_value",))
def pad(xp, x, pads, constant_value=None, axes=None, *, mode):
    rank = x.shape.rank
    widths = np.zeros((rank, 2), np.int32)
    chosen = range(rank) if axes is None else [int(a) % rank for a in axes]
    widths[list(chosen)] = np.asarray(pads).reshape(2, -1).T
    crop = [slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(widths.tolist(), x.shape)]
    if (widths < 0).any():
        x, widths = x[tuple(crop)], np.maximum(widths, 0)
    if mode == "reflect":
        return tf.pad(x, widths, "REFLECT")
    if mode == "constant":
        if constant_value is None or not np.any(known(constant_value)):
            return tf.pad(x, widths)
        value = xp.reshape(xp.asarray(constant_value), [])
        return tf.pad(x, widths, constant_values=tf.cast(value, x.dtype))
    for axis, (before, after) in enumerate(widths.tolist()):
        if before or after:
            size = x.shape[axis]
            places = np.arange(-before, size + after)
            places = places % size if mode == "wrap" else np.clip(places, 0, size - 1)
            x = tf.gather(x, places.astype(np.int32), axis=axis)
    return x


# Operators that move into the domain by name alone; the layout plan moves the others.
MOVED = (
    "Relu", "Clip", "LeakyRelu", "PRelu", "HardSwish", "HardSigmoid", "Gelu", "Softmax",
    "LogSoftmax", "Elu", "Erf", "Resize", "Pad", "LayerNormalization", "Sigmoid", "Tanh", "Swish",
    "Gather",
)  # fmt: skip
