"""GridSample and AffineGrid.

GridSample is written out as what it does, a weighted sum of gathered elements, and the driver
differentiates that: once for the elements, once through the weights for the grid. Kinks follow
torch: no gradient to coordinates outside a border, and reflections turn its sign.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, is_static, rank
from sardonyx.grad.driver import backward, gradient_rule
from sardonyx.grad.tensor.gather import counted, wide

Tap = tuple[ir.Value, ir.Value]  # index along one axis (int64) and its weight, both (N, P, 1)
CUBIC_A = -0.75


@gradient_rule("GridSample")
def grid_sample(op, g, x, grid, *, mode, padding_mode, align_corners):
    x, grid = wide(op, x), wide(op, grid)
    first = len(op.nodes)
    y = _sample(op, x, grid, mode, padding_mode, bool(align_corners))
    n, c = op.dims(g)[:2]
    g = op.Transpose(op.Reshape(wide(op, g), op.join([n, c, -1])), perm=[0, 2, 1])
    return tuple(backward(op, op.nodes[first:], {y: op.Unsqueeze(g, [2])}, [x, grid]))


def _sample(
    op: Builder, x: ir.Value, grid: ir.Value, mode: str, padding: str, align: bool
) -> ir.Value:
    """The samples, as (N, points, 1, C)."""
    n, c, *sizes = op.dims(x)
    spatial = len(sizes)
    points = op.Reshape(grid, op.join([op.dim(grid, 0), -1, spatial]))
    # A name for the number of points tells that what is computed from them needs no broadcasting.
    if not is_static(points):
        points.shape = ir.Shape([grid.shape[0], op.fresh("points"), spatial])  # type: ignore[index]
    parts = op.Split(points, axis=-1, num_outputs=spatial, outputs=spatial)
    taps = [
        _taps(op, part, size, mode, padding, align)
        for part, size in zip(
            reversed(parts), sizes, strict=True
        )  # the grid names the last axis first
    ]
    start = op.Mul(counted(op, n), _product(sizes))
    start = op.Reshape(start, [-1, 1, 1])
    indices, weights = [], []
    for corner in itertools.product(*taps):
        index, weight = corner[0]
        for (i, w), size in zip(corner[1:], sizes[1:], strict=True):
            index, weight = index * size + i, weight * w
        indices.append(index + start)
        weights.append(weight)
    rows = op.Transpose(x, perm=[0, *range(2, spatial + 2), 1])
    rows = op.Reshape(rows, op.join([-1, c]))
    picked = op.Gather(rows, op.Concat(*indices, axis=-1), axis=0)
    return op.MatMul(op.Unsqueeze(op.Concat(*weights, axis=-1), [2]), picked)


def _product(sizes: list[Dim]) -> Any:
    total: Any = 1
    for size in sizes:
        total = size * total
    return total


def _taps(
    op: Builder, part: ir.Value, size: Dim, mode: str, padding: str, align: bool
) -> list[Tap]:
    """The elements of one axis that take part in each sample, and their weights."""
    assert part.dtype is not None
    width = op.cast(size, part.dtype) if isinstance(size, ir.Value) else float(size)
    last = width - 1.0
    at = (part + 1.0) * (last * 0.5) if align else ((part + 1.0) * width - 1.0) * 0.5
    if mode != "cubic":
        at = _padded(op, at, width, padding, align)
    if mode == "nearest":
        pairs = [(op.Round(at), op.fill(1, at))]
    else:
        below = op.Floor(at)
        weights = (_cubic if mode == "cubic" else _linear)(at - below)
        pairs = [(below + float(shift), w) for shift, w in weights.items()]
    taps = []
    for index, weight in pairs:
        if mode == "cubic":
            index = _padded(op, index, width, padding, align)
        if padding == "zeros":
            inside = op.And(op.GreaterOrEqual(index, 0.0), op.LessOrEqual(index, last))
            weight = op.Where(inside, weight, 0.0)
        index = op.Max(op.Min(index, last), 0.0)
        taps.append((op.Cast(index, to=int(ir.DataType.INT64)), weight))
    return taps


def _linear(t: ir.Value) -> dict[int, ir.Value]:
    return {0: 1.0 - t, 1: t}


def _cubic(t: ir.Value) -> dict[int, ir.Value]:
    def near(d: ir.Value) -> ir.Value:
        return (d * (CUBIC_A + 2.0) - (CUBIC_A + 3.0)) * d * d + 1.0

    def far(d: ir.Value) -> ir.Value:
        return ((d - 5.0) * d + 8.0) * d * CUBIC_A - 4.0 * CUBIC_A

    return {-1: far(t + 1.0), 0: near(t), 1: near(1.0 - t), 2: far(2.0 - t)}


def _padded(op: Builder, at: ir.Value, width: Any, padding: str, align: bool) -> ir.Value:
    """Coordinates brought back to the axis, as `padding` says; "zeros" leaves them alone."""
    if padding == "zeros":
        return at
    last = width - 1.0
    if padding == "reflection":
        low, span = (0.0, last) if align else (-0.5, width)
        # Without any extent there is nothing to reflect: the clip below brings all to 0.
        fold = max(span, 1.0) if isinstance(span, float) else op.Max(span, 1.0)
        away = at - low
        away = op.Where(op.Less(away, 0.0), op.Neg(away), away)
        turns = op.Floor(away / fold)
        rest = away - turns * span
        even = op.Equal(op.Mod(turns, op.const(2, at.dtype), fmod=1), 0.0)
        at = op.Where(even, rest, span - rest) + low
    inside = op.And(op.Greater(at, 0.0), op.Less(at, last))
    edge = op.Where(
        op.Greater(at, 0.0), op.const(last, at.dtype) if isinstance(last, float) else last, 0.0
    )
    return op.Where(inside, at, edge)


@gradient_rule("AffineGrid")
def affine_grid(op, g, theta, size, *, align_corners):
    """A grid is plain coordinates times theta; the operator tells those, given the identity."""
    g, spatial = wide(op, g), rank(g) - 2
    identity = op.const(np.eye(spatial, spatial + 1)[None], g.dtype)
    shape = op.Concat([1, 1], op.Slice(size, [2], [2 + spatial]), axis=0)
    plain = op.Reshape(op.AffineGrid(identity, shape, align_corners=align_corners), [-1, spatial])
    plain = op.Pad(plain, [0, 0, 0, 1], op.const(1, g.dtype))
    flat = op.Reshape(g, op.join([op.dim(g, 0), -1, spatial]))
    return op.MatMul(op.Transpose(flat, perm=[0, 2, 1]), plain)
