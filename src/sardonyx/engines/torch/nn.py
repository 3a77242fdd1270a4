"""torch's own kernels for ONNX's family nn; options that they lack go to the shared rules."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn import attention, conv, norm, pool
from sardonyx.lower.nn.window import lowest, window_of
from sardonyx.lower.xp import positive

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def is_float(x):
    return x.dtype.is_floating_point


def end_padded(x, window, value):
    """`x` and the padding left to the kernel: all, where that is the same at both ends, or none."""
    if window.before == window.after:
        return x, window.before
    pairs = zip(reversed(window.before), reversed(window.reach))
    pads = [p for pair in pairs for p in pair]
    return F.pad(x, pads, value=value), (0,) * window.rank


@lowering("Conv", only="torch")
def convolution(xp, x, w, b=None, **given):
    kernel = given["kernel_shape"] or w.shape[2:]
    if len(kernel) not in CONV or not is_float(x):
        return conv.conv(xp, x, w, b, **given)
    settings = (given[n] for n in ("strides", "dilations", "pads", "auto_pad"))
    window = window_of(x.shape[2:], kernel, *settings)
    x, padding = end_padded(x, window, 0)
    run = CONV[window.rank]
    return run(x, w, b, window.strides, padding, window.dilations, given["group"])


@lowering("ConvTranspose", only="torch")
def conv_transpose(xp, x, w, b=None, **given):
    kernel = given["kernel_shape"] or w.shape[2:]
    if len(kernel) not in TRANSPOSED or not is_float(x):
        return conv.conv_transpose(xp, x, w, b, **given)
    names = ["strides", "dilations", "pads", "auto_pad", "output_padding", "output_shape"]
    canvas = conv.canvas_of(x.shape[2:], kernel, *(given[n] for n in names))
    run = TRANSPOSED[len(kernel)]
    group, dilations = given["group"], canvas.dilations
    if canvas.begin == canvas.end and fits(canvas):
        return run(x, w, b, canvas.strides, canvas.begin, canvas.extra, group, dilations)
    y = run(x, w, None, canvas.strides, 0, 0, group, dilations)
    if any(canvas.extra):
        y = F.pad(y, [p for e in reversed(canvas.extra) for p in (0, e)])
    return conv.biased(xp, conv.cropped(xp, y, canvas), b)


def fits(canvas):
    """torch takes no more output padding than this."""
    limits = zip(canvas.extra, canvas.strides, canvas.dilations)
    return all(e < max(s, d) for e, s, d in limits)


@lowering("MaxPool", only="torch")
def max_pool(xp, x, *, count, **given):
    window = pool_window(x, given)
    even = window.before == window.after
    plain = window.rank in MAX and is_float(x) and is_half_at_most(window)
    if not plain or (count > 1 and (given["storage_order"] or not even)):
        return pool.max_pool(xp, x, count=count, **given)
    padded, padding = end_padded(x, window, lowest(xp.dtype(x)))
    found = MAX[window.rank](
        padded,
        window.kernel,
        window.strides,
        padding,
        window.dilations,
        ceil_mode=even and bool(given["ceil_mode"]),
        return_indices=count > 1,
    )
    if count == 1:
        return cut(found, window)
    y, places = found
    return y, places + pool.plane_starts(xp, x)


def is_half_at_most(window):
    """torch pads by no more than half of the kernel."""
    return all(2 * p <= k for p, k in zip(window.before, window.kernel))


def cut(y, window):
    """Without a last window that would begin in the padding: one too many may be for ceil_mode."""
    if window.after == window.reach or all(isinstance(n, int) for n in window.sizes):
        return y
    return y[(..., *(slice(n) for n in window.outputs))]


def pool_window(x, given):
    settings = (given[n] for n in ("strides", "dilations", "pads", "auto_pad", "ceil_mode"))
    return window_of(x.shape[2:], given["kernel_shape"], *settings)


@lowering("AveragePool", only="torch")
def average_pool(xp, x, **given):
    window = pool_window(x, given)
    if window.rank not in MEAN or window.is_dilated or not is_float(x):
        return pool.average_pool(xp, x, **given)
    run = MEAN[window.rank]
    if not window.is_padded:
        return run(x, window.kernel, window.strides)
    with_pads = given["count_include_pad"]
    if window.before == window.after and is_half_at_most(window):
        ceil = bool(given["ceil_mode"])
        return run(x, window.kernel, window.strides, window.before, ceil, bool(with_pads))
    pairs = zip(reversed(window.before), reversed(window.reach))
    mean = run(F.pad(x, [p for pair in pairs for p in pair]), window.kernel, window.strides)
    counts = pool.element_counts(xp, window, with_pads, xp.dtype(x))
    return cut(mean, window) * (window.volume / counts)


@lowering("BatchNormalization", only="torch")
def batch_normalization(xp, x, scale, b, input_mean, input_var, *, count, **given):
    same = len({v.dtype for v in (x, scale, b, input_mean, input_var)}) == 1
    if given["training_mode"] or not same:
        return norm.batch_normalization(
            xp, x, scale, b, input_mean, input_var, count=count, **given
        )
    return F.batch_norm(x, input_mean, input_var, scale, b, eps=given["epsilon"])


@lowering("LayerNormalization", only="torch")
def layer_normalization(xp, x, scale, b=None, *, count, dtypes, **given):
    form = x.shape[positive(given["axis"], x.ndim) :]
    if count > 1 or scale.shape != form or (b is not None and b.shape != form):
        return norm.layer_normalization(xp, x, scale, b, count=count, dtypes=dtypes, **given)
    return F.layer_norm(x, form, scale, b, given["epsilon"])


@lowering("GroupNormalization", only="torch")
def group_normalization(xp, x, scale, bias, *, epsilon, num_groups, stash_type):
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@lowering("InstanceNormalization", only="torch")
def instance_normalization(xp, x, scale, b, *, epsilon):
    return F.group_norm(x, x.shape[1], scale, b, epsilon)


@lowering("Attention", only="torch")
def scaled_dot_product(
    xp,
    q,
    k,
    v,
    attn_mask=None,
    past_key=None,
    past_value=None,
    nonpad_kv_seqlen=None,
    *,
    count,
    **given,
):
    """torch's fused kernel where nothing between its steps is asked for."""
    inputs = (q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen)
    halves = torch.float16, torch.bfloat16
    plain = count < 4 and not given["softcap"] and given["softmax_precision"] is None
    if not plain or q.dtype in halves or v.dtype != q.dtype:
        return attention.attention(xp, *inputs, count=count, **given)
    left, right = given["left_window_size"], given["right_window_size"]
    # Its own causal mask begins at the first key: only right where no keys came before.
    causal = (
        bool(given["is_causal"]) and all(v is None for v in inputs[3:]) and left < 0 and right < 0
    )
    found = attention.gather_inputs(
        xp, *inputs, given["q_num_heads"], given["kv_num_heads"], given["scale"],
        causal=given["is_causal"] and not causal, left=left, right=right,
    )  # fmt: skip
    mask = joined_mask(found)
    shared = found.q.shape[1] != found.k.shape[1]
    y = F.scaled_dot_product_attention(
        found.q, found.k, found.v, mask, is_causal=causal, scale=found.scale, enable_gqa=shared
    )
    if mask is not None:
        seen = mask if mask.dtype == torch.bool else mask != -np.inf
        y = torch.where(seen.any(-1, keepdim=True), y, 0.0)
    y = y if q.ndim == 4 else attention.merged(xp, y)
    return (y, found.k, found.v)[:count]


def joined_mask(found):
    """One mask of what limits who sees whom, of rank 2 at least; None for nothing."""
    mask = found.allowed
    if found.bias is not None:
        mask = found.bias.to(found.q.dtype)
        if found.allowed is not None:
            mask = torch.where(found.allowed, mask, -np.inf)
    return mask if mask is None or mask.ndim > 1 else mask[None]
