"""Rules of ragged tensors that end in dense ones, and of sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.reader import dtype_of, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


@importer("RaggedRange")
def ragged_range(
    op: Writer, starts: ir.Value, limits: ir.Value, deltas: ir.Value, *, node: Any
) -> list[ir.Value]:
    """Several ranges, one after the other, and where each begins."""
    kind = starts.dtype
    span = op.Div(op.cast(op.Sub(limits, starts), T.DOUBLE), op.cast(deltas, T.DOUBLE))
    lengths = op.Max(op.cast(op.Ceil(span), T.INT64), op.const(np.zeros(1, np.int64)))
    ends = op.CumSum(lengths, op.const(np.int64(0)))
    splits = op.Pad(ends, [1, 0])
    total = op.part(splits, 0, -1, np.iinfo(np.int64).max)
    place = op.count(total)
    row = _row_of(op, place, ends)
    zeros = op.ConstantOfShape(op.Shape(lengths), value=ir.tensor(np.zeros(1, kind.numpy())))  # type: ignore[union-attr]
    number = op.cast(op.Sub(place, op.Gather(splits, row)), kind)
    first = op.Gather(op.Add(starts, zeros), row)
    step = op.Gather(op.Add(deltas, zeros), row)
    values = op.Add(first, op.Mul(number, step))
    return [op.cast(splits, dtype_of(node.outputs[0].dtype)), values]


def _row_of(op: Writer, place: ir.Value, ends: ir.Value) -> ir.Value:
    """The row of each element: how many rows end at or before it."""
    over = op.GreaterOrEqual(op.Unsqueeze(place, [1]), op.Unsqueeze(ends, [0]))
    return op.ReduceSum(op.cast(over, T.INT64), [1], keepdims=0)


@importer("RaggedTensorToTensor")
def ragged_tensor_to_tensor(
    op: Writer,
    shape: ir.Value,
    values: ir.Value,
    default: ir.Value,
    *partitions: ir.Value,
    row_partition_types: Sequence[bytes],
) -> ir.Value:
    """One axis of rows of different lengths, filled up to the longest, or cut to `shape`."""
    kinds = [k.decode() if isinstance(k, bytes) else str(k) for k in row_partition_types]
    if kinds[0] == "FIRST_DIM_SIZE" and kinds[1:] == ["VALUE_ROWIDS"]:
        rows, ids = op.Reshape(op.int64(partitions[0]), [1]), op.int64(partitions[1])
    elif kinds == ["ROW_SPLITS"]:
        splits = op.int64(partitions[0])
        rows = op.Sub(op.dim_value(splits, 0), [1])
        ids = _row_of(op, op.count(op.dim_value(values, 0)), op.part(splits, 0, 1, 1 << 62))
    else:
        raise Refusal("ragged tensors of more than one ragged axis")
    starts = _starts(op, ids, rows)
    column = op.Sub(op.count(op.dim_value(values, 0)), op.Gather(starts, ids))
    widest = op.ReduceMax(op.Pad(op.Add(column, [1]), [0, 1]), [0], keepdims=1)
    target = op.int64(shape)
    if shape.shape is None or not len(shape.shape):
        sizes = [rows, widest]
    else:
        free = [op.Less(op.element(target, i), [0]) for i in (0, 1)]
        pairs = zip(free, (rows, widest), (0, 1), strict=True)
        sizes = [op.Where(f, size, op.element(target, i)) for f, size, i in pairs]
    tail = [op.Shape(values, start=1)] if rank(values) > 1 else []
    fill = op.Expand(default, op.Concat(*sizes, *tail, axis=0))
    keep = op.And(op.Less(ids, sizes[0]), op.Less(column, sizes[1]))
    places = op.Concat(op.Unsqueeze(ids, [1]), op.Unsqueeze(column, [1]), axis=1)
    return op.ScatterND(fill, op.Compress(places, keep, axis=0), op.Compress(values, keep, axis=0))


def _starts(op: Writer, ids: ir.Value, rows: ir.Value) -> ir.Value:
    """The first element of each row, by the rows of all elements."""
    counts = op.ConstantOfShape(rows, value=ir.tensor(np.zeros(1, np.int64)))
    ones = op.Expand(op.const(np.int64(1)), op.Shape(ids))
    counts = op.ScatterND(counts, op.Unsqueeze(ids, [1]), ones, reduction="add")
    return op.CumSum(counts, op.const(np.int64(0)), exclusive=1)


@importer("RaggedTensorToSparse")
def ragged_tensor_to_sparse(op: Writer, *operands: ir.Value, node: Any) -> list[ir.Value]:
    *splits, values = operands
    if len(splits) != 1 or rank(values) != 1:
        raise Refusal("ragged tensors of more than one ragged axis")
    bounds = op.int64(splits[0])
    count = op.count(op.dim_value(values, 0))
    row = _row_of(op, count, op.part(bounds, 0, 1, 1 << 62))
    column = op.Sub(count, op.Gather(bounds, row))
    places = op.Concat(op.Unsqueeze(row, [1]), op.Unsqueeze(column, [1]), axis=1)
    lengths = op.Sub(op.part(bounds, 0, 1, 1 << 62), op.part(bounds, 0, 0, -1))
    widest = op.ReduceMax(op.Pad(lengths, [0, 1]), [0], keepdims=1)
    return [places, values, op.Concat(op.dim_value(lengths, 0), widest, axis=0)]


@importer("RaggedGather")
def ragged_gather(op: Writer, *operands: ir.Value, node: Any) -> list[ir.Value]:
    """Whole rows, in the order of `indices`."""
    *splits, values, indices = operands
    if len(splits) != 1 or rank(indices) != 1:
        raise Refusal("ragged tensors of more than one ragged axis")
    bounds, rows = op.int64(splits[0]), op.int64(indices)
    first = op.Gather(bounds, rows)
    lengths = op.Sub(op.Gather(bounds, op.Add(rows, [1])), first)
    ends = op.CumSum(lengths, op.const(np.int64(0)))
    new = op.Pad(ends, [1, 0])
    place = op.count(op.part(new, 0, -1, 1 << 62))
    row = _row_of(op, place, ends)
    source = op.Add(op.Sub(place, op.Gather(new, row)), op.Gather(first, row))
    return [op.cast(new, dtype_of(node.outputs[0].dtype)), op.Gather(values, source)]


# -- sets -----------------------------------------------------------------------------------------


@importer("DenseToDenseSetOperation")
def dense_to_dense_set_operation(
    op: Writer, a: ir.Value, b: ir.Value, *, set_operation: str
) -> list[ir.Value]:
    """Sets in the rows of matrices: sorted, without repetitions, as a sparse tensor."""
    if rank(a) != 2 or rank(b) != 2 or a.dtype == T.STRING:
        raise Refusal("sets of texts, or of more than two axes")
    kind = a.dtype
    left, right = op.int64(a), op.int64(b)
    if set_operation == "union":
        pool = op.Concat(left, right, axis=1)
        keep: ir.Value | None = None
    else:
        if set_operation == "b-a":
            left, right = right, left
        same = op.Equal(op.Unsqueeze(left, [2]), op.Unsqueeze(right, [1]))
        both = op.cast(op.ReduceMax(op.cast(same, T.INT32), [2], keepdims=0), T.BOOL)
        pool, keep = left, both if set_operation == "intersection" else op.Not(both)
    return _sets(op, pool, keep, kind)


def _sets(
    op: Writer, pool: ir.Value, keep: ir.Value | None, kind: ir.DataType | None
) -> list[ir.Value]:
    """The elements to keep, sorted and once each, as indices, values and shape."""
    largest = op.const(np.int64(np.iinfo(np.int64).max))
    width = op.dim_value(pool, 1)
    marked = pool if keep is None else op.Where(keep, pool, largest)
    ordered, _ = op.TopK(marked, width, axis=1, largest=0, sorted=1, outputs=2)
    before = op.part(op.Pad(ordered, [0, 1, 0, 0], largest), 1, 0, -1)
    start = op.Equal(op.count(width), [0])
    fresh = op.Or(op.Not(op.Equal(ordered, before)), start)
    if keep is not None:
        fresh = op.And(fresh, op.Not(op.Equal(ordered, largest)))
    number = op.CumSum(op.cast(fresh, T.INT64), op.const(np.int64(1)))
    places = op.Transpose(op.NonZero(fresh), perm=[1, 0])
    values = op.GatherND(ordered, places)
    column = op.Sub(op.GatherND(number, places), op.const(np.int64(1)))
    indices = op.Concat(op.part(places, 1, 0, 1), op.Unsqueeze(column, [1]), axis=1)
    longest = op.ReduceMax(op.Reshape(number, [-1]), [0], keepdims=1)
    shape = op.Concat(op.dim_value(pool, 0), longest, axis=0)
    return [indices, op.cast(values, kind), shape]
