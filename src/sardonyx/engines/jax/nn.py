"""jax's own kernels for ONNX's family nn: XLA's convolutions and window reductions.

Kernels of the domain `NATIVE` take images with the channels last; `passes/layout` rewrites a graph
to use them. `last` says whether the channels are last.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.driver import lowering
from sardonyx.lower.nn import conv, norm, pool
from sardonyx.lower.nn.window import Window, lowest, padded, taps, window_of
from sardonyx.passes.layout import LAST, Demands

# XLA's kernels on a CPU want these with channels last. It turns operands by itself, but moves them
# back right after: pools, norms and gradients in between would keep ONNX's layout, at a copy each.
WINDOWS = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool"))
CHANNELS_LAST = Demands(LAST, WINDOWS, WINDOWS | {"BatchNormalization", "LRN"}, NATIVE, trains=True)

FEW = 9  # window elements, up to which the gradient of MaxPool is one slice per element


def layout(rank, last):
    """XLA's dimension numbers of image, kernel (out, in, …) and result."""
    axes = "DHW"[-rank:] if rank <= 3 else "".join(chr(ord("a") + i) for i in range(rank))
    image = f"N{axes}C" if last else f"NC{axes}"
    return (image, f"OI{axes}", image)


def sizes_of(x, last):
    return x.shape[1:-1] if last else x.shape[2:]


def biased(xp, y, b, last):
    return y + b if last and b is not None else conv.biased(xp, y, b)


# -- convolutions -------------------------------------------------------------------


def convolved(xp, x, w, b, attributes, last):
    window = window_of(sizes_of(x, last), attributes, w.shape[2:])
    y = lax.conv_general_dilated(
        x,
        w,
        window.strides,
        list(zip(window.before, window.after)),
        rhs_dilation=window.dilations,
        dimension_numbers=layout(window.rank, last),
        feature_group_count=attributes["group"],
    )
    return biased(xp, y, b, last)


@lowering("Conv", only="jax")
def convolution(xp, x, w, b=None, **attributes):
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return conv.conv(xp, x, w, b, **attributes)
    return convolved(xp, x, w, b, attributes, last=False)


@lowering("Conv", domain=NATIVE, only="jax")
def convolution_last(xp, x, w, b=None, **attributes):
    return convolved(xp, x, w, b, attributes, last=True)


def conv_transposed(xp, x, w, b, attributes, last):
    canvas = conv.canvas_of(sizes_of(x, last), attributes, w.shape[2:])
    kernel = canvas.kernel
    # A convolution with the flipped kernel, over an input with zeros between its elements.
    group, rank = attributes["group"], len(kernel)
    rows, columns = w.shape[:2]
    flipped = jnp.flip(w, tuple(range(2, rank + 2)))
    flipped = flipped.reshape(group, rows // group, columns, *kernel)
    flipped = jnp.swapaxes(flipped, 1, 2).reshape(group * columns, rows // group, *kernel)
    ends = zip(kernel, canvas.dilations, canvas.begin, canvas.end, canvas.extra)
    pads = [((k - 1) * d - begin, (k - 1) * d - end + e) for k, d, begin, end, e in ends]
    y = lax.conv_general_dilated(
        x,
        flipped,
        (1,) * rank,
        pads,
        lhs_dilation=canvas.strides,
        rhs_dilation=canvas.dilations,
        dimension_numbers=layout(rank, last),
        feature_group_count=group,
    )
    return biased(xp, y, b, last)


@lowering("ConvTranspose", only="jax")
def conv_transpose(xp, x, w, b=None, **attributes):
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return conv.conv_transpose(xp, x, w, b, **attributes)
    return conv_transposed(xp, x, w, b, attributes, last=False)


@lowering("ConvTranspose", domain=NATIVE, only="jax")
def conv_transpose_last(xp, x, w, b=None, **attributes):
    return conv_transposed(xp, x, w, b, attributes, last=True)


# -- pools --------------------------------------------------------------------------


def with_channels(window, channels):
    """The window with the channels as one more axis at the end, with a kernel size of 1."""
    ones, zeros = ("kernel", "strides", "dilations"), ("before", "after", "reach")
    ends = {**dict.fromkeys(ones, 1), **dict.fromkeys(zeros, 0)}
    ends |= {"sizes": channels, "outputs": channels}
    return Window(**{name: (*getattr(window, name), end) for name, end in ends.items()})


def reduced(x, window, start, function):
    """Reduce windows over the last axes of `x` by `function`; `start` is also the padding."""
    lead = (1,) * (x.ndim - window.rank)
    return lax.reduce_window(
        x,
        np.asarray(start, x.dtype)[()],  # a concrete value: jax differentiates max and add then
        function,
        (*lead, *window.kernel),
        (*lead, *window.strides),
        [*((0, 0) for _ in lead), *zip(window.before, window.reach)],
        window_dilation=(*lead, *window.dilations),
    )


@lowering("MaxPool", only="jax")
def max_pool(xp, x, *, count, **attributes):
    if count > 1:
        return pool.max_pool(xp, x, count=count, **attributes)
    return reduced(x, window_of(x.shape[2:], attributes), lowest(xp.dtype(x)), lax.max)


@lowering("MaxPool", domain=NATIVE, only="jax")
def max_pool_last(xp, x, **attributes):
    window = with_channels(window_of(sizes_of(x, True), attributes), x.shape[-1])
    start = lowest(xp.dtype(x))

    @jax.custom_jvp
    def pooled(x):
        return reduced(x, window, start, lax.max)

    # XLA's own gradient finds an index for every window and scatters: on a CPU that takes longer
    # than the convolutions around it.
    @pooled.defjvp
    def pooled_jvp(primals, tangents):
        return jax.jvp(lambda x: first_largest(xp, x, window, start), primals, tangents)

    is_fixed = all(isinstance(size, int) for size in window.outputs)  # slices of free sizes fail
    return pooled(x) if window.volume <= FEW and is_fixed else reduced(x, window, start, lax.max)


def first_largest(xp, x, window, start):
    """The largest element of each window; among equal ones, the first receives the gradient."""
    best = None
    for _, part in taps(xp, padded(xp, x, window, start), window):
        better = None if best is None else (part > best) | jnp.isnan(part)
        best = part if best is None else jnp.where(better, part, best)
    return best


@lowering("AveragePool", only="jax")
def average_pool(xp, x, **attributes):
    window = window_of(x.shape[2:], attributes)
    counts = pool.element_counts(xp, window, attributes["count_include_pad"], xp.dtype(x))
    return reduced(x, window, 0, lax.add) / counts


@lowering("AveragePool", domain=NATIVE, only="jax")
def average_pool_last(xp, x, **attributes):
    window = window_of(sizes_of(x, True), attributes)
    counts = pool.element_counts(xp, window, attributes["count_include_pad"], xp.dtype(x))
    counts = jnp.moveaxis(counts, 1, -1) if counts.ndim else counts
    return reduced(x, with_channels(window, x.shape[-1]), 0, lax.add) / counts


# -- normalization ------------------------------------------------------------------


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def standardized(x, axes, epsilon, moments):
    """`x` with a mean of zero and a variance of one along axes; its mean and variance.

    Differentiated by its formula, it takes two sums over `x`, all at once. jax's own derivative of
    the variance, and of the mean in it, takes four in two passes.
    """
    mean, variance = moments(x, axes)
    return (x - mean) * (1 / jnp.sqrt(variance + epsilon)), mean, variance


@standardized.defjvp
def standardized_jvp(axes, epsilon, moments, primals, tangents):
    (x,), (dx,) = primals, tangents
    y, mean, variance = standardized(x, axes, epsilon, moments)
    deviation = jnp.sqrt(variance + epsilon)
    d_mean = jnp.mean(dx, axes, keepdims=True)
    along = jnp.mean(dx * y, axes, keepdims=True)
    dy = (dx - d_mean - y * along) * (1 / deviation)
    return (y, mean, variance), (dy, d_mean, 2 * along * deviation)


def two_passes(x, axes):
    """Mean and variance, with the axes kept."""
    mean = jnp.mean(x, axes, keepdims=True)
    away = x - mean
    return mean, jnp.mean(away * away, axes, keepdims=True)


def one_pass(x, axes):
    """The same, for many elements that are read once.

    Distances are from the mean of the pixels at one edge, since sums of squares of numbers far from
    zero lose their digits. Whatever the image, a sum of squares then is at most its number of edges
    times larger than the variance.
    """
    edge = lax.slice_in_dim(x, 0, 1, axis=axes[1])
    middle = jnp.mean(edge, axes, keepdims=True)
    away = x - middle
    first = jnp.mean(away, axes, keepdims=True)
    second = jnp.mean(away * away, axes, keepdims=True)
    return middle + first, jnp.maximum(second - first * first, 0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4, 5))
def scaled(x, scale, b, axes, epsilon, moments):
    """`standardized`, then scaled and shifted along the other axes.

    The sums that the gradient of `x` takes are the gradients of `scale` and `b`.
    """
    y, mean, variance = standardized(x, axes, epsilon, moments)
    return y * scale + b, mean, variance


@scaled.defjvp
def scaled_jvp(axes, epsilon, moments, primals, tangents):
    (x, scale, b), (dx, d_scale, db) = primals, tangents
    y, mean, variance = standardized(x, axes, epsilon, moments)
    deviation = jnp.sqrt(variance + epsilon)
    slope = scale / deviation
    d_mean = jnp.mean(dx, axes, keepdims=True)
    along = jnp.mean(dx * y, axes, keepdims=True)
    change = dx * slope + (db - d_mean * slope) + y * (d_scale - along * slope)
    return (y * scale + b, mean, variance), (change, d_mean, 2 * along * deviation)


def batch_normalized(xp, x, scale, b, running, epsilon, momentum, training_mode, channel):
    """Batch normalization of an image whose channels are at the axis `channel`."""
    dtype, wide = xp.dtype(x), xp.dtype(running[0])
    axes = tuple(a for a in range(x.ndim) if a != channel)
    form = [-1 if a == channel else 1 for a in range(x.ndim)]
    scale, b, average, variance = (xp.cast(v, wide).reshape(form) for v in (scale, b, *running))
    image = xp.cast(x, wide)
    if not training_mode:
        factor = scale / jnp.sqrt(variance + epsilon)
        return (xp.cast((image - average) * factor + b, dtype),)
    moments = one_pass if len(axes) > 1 and 0 not in x.shape else two_passes
    y, average, variance = scaled(image, scale, b, axes, epsilon, moments)
    latest = average.reshape(-1), variance.reshape(-1)
    return (xp.cast(y, dtype), *norm.averages(running, latest, momentum))


@lowering("BatchNormalization", only="jax")
def batch_normalization(
    xp, x, scale, b, input_mean, input_var, *, epsilon, momentum, training_mode, count
):
    options = epsilon, momentum, training_mode, 1
    return batch_normalized(xp, x, scale, b, (input_mean, input_var), *options)[:count]


@lowering("BatchNormalization", domain=NATIVE, only="jax")
def batch_normalization_last(
    xp, x, scale, b, input_mean, input_var, *, epsilon, momentum, training_mode, count
):
    options = epsilon, momentum, training_mode, x.ndim - 1
    return batch_normalized(xp, x, scale, b, (input_mean, input_var), *options)[:count]
