"""tensorflow's own kernels for ONNX's family nn. Its CPU kernels want channels last."""

from __future__ import annotations

import tensorflow as tf

from sardonyx.engines.tensorflow.xp import number, numbers
from sardonyx.lower.driver import lowering
from sardonyx.lower.nn import conv, pool
from sardonyx.lower.nn.window import lowest, padded, window_of

KERNEL_TYPES = (tf.float16, tf.float32, tf.float64)
FORMATS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


def channels_last(x):
    rank = x.shape.rank
    return tf.transpose(x, [0, *range(2, rank), 1])


def channels_first(x):
    rank = x.shape.rank
    return tf.transpose(x, [0, rank - 1, *range(1, rank - 1)])


def is_plain(x, rank):
    return rank in FORMATS and x.dtype in KERNEL_TYPES


@lowering("Conv", only="tensorflow")
def convolution(xp, x, w, b=None, **attributes):
    kernel = attributes["kernel_shape"] or xp.shape(w)[2:]
    settings = (attributes[n] for n in ("strides", "dilations", "pads", "auto_pad"))
    window = window_of(xp.shape(x)[2:], kernel, *settings)
    mixed = window.is_dilated and any(s > 1 for s in window.strides)  # it takes one or the other
    if not is_plain(x, window.rank) or mixed or w.shape.rank is None or w.shape[0] is None:
        return conv.conv(xp, x, w, b, **attributes)
    y = channels_last(padded(xp, x, window, 0))
    kernels = tf.transpose(w, [*range(2, window.rank + 2), 1, 0])
    group = attributes["group"]
    options = {
        "strides": list(window.strides),
        "padding": "VALID",
        "data_format": FORMATS[window.rank],
        "dilations": list(window.dilations),
    }
    if group == 1:
        y = tf.nn.convolution(y, kernels, **options)
    elif is_depthwise(x, group, window):
        y = depthwise(y, kernels, group, window)
    elif window.rank == 3 or x.dtype != tf.float32:
        # CPU kernels of three axes have no groups, those of other types are slower with them.
        y = in_parts(y, kernels, group, options)
    else:
        y = grouped(y, kernels, group, options)
    y = y if b is None else tf.nn.bias_add(y, b)
    return channels_first(y)


def in_parts(y, kernels, group, options):
    """One convolution for each group."""
    parts = zip(tf.split(y, group, -1), tf.split(kernels, group, -1))
    return tf.concat([tf.nn.convolution(p, k, **options) for p, k in parts], -1)


def grouped(y, kernels, group, options):
    """All groups in one convolution, whose gradient on CPUs exists only group by group."""

    @tf.custom_gradient
    def convolved(y, kernels):
        def gradient(g):
            with tf.GradientTape() as tape:
                tape.watch([y, kernels])
                parts = in_parts(y, kernels, group, options)
            return tape.gradient(parts, [y, kernels], g)

        return tf.nn.convolution(y, kernels, **options), gradient

    return convolved(y, kernels)


def is_depthwise(x, group, window):
    """Whether tensorflow has one kernel for it: an input channel for each group."""
    return window.rank <= 2 and x.shape[1] == group and len(set(window.strides)) == 1


def depthwise(y, kernels, group, window):
    shape = [*window.kernel, group, kernels.shape[-1] // group]
    strides, dilations = list(window.strides), list(window.dilations)
    kernels = tf.reshape(kernels, shape)
    if window.rank == 1:
        y, kernels = tf.expand_dims(y, 1), tf.expand_dims(kernels, 0)
        strides, dilations = strides * 2, [1, *dilations]
    y = tf.nn.depthwise_conv2d(y, kernels, [1, *strides, 1], "VALID", dilations=dilations)
    return tf.squeeze(y, [1]) if window.rank == 1 else y


@lowering("ConvTranspose", only="tensorflow")
def conv_transpose(xp, x, w, b=None, **attributes):
    kernel = attributes["kernel_shape"] or xp.shape(w)[2:]
    names = ["strides", "dilations", "pads", "auto_pad", "output_padding", "output_shape"]
    sizes = xp.shape(x)[2:]
    canvas = conv.canvas_of(sizes, kernel, *(attributes[n] for n in names))
    rank, group = len(kernel), attributes["group"]
    dilated = any(d > 1 for d in canvas.dilations)
    # It computes any size whose windows fit in the strides.
    loose = any(e >= s for e, s in zip(canvas.extra, canvas.strides))
    short = any(s > k for s, k in zip(canvas.strides, kernel))
    if not is_plain(x, rank) or dilated or loose or short or w.shape[1] is None:
        return conv.conv_transpose(xp, x, w, b, **attributes)
    kernels = tf.transpose(w, [*range(2, rank + 2), 1, 0])
    shape = [xp.shape(x)[0], *canvas.sizes, w.shape[1]]
    settings = {
        "output_shape": tf.cast(numbers(shape), tf.int32),
        "strides": list(canvas.strides),
        "padding": "VALID",
        "data_format": FORMATS[rank],
    }
    parts = zip(tf.split(channels_last(x), group, -1), tf.split(kernels, group, -1))
    outputs = [tf.nn.conv_transpose(p, k, **settings) for p, k in parts]
    y = channels_first(outputs[0] if group == 1 else tf.concat(outputs, -1))
    return conv.biased(xp, conv.cropped(xp, y, canvas), b)


def pool_window(xp, x, attributes):
    settings = (attributes[n] for n in ("strides", "dilations", "pads", "auto_pad", "ceil_mode"))
    return window_of(xp.shape(x)[2:], attributes["kernel_shape"], *settings)


def pooled(xp, x, window, value, kind):
    """Windows of `x`, padded with `value`, reduced by tensorflow's own pool."""
    y = tf.nn.pool(
        channels_last(padded(xp, x, window, value)),
        list(window.kernel),
        kind,
        strides=list(window.strides),
        padding="VALID",
        data_format=FORMATS[window.rank],
        dilations=list(window.dilations),
    )
    if window.after != window.reach:  # for ceil_mode, one too many may begin in the padding
        y = y[(slice(None), *(slice(number(n)) for n in window.outputs))]
    return channels_first(y)


def has_pool(x, window):
    if window.rank == 3 and x.dtype != tf.float32:
        return False
    mixed = window.is_dilated and any(s > 1 for s in window.strides)
    apart = any(s > k for s, k in zip(window.strides, window.kernel))
    return is_plain(x, window.rank) and not mixed and not apart


@lowering("MaxPool", only="tensorflow")
def max_pool(xp, x, *, count, **attributes):
    window = pool_window(xp, x, attributes)
    if count > 1 or not has_pool(x, window):
        return pool.max_pool(xp, x, count=count, **attributes)
    return pooled(xp, x, window, lowest(xp.dtype(x)), "MAX")


@lowering("AveragePool", only="tensorflow")
def average_pool(xp, x, **attributes):
    window = pool_window(xp, x, attributes)
    if not has_pool(x, window):
        return pool.average_pool(xp, x, **attributes)
    mean = pooled(xp, x, window, 0, "AVG")
    if not window.is_padded:
        return mean
    counts = pool.element_counts(xp, window, attributes["count_include_pad"], xp.dtype(x))
    return mean * (window.volume / counts)
