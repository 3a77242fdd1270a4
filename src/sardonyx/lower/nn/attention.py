"""Attention: scores of queries against keys, masked, and the mean of values that they weigh.

A key is out of reach by a boolean mask, by causality, by a window or by padding: those join into
one boolean `allowed`. Masks of floats are added to the scores. A row that sees nothing gives zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.lower.driver import lowering

BOOL, INT64 = np.dtype(bool), np.dtype(np.int64)


@dataclass
class Inputs:
    """Queries, keys and values as (batch, heads, length, size), and what limits who sees whom."""

    q: Any
    k: Any
    v: Any
    scale: float | None = None
    allowed: Any = None
    bias: Any = None


def heads(xp, x, count):
    """(batch, length, hidden) as (batch, heads, length, size)."""
    if xp.rank(x) == 4:
        return x
    batch, length, hidden = xp.shape(x)
    return xp.transpose(xp.reshape(x, [batch, length, count, hidden // count]), (0, 2, 1, 3))


def merged(xp, y):
    batch, count, length, size = xp.shape(y)
    return xp.reshape(xp.transpose(y, (0, 2, 1, 3)), [batch, length, count * size])


def both(xp, a, b):
    return b if a is None else xp.logical_and(a, b)


def split_mask(xp, mask, keys):
    """A mask as (allowed, bias), of which one is None; keys beyond its end are not allowed."""
    if mask is None:
        return None, None
    lacking = keys - xp.shape(mask)[-1]
    is_bool = xp.dtype(mask) == BOOL
    if not isinstance(lacking, int) or lacking > 0:
        after = [0] * xp.rank(mask)
        after[-1] = lacking
        mask = xp.pad(mask, [0] * xp.rank(mask), after, False if is_bool else -np.inf)
    return (mask, None) if is_bool else (None, mask)


def reach(xp, queries, keys, offset, is_causal, left, right):
    """Which keys the place of a query lets it see: (queries, keys), or with (batch, 1) before."""
    row = xp.reshape(xp.arange(0, queries, 1, INT64), [queries, 1])
    column = xp.reshape(xp.arange(0, keys, 1, INT64), [1, keys])
    distance = xp.subtract(column, xp.add(row, offset))
    allowed = None
    if is_causal:
        allowed = xp.less_equal(distance, xp.scalar(0, distance))
    if left >= 0:
        allowed = both(xp, allowed, xp.greater_equal(distance, xp.scalar(-left, distance)))
    if right >= 0:
        allowed = both(xp, allowed, xp.less_equal(distance, xp.scalar(right, distance)))
    return allowed


def positional(xp, q, k, past, lengths, is_causal, left_window_size, right_window_size):
    """What positions and the padding of the cache allow; None for everything."""
    queries, keys = xp.shape(q)[2], xp.shape(k)[2]
    offset = xp.full((), 0 if past is None else xp.shape(past)[2], INT64)
    allowed = None
    if lengths is not None:
        lengths = xp.reshape(lengths, [-1, 1, 1, 1])
        offset = offset if past is not None else xp.subtract(lengths, xp.full((), queries, INT64))
        column = xp.reshape(xp.arange(0, keys, 1, INT64), [1, 1, 1, keys])
        allowed = xp.less(column, lengths)
    if is_causal or left_window_size >= 0 or right_window_size >= 0:
        near = reach(xp, queries, keys, offset, is_causal, left_window_size, right_window_size)
        allowed = near if allowed is None else xp.logical_and(near, allowed)
    return allowed


def gather_inputs(
    xp, q, k, v, mask, past_key, past_value, lengths, *, q_num_heads, kv_num_heads, scale, **places
) -> Inputs:
    """What the attributes say about the inputs; `places`: is_causal and the windows."""
    q, k, v = heads(xp, q, q_num_heads), heads(xp, k, kv_num_heads), heads(xp, v, kv_num_heads)
    k = k if past_key is None else xp.concat([past_key, k], 2)
    v = v if past_value is None else xp.concat([past_value, v], 2)
    allowed, bias = split_mask(xp, mask, xp.shape(k)[2])
    placed = positional(xp, q, k, past_key, lengths, **places)
    if placed is not None:
        allowed = both(xp, allowed, placed)
    return Inputs(q, k, v, scale, allowed, bias)


def grouped(xp, function, a, b):
    """A product over heads; `a` may have a multiple of the heads of `b`: neighbours share one."""
    batch, count, rows, columns = xp.shape(a)
    shared = xp.shape(b)[1]
    if count == shared:
        return function(a, b)
    parts = xp.reshape(a, [batch, shared, count // shared, rows, columns])
    product = function(parts, xp.expand_dims(b, (2,)))
    return xp.reshape(product, [batch, count, *xp.shape(product)[3:]])


def scale_root(xp, inputs: Inputs):
    """The root of the scale, which is one over the root of the size unless the node says it."""
    size = xp.shape(inputs.q)[3]
    if inputs.scale is not None:
        return xp.scalar(math.sqrt(inputs.scale), inputs.q)
    if isinstance(size, int):
        return xp.scalar(size**-0.25, inputs.q)
    return 1 / xp.sqrt(xp.sqrt(xp.full((), size, xp.dtype(inputs.q))))


def scores_of(xp, inputs: Inputs, softcap: float):
    """Scores before any mask: as the product gives them, and after the cap."""
    # Half of the factor on each side, as the specification has it: less overflow in half precision.
    root = scale_root(xp, inputs)
    raw = grouped(xp, xp.matmul, inputs.q * root, xp.swap(inputs.k) * root)
    return raw, softcap * xp.tanh(raw / softcap) if softcap else raw


def masked(xp, scores, inputs: Inputs):
    if inputs.bias is not None:
        scores = xp.add(scores, xp.cast(inputs.bias, xp.dtype(scores)))
    if inputs.allowed is not None:
        scores = xp.where(inputs.allowed, scores, xp.scalar(-np.inf, scores))
    return scores


def softmax(xp, x):
    """Softmax along the last axis; a row of minus infinities gives zeros."""
    last = xp.rank(x) - 1
    x = xp.rounded(x)
    largest = xp.max(x, last, True)
    none = xp.equal(largest, xp.scalar(-np.inf, x))
    e = xp.exp(x - xp.where(none, xp.scalar(0, x), largest))
    total = xp.sum(e, last, True)
    return xp.divide(e, xp.where(none, xp.scalar(1, x), total))


@lowering("Attention")
def attention(
    xp,
    q,
    k,
    v,
    attn_mask=None,
    past_key=None,
    past_value=None,
    nonpad_kv_seqlen=None,
    *,
    qk_matmul_output_mode,
    softcap,
    softmax_precision,
    count,
    **attributes,
):
    tensors = (q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen)
    inputs = gather_inputs(xp, *tensors, **attributes)
    dtype = xp.dtype(q)
    raw, capped = scores_of(xp, inputs, softcap)
    scores = masked(xp, capped, inputs)
    precise = scores
    if softmax_precision is not None:
        precise = xp.cast(scores, np.dtype(ir.DataType(softmax_precision).numpy()))
    probabilities = softmax(xp, precise)
    weights = xp.cast(probabilities, xp.dtype(inputs.v))
    y = xp.cast(grouped(xp, xp.matmul, weights, inputs.v), dtype)
    y = y if xp.rank(q) == 4 else merged(xp, y)
    scores_output = (raw, capped, scores, probabilities)[qk_matmul_output_mode]
    return (y, inputs.k, inputs.v, xp.cast(scores_output, dtype) if count > 3 else None)[:count]
