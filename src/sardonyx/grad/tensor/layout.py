"""The same elements in another order, shape or type: Reshape, Transpose, Concat, Where, Cast, …"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import FLOATS, Builder, constant, is_static
from sardonyx.grad.driver import gradient_rule

Grad = ir.Value | None


@gradient_rule("Identity")
def identity(op, g, x):
    return g


@gradient_rule("Cast")
def cast(op, g, x, *, to, saturate, round_mode):
    return g if x.dtype in FLOATS else None


@gradient_rule("CastLike")
def cast_like(op, g, x, like, *, saturate, round_mode):
    return g if x.dtype in FLOATS else None


@gradient_rule("Reshape")
def reshape(op, g, x, shape, *, allowzero):
    return op.reshape_like(g, x)


@gradient_rule("Squeeze")
def squeeze(op, g, x, axes):
    numbers = constant(axes)
    if axes is None or is_static(x) or (numbers is not None and not numbers.size):
        return op.reshape_like(g, x)
    return op.Unsqueeze(g, axes)


@gradient_rule("Unsqueeze")
def unsqueeze(op, g, x, axes):
    return op.reshape_like(g, x) if is_static(x) else op.Squeeze(g, axes)


@gradient_rule("Transpose")
def transpose(op, g, x, *, perm):
    return op.Transpose(g) if perm is None else op.transpose(g, np.argsort(perm).tolist())


@gradient_rule("Concat")
def concat(op, g, *parts, axis):
    if len(parts) == 1:
        return g
    sizes = op.join([op.dim(x, axis) for x in parts])
    return op.Split(g, sizes, axis=axis, outputs=len(parts))


@gradient_rule("Split")
def split(op, gs, x, sizes, *, axis, num_outputs, out):
    parts = [op.zeros_like(y) if g is None else g for g, y in zip(gs, out, strict=True)]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


@gradient_rule("Tile")
def tile(op, g, x, repeats):
    counts = constant(repeats)
    if counts is None or x.shape is None:
        return _tile_at_run_time(op, g, x, repeats)
    dims: list[Any] = []
    summed: list[int] = []
    for times, size in zip(counts.tolist(), op.dims(x), strict=True):
        if times != 1:
            summed.append(len(dims))
            dims.append(times)
        dims.append(size)
    return op.total(op.reshape(g, dims, allowzero=1), summed)


def _tile_at_run_time(op: Builder, g: ir.Value, x: ir.Value, repeats: ir.Value) -> ir.Value:
    pairs = op.Concat(op.Unsqueeze(repeats, [1]), op.Unsqueeze(op.shape(x), [1]), axis=1)
    axes = op.Range(0, op.Size(pairs), 2)
    return op.total(op.Reshape(g, op.Reshape(pairs, [-1]), allowzero=1), axes)


@gradient_rule("DepthToSpace")
def depth_to_space(op, g, x, *, blocksize, mode):
    dx = op.SpaceToDepth(g, blocksize=blocksize)
    if mode == "DCR":
        return dx
    n, _, h, w = op.dims(x)
    return _regroup(op, dx, x, [n, blocksize * blocksize, -1, h, w])


@gradient_rule("SpaceToDepth")
def space_to_depth(op, g, x, *, blocksize, mode):
    if mode == "CRD":
        n, _, h, w = op.dims(g)
        g = _regroup(op, g, g, [n, -1, blocksize * blocksize, h, w])
    return op.DepthToSpace(g, blocksize=blocksize)


def _regroup(op: Builder, x: ir.Value, like: ir.Value, dims: list[Any]) -> ir.Value:
    """Exchange the two factors of the channel axis: the two modes differ by that only."""
    factored = op.Reshape(x, op.join(dims))
    return op.reshape_like(op.Transpose(factored, perm=[0, 2, 1, 3, 4]), like)


@gradient_rule("Where", broadcasts=True)
def where(op, g, condition, x, y):
    return None, op.Where(condition, g, 0.0), op.Where(condition, 0.0, g)


@gradient_rule("Trilu")
def trilu(op, g, x, k, *, upper):
    return op.Trilu(g, k, upper=upper)


@gradient_rule("ReverseSequence")
def reverse_sequence(op, g, x, lengths, *, batch_axis, time_axis):
    return op.ReverseSequence(g, lengths, batch_axis=batch_axis, time_axis=time_axis)
