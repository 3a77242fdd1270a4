"""Rules of slices, gathers and scatters."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.reader import dtype_of, importer, is_complex
from sardonyx.importers.tensorflow.writer import LARGEST, SMALLEST, Refusal, Writer

T = ir.DataType


@importer("StridedSlice")
def strided_slice(
    op: Writer,
    x: ir.Value,
    begin: ir.Value,
    end: ir.Value,
    strides: ir.Value,
    *,
    begin_mask: int,
    end_mask: int,
    ellipsis_mask: int,
    new_axis_mask: int,
    shrink_axis_mask: int,
    node: Any,
) -> ir.Value:
    rank_of_x = rank(x) - is_complex(x)
    count = _length(node, begin, end, strides)
    spec = _Spec(op, begin, end, strides)
    axis, fresh, dropped = 0, [], []
    place = 0  # of the result, before axes are dropped
    for i in range(count):
        bit = 1 << i
        if ellipsis_mask & bit:
            later = bin(new_axis_mask >> (i + 1)).count("1")
            rest = count - i - 1 - later
            skipped = rank_of_x - axis - rest
            axis += skipped
            place += skipped
        elif new_axis_mask & bit:
            fresh.append(place)
            place += 1
        else:
            if shrink_axis_mask & bit:
                spec.one(axis, i)
                dropped.append(place)
            else:
                spec.range(axis, i, bool(begin_mask & bit), bool(end_mask & bit))
            axis += 1
            place += 1
    y = _settled(op, spec.applied(x), fresh, dropped)
    if is_complex(x):
        y.meta["complex"] = True
    return y


def _settled(op: Writer, y: ir.Value, fresh: list[int], dropped: list[int]) -> ir.Value:
    """New axes, then without those of which one element was taken; both by place in the result."""
    y = op.unsqueezed(y, fresh)
    return op.squeezed(y, dropped)


def _length(node: Any, *vectors: ir.Value) -> int:
    for tensor in node.inputs[1:]:
        if tensor.shape.rank == 1 and tensor.shape[0] is not None:
            return int(tensor.shape[0])
    for value in vectors:
        if value.shape is not None and isinstance(value.shape[0], int):
            return value.shape[0]
    raise Refusal("a slice of an unknown number of axes")


class _Spec:
    """Starts, ends and steps by axis; ints where they are constants."""

    def __init__(self, op: Writer, begin: ir.Value, end: ir.Value, steps: ir.Value):
        self.op, self.begin, self.end, self.steps = op, begin, end, steps
        self.rows: list[tuple[int, Any, Any, Any]] = []
        self.places: list[tuple[int, ir.Value]] = []  # axes of which one computed element is taken

    def _element(self, vector: ir.Value, i: int) -> Any:
        elements = self.op.elements(vector)
        if elements is None:
            return self.op.element(self.op.int64(vector), i)
        element = elements[i]
        return int(element) if isinstance(element, (int, np.integer)) else self.op.size(element)

    def one(self, axis: int, i: int) -> None:
        start = self._element(self.begin, i)
        if isinstance(start, int):
            self.rows.append((axis, start, LARGEST if start == -1 else start + 1, 1))
        else:
            self.places.append((axis, start))

    def range(self, axis: int, i: int, from_start: bool, to_end: bool) -> None:
        step = self._element(self.steps, i)
        first, last = self._ends(step)
        start = first if from_start else self._element(self.begin, i)
        end = last if to_end else self._element(self.end, i)
        whole = all(isinstance(v, int) for v in (start, end, step))
        if whole and (start, end, step) == (0, last, 1):
            return
        self.rows.append((axis, start, end, step))

    def _ends(self, step: Any) -> tuple[Any, Any]:
        """Where a range begins and ends that has no bounds, by the sign of its step."""
        if isinstance(step, int):
            return (0, LARGEST) if step > 0 else (LARGEST, SMALLEST)
        op, forward = self.op, self.op.Greater(step, [0])
        low, high = op.const(np.array([SMALLEST])), op.const(np.array([LARGEST]))
        return op.Where(forward, [0], high), op.Where(forward, high, low)

    def applied(self, x: ir.Value) -> ir.Value:
        op = self.op
        if self.rows:
            axes, starts, ends, steps = zip(*self.rows, strict=True)
            x = op.Slice(x, op.join(starts), op.join(ends), list(axes), op.join(steps))
        for axis, place in self.places:
            x = op.Gather(x, place, axis=axis)
        return x


@importer("GatherV2")
def gather_v2(
    op: Writer, x: ir.Value, indices: ir.Value, axis: ir.Value, *, batch_dims: int = 0
) -> ir.Value:
    where = int(op.known(axis, "an axis").reshape(-1)[0])
    indices = indices if indices.dtype in (T.INT32, T.INT64) else op.int64(indices)
    if batch_dims == 0:
        return op.Gather(x, indices, axis=where)
    n, m = rank(x), rank(indices)
    where, batch = where % n, batch_dims % m
    order = [*range(batch), where, *(a for a in range(batch, n) if a != where)]
    moved = op.transpose(x, order)
    y = op.GatherND(moved, op.Unsqueeze(op.int64(indices), [-1]), batch_dims=batch)
    # [batch…, indices…, x between batch and axis, x after axis]
    middle = where - batch
    total = m + n - batch - 1
    back = [
        *range(batch),
        *range(m, m + middle),
        *range(batch, m),
        *range(m + middle, total),
    ]
    return op.transpose(y, back)


@importer("Gather")
def gather(op: Writer, x: ir.Value, indices: ir.Value) -> ir.Value:
    return op.Gather(x, indices, axis=0)


@importer("GatherNd")
def gather_nd(op: Writer, x: ir.Value, indices: ir.Value) -> ir.Value:
    depth = indices.shape[-1] if indices.shape is not None else None
    if depth == 0:
        return op.Expand(x, op.Concat(op.part(op.Shape(indices), 0, 0, -1), op.Shape(x), axis=0))
    return op.GatherND(x, op.int64(indices))


# -- scatters -------------------------------------------------------------------------------------


@importer("ScatterNd")
def scatter_nd(op: Writer, indices: ir.Value, updates: ir.Value, shape: ir.Value) -> ir.Value:
    wide = _computed_in(updates)
    zeros = op.ConstantOfShape(op.int64(shape), value=ir.tensor(np.zeros(1, wide.numpy())))
    y = op.ScatterND(zeros, op.int64(indices), op.cast(updates, wide), reduction="add")
    return op.cast(y, updates.dtype)


def _computed_in(x: ir.Value) -> ir.DataType:
    if x.dtype in (T.FLOAT, T.DOUBLE, T.INT64, T.INT32):
        return x.dtype  # type: ignore[return-value]
    if x.dtype.is_floating_point():  # type: ignore[union-attr]
        return T.FLOAT
    return T.INT64


def _scattered(op: Writer, x: ir.Value, i: ir.Value, y: ir.Value, how: str) -> ir.Value:
    if how == "none":
        return op.ScatterND(x, op.int64(i), y)
    wide = _computed_in(x)
    out = op.ScatterND(op.cast(x, wide), op.int64(i), op.cast(y, wide), reduction=how)
    return op.cast(out, x.dtype)


@importer("TensorScatterUpdate")
def tensor_scatter_update(op: Writer, x: ir.Value, i: ir.Value, y: ir.Value) -> ir.Value:
    return _scattered(op, x, i, y, "none")


@importer("TensorScatterAdd")
def tensor_scatter_add(op: Writer, x: ir.Value, i: ir.Value, y: ir.Value) -> ir.Value:
    return _scattered(op, x, i, y, "add")


@importer("TensorScatterSub")
def tensor_scatter_sub(op: Writer, x: ir.Value, i: ir.Value, y: ir.Value) -> ir.Value:
    return _scattered(op, x, i, op.Neg(y), "add")


@importer("TensorScatterMax")
def tensor_scatter_max(op: Writer, x: ir.Value, i: ir.Value, y: ir.Value) -> ir.Value:
    return _scattered(op, x, i, y, "max")


@importer("TensorScatterMin")
def tensor_scatter_min(op: Writer, x: ir.Value, i: ir.Value, y: ir.Value) -> ir.Value:
    return _scattered(op, x, i, y, "min")


@importer("TensorStridedSliceUpdate")
def tensor_strided_slice_update(op: Writer, *operands: ir.Value) -> ir.Value:
    raise Refusal("an update of a slice")


@importer("InvertPermutation")
def invert_permutation(op: Writer, x: ir.Value) -> ir.Value:
    count = op.dim_value(x, 0)
    places = op.count(count)
    zeros = op.ConstantOfShape(count, value=ir.tensor(np.zeros(1, np.int64)))
    return op.cast(op.ScatterElements(zeros, op.int64(x), places, axis=0), x.dtype)


@importer("DynamicStitch", "ParallelDynamicStitch")
def dynamic_stitch(op: Writer, *operands: ir.Value, N: int) -> ir.Value:
    places, parts = operands[:N], operands[N:]
    rows, values = [], []
    for place, part in zip(places, parts, strict=True):
        rows.append(op.Reshape(op.int64(place), [-1]))
        tail = list(part.shape)[rank(place) :]  # type: ignore[arg-type]
        if any(not isinstance(d, int) for d in tail):
            raise Refusal("rows of a free size")
        values.append(op.Reshape(part, [-1, *tail]))  # type: ignore[list-item]
    row = op.Concat(*rows, axis=0) if N > 1 else rows[0]
    value = op.Concat(*values, axis=0) if N > 1 else values[0]
    count = op.Add(op.ReduceMax(row, [0], keepdims=1), [1])
    size = op.join([count, *(int(d) for d in list(value.shape)[1:])])  # type: ignore[arg-type]
    zeros = op.ConstantOfShape(size, value=ir.tensor(np.zeros(1, value.dtype.numpy())))
    return op.ScatterND(zeros, op.Unsqueeze(row, [-1]), value)


@importer("DynamicPartition")
def dynamic_partition(
    op: Writer, x: ir.Value, partitions: ir.Value, *, num_partitions: int
) -> list[ir.Value]:
    n = rank(partitions)
    if n != 1:
        tail = op.dims(x, n)
        x = op.Reshape(x, op.join([-1, *tail]))
        partitions = op.Reshape(partitions, [-1])
    return [
        op.Compress(x, op.Equal(partitions, op.like(i, partitions)), axis=0)
        for i in range(num_partitions)
    ]


@importer("TopKV2", "TopK")
def top_k(op: Writer, x: ir.Value, k: ir.Value | None = None, *, node: Any) -> list[ir.Value]:
    count = op.const(np.array([node.get_attr("k")])) if k is None else op.vector(k)
    values, places = op.TopK(x, count, axis=-1, largest=1, sorted=1, outputs=2)
    return [values, op.cast(places, dtype_of(node.outputs[1].dtype))]


@importer("ListDiff")
def list_diff(op: Writer, x: ir.Value, y: ir.Value, *, node: Any) -> list[ir.Value]:
    same = op.Equal(op.Unsqueeze(x, [1]), op.Unsqueeze(y, [0]))
    matches = op.ReduceMax(op.cast(same, T.INT32), [1], keepdims=0)
    keep = op.Equal(matches, op.like(0, matches))
    places = op.Squeeze(op.NonZero(keep), [0])
    return [op.Gather(x, places), op.cast(places, dtype_of(node.outputs[1].dtype))]
