"""The rule of dot_general: operands brought to [batch, rows, inner] and [batch, inner, columns]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.jax.driver import importer
from sardonyx.importers.jax.elementwise import converted
from sardonyx.importers.jax.writer import Refusal, Writer, is_static

T = ir.DataType


@importer("dot_general")
def dot_general(
    op: Writer, a: ir.Value, b: ir.Value, *, dimension_numbers: Any, out: Sequence[Any]
) -> ir.Value:
    kind = ir.DataType.from_numpy(np.dtype(out[0].dtype))
    a_shape, b_shape = a.meta["aval"].shape, b.meta["aval"].shape
    wide = _accumulator(a.dtype, b.dtype, kind)
    a, b = converted(op, a, wide), converted(op, b, wide)
    (a_inner, b_inner), (a_batch, b_batch) = dimension_numbers
    a_free = [d for d in range(len(a_shape)) if d not in (*a_inner, *a_batch)]
    b_free = [d for d in range(len(b_shape)) if d not in (*b_inner, *b_batch)]
    shape = out[0].shape
    if is_static((*a_shape, *b_shape)) and 0 in (*a_shape, *b_shape):
        return op.expanded(op.const(0, kind), shape)
    if not a_batch and a_free and b_free and a_inner and is_static(b_shape):
        left = op.transpose(a, [*a_free, *a_inner])
        if len(a_inner) > 1:
            inner = math.prod(int(b_shape[d]) for d in b_inner)
            left = op.shaped(left, [*(a_shape[d] for d in a_free), inner])
        right = _grouped(op, b, b_shape, ((), b_inner, b_free))
        return converted(op, op.shaped(op.MatMul(left, right), shape), kind)
    left = _grouped(op, a, a_shape, (a_batch, a_free, a_inner))
    right = _grouped(op, b, b_shape, (b_batch, b_inner, b_free))
    return converted(op, op.shaped(op.MatMul(left, right), shape), kind)


def _grouped(
    op: Writer, x: ir.Value, shape: Sequence[Any], groups: Sequence[Sequence[int]]
) -> ir.Value:
    """`x` with its axes in the order of `groups`: the batch axes, and two that merge a group
    each.
    """
    batch, first, second = groups
    x = op.transpose(x, [*batch, *first, *second])
    if len(first) == 1 and len(second) == 1:
        return x
    dims = [shape[d] for d in batch]
    for group in (first, second):
        size: Any = 1
        for d in group:
            size = size * shape[d]
        dims.append(size)
    return op.shaped(x, dims)


def _accumulator(a: Any, b: Any, kind: ir.DataType) -> ir.DataType:
    """The type of the products: JAX asks for one that is at least as wide as the operands."""
    widest = max((a, b, kind), key=lambda t: (t.is_floating_point(), t.bitwidth))
    if widest == T.BOOL:
        return T.INT32
    return T.FLOAT if widest in (T.BFLOAT16,) else widest


@importer("ragged_dot_general")
def ragged_dot_general(op: Writer, *operands: ir.Value) -> ir.Value:
    raise Refusal("products of ragged groups")
