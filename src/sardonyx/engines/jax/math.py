"""jax's kernels for exponentials along an axis: softmax, attention, the loss of classes.

The largest element, which is subtracted so that nothing overflows, changes no result. Left in what
jax differentiates, it would cost a comparison and two sums over the whole tensor for a gradient of
zero.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.driver import lowering
from sardonyx.lower.math.axiswise import is_empty


def shifted(xp, x, axis):
    """`x` minus the largest element along an axis, as a constant."""
    x = xp.rounded(x)
    return x - lax.stop_gradient(jnp.max(x, axis, keepdims=True))


@lowering("Softmax", only="jax")
def softmax(xp, x, *, axis):
    if is_empty(xp, x):
        return x
    e = jnp.exp(shifted(xp, x, axis))
    return e / jnp.sum(e, axis, keepdims=True)


@lowering("LogSoftmax", only="jax")
def log_softmax(xp, x, *, axis):
    if is_empty(xp, x):
        return x
    small = shifted(xp, x, axis)
    return small - jnp.log(jnp.sum(jnp.exp(small), axis, keepdims=True))


@lowering("DotProductAttention", domain=NATIVE, only="jax")
def dot_product_attention(xp, q, k, v, mask=None, *, scale, is_causal):
    """Scores are summed up in float32 at least, as their softmax is computed."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.matmul(q, jnp.swapaxes(k, -1, -2), preferred_element_type=wide) * wide.type(scale)
    if is_causal:
        row, column = (lax.broadcasted_iota(np.int32, scores.shape[-2:], i) for i in (0, 1))
        scores = jnp.where(column <= row, scores, -jnp.inf)
    if mask is not None:
        scores = scores + mask.astype(wide)
    e = jnp.exp(shifted(xp, scores, -1))
    return jnp.matmul((e / jnp.sum(e, -1, keepdims=True)).astype(v.dtype), v)


@lowering("SoftmaxCrossEntropyLoss", only="jax")
def softmax_cross_entropy_loss(xp, scores, labels, weights=None, *, ignore_index, reduction, count):
    """With the classes last, where most exports have them before they are moved to axis 1.

    The score of the label is picked by a comparison, of which the gradient needs no scatter.
    """
    last = jnp.moveaxis(scores, 1, -1)
    small = shifted(xp, last, -1)
    normalizer = jnp.log(jnp.sum(jnp.exp(small), -1))
    classes = lax.broadcasted_iota(labels.dtype, last.shape, last.ndim - 1)
    picked = jnp.sum(jnp.where(classes == labels[..., None], small, 0), -1)
    losses = normalizer - picked
    counted = jnp.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    outside = (labels < 0) | (labels >= last.shape[-1])
    losses = jnp.where(counted & outside, jnp.nan, losses)
    factors = counted.astype(losses.dtype)
    if weights is not None:
        factors = jnp.where(counted, weights[jnp.where(counted, labels, 0)], 0)
    losses = jnp.where(counted, losses, 0) * factors
    if reduction == "sum":
        losses = jnp.sum(losses)
    elif reduction == "mean" and weights is None and ignore_index is None:
        losses = jnp.mean(losses)
    elif reduction == "mean":
        losses = jnp.sum(losses) / jnp.sum(factors)
    log_prob = None
    if count > 1:
        log_prob = jnp.moveaxis(small - normalizer[..., None], -1, 1)
    return (losses, log_prob)[:count]
