"""Elements picked by indices: Gather, GatherElements, GatherND, Compress, OneHot, Unique.

The adjoint of reading by indices is adding at these indices. Of the formulations that stock
runtimes have, ScatterND(add) of whole rows is the fastest, so `put` brings the gathered axis to
the front for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.build import FOLDED_CONSTANT, HALF, Builder, Dim, constant, content, rank
from sardonyx.grad.driver import gradient_rule

Grad = ir.Value | None


def wide(op: Builder, x: ir.Value) -> ir.Value:
    """`x`, in float32 if it is a 16-bit float: sums over indices are added up in that."""
    return op.cast(x, ir.DataType.FLOAT) if x.dtype in HALF else x


def zeros(op: Builder, dims: Sequence[Dim], dtype: ir.DataType | None) -> ir.Value:
    """A tensor of zeros of these sizes."""
    assert dtype is not None
    shape = op.join(dims)
    out = op.ConstantOfShape(shape, value=ir.tensor(np.zeros([1], dtype.numpy())))
    sizes = content(shape)
    if sizes is not None:
        out.shape = ir.Shape(sizes)
    return out


def counted(op: Builder, size: Dim) -> ir.Value:
    """0, 1, …, size - 1."""
    if isinstance(size, int) and size <= FOLDED_CONSTANT:
        return op.const(np.arange(size, dtype=np.int64))
    end = op.Squeeze(size, [0]) if isinstance(size, ir.Value) else size
    return op.Range(op.const(0, ir.DataType.INT64), end, 1)


def normalized(op: Builder, indices: ir.Value, size: Dim) -> ir.Value:
    """`indices` as int64, those that count from the end made to count from the start."""
    positions = constant(indices)
    if positions is not None and positions.size and positions.min() >= 0:
        return op.cast(indices, ir.DataType.INT64)
    if positions is not None and isinstance(size, int) and positions.size <= FOLDED_CONSTANT:
        return op.const(np.where(positions < 0, positions + size, positions).astype(np.int64))
    indices = op.cast(indices, ir.DataType.INT64)
    size = op.Squeeze(size, [0]) if isinstance(size, ir.Value) else size
    return op.Where(op.Less(indices, 0), op.Add(indices, size), indices)


def put(
    op: Builder, g: ir.Value, indices: ir.Value, index_rank: int, size: Dim, axis: int
) -> ir.Value:
    """Add `g` into zeros at `indices`, none negative, of an axis: the adjoint of Gather."""
    g, n, k = wide(op, g), rank(g), index_rank
    front = [*range(axis, axis + k), *range(axis), *range(axis + k, n)]
    moved = op.transpose(g, front)
    target = zeros(op, [size, *op.dims(moved, k)], g.dtype)
    rows = op.Unsqueeze(indices, [-1])
    added = op.ScatterND(target, rows, moved, reduction="add")
    return op.transpose(added, [*range(1, axis + 1), 0, *range(axis + 1, n - k + 1)])


def put_one(op: Builder, g: ir.Value, index: int, x: ir.Value, axis: int) -> ir.Value:
    """`g`, of size 1 along `axis`, at one known index of zeros shaped like `x`."""
    size = op.dim(x, axis)
    if isinstance(size, int):
        index %= size
        before, after = index, size - 1 - index
    else:
        before = index if index >= 0 else op.Add(size, index)
        after = op.Sub(size, index + 1) if index >= 0 else -index - 1
    return op.Pad(g, op.join([before, after]), None, [axis])


@gradient_rule("Gather")
def gather(op, g, x, indices, *, axis):
    if x.shape is None and axis == 0:
        rows = op.Unsqueeze(normalized(op, indices, op.dim(x, 0)), [-1])
        return op.ScatterND(op.zeros_like(wide(op, x)), rows, wide(op, g), reduction="add")
    axis %= rank(x)
    positions = constant(indices)
    if positions is not None and positions.size == 1 and positions.ndim <= 1:
        one = g if positions.ndim else op.Unsqueeze(g, [axis])
        return put_one(op, one, int(positions.reshape(())), x, axis)
    size = op.dim(x, axis)
    return put(op, g, normalized(op, indices, size), rank(indices), size, axis)


@gradient_rule("GatherElements")
def gather_elements(op, g, x, indices, *, axis):
    target = op.zeros_like(wide(op, x))
    return op.ScatterElements(target, indices, wide(op, g), axis=axis, reduction="add")


@gradient_rule("GatherND")
def gather_nd(op, g, x, indices, *, batch_dims):
    if batch_dims:
        indices = _with_batch(op, indices, batch_dims)
    return op.ScatterND(op.zeros_like(wide(op, x)), indices, wide(op, g), reduction="add")


def _with_batch(op: Builder, indices: ir.Value, batch_dims: int) -> ir.Value:
    """Index tuples that begin with the position in the batch."""
    dims = op.dims(indices)
    shape = op.join([*dims[:-1], 1])
    columns = []
    for axis in range(batch_dims):
        sizes = [1] * len(dims)
        sizes[axis] = -1
        columns.append(op.Expand(op.Reshape(counted(op, dims[axis]), sizes), shape))
    return op.Concat(*columns, indices, axis=-1)


@gradient_rule("Compress")
def compress(op, g, x, condition, *, axis):
    positions = op.Reshape(op.NonZero(condition), [-1])
    return _put_flat_or_axis(op, g, x, positions, axis)


@gradient_rule("Unique", needs=2)
def unique(op, g, x, *, axis, sorted, out):
    # Of equal elements, Unique copies the one that it reports in `indices`: the first.
    return _put_flat_or_axis(op, g, x, out[1], axis)


def _put_flat_or_axis(
    op: Builder, g: ir.Value, x: ir.Value, indices: ir.Value, axis: int | None
) -> ir.Value:
    if axis is not None:
        axis %= rank(x)
        if g.shape is None:
            g.shape = ir.Shape([None if a == axis else d for a, d in enumerate(x.shape or ())])
        return put(op, g, indices, 1, op.dim(x, axis), axis)
    flat = op.Reshape(op.zeros_like(wide(op, x)), [-1])
    rows = op.Unsqueeze(indices, [-1])
    return op.reshape_like(op.ScatterND(flat, rows, wide(op, g), reduction="add"), x)


@gradient_rule("OneHot")
def one_hot(op, g, indices, depth, values, *, axis):
    # float32 on purpose: onnxruntime has no kernel of OneHot for float64 values.
    hot = op.OneHot(indices, depth, op.const(np.array([0, 1], np.float32)), axis=axis)
    on = op.cast(hot, g.dtype)  # type: ignore[arg-type]
    off, on = op.total(g * (1.0 - on)), op.total(g * on)
    return None, None, op.Concat(op.Reshape(off, [1]), op.Reshape(on, [1]), axis=0)
