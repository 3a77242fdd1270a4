"""jax's own kernels for ONNX's family nn: convolutions and windows of XLA."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from sardonyx.lower.engine import lower
from sardonyx.lower.nn import conv, pool
from sardonyx.lower.nn.window import lowest, window_of


def layout(rank):
    """Channels first, the kernel as (out, in, …)."""
    axes = "DHW"[-rank:] if rank <= 3 else "".join(chr(ord("a") + i) for i in range(rank))
    return (f"NC{axes}", f"OI{axes}", f"NC{axes}")


@lower("Conv", only="jax")
def convolution(xp, x, w, b=None, **given):
    kernel = given["kernel_shape"] or w.shape[2:]
    settings = (given[n] for n in ("strides", "dilations", "pads", "auto_pad"))
    window = window_of(x.shape[2:], kernel, *settings)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return conv.conv(xp, x, w, b, **given)
    y = lax.conv_general_dilated(
        x,
        w,
        window.strides,
        list(zip(window.before, window.after)),
        rhs_dilation=window.dilations,
        dimension_numbers=layout(window.rank),
        feature_group_count=given["group"],
    )
    return conv.biased(xp, y, b)


@lower("ConvTranspose", only="jax")
def conv_transpose(xp, x, w, b=None, **given):
    kernel = given["kernel_shape"] or w.shape[2:]
    names = ["strides", "dilations", "pads", "auto_pad", "output_padding", "output_shape"]
    canvas = conv.canvas_of(x.shape[2:], kernel, *(given[n] for n in names))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return conv.conv_transpose(xp, x, w, b, **given)
    # The kernel turned around, over an input with zeros between its elements.
    group, rank = given["group"], len(kernel)
    rows, columns = w.shape[:2]
    turned = jnp.flip(w, tuple(range(2, rank + 2)))
    turned = turned.reshape(group, rows // group, columns, *kernel)
    turned = jnp.swapaxes(turned, 1, 2).reshape(group * columns, rows // group, *kernel)
    ends = zip(kernel, canvas.dilations, canvas.begin, canvas.end, canvas.extra)
    pads = [((k - 1) * d - begin, (k - 1) * d - end + e) for k, d, begin, end, e in ends]
    y = lax.conv_general_dilated(
        x,
        turned,
        (1,) * rank,
        pads,
        lhs_dilation=canvas.strides,
        rhs_dilation=canvas.dilations,
        dimension_numbers=layout(rank),
        feature_group_count=group,
    )
    return conv.biased(xp, y, b)


def pool_window(x, given):
    settings = (given[n] for n in ("strides", "dilations", "pads", "auto_pad", "ceil_mode"))
    return window_of(x.shape[2:], given["kernel_shape"], *settings)


def reduced(x, window, start, function):
    """Windows of `x` reduced by `function`, from `start`, which is also the padding."""
    return lax.reduce_window(
        x,
        np.asarray(start, x.dtype)[()],  # known to jax, which then has its gradient
        function,
        (1, 1, *window.kernel),
        (1, 1, *window.strides),
        [(0, 0), (0, 0), *zip(window.before, window.reach)],
        window_dilation=(1, 1, *window.dilations),
    )


@lower("MaxPool", only="jax")
def max_pool(xp, x, *, count, **given):
    if count > 1:
        return pool.max_pool(xp, x, count=count, **given)
    return reduced(x, pool_window(x, given), lowest(xp.dtype(x)), lax.max)


@lower("AveragePool", only="jax")
def average_pool(xp, x, **given):
    window = pool_window(x, given)
    counts = pool.element_counts(xp, window, given["count_include_pad"], xp.dtype(x))
    return reduced(x, window, 0, lax.add) / counts
