"""Along one axis: softmax, running sums and products, the largest elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant, rank
from sardonyx.grad.engine import vjp


@vjp("Softmax")
def softmax(op: Builder, g: ir.Value, x: ir.Value, *, axis: int, out: Any) -> ir.Value:
    y = out[0]
    return y * (g - op.total(g * y, [axis], keepdims=True))


@vjp("LogSoftmax")
def log_softmax(op: Builder, g: ir.Value, x: ir.Value, *, axis: int, out: Any) -> ir.Value:
    return g - op.Exp(out[0]) * op.total(g, [axis], keepdims=True)


@vjp("CumSum")
def cumsum(
    op: Builder, g: ir.Value, x: ir.Value, axis: ir.Value, *, exclusive: int, reverse: int
) -> ir.Value:
    return op.CumSum(g, axis, exclusive=exclusive, reverse=1 - reverse)


@vjp("CumProd")
def cumprod(
    op: Builder, g: ir.Value, x: ir.Value, axis: ir.Value, *, exclusive: int, reverse: int
) -> ir.Value:
    known = constant(axis)
    if known is not None or rank(x) == 1:
        at = 0 if known is None else int(known.reshape(())) % rank(x)
        return _cumprod_along(op, g, x, at, exclusive, reverse)
    # ONNX cannot transpose by a computed permutation: do all axes, take the one that was meant.
    wanted = op.Reshape(axis, [])
    wanted = op.Where(op.Less(wanted, 0), wanted + rank(x), wanted)
    parts = [
        op.Where(op.Equal(wanted, at), _cumprod_along(op, g, x, at, exclusive, reverse), 0.0)
        for at in range(rank(x))
    ]
    return op.Sum(*parts)


def _cumprod_along(
    op: Builder, g: ir.Value, x: ir.Value, at: int, exclusive: int, reverse: int
) -> ir.Value:
    """dx_i = sum over k of g_k times the product without x_i: exact where elements are zero.

    The running products with element i replaced by 1 are row i of a matrix.
    """
    after = [1] * (rank(x) - 1 - at)
    n = op.dim(x, at)
    i, k = _positions(op, n, [1, *after]), _positions(op, n, after)
    without = op.Where(op.Equal(i, k), 1.0, op.Unsqueeze(x, [at]))
    along = op.const(np.array(at + 1, np.int64))
    products = op.CumProd(without, along, exclusive=exclusive, reverse=reverse)
    first, second = (k, i) if reverse else (i, k)
    uses = op.Less(first, second) if exclusive else op.LessOrEqual(first, second)
    return op.total(op.Where(uses, products * op.Unsqueeze(g, [at]), 0.0), [at + 1])


def _positions(op: Builder, n: Any, after: list[int]) -> ir.Value:
    """0, 1, …, n-1 as a column before axes of size 1."""
    if isinstance(n, int):
        return op.const(np.arange(n, dtype=np.int64).reshape([n, *after]))
    counted = op.Range(0, op.Squeeze(n, [0]), 1)
    return op.Reshape(counted, [-1, *after]) if after else counted


@vjp("TopK", needs=2)
def topk(
    op: Builder,
    g: ir.Value,
    x: ir.Value,
    k: ir.Value,
    *,
    axis: int,
    largest: int,
    sorted: int,
    out: Any,
) -> ir.Value:
    return op.ScatterElements(op.zeros_like(x), out[1], g, axis=axis)
