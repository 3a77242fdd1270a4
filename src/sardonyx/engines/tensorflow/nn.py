"""tensorflow's own kernels for ONNX's family nn.

Its CPU kernels want channels last, so these functions take and give images in that layout. Nodes of
the domain `NATIVE` call them directly, `passes/layout` rewrites a graph to use those; nodes in
ONNX's own layout turn their images around the call.
"""

from __future__ import annotations

import tensorflow as tf

from sardonyx.engines.tensorflow.xp import number, numbers
from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.driver import lowering
from sardonyx.lower.nn import conv, norm, pool
from sardonyx.lower.nn.window import lowest, window_of
from sardonyx.passes.layout import LAST, Demands

WINDOWS = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool"))
NORMS = frozenset(("BatchNormalization", "InstanceNormalization", "LRN"))
CHANNELS_LAST = Demands(LAST, WINDOWS, WINDOWS | NORMS, NATIVE, trains=True)
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


def padded_last(xp, x, window, value):
    """An image with the padding that all windows need."""
    if not window.is_padded:
        return x
    return xp.pad(x, [0, *window.before, 0], [0, *window.reach, 0], value)


def is_same(window):
    """Whether a window's padding is the one that tensorflow calls SAME."""
    axes = zip(
        *(window.sizes, window.kernel, window.strides, window.dilations),
        *(window.before, window.reach, window.outputs),
    )
    for size, kernel, stride, dilation, before, after, count in axes:
        extent = (kernel - 1) * dilation + 1
        if not isinstance(size, int):
            total = extent - 1 if stride == 1 else None
            if total is None or (before, after) != (total // 2, total - total // 2):
                return False
            continue
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        if before != total // 2 or count != -(-size // stride):  # the same windows, all of them
            return False
    return True


# -- convolutions -------------------------------------------------------------------


def has_convolution(x, w, window):
    mixed = window.is_dilated and any(s > 1 for s in window.strides)  # it takes one or the other
    return is_plain(x, window.rank) and not mixed and w.shape.rank is not None and w.shape[0]


def convolved(xp, x, w, b, group, window):
    """The convolution of an image with channels last."""
    same = is_same(window)
    y = x if same else padded_last(xp, x, window, 0)
    kernels = tf.transpose(w, [*range(2, window.rank + 2), 1, 0])
    options = {
        "strides": list(window.strides),
        "padding": "SAME" if same else "VALID",
        "data_format": FORMATS[window.rank],
        "dilations": list(window.dilations),
    }
    if group == 1:
        y = tf.nn.convolution(y, kernels, **options)
    elif is_depthwise(x, group, window):
        y = depthwise(y, kernels, group, window, options["padding"])
    elif window.rank == 3 or x.dtype != tf.float32:
        # CPU kernels of three axes have no groups, those of other types are slower with them.
        y = in_parts(y, kernels, group, options)
    else:
        y = grouped(y, kernels, group, options)
    return y if b is None else tf.nn.bias_add(y, b)


@lowering("Conv", domain=NATIVE, only="tensorflow")
def convolution_last(xp, x, w, b=None, **attributes):
    window = window_of(xp.shape(x)[1:-1], attributes, xp.shape(w)[2:])
    if has_convolution(x, w, window):
        return convolved(xp, x, w, b, attributes["group"], window)
    return channels_last(conv.conv(xp, channels_first(x), w, b, **attributes))


@lowering("Conv", only="tensorflow")
def convolution(xp, x, w, b=None, **attributes):
    window = window_of(xp.shape(x)[2:], attributes, xp.shape(w)[2:])
    if has_convolution(x, w, window):
        return channels_first(convolved(xp, channels_last(x), w, b, attributes["group"], window))
    return conv.conv(xp, x, w, b, **attributes)


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
    return window.rank <= 2 and x.shape[-1] == group


def depthwise(y, kernels, group, window, padding):
    shape = [*window.kernel, group, kernels.shape[-1] // group]
    strides, dilations = list(window.strides), list(window.dilations)
    kernels = tf.reshape(kernels, shape)
    if window.rank == 1:
        y, kernels = tf.expand_dims(y, 1), tf.expand_dims(kernels, 0)
        strides, dilations = strides * 2, [1, *dilations]
    skipped = [1, 1]
    if strides[0] != strides[1]:  # its kernel has one stride: rows that it should skip are dropped
        y, padding = same_by_hand(y, window) if padding == "SAME" else y, "VALID"
        skipped, strides = strides, [1, 1]
    y = tf.nn.depthwise_conv2d(y, kernels, [1, *strides, 1], padding, dilations=dilations)
    y = y[:, :: skipped[0], :: skipped[1]] if skipped != [1, 1] else y
    return tf.squeeze(y, [1]) if window.rank == 1 else y


def same_by_hand(y, window):
    """The padding of a window in the image itself; as many zeros as its windows read."""
    pads = [[0, 0], *([b, a] for b, a in zip(window.before, window.reach)), [0, 0]]
    return tf.pad(y, pads)


def has_transposed(x, w, canvas):
    dilated = any(d > 1 for d in canvas.dilations)
    # It computes any size whose windows fit in the strides.
    loose = any(e >= s for e, s in zip(canvas.extra, canvas.strides))
    short = any(s > k for s, k in zip(canvas.strides, canvas.kernel))
    no_kernel = not is_plain(x, len(canvas.kernel)) or w.shape[1] is None
    return not (no_kernel or dilated or loose or short)


def conv_transposed(xp, x, w, b, group, canvas):
    rank = len(canvas.kernel)
    kernels = tf.transpose(w, [*range(2, rank + 2), 1, 0])
    same = is_same_canvas(canvas)
    sizes = [n - b - e for n, b, e in zip(canvas.sizes, canvas.begin, canvas.end)]
    shape = [xp.shape(x)[0], *(sizes if same else canvas.sizes), w.shape[1]]
    settings = {
        "output_shape": tf.cast(numbers(shape), tf.int32),
        "strides": list(canvas.strides),
        "padding": "SAME" if same else "VALID",
        "data_format": FORMATS[rank],
    }
    if group == 1:
        y = tf.nn.conv_transpose(x, kernels, **settings)
    else:
        parts = zip(tf.split(x, group, -1), tf.split(kernels, group, -1))
        y = tf.concat([tf.nn.conv_transpose(p, k, **settings) for p, k in parts], -1)
    y = y if same else cropped_last(xp, y, canvas)
    return y if b is None else tf.nn.bias_add(y, b)


def is_same_canvas(canvas):
    """Whether what is cut off is what tensorflow's SAME cuts off: `kernel - stride`, half each."""
    totals = [k - s for k, s in zip(canvas.kernel, canvas.strides)]
    ends = zip(totals, canvas.begin, canvas.end, canvas.extra)
    return all(not e and b == t // 2 and a == t - t // 2 for t, b, a, e in ends)


def cropped_last(xp, y, canvas):
    if not any(not isinstance(p, int) or p for p in (*canvas.begin, *canvas.end)):
        return y
    stops = [size - end for size, end in zip(canvas.sizes, canvas.end)]
    return xp.slice(y, [0, *canvas.begin, 0], [None, *stops, None], [1] * (len(stops) + 2))


@lowering("ConvTranspose", domain=NATIVE, only="tensorflow")
def conv_transpose_last(xp, x, w, b=None, **attributes):
    canvas = conv.canvas_of(xp.shape(x)[1:-1], attributes, xp.shape(w)[2:])
    if has_transposed(x, w, canvas):
        return conv_transposed(xp, x, w, b, attributes["group"], canvas)
    return channels_last(conv.conv_transpose(xp, channels_first(x), w, b, **attributes))


@lowering("ConvTranspose", only="tensorflow")
def conv_transpose(xp, x, w, b=None, **attributes):
    canvas = conv.canvas_of(xp.shape(x)[2:], attributes, xp.shape(w)[2:])
    if has_transposed(x, w, canvas):
        return channels_first(
            conv_transposed(xp, channels_last(x), w, b, attributes["group"], canvas)
        )
    return conv.conv_transpose(xp, x, w, b, **attributes)


# -- pools --------------------------------------------------------------------------


def pooled(xp, x, window, value, kind):
    """Windows of an image, padded with `value`, reduced by tensorflow's own pool."""
    same = is_same(window)
    y = tf.nn.pool(
        x if same else padded_last(xp, x, window, value),
        list(window.kernel),
        kind,
        strides=list(window.strides),
        padding="SAME" if same else "VALID",
        data_format=FORMATS[window.rank],
        dilations=list(window.dilations),
    )
    if not same and window.after != window.reach:
        # for ceil_mode, one too many may begin in the padding
        y = y[(slice(None), *(slice(number(n)) for n in window.outputs))]
    return y


def has_pool(x, window):
    if window.rank == 3 and x.dtype != tf.float32:
        return False
    mixed = window.is_dilated and any(s > 1 for s in window.strides)
    apart = any(s > k for s, k in zip(window.strides, window.kernel))
    return is_plain(x, window.rank) and not mixed and not apart


@lowering("MaxPool", domain=NATIVE, only="tensorflow")
def max_pool_last(xp, x, **attributes):
    window = window_of(xp.shape(x)[1:-1], attributes)
    if has_pool(x, window):
        return pooled(xp, x, window, lowest(xp.dtype(x)), "MAX")
    return channels_last(pool.max_pool(xp, channels_first(x), **attributes))


@lowering("MaxPool", only="tensorflow")
def max_pool(xp, x, *, count, **attributes):
    window = window_of(xp.shape(x)[2:], attributes)
    if count > 1 or not has_pool(x, window):
        return pool.max_pool(xp, x, count=count, **attributes)
    return channels_first(pooled(xp, channels_last(x), window, lowest(xp.dtype(x)), "MAX"))


def averaged(xp, x, window, include_pad):
    mean = pooled(xp, x, window, 0, "AVG")
    if not window.is_padded or (is_same(window) and not include_pad):
        return mean  # with SAME, tensorflow does not count the padding either
    counts = pool.element_counts(xp, window, include_pad, xp.dtype(x))
    counts = counts if xp.rank(counts) == 0 else channels_last(counts)
    elements = window.volume
    if is_same(window):  # the mean of what is in the image
        elements = channels_last(pool.element_counts(xp, window, 0, xp.dtype(x)))
    return mean * (elements / counts)


@lowering("AveragePool", domain=NATIVE, only="tensorflow")
def average_pool_last(xp, x, **attributes):
    window = window_of(xp.shape(x)[1:-1], attributes)
    if has_pool(x, window):
        return averaged(xp, x, window, attributes["count_include_pad"])
    return channels_last(pool.average_pool(xp, channels_first(x), **attributes))


@lowering("AveragePool", only="tensorflow")
def average_pool(xp, x, **attributes):
    window = window_of(xp.shape(x)[2:], attributes)
    if not has_pool(x, window):
        return pool.average_pool(xp, x, **attributes)
    return channels_first(averaged(xp, channels_last(x), window, attributes["count_include_pad"]))


# -- normalization ------------------------------------------------------------------


@lowering("BatchNormalization", domain=NATIVE, only="tensorflow")
def batch_normalization_last(
    xp, x, scale, b, input_mean, input_var, *, epsilon, momentum, training_mode, count
):
    dtype, wide = xp.dtype(x), xp.dtype(input_mean)
    wide_x, scale, b = (xp.cast(v, wide) for v in (x, scale, b))
    if not training_mode:
        factor = scale / xp.sqrt(input_var + epsilon)
        return xp.cast((wide_x - input_mean) * factor + b, dtype)
    if wide_x.dtype == tf.float32 and wide_x.shape.rank == 4:
        y, mean, variance = normalized_by_kernel(wide_x, scale, b, epsilon)
    else:
        axes = tuple(range(xp.rank(x) - 1))
        y, mean, variance = xp.standardized(wide_x, axes, epsilon)
        y, mean, variance = y * scale + b, xp.reshape(mean, [-1]), xp.reshape(variance, [-1])
    latest = norm.averages((input_mean, input_var), (mean, variance), momentum)
    return (xp.cast(y, dtype), *latest)[:count]


def normalized_by_kernel(x, scale, b, epsilon):
    """tensorflow's own kernel, whose variance is that of a sample: it divides by one less."""
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x, scale=scale, offset=b, mean=[], variance=[], epsilon=epsilon, is_training=True
    )
    count = tf.cast(tf.size(x) // tf.shape(x)[-1], x.dtype)
    return y, mean, variance * ((count - 1) / count)


@lowering("InstanceNormalization", domain=NATIVE, only="tensorflow")
def instance_normalization_last(xp, x, scale, b, *, epsilon):
    mean, variance = norm.moments(xp, x, tuple(range(1, xp.rank(x) - 1)))
    return (x - mean) / xp.sqrt(variance + epsilon) * scale + b
