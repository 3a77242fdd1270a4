"""Along one axis: softmax, running sums and products, the largest elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant, rank
from sardonyx.grad.driver import gradient_rule


@gradient_rule("Softmax")
def softmax(op, g, x, *, axis, out):
    y = _without_masked_rows(out[0], axis)
    return y * (g - op.total(g * y, [axis], keepdims=True))


def _without_masked_rows(y: ir.Value, axis: int) -> ir.Value:
    """`y`, but zero in the rows for which the model itself takes zero instead.

    A row that is masked whole is NaN. Its cotangent is zero, but zero times NaN would be NaN in
    every weight before it.
    """
    used = _behind_casts(y)
    for choice in used.consumers():
        if choice.op_type != "Where" or used not in choice.inputs[1:]:
            continue
        test, *branches = choice.inputs
        other = branches[0 if branches[1] is used else 1]
        if not _is_zero(other) or choice.outputs[0].shape != y.shape:
            continue
        maker = test.producer() if test is not None else None
        is_nan = maker is not None and maker.op_type == "IsNaN" and maker.inputs[0] is used
        is_alone = len(_reads(used)) == 1 and not used.is_graph_output()
        if is_nan or (is_alone and _is_of_rows(test, y, axis)):
            return choice.outputs[0]
    return y


def _behind_casts(y: ir.Value) -> ir.Value:
    """What all readers of a value read: itself, or its cast to the type that it has already."""
    while len(_reads(y)) == 1 and not y.is_graph_output():
        (reader,) = _reads(y)
        if reader.op_type != "Cast" or reader.outputs[0].dtype != y.dtype:
            break
        y = reader.outputs[0]
    return y


def _reads(y: ir.Value) -> list[ir.Node]:
    """Who reads a value, rather than its type alone."""
    return [use.node for use in y.uses() if (use.node.op_type, use.idx) != ("CastLike", 1)]


def _is_zero(x: ir.Value | None) -> bool:
    while x is not None and (maker := x.producer()) is not None:
        if maker.op_type not in ("Cast", "CastLike", "Identity"):
            return False
        x = maker.inputs[0]
    array = constant(x)
    return array is not None and not array.any()


def _is_of_rows(test: ir.Value | None, y: ir.Value, axis: int) -> bool:
    """Whether a condition says the same all along an axis of `y`."""
    if test is None or test.shape is None or y.shape is None:
        return False
    at = axis % rank(y) - rank(y) + len(test.shape)
    return at < 0 or test.shape[at] == 1


@gradient_rule("LogSoftmax")
def log_softmax(op, g, x, *, axis, out):
    return g - op.Exp(out[0]) * op.total(g, [axis], keepdims=True)


@gradient_rule("CumSum")
def cumsum(op, g, x, axis, *, exclusive, reverse):
    return op.CumSum(g, axis, exclusive=exclusive, reverse=1 - reverse)


@gradient_rule("CumProd")
def cumprod(op, g, x, axis, *, exclusive, reverse):
    number = constant(axis)
    if number is not None or rank(x) == 1:
        at = 0 if number is None else int(number.reshape(())) % rank(x)
        return _cumprod_along(op, g, x, at, exclusive, reverse)
    # ONNX cannot transpose by a computed permutation: do all axes, take the one that was meant.
    position = op.Reshape(axis, [])
    position = op.Where(op.Less(position, 0), position + rank(x), position)
    parts = [
        op.Where(op.Equal(position, at), _cumprod_along(op, g, x, at, exclusive, reverse), 0.0)
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


@gradient_rule("TopK", needs=2)
def topk(op, g, x, k, *, axis, largest, sorted, out):
    return op.ScatterElements(op.zeros_like(x), out[1], g, axis=axis)
