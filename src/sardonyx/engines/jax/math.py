"""jax's kernels for exponentials along an axis: softmax, attention, the loss of classes.

The largest element, which is subtracted so that nothing overflows, changes no result. Left in what
jax differentiates, it would cost a comparison and two sums over the whole tensor for a gradient of
zero. Softmax is differentiated by its formula, which reads its result alone.
"""

from __future__ import annotations

import functools

import jax
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


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def shares(x, axis, dtype):
    """The softmax of `x` along an axis, rounded to a type, in which it is kept for the gradient."""
    e = jnp.exp(x - jnp.max(x, axis, keepdims=True))
    return (e / jnp.sum(e, axis, keepdims=True)).astype(dtype)


@shares.defjvp
def shares_jvp(axis, dtype, primals, tangents):
    (x,), (dx,) = primals, tangents
    y = shares(x, axis, dtype)
    wide = y.astype(x.dtype)
    return y, (wide * (dx - jnp.sum(wide * dx, axis, keepdims=True))).astype(dtype)


@lowering("Softmax", only="jax")
def softmax(xp, x, *, axis):
    return x if is_empty(xp, x) else shares(xp.rounded(x), axis, x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_shares(x, axis):
    small = x - jnp.max(x, axis, keepdims=True)
    return small - jnp.log(jnp.sum(jnp.exp(small), axis, keepdims=True))


@log_shares.defjvp
def log_shares_jvp(axis, primals, tangents):
    (x,), (dx,) = primals, tangents
    y = log_shares(x, axis)
    return y, dx - jnp.sum(jnp.exp(y) * dx, axis, keepdims=True)


@lowering("LogSoftmax", only="jax")
def log_softmax(xp, x, *, axis):
    return x if is_empty(xp, x) else log_shares(xp.rounded(x), axis)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def scores_of(q, k, dtype):
    """q @ kᵀ in a wide type; its gradient is rounded before the products that take it."""
    return jnp.matmul(q, jnp.swapaxes(k, -1, -2), preferred_element_type=dtype)


@scores_of.defjvp
def scores_jvp(dtype, primals, tangents):
    (q, k), (dq, dk) = primals, tangents
    change = jnp.matmul(dq, jnp.swapaxes(k, -1, -2)) + jnp.matmul(q, jnp.swapaxes(dk, -1, -2))
    return scores_of(q, k, dtype), change.astype(dtype)


@lowering("DotProductAttention", domain=NATIVE, only="jax")
def dot_product_attention(xp, q, k, v, mask=None, *, scale, is_causal):
    """Scores are summed up in float32 at least, as their softmax is computed."""
    if mask is None and xp.has_fused_attention(q, k, v, is_causal):
        turned = (jnp.swapaxes(a, 1, 2) for a in (q, k, v))
        options = {"scale": scale, "is_causal": bool(is_causal), "implementation": "cudnn"}
        return jnp.swapaxes(jax.nn.dot_product_attention(*turned, **options), 1, 2)
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = scores_of(q, k, wide) * wide.type(scale)
    if is_causal:
        row, column = (lax.broadcasted_iota(np.int32, scores.shape[-2:], i) for i in (0, 1))
        scores = jnp.where(column <= row, scores, wide.type(-np.inf))
    if mask is not None:
        scores = scores + mask.astype(wide)
    return jnp.matmul(shares(xp.rounded(scores), -1, v.dtype), v)


@lowering("SoftmaxCrossEntropyLoss", only="jax")
def softmax_cross_entropy_loss(xp, scores, labels, weights=None, *, ignore_index, reduction, count):
    """With the classes last, where most exports have them before they are moved to axis 1.

    The score of the label is picked by a comparison, of which the gradient needs no scatter.
    """
    last = jnp.moveaxis(scores, 1, -1)
    small = shifted(xp, last, -1)
    normalizer = jnp.log(jnp.sum(jnp.exp(small), -1))
    classes = lax.broadcasted_iota(np.int32, last.shape, last.ndim - 1)
    picked = jnp.sum(jnp.where(classes == labels[..., None].astype(np.int32), small, 0), -1)
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
