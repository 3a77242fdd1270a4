"""Gradients of ONNX's `reduction` family.

All share `axes` (an input: constant, computed, empty or absent), `keepdims` and
`noop_with_empty_axes`. `_kept` gives a reduced tensor its axes back, so that it broadcasts against
the input.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.build import HALF, Builder, constant, is_static, static
from sardonyx.grad.driver import gradient_rule, no_gradient

no_gradient("ArgMax", "ArgMin")

Axes = ir.Value | None


def _kept(op: Builder, reduced: ir.Value, axes: Axes, keepdims: int) -> ir.Value:
    """`reduced` with the reduced axes as axes of size 1."""
    # Without axes, either everything was reduced and a scalar is left, or nothing was: both
    # broadcast. Unsqueeze with axes that turn out to be empty does nothing, right for that reason.
    if keepdims or axes is None:
        return reduced
    numbers = constant(axes)
    if numbers is not None and not numbers.size:
        return reduced
    return op.Unsqueeze(reduced, axes)


def _like(op: Builder, dx: ir.Value, x: ir.Value) -> ir.Value:
    """`dx` broadcast to the shape of `x`."""
    out = op.Expand(dx, op.shape(x))
    if x.shape is not None:
        out.shape = ir.Shape(x.shape)
    return out


def _shaped(dx: ir.Value, x: ir.Value) -> ir.Value:
    """The shape of `x`, which ONNX does not infer when the axes are computed."""
    if x.shape is not None:
        dx.shape = ir.Shape(x.shape)
    return dx


@gradient_rule("ReduceSum")
def reduce_sum(op, g, x, axes, *, keepdims, noop_with_empty_axes):
    return _like(op, _kept(op, g, axes, keepdims), x)


@gradient_rule("ReduceMean")
def reduce_mean(op, g, x, axes, *, keepdims, noop_with_empty_axes, out):
    if is_static(x) and is_static(out[0]):
        count = math.prod(static(x)) // max(math.prod(static(out[0])), 1)
        share = g / float(count) if count else g
    else:
        wide = ir.DataType.FLOAT if g.dtype in HALF else g.dtype
        each = op.cast(op.Size(x), wide) / op.cast(op.Size(out[0]), wide)
        share = op.cast(op.cast(g, wide) / each, g.dtype)
    return _like(op, _kept(op, share, axes, keepdims), x)


@gradient_rule("ReduceMax", "ReduceMin")
def reduce_extremum(op, g, x, axes, *, keepdims, noop_with_empty_axes, out):
    """All elements that reach the extremum share its gradient equally."""
    chosen = op.Equal(x, _kept(op, out[0], axes, keepdims))
    wide = ir.DataType.FLOAT if g.dtype in HALF else g.dtype
    ties = op.ReduceSum(
        op.cast(chosen, wide), axes, keepdims=1, noop_with_empty_axes=noop_with_empty_axes
    )
    share = _kept(op, g, axes, keepdims) / op.cast(ties, g.dtype)
    return _shaped(op.Where(chosen, share, 0.0), x)


@gradient_rule("ReduceL1")
def reduce_l1(op, g, x, axes, *, keepdims, noop_with_empty_axes):
    return _shaped(_kept(op, g, axes, keepdims) * op.Sign(x), x)


@gradient_rule("ReduceL2")
def reduce_l2(op, g, x, axes, *, keepdims, noop_with_empty_axes, out):
    norm = out[0]
    is_zero = op.Equal(norm, 0.0)
    scale = op.Where(is_zero, 0.0, g / op.Where(is_zero, 1.0, norm))
    return _shaped(_kept(op, scale, axes, keepdims) * x, x)


@gradient_rule("ReduceSumSquare")
def reduce_sum_square(op, g, x, axes, *, keepdims, noop_with_empty_axes):
    return _shaped(_kept(op, g * 2.0, axes, keepdims) * x, x)


@gradient_rule("ReduceLogSum")
def reduce_log_sum(op, g, x, axes, *, keepdims, noop_with_empty_axes, out):
    return _like(op, _kept(op, g * op.Exp(op.Neg(out[0])), axes, keepdims), x)


@gradient_rule("ReduceLogSumExp")
def reduce_log_sum_exp(op, g, x, axes, *, keepdims, noop_with_empty_axes, out):
    share = op.Exp(x - _kept(op, out[0], axes, keepdims))
    return _shaped(_kept(op, g, axes, keepdims) * share, x)


# -- ReduceProd -------------------------------------------------------------------


@gradient_rule("ReduceProd")
def reduce_prod(op, g, x, axes, *, keepdims, noop_with_empty_axes):
    numbers = None if axes is None else constant(axes)
    if axes is not None and numbers is None:
        return _by_counting_zeros(op, _kept(op, g, axes, keepdims), x, axes, noop_with_empty_axes)
    chosen = [] if numbers is None else [int(a) for a in numbers.reshape(-1)]
    if not chosen and noop_with_empty_axes:
        return g
    seed = _kept(op, g, axes, keepdims)
    if not chosen:
        flat = op.reshape(x, [-1])
        return op.reshape_like(op.reshape(seed, [-1]) * _others(op, flat, 0), x)
    # One axis after the other: each step is a product along a single axis.
    partial = [x]
    for axis in chosen[:-1]:
        partial.append(op.ReduceProd(partial[-1], [axis], keepdims=1))
    for axis, factors in zip(reversed(chosen), reversed(partial), strict=True):
        seed = seed * _others(op, factors, axis)
    return _shaped(seed, x)


def _others(op: Builder, x: ir.Value, axis: int) -> ir.Value:
    """For each element the product of all others along `axis`: those before times those after."""
    at = op.const(np.array(axis, np.int64))
    return op.CumProd(x, at, exclusive=1) * op.CumProd(x, at, exclusive=1, reverse=1)


def _by_counting_zeros(
    op: Builder, g: ir.Value, x: ir.Value, axes: ir.Value, noop: int
) -> ir.Value:
    """The same where the axes are computed: divide the product of the non-zeros by each.

    A single zero among the others is a factor like any other: the product is 0, its derivative by
    that zero is not.
    """
    assert x.dtype is not None
    options = {"keepdims": 1, "noop_with_empty_axes": noop}
    is_zero = op.Equal(x, 0.0)
    nonzero, zero = op.Where(is_zero, 1.0, x), op.Where(is_zero, x, 0.0)
    ones = op.cast(is_zero, ir.DataType.FLOAT)
    count = op.ReduceSum(ones, axes, **options) - ones
    single = op.Where(op.Equal(count, 1.0), op.ReduceSum(zero, axes, **options) - zero, 0.0)
    others = op.ReduceProd(nonzero, axes, **options) / nonzero
    return _shaped(g * others * op.Where(op.Equal(count, 0.0), 1.0, single), x)
