"""What onnxruntime's optimizer fuses in transformers (`com.microsoft`), written with ONNX's own.

Attention with its weights, what stands around it, and variants of Gelu. The plain forms run on
every engine, have gradients, and show the products whose weights an adapter stands beside.

Masks hide by adding a large negative number, as onnxruntime's kernels do; in a row that is hidden
from end to end, numbers are those of its kernels too.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant

FLOAT = ir.DataType.FLOAT
KEEPS_RANK = ("Gelu", "LayerNormalization", "RMSNormalization", "Identity", "Cast", "Relu", "Tanh")
BROADCASTS = ("MatMul", "Add", "Sub", "Mul", "Div")
DEEPEST = 32  # nodes that are followed to learn the number of axes
# as `FORMS` of passes/contrib.py
FORMS: dict[str, Callable[..., Any]] = {}


def _form(op_type: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FORMS[op_type] = function
        return function

    return register


# -- attention -------------------------------------------------------------------------------------


@_form("Attention")
def _attention(
    op, x, w, bias, mask, past, extra, past_length,
    *, num_heads, unidirectional=0, scale=0.0, mask_filter_value=-10000.0, qkv_hidden_sizes=None,
    do_rotary=0, rotary_embedding_dim=0, past_present_share_buffer=0,
):  # fmt: skip
    if do_rotary or past_present_share_buffer or past_length is not None:
        return None
    if mask is not None and axes(mask) not in (1, 2, 3):
        return None
    dense = op.MatMul(x, w)
    dense = dense if bias is None else op.Add(dense, bias)
    if qkv_hidden_sizes:
        parts = op.Split(dense, list(qkv_hidden_sizes), axis=-1, outputs=3)
    else:
        parts = op.Split(dense, axis=-1, num_outputs=3, outputs=3)
    q, k, v = (heads(op, part, num_heads) for part in parts)
    if past is not None:  # keys, then values, of the tokens before
        k, v = (op.Concat(op.Gather(past, i, axis=0), new, axis=2) for i, new in enumerate((k, v)))
    hidden = None if mask is None else _hidden(op, mask, q, k, mask_filter_value)
    y = attend(op, q, k, v, scale, unidirectional, mask_filter_value, (hidden, extra))
    return y, op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0)


@_form("MultiHeadAttention")
def _multi_head_attention(
    op, q, k, v, bias, mask, extra, past_key, past_value, past_length, indirection,
    *, num_heads, unidirectional=0, scale=0.0, mask_filter_value=-10000.0,
):  # fmt: skip
    if past_length is not None or indirection is not None:
        return None
    if mask is not None and axes(mask) not in (2, 3):
        return None
    separate = _separated(op, q, k, v, bias, num_heads)
    if separate is None:
        return None
    q, k, v = separate
    if past_key is not None:
        k, v = op.Concat(past_key, k, axis=2), op.Concat(past_value, v, axis=2)
    hidden = None if mask is None else _hidden(op, mask, q, k, mask_filter_value)
    y = attend(op, q, k, v, scale, unidirectional, mask_filter_value, (hidden, extra))
    return y, k, v


def _separated(op: Builder, q, k, v, bias, num_heads: int):
    """Queries, keys and values as (B, heads, length, width); None if their layout is unknown."""
    if k is None or v is None:  # packed into one: no kernel on the CPU confirms the numbers
        return None
    if axes(k) == 4 and bias is None:  # keys and values of a cross attention, computed before
        return [heads(op, q, num_heads), k, v]
    if axes(k) != 3:
        return None
    if bias is not None:
        widths = op.Concat(*(op.Shape(x, start=2) for x in (q, k, v)), axis=0)
        parts = op.Split(bias, widths, axis=0, outputs=3)
        q, k, v = (op.Add(x, part) for x, part in zip((q, k, v), parts, strict=True))
    return [heads(op, x, num_heads) for x in (q, k, v)]


def heads(op: Builder, x: ir.Value, count: int) -> ir.Value:
    """(B, length, heads · width) as (B, heads, length, width)."""
    return op.Transpose(op.Reshape(x, [0, 0, count, -1]), perm=[0, 2, 1, 3])


def attend(
    op: Builder, q: ir.Value, k: ir.Value, v: ir.Value, scale: float, causal: int, low: float, added
) -> ir.Value:
    """Softmax of the scores, times the values; (B, length, heads · width).

    low   -- what hides a later token
    added -- tensors that are added to the scores, or None
    """
    if not scale:
        width = op.Cast(op.Shape(q, start=3), to=int(FLOAT))
        q = op.Div(q, op.CastLike(op.Sqrt(width), q))
    scores = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2]))
    if scale:
        scores = op.Mul(scores, op.CastLike(op.const(scale, FLOAT), q))
    if causal:
        before = op.Sub(op.Shape(k, start=2, end=3), op.Shape(q, start=2, end=3))
        square = op.Concat(op.Shape(q, start=2, end=3), op.Shape(k, start=2, end=3), axis=0)
        ones = op.Expand(op.const(np.array(1.0, np.float32)), square)
        allowed = op.Trilu(ones, op.Squeeze(before, [0]), upper=0)
        number = op.CastLike(op.const(low, FLOAT), scores)
        scores = op.Where(op.Greater(allowed, op.const(0.5, FLOAT)), scores, number)
    for term in added:
        scores = scores if term is None else op.Add(scores, term)
    context = op.MatMul(op.Softmax(scores, axis=-1), v)
    return op.Reshape(op.Transpose(context, perm=[0, 2, 1, 3]), [0, 0, -1])


def _hidden(op: Builder, mask: ir.Value, q: ir.Value, k: ir.Value, low: float) -> ir.Value:
    """What is added to the scores: 0 where a mask lets a token through."""
    length = op.Shape(k, start=2, end=3)
    if axes(mask) == 1:
        # How many tokens there are in each row; or where they end, then where they begin.
        rows = op.Shape(q, start=0, end=1)
        zeros = op.Expand(op.CastLike(op.const(np.int64(0)), mask), rows)
        both = op.Concat(mask, zeros, axis=0)
        end = op.Unsqueeze(op.Slice(both, [0], rows, [0]), [1])
        begin = op.Unsqueeze(op.Slice(both, rows, op.Mul(rows, op.const(np.int64(2))), [0]), [1])
        zero, one = op.const(np.int64(0)), op.const(np.int64(1))
        place = op.CastLike(op.Range(zero, op.Squeeze(length, [0]), one), mask)
        allowed = op.And(op.Less(place, end), op.GreaterOrEqual(place, begin))
    else:
        allowed = op.Greater(mask, op.CastLike(op.const(np.int64(0)), mask))
    numbers = (op.CastLike(op.const(n, FLOAT), q) for n in (0.0, low))
    return op.Unsqueeze(op.Where(allowed, *numbers), [1] if axes(mask) == 3 else [1, 2])


def axes(value: ir.Value | None, depth: int = DEEPEST) -> int | None:
    """How many axes a value has, before shapes are inferred; None where that is not apparent."""
    if value is None:
        return None
    if value.shape is not None:
        return len(value.shape)
    node = value.producer()
    if node is None or not depth or node.domain != "":
        return None
    if node.op_type == "Transpose" and "perm" in node.attributes:
        return len(node.attributes.get_ints("perm"))
    if node.op_type == "Reshape":
        shape = constant(node.inputs[1])
        return None if shape is None else len(shape)
    if node.op_type in KEEPS_RANK:
        return axes(node.inputs[0], depth - 1)
    if node.op_type in BROADCASTS:
        ranks = [axes(v, depth - 1) for v in node.inputs]
        return None if None in ranks else max(r for r in ranks if r is not None)
    return None


# -- around attention ------------------------------------------------------------------------------


@_form("SkipLayerNormalization")
def _skip_layer_norm(op, x, skip, gamma, beta, bias, *, epsilon=1e-12):
    total = _sum(op, x, skip, bias)
    y = op.LayerNormalization(total, gamma, beta, axis=-1, epsilon=epsilon)
    return y, None, None, total


@_form("SkipSimplifiedLayerNormalization")
def _skip_simplified_layer_norm(op, x, skip, gamma, bias, *, epsilon=1e-12):
    total = _sum(op, x, skip, bias)
    return op.RMSNormalization(total, gamma, axis=-1, epsilon=epsilon), None, None, total


def _sum(op: Builder, x: ir.Value, skip: ir.Value, bias: ir.Value | None) -> ir.Value:
    total = op.Add(x, skip)
    return total if bias is None else op.Add(total, bias)


@_form("EmbedLayerNormalization")
def _embed_layer_norm(
    op, ids, segments, words, positions, segment_table, gamma, beta, mask, position_ids,
    *, epsilon=1e-12, mask_index_type=0,
):  # fmt: skip
    if mask_index_type not in (0, 1):
        return None
    if position_ids is None:
        length = op.Shape(ids, start=1, end=2)
        places = op.Unsqueeze(op.Slice(positions, [0], length, [0]), [0])
    else:
        places = op.Gather(positions, position_ids, axis=0)
    total = op.Add(op.Gather(words, ids, axis=0), places)
    if segments is not None and segment_table is not None:
        total = op.Add(total, op.Gather(segment_table, segments, axis=0))
    y = op.LayerNormalization(total, gamma, beta, axis=-1, epsilon=epsilon)
    if mask is None:
        lengths = op.Expand(op.const(np.int32(0)), op.Shape(ids, start=0, end=1))
    else:
        lengths = op.ReduceSum(op.Cast(mask, to=int(ir.DataType.INT32)), [1], keepdims=0)
    return y, lengths, total


@_form("BiasGelu")
def _bias_gelu(op, x, bias):
    return op.Gelu(op.Add(x, bias))


@_form("Gelu")
def _gelu(op, x):
    return op.Gelu(x)


@_form("FastGelu")
def _fast_gelu(op, x, bias):
    return op.Gelu(x if bias is None else op.Add(x, bias), approximate="tanh")


@_form("QuickGelu")
def _quick_gelu(op, x, *, alpha=1.702):
    return op.Mul(x, op.Sigmoid(op.Mul(x, op.CastLike(op.const(alpha, FLOAT), x))))
