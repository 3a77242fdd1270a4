"""Attention, rotary embeddings. LinearAttention and CausalConvWithState go through their bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, rank
from sardonyx.grad.driver import gradient_rule
from sardonyx.grad.nn.parts import by_parts


@gradient_rule("Attention")
def attention(op, gs, q, k, v, mask, past_key, past_value, nonpad, **attributes):
    """Scores and probabilities are computed again: the fused operator does not keep them."""

    def forward(op, q, k, v, mask, past_key, past_value):
        return _attend(op, q, k, v, mask, past_key, past_value, nonpad, **attributes)

    return by_parts(op, gs, (q, k, v, mask, past_key, past_value), forward)


def _attend(
    op: Builder,
    q,
    k,
    v,
    mask,
    past_key,
    past_value,
    nonpad,
    *,
    is_causal,
    kv_num_heads,
    left_window_size,
    q_num_heads,
    qk_matmul_output_mode,
    right_window_size,
    scale,
    softcap,
    softmax_precision,
):
    flat_heads = rank(q) == 3
    if flat_heads:
        q = _split_heads(op, q, q_num_heads)
        k, v = (_split_heads(op, x, kv_num_heads) for x in (k, v))
    past: Dim = 0
    if past_key is not None:
        past = op.dim(past_key, 2)
        k, v = op.Concat(past_key, k, axis=2), op.Concat(past_value, v, axis=2)
    raw = _per_group(op, op.Mul(q, _scale(op, q, scale)), k, transpose=True)
    capped = op.Tanh(raw / softcap) * softcap if softcap else raw
    rows, columns = op.dim(q, 2), op.dim(k, 2)
    offset = past
    if nonpad is not None:
        offset = op.Reshape(nonpad - op.join([rows]), [-1, 1, 1, 1])
    left, right = left_window_size, right_window_size
    bias = _bias(op, mask, columns, q.dtype)
    visible = _seen(op, rows, columns, offset, is_causal, left, right, nonpad)
    if visible is not None:
        hidden = op.Where(visible, op.const(0.0, q.dtype), op.const(-np.inf, q.dtype))
        bias = hidden if bias is None else bias + hidden
    biased = capped if bias is None else capped + bias
    may_hide_all = mask is not None or nonpad is not None or left >= 0 or right >= 0
    p = _probabilities(op, biased, bias if may_hide_all else None, softmax_precision)
    y = _per_group(op, p, v, transpose=False)
    if flat_heads:
        y = op.reshape(op.transpose(y, [0, 2, 1, 3]), [0, 0, -1])
    return y, k, v, (raw, capped, biased, p)[qk_matmul_output_mode]


def _split_heads(op: Builder, x: ir.Value, heads: int) -> ir.Value:
    return op.transpose(op.reshape(x, [0, 0, heads, -1]), [0, 2, 1, 3])


def _scale(op: Builder, q: ir.Value, scale: float | None) -> ir.Value:
    if scale is not None:
        return op.const(scale, q.dtype)
    size = op.dim(q, 3)
    if isinstance(size, int):
        return op.const(size**-0.5, q.dtype)
    return op.Reciprocal(op.Sqrt(op.cast(size, q.dtype)))


def _per_group(op: Builder, a: ir.Value, b: ir.Value, transpose: bool) -> ir.Value:
    """a · b per head; where queries have more heads, several of them share one head of `b`."""
    other = op.swap(b) if transpose else b
    heads, shared = op.dim(a, 1), op.dim(b, 1)
    if isinstance(heads, int) and heads == shared:
        return op.MatMul(a, other)
    inner = op.dims(a, 2)
    grouped = op.Reshape(a, op.join([0, shared, -1, *inner]))
    product = op.MatMul(grouped, op.Unsqueeze(other, [2]))
    return op.reshape(product, [op.dim(a, 0), heads, inner[0], op.dim(other, 3)])


def _bias(op: Builder, mask: ir.Value | None, columns: Dim, dtype: ir.DataType) -> ir.Value | None:
    """The mask as what is added to scores; keys beyond its end are hidden."""
    if mask is None:
        return None
    bias = mask
    if mask.dtype == ir.DataType.BOOL:
        bias = op.Where(mask, op.const(0.0, dtype), op.const(-np.inf, dtype))
    have = op.dim(mask, -1)
    if isinstance(have, int) and isinstance(columns, int) and have == columns:
        return bias
    missing = columns - have
    return op.Pad(bias, op.join([0, missing]), op.const(-np.inf, dtype), [-1])


def _seen(
    op: Builder,
    rows: Dim,
    columns: Dim,
    offset: Dim,
    is_causal: int,
    left: int,
    right: int,
    nonpad: ir.Value | None,
) -> ir.Value | None:
    """Which keys each query may see by position, or None: all."""
    tests = []
    if is_causal or left >= 0 or right >= 0:
        place, key = _arange(op, rows, 1), _arange(op, columns, 0)
        if any(isinstance(v, ir.Value) for v in (place, offset, key)):
            # an array plus a value would be an array of values
            place, key = (op.const(v) if isinstance(v, np.ndarray) else v for v in (place, key))
        ago = place + offset - key
        if is_causal:
            tests.append(_at_most(op, -ago, 0))
        if left >= 0:
            tests.append(_at_most(op, ago, left))
        if right >= 0:
            tests.append(_at_most(op, -ago, right))
    if nonpad is not None:
        column = op.Range(0, op.Squeeze(op.join([columns]), [0]), 1)
        tests.append(op.Less(column, op.Reshape(nonpad, [-1, 1, 1, 1])))
    if not tests:
        return None
    mask: Any = tests[0]
    for test in tests[1:]:
        both = isinstance(mask, np.ndarray) and isinstance(test, np.ndarray)
        mask = mask & test if both else op.And(mask, test)
    return op.const(mask) if isinstance(mask, np.ndarray) else mask


def _arange(op: Builder, size: Dim, axis: int) -> np.ndarray | ir.Value:
    if isinstance(size, int):
        return np.expand_dims(np.arange(size), axis)
    return op.Unsqueeze(op.Range(0, op.Squeeze(size, [0]), 1), [axis])


def _at_most(op: Builder, a: np.ndarray | ir.Value, b: int) -> np.ndarray | ir.Value:
    return a <= b if isinstance(a, np.ndarray) else op.LessOrEqual(a, b)


def _probabilities(
    op: Builder, scores: ir.Value, bias: ir.Value | None, precision: int | None
) -> ir.Value:
    """Softmax; a query that sees no key at all attends to nothing, and gets no gradient."""
    dtype = scores.dtype
    if precision is not None:
        scores = op.cast(scores, ir.DataType(precision))
    if bias is None:
        return op.cast(op.Softmax(scores, axis=-1), dtype)
    blind = op.Equal(op.ReduceMax(bias, [-1], keepdims=1), -np.inf)
    p = op.cast(op.Softmax(op.Where(blind, 0.0, scores), axis=-1), dtype)
    return op.Where(blind, 0.0, p)


# -- rotary embeddings ------------------------------------------------------------------


@gradient_rule("RotaryEmbedding")
def rotary_embedding(
    op, g, x, cos, sin, position_ids, *, interleaved, num_heads, rotary_embedding_dim
):
    """The transpose of a rotation is the rotation by the opposite angle."""
    attributes = {
        "interleaved": interleaved,
        "num_heads": num_heads,
        "rotary_embedding_dim": rotary_embedding_dim,
    }
    dx = op.RotaryEmbedding(g, cos, op.Neg(sin), position_ids, **attributes)

    def forward(op, cos, sin):
        return _rotate(op, x, cos, sin, position_ids, **attributes)

    return dx, *by_parts(op, (g,), (cos, sin), forward)


def _rotate(
    op: Builder, x, cos, sin, position_ids, *, interleaved, num_heads, rotary_embedding_dim
):
    split = op.reshape(x, [0, 0, num_heads, -1]) if rank(x) == 3 else op.transpose(x, [0, 2, 1, 3])
    if position_ids is not None:
        cos, sin = (op.Gather(c, position_ids, axis=0) for c in (cos, sin))
    width = rotary_embedding_dim or op.dim(split, 3)
    half = width // 2 if isinstance(width, int) else op.Div(width, 2)
    ends = op.join([half])
    cos, sin = (op.Unsqueeze(op.Slice(c, [0], ends, [2]), [2]) for c in (cos, sin))
    if interleaved:
        turned = op.Slice(split, [0], op.join([width]), [3])
        first = op.Slice(turned, [0], op.join([width]), [3], [2])
        second = op.Slice(turned, [1], op.join([width]), [3], [2])
    else:
        first = op.Slice(split, [0], ends, [3])
        second = op.Slice(split, ends, op.join([width]), [3])
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if interleaved:
        pairs = op.Concat(op.Unsqueeze(real, [4]), op.Unsqueeze(imaginary, [4]), axis=4)
        out = op.Reshape(pairs, op.join([0, 0, 0, width]))
    else:
        out = op.Concat(real, imaginary, axis=3)
    if rotary_embedding_dim:
        rest = op.Slice(split, [rotary_embedding_dim], [np.iinfo(np.int64).max], [3])
        out = op.Concat(out, rest, axis=3)
    return op.reshape_like(out, x) if rank(x) == 3 else op.transpose(out, [0, 2, 1, 3])
