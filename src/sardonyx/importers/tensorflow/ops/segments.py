"""Rules of sums, means and extremes of segments: rows that share a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.ops.reductions import cumprod
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType
REDUCTIONS = {"Sum": "add", "Prod": "mul", "Max": "max", "Min": "min"}


def _neutral(how: str, dtype: ir.DataType) -> Any:
    """What a segment without rows has in TensorFlow."""
    if how == "add":
        return 0
    if how == "mul":
        return 1
    kind = dtype.numpy()
    limits = np.finfo(kind) if dtype.is_floating_point() else np.iinfo(kind)
    return limits.min if how == "max" else limits.max


def _scattered(op: Writer, x: ir.Value, ids: ir.Value, count: ir.Value, how: str) -> ir.Value:
    """Rows of `x` reduced into `count` segments; rows with a negative number are dropped."""
    assert x.dtype is not None
    wide = x.dtype if x.dtype in (T.FLOAT, T.DOUBLE, T.INT32, T.INT64) else T.FLOAT
    if not x.dtype.is_floating_point() and wide == T.FLOAT:
        wide = T.INT64
    start = np.full(1, _neutral(how, x.dtype), wide.numpy())
    # One more segment takes what belongs to none.
    size = op.Concat(op.Add(count, [1]), op.Shape(x, start=1), axis=0)
    base = op.ConstantOfShape(size, value=ir.tensor(start))
    place = op.Where(op.Less(ids, op.const(np.int64(0))), count, ids)
    y = op.ScatterND(base, op.Unsqueeze(place, [-1]), op.cast(x, wide), reduction=how)
    return op.cast(op.Slice(y, [0], count, [0]), x.dtype)


def _flat(op: Writer, x: ir.Value, ids: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Rows and their numbers, where the numbers have more than one axis."""
    wide = op.int64(ids)
    n = rank(ids)
    if n == 1:
        return x, wide
    return op.Reshape(x, op.join([-1, *op.dims(x, n)])), op.Reshape(wide, [-1])


def _last(op: Writer, ids: ir.Value) -> ir.Value:
    """The number of segments where numbers rise: the last one plus one."""
    return op.Add(op.ReduceMax(ids, [0], keepdims=1), [1])


def _counts(op: Writer, x: ir.Value, ids: ir.Value, count: ir.Value) -> ir.Value:
    """How many rows each segment has, at least one, with the axes of the rows."""
    ones = op.Expand(op.like(1, x), op.Shape(ids))
    counts = _scattered(op, ones, ids, count, "add")
    counts = op.Max(counts, op.like(1, x))
    return _like_rows(op, counts, x)


def _like_rows(op: Writer, counts: ir.Value, x: ir.Value) -> ir.Value:
    """One number per segment, with as many axes as `x` has."""
    if x.shape is not None:
        return op.unsqueezed(counts, list(range(1, rank(x))))
    more = op.Sub(op.Shape(op.Shape(x)), [1])
    ones = op.ConstantOfShape(more, value=ir.tensor(np.ones(1, np.int64)))
    return op.Reshape(counts, op.Concat([-1], ones, axis=0))


def _reduced(op: Writer, x: ir.Value, ids: ir.Value, count: ir.Value, how: str) -> ir.Value:
    if how in REDUCTIONS:
        return _scattered(op, x, ids, count, REDUCTIONS[how])
    total = _scattered(op, x, ids, count, "add")
    counts = _counts(op, x, ids, count)
    return op.Div(total, op.Sqrt(counts) if how == "SqrtN" else counts)


@importer("SegmentSum", "SegmentProd", "SegmentMean", "SegmentMax", "SegmentMin")
def segment(op: Writer, x: ir.Value, ids: ir.Value, *, node: Any) -> ir.Value:
    how = node.type.removeprefix("Segment")
    wide = op.int64(ids)
    count = _last(op, wide)
    y = _reduced(op, x, wide, count, how)
    if how in ("Max", "Min"):  # a number that no row has gives zeros here
        return _zero_where_empty(op, x, y, wide, count)
    return y


def _zero_where_empty(
    op: Writer, x: ir.Value, y: ir.Value, ids: ir.Value, count: ir.Value
) -> ir.Value:
    ones = op.Expand(op.const(np.int64(1)), op.Shape(ids))
    counts = _scattered(op, ones, ids, count, "add")
    counts = _like_rows(op, counts, x)
    return op.Where(op.Equal(counts, op.const(np.int64(0))), op.like(0, y), y)


@importer("UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin",
          "SegmentSumV2", "SegmentProdV2", "SegmentMaxV2", "SegmentMinV2")  # fmt: skip
def unsorted_segment(
    op: Writer, x: ir.Value, ids: ir.Value, count: ir.Value, *, node: Any
) -> ir.Value:
    how = node.type.removeprefix("Unsorted").removeprefix("Segment").removesuffix("V2")
    rows, wide = _flat(op, x, ids)
    return _reduced(op, rows, wide, op.Reshape(op.int64(count), [1]), how)


@importer("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")
def sparse_segment(
    op: Writer, x: ir.Value, indices: ir.Value, ids: ir.Value, *, node: Any
) -> ir.Value:
    how = node.type.removeprefix("SparseSegment")
    wide = op.int64(ids)
    return _reduced(op, op.Gather(x, op.int64(indices)), wide, _last(op, wide), how)


@importer("SparseSegmentSumWithNumSegments", "SparseSegmentMeanWithNumSegments",
          "SparseSegmentSqrtNWithNumSegments")  # fmt: skip
def sparse_segment_with_num_segments(
    op: Writer, x: ir.Value, indices: ir.Value, ids: ir.Value, count: ir.Value, *, node: Any
) -> ir.Value:
    how = node.type.removeprefix("SparseSegment").removesuffix("WithNumSegments")
    size = op.Reshape(op.int64(count), [1])
    return _reduced(op, op.Gather(x, op.int64(indices)), op.int64(ids), size, how)


# -- dense forms of sparse tensors ----------------------------------------------------------------


@importer("SparseToDense")
def sparse_to_dense(
    op: Writer, indices: ir.Value, shape: ir.Value, values: ir.Value, default: ir.Value
) -> ir.Value:
    places = op.int64(indices)
    n = rank(indices)
    if n == 0:
        places = op.Reshape(places, [1, 1])
    elif n == 1:
        places = op.Unsqueeze(places, [-1])
    base = op.Expand(default, op.int64(shape))
    rows = op.Shape(places, start=0, end=1)
    if rank(values) == 0:
        values = op.Expand(values, rows)
    return op.ScatterND(base, places, values)


@importer("SparseReshape")
def sparse_reshape(
    op: Writer, indices: ir.Value, shape: ir.Value, target: ir.Value
) -> list[ir.Value]:
    """Numbers of elements in the old shape, written in the new one."""
    sizes = op.int64(target)
    total = op.ReduceProd(op.int64(shape), [0], keepdims=1)
    free = op.Less(sizes, [0])
    rest = op.ReduceProd(op.Where(free, op.const(np.array([1])), sizes), [0], keepdims=1)
    sizes = op.Where(free, op.Div(total, rest), sizes)
    old, new = (_strides(op, v, _length(v)) for v in (op.int64(shape), sizes))
    flat = op.MatMul(indices, op.Unsqueeze(old, [-1]))
    return [op.Mod(op.Div(flat, new), sizes), sizes]


def _length(x: ir.Value) -> int | None:
    size = x.shape[0] if x.shape is not None else None
    return size if isinstance(size, int) else None


def _strides(op: Writer, sizes: ir.Value, count: int | None) -> ir.Value:
    """How many elements lie between neighbours along each axis."""
    if count is None:
        return cumprod(op, sizes, op.const(np.int64(0)), exclusive=True, reverse=True)
    parts: list[ir.Value] = [op.const(np.array([1]))]
    for axis in range(count - 1, 0, -1):
        parts.insert(0, op.Mul(parts[0], op.element(sizes, axis)))
    return op.Concat(*parts, axis=0) if count > 1 else parts[0]


@importer("SparseFillEmptyRows")
def sparse_fill_empty_rows(
    op: Writer, indices: ir.Value, values: ir.Value, shape: ir.Value, default: ir.Value
) -> list[ir.Value]:
    """Rows without an element get one in column 0; elements are in the order of rows."""
    rows = op.element(shape, 0)
    row = op.Squeeze(op.part(indices, 1, 0, 1), [1])
    counts = op.ConstantOfShape(rows, value=ir.tensor(np.zeros(1, np.int64)))
    ones = op.Expand(op.const(np.int64(1)), op.Shape(row))
    counts = op.ScatterND(counts, op.Unsqueeze(row, [-1]), ones, reduction="add")
    empty = op.Equal(counts, op.const(np.int64(0)))
    missing = op.Transpose(op.NonZero(empty), perm=[1, 0])
    width = indices.shape[1] if indices.shape is not None else None
    if not isinstance(width, int):
        raise Refusal("a sparse tensor of unknown rank")
    added = op.Pad(missing, [0, 0, 0, width - 1])
    everything = op.Concat(indices, added, axis=0)
    count = op.dim_value(everything, 0)
    # Order by row, and by place within a row: the key of element i of row r is r * count + i.
    key = op.Add(op.Mul(op.Squeeze(op.part(everything, 1, 0, 1), [1]), count), op.count(count))
    _, order = op.TopK(key, count, axis=0, largest=0, sorted=1, outputs=2)
    filler = op.Expand(default, op.dim_value(added, 0))
    all_values = op.Concat(values, filler, axis=0)
    back = op.ScatterElements(
        op.ConstantOfShape(count, value=ir.tensor(np.zeros(1, np.int64))),
        order,
        op.count(count),
        axis=0,
    )
    reverse = op.Slice(back, [0], op.dim_value(indices, 0), [0])
    return [op.Gather(everything, order), op.Gather(all_values, order), empty, reverse]
