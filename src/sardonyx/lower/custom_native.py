"""Lowerings of the operators that conversions make of idioms (`engines/idioms.py`)."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn.norm import batch_normalization

NATIVE = "ai.sardonyx.native"
INT64, FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)


@lowering("Linear", domain=NATIVE)
def linear(xp, x, w, b=None, *, transposed):
    y = xp.matmul(x, xp.transpose(w, (1, 0)) if transposed else w)
    return y if b is None else y + b


@lowering("Softmax", domain=NATIVE)
def masked_softmax(xp, x, *, axis):
    # NaN for a row of minus infinities, as ONNX has it, but with a gradient of zero: what computes
    # it is chosen before, not after.
    x = xp.rounded(x)
    largest = xp.max(x, axis, keepdims=True)
    empty = xp.equal(largest, xp.scalar(-np.inf, x))
    e = xp.exp(xp.where(empty, xp.scalar(0, x), x - xp.where(empty, xp.scalar(0, x), largest)))
    y = e / xp.sum(e, axis, keepdims=True)
    return xp.where(empty, xp.scalar(np.nan, x), y)


@lowering("DotProductAttention", domain=NATIVE)
def dot_product_attention(xp, q, k, v, mask=None, *, scale, is_causal):
    rank = xp.rank(k)
    turned = xp.transpose(k, (*range(rank - 2), rank - 1, rank - 2))
    scores = xp.matmul(q, turned) * xp.scalar(scale, q)
    if is_causal:
        rows, columns = xp.shape(scores)[-2:]
        row = xp.expand_dims(xp.arange(0, rows, 1, INT64), (1,))
        column = xp.expand_dims(xp.arange(0, columns, 1, INT64), (0,))
        hidden = xp.scalar(float("-inf"), scores)
        scores = xp.where(xp.less_equal(column, row), scores, hidden)
    if mask is not None:
        scores = scores + mask
    dtype = xp.dtype(scores)
    wide = xp.cast(scores, FLOAT32) if dtype.itemsize < FLOAT32.itemsize else scores
    wide = xp.rounded(wide)
    shares = xp.exp(wide - xp.max(wide, rank - 1, keepdims=True))
    return xp.matmul(xp.cast(shares / xp.sum(shares, rank - 1, keepdims=True), dtype), v)


@lowering("StandardScore", domain=NATIVE)
def standard_score(xp, x, scale, b, mean, var, *, epsilon=1e-5):
    settings = {"epsilon": epsilon, "momentum": 0.0, "training_mode": 0, "count": 1}
    return batch_normalization(xp, x, scale, b, mean, var, **settings)


@lowering("LRN", domain=NATIVE)
def lrn_last(xp, x, *, alpha, beta, bias, size):
    """Of an image with its channels last."""
    rank, channels = xp.rank(x), xp.shape(x)[-1]
    before, after = [0] * rank, [0] * rank
    before[-1], after[-1] = (size - 1) // 2, size // 2
    squares = xp.pad(x * x, before, after, 0)
    total = None
    for k in range(size):
        part = xp.index(squares, rank - 1, k, k + channels)
        total = part if total is None else total + part
    return x / xp.power(bias + alpha / size * total, xp.scalar(beta, x))
