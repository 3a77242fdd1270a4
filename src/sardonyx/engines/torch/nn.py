"""torch's kernels for ONNX's family nn; options that they lack go to the shared rules."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn import attention, conv, norm, pool
from sardonyx.lower.nn.window import lowest, window_of
from sardonyx.lower.xp import positive

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
HALVES = (torch.float16, torch.bfloat16)
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEAN = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def is_float(x):
    return x.dtype.is_floating_point


def end_padded(x, window, value):
    """`x` and the padding that the kernel adds: all if both ends get the same, otherwise none."""
    if window.before == window.after:
        return x, window.before
    pairs = zip(reversed(window.before), reversed(window.reach))
    pads = [p for pair in pairs for p in pair]
    return F.pad(x, pads, value=value), (0,) * window.rank


def kernel_choice(x):
    """Without guards on sizes during a trace: torch compares them to choose among its kernels of
    convolution, but the graph does not depend on that choice.
    """
    mode = getattr(x, "fake_mode", None)
    if mode is None or mode.shape_env is None:
        return nullcontext()
    return mode.shape_env.suppress_guards()


@lowering("Conv", only="torch")
def convolution(xp, x, w, b=None, **attributes):
    kernel = attributes["kernel_shape"] or w.shape[2:]
    if len(kernel) not in CONV or not is_float(x):
        return conv.conv(xp, x, w, b, **attributes)
    window = window_of(x.shape[2:], attributes, kernel)
    x, padding = end_padded(x, window, 0)
    run = CONV[window.rank]
    with kernel_choice(x):
        return run(x, w, b, window.strides, padding, window.dilations, attributes["group"])


@lowering("ConvTranspose", only="torch")
def conv_transpose(xp, x, w, b=None, **attributes):
    kernel = attributes["kernel_shape"] or w.shape[2:]
    if len(kernel) not in TRANSPOSED or not is_float(x):
        return conv.conv_transpose(xp, x, w, b, **attributes)
    canvas = conv.canvas_of(x.shape[2:], attributes, kernel)
    run = TRANSPOSED[len(kernel)]
    group, dilations = attributes["group"], canvas.dilations
    with kernel_choice(x):
        if canvas.begin == canvas.end and fits(canvas):
            return run(x, w, b, canvas.strides, canvas.begin, canvas.extra, group, dilations)
        y = run(x, w, None, canvas.strides, 0, 0, group, dilations)
    if any(canvas.extra):
        y = F.pad(y, [p for e in reversed(canvas.extra) for p in (0, e)])
    return conv.biased(xp, conv.cropped(xp, y, canvas), b)


def fits(canvas):
    """Whether torch accepts this much output padding."""
    limits = zip(canvas.extra, canvas.strides, canvas.dilations)
    return all(e < max(s, d) for e, s, d in limits)


@lowering("MaxPool", only="torch")
def max_pool(xp, x, *, count, **attributes):
    window = window_of(x.shape[2:], attributes)
    even = window.before == window.after
    plain = window.rank in MAX and is_float(x) and is_half_at_most(window)
    if not plain or (count > 1 and (attributes["storage_order"] or not even)):
        return pool.max_pool(xp, x, count=count, **attributes)
    padded, padding = end_padded(x, window, lowest(xp.dtype(x)))
    pooled = MAX[window.rank](
        padded,
        window.kernel,
        window.strides,
        padding,
        window.dilations,
        ceil_mode=even and bool(attributes["ceil_mode"]),
        return_indices=count > 1,
    )
    if count == 1:
        return cut(pooled, window)
    y, places = pooled
    return y, places + pool.plane_starts(xp, x)


def is_half_at_most(window):
    """Whether the padding is at most half of the kernel, torch's limit."""
    return all(2 * p <= k for p, k in zip(window.before, window.kernel))


def cut(y, window):
    """`y` without a last window that begins in the padding, which ceil_mode may have added."""
    if window.after == window.reach or all(isinstance(n, int) for n in window.sizes):
        return y
    return y[(..., *(slice(n) for n in window.outputs))]


@lowering("AveragePool", only="torch")
def average_pool(xp, x, **attributes):
    window = window_of(x.shape[2:], attributes)
    if window.rank not in MEAN or window.is_dilated or not is_float(x):
        return pool.average_pool(xp, x, **attributes)
    run = MEAN[window.rank]
    if not window.is_padded:
        return run(x, window.kernel, window.strides)
    with_pads = attributes["count_include_pad"]
    if window.before == window.after and is_half_at_most(window):
        ceil = bool(attributes["ceil_mode"])
        return run(x, window.kernel, window.strides, window.before, ceil, bool(with_pads))
    pairs = zip(reversed(window.before), reversed(window.reach))
    mean = run(F.pad(x, [p for pair in pairs for p in pair]), window.kernel, window.strides)
    counts = pool.element_counts(xp, window, with_pads, xp.dtype(x))
    return cut(mean, window) * (window.volume / counts)


@lowering("BatchNormalization", only="torch")
def batch_normalization(xp, x, scale, b, input_mean, input_var, *, count, **attributes):
    others = {v.dtype for v in (scale, b, input_mean, input_var)}
    # Statistics of halves are computed, and kept, in single precision.
    same = others == {x.dtype} or (x.dtype in HALVES and others == {torch.float32})
    epsilon, momentum = attributes["epsilon"], attributes["momentum"]
    if same and attributes["training_mode"] and x.ndim > 1:
        # This one chooses cuDNN's kernel where it fits; `native_batch_norm` never does.
        y, mean, inverse, *_ = torch._batch_norm_impl_index(
            x, scale, b, None, None, True, 0.0, epsilon, torch.backends.cudnn.enabled
        )
        if count == 1:
            return y
        variance = (inverse**-2 - epsilon).clamp_min(0)
        if momentum == 0:
            return (y, mean, variance)[:count]
        old = ((input_mean, mean), (input_var, variance))
        return (y, *(a * momentum + n * (1 - momentum) for a, n in old))[:count]
    if not same or attributes["training_mode"]:
        return norm.batch_normalization(
            xp, x, scale, b, input_mean, input_var, count=count, **attributes
        )
    return F.batch_norm(x, input_mean, input_var, scale, b, eps=epsilon)


@lowering("LayerNormalization", only="torch")
def layer_normalization(xp, x, scale, b=None, *, count, dtypes, **attributes):
    form = x.shape[positive(attributes["axis"], x.ndim) :]
    if count > 1 or scale.shape != form or (b is not None and b.shape != form):
        return norm.layer_normalization(xp, x, scale, b, count=count, dtypes=dtypes, **attributes)
    return F.layer_norm(x, form, scale, b, attributes["epsilon"])


@lowering("GroupNormalization", only="torch")
def group_normalization(xp, x, scale, bias, *, epsilon, num_groups, stash_type):
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@lowering("InstanceNormalization", only="torch")
def instance_normalization(xp, x, scale, b, *, epsilon):
    return F.group_norm(x, x.shape[1], scale, b, epsilon)


OF_SCORES = ("qk_matmul_output_mode", "softcap", "softmax_precision")  # attributes of Attention


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
    **attributes,
):
    """torch's fused kernel, unless an option needs an intermediate result."""
    inputs = (q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen)
    plain = count < 4 and not attributes["softcap"] and attributes["softmax_precision"] is None
    if not plain or q.dtype in HALVES or v.dtype != q.dtype:
        return attention.attention(xp, *inputs, count=count, **attributes)
    left, right = attributes["left_window_size"], attributes["right_window_size"]
    # torch's causal mask starts at the first key, which is right only without past keys.
    causal = (
        bool(attributes["is_causal"])
        and all(v is None for v in inputs[3:])
        and left < 0
        and right < 0
    )
    masked = attributes["is_causal"] and not causal
    options = {n: v for n, v in attributes.items() if n not in OF_SCORES}
    terms = attention.gather_inputs(xp, *inputs, **{**options, "is_causal": masked})
    mask = joined_mask(terms)
    shared = terms.q.shape[1] != terms.k.shape[1]
    y = F.scaled_dot_product_attention(
        terms.q, terms.k, terms.v, mask, is_causal=causal, scale=terms.scale, enable_gqa=shared
    )
    if mask is not None:
        visible = mask if mask.dtype == torch.bool else mask != -np.inf
        y = torch.where(visible.any(-1, keepdim=True), y, 0.0)
    y = y if q.ndim == 4 else attention.merged(xp, y)
    return (y, terms.k, terms.v)[:count]


def joined_mask(terms):
    """The attention mask as one tensor of rank 2 or more; None without a mask."""
    mask = terms.allowed
    if terms.bias is not None:
        mask = terms.bias.to(terms.q.dtype)
        if terms.allowed is not None:
            mask = torch.where(terms.allowed, mask, -np.inf)
    return mask if mask is None or mask.ndim > 1 else mask[None]
