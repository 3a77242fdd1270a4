"""Rules of the operators that make and reshape arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant, rank
from sardonyx.importers.tensorflow import patterns
from sardonyx.importers.tensorflow.reader import dtype_of, importer, is_complex
from sardonyx.importers.tensorflow.writer import LARGEST, SMALLEST, Refusal, Size, Writer

T = ir.DataType


@importer("Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "EnsureShape",
          "DebugGradientIdentity", "OptimizationBarrier")  # fmt: skip
def identity(op: Writer, x: Any) -> Any:
    return x


@importer("IdentityN")
def identity_n(op: Writer, *xs: Any) -> list[Any]:
    return list(xs)


# -- shapes ---------------------------------------------------------------------------------------


@importer("Shape")
def shape(op: Writer, x: ir.Value, *, out_type: tf.DType) -> ir.Value:
    kind = dtype_of(out_type)
    elements = op.shape_elements(x)
    if elements is None:
        wide = op.Shape(x)
        value = op.cast(wide, kind)
        value.meta["int64"] = wide
        return value
    return op.sized(elements, kind)


@importer("ShapeN")
def shape_n(op: Writer, *xs: ir.Value, out_type: tf.DType) -> list[ir.Value]:
    return [shape(op, x, out_type=out_type) for x in xs]


@importer("Size")
def size(op: Writer, x: ir.Value, *, out_type: tf.DType) -> ir.Value:
    return op.cast(op.Size(x), dtype_of(out_type))


@importer("Rank")
def rank_(op: Writer, x: ir.Value) -> ir.Value:
    if x.shape is not None:
        return op.const(np.int32(len(x.shape)))
    return op.cast(op.Size(op.Shape(x)), T.INT32)


@importer("Reshape")
def reshape(op: Writer, x: ir.Value, target: ir.Value, *, node: Any) -> ir.Value:
    if is_complex(x):
        y = op.Reshape(x, op.Concat(op.vector(target), [2], axis=0))
        y.meta["complex"] = True
        return y
    elements = op.elements(target)
    shape_of_output = node.outputs[0].shape
    if elements is None and shape_of_output.rank is not None:
        elements = np.empty(shape_of_output.rank, object)
        elements[:] = shape_of_output.as_list()
    if elements is None:
        return op.Reshape(x, op.int64(target), allowzero=1)
    if shape_of_output.rank is not None:
        pairs = list(zip(elements, shape_of_output.as_list(), strict=True))
        elements = elements.copy()
        elements[:] = [k if k is not None else e for e, k in pairs]
    operands = patterns.product(x, list(elements))
    if operands is not None:
        return op.MatMul(*operands)
    sizes = _written(x, list(elements))
    if sizes is not None:
        if _is_same(x, sizes):
            return x
        y = op.Reshape(x, sizes)
        dims = [e.dim if isinstance(e, Size) else e if _is_size(e) else None for e in elements]
        if y.shape is None or len(y.shape) == len(dims):
            y.shape = ir.Shape(dims)
        return y
    return op.Reshape(x, op.int64(target), allowzero=1)


def _is_same(x: ir.Value, sizes: list[int]) -> bool:
    """Whether a target, in which 0 is a size that stays, is the shape of `x` already."""
    if x.shape is None or len(x.shape) != len(sizes) or 0 in list(x.shape):
        return False
    return all(s in (0, d) for d, s in zip(x.shape, sizes, strict=True))


def _written(x: ir.Value, elements: list[Any]) -> list[int] | None:
    """A target as constants: 0 for a size that stays in its place, -1 for one that is free."""
    if any(isinstance(e, int) and e == 0 for e in elements):
        return None
    sizes: list[int] = []
    for axis, element in enumerate(elements):
        if isinstance(element, (int, np.integer)):
            sizes.append(int(element))
        elif (
            isinstance(element, Size)
            and x.shape is not None
            and axis < len(x.shape)
            and not isinstance(x.shape[axis], int)
            and element.same(Size(x, axis))
        ):
            sizes.append(0)
        else:
            sizes.append(-1)
    return sizes if sizes.count(-1) <= 1 else None


def _is_size(element: Any) -> bool:
    return isinstance(element, (int, np.integer)) and int(element) >= 0


@importer("Squeeze")
def squeeze(op: Writer, x: ir.Value, *, squeeze_dims: Any) -> ir.Value:
    axes = list(squeeze_dims)
    if is_complex(x):
        axes = [a if a >= 0 else a - 1 for a in axes]
        if not axes:
            raise Refusal("complex numbers squeezed without axes")
    if not axes:
        if x.shape is None or any(not isinstance(d, int) for d in x.shape):
            return op.Squeeze(x)
        axes = [a for a, d in enumerate(x.shape) if d == 1]
    y = op.squeezed(x, axes)
    if is_complex(x):
        y.meta["complex"] = True
    return y


@importer("ExpandDims")
def expand_dims(op: Writer, x: ir.Value, axis: ir.Value) -> ir.Value:
    array = constant(axis)
    if array is None:
        return _with_axis(op, x, axis)
    where = int(array.reshape(-1)[0])
    if is_complex(x):
        y = op.Unsqueeze(x, [where if where >= 0 else where - 1])
        y.meta["complex"] = True
        return y
    return op.Unsqueeze(x, [where])


def _with_axis(op: Writer, x: ir.Value, axis: ir.Value) -> ir.Value:
    """`x` with an axis of one, whose place is computed."""
    sizes = op.Shape(x)
    count = op.Add(op.Shape(sizes), [1])
    place = op.Mod(op.Reshape(op.int64(axis), [1]), count)
    before = op.Slice(sizes, [0], place, [0])
    after = op.Slice(sizes, place, count, [0])
    return op.Reshape(x, op.Concat(before, [1], after, axis=0), allowzero=1)


@importer("Transpose")
def transpose(op: Writer, x: ir.Value, perm: ir.Value) -> ir.Value:
    order = constant(perm)
    if order is None:
        if x.shape is not None and len(x.shape) == 2:
            return _matrix_in_order(op, x, perm)
        raise Refusal("an order of axes that is computed, not constant")
    n = len(order)
    axes = [int(a) % n for a in order]
    producer = x.producer()
    if producer is not None and producer.op_type == "Transpose" and "perm" in producer.attributes:
        before = list(producer.attributes["perm"].as_ints())
        axes, x = [before[a] for a in axes], producer.inputs[0]  # type: ignore[assignment]
    return op.transpose(x, axes)


def _matrix_in_order(op: Writer, x: ir.Value, perm: ir.Value) -> ir.Value:
    """A matrix, transposed or not, as `perm` says at run time."""
    first = op.Equal(op.element(op.int64(perm), 0), [0])
    rows, columns = op.dim_value(x, 0), op.dim_value(x, 1)
    straight = op.Concat(rows, columns, axis=0)
    turned = op.Concat(columns, rows, axis=0)
    size = op.Where(first, straight, turned)
    flat = op.Where(first, op.Reshape(x, [-1]), op.Reshape(op.Transpose(x, perm=[1, 0]), [-1]))
    return op.Reshape(flat, size)


@importer("BroadcastTo")
def broadcast_to(op: Writer, x: ir.Value, target: ir.Value) -> ir.Value:
    return op.Expand(x, op.int64(target))


@importer("BroadcastArgs")
def broadcast_args(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    ones = [op.ConstantOfShape(op.int64(v), value=ir.tensor(np.ones(1, np.int32))) for v in (a, b)]
    return op.cast(op.Shape(op.Add(*ones)), a.dtype)


# -- joining and splitting ------------------------------------------------------------------------


@importer("Pack")
def pack(op: Writer, *xs: ir.Value, axis: int) -> ir.Value:
    parts = [op.Unsqueeze(x, [axis]) for x in xs]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


@importer("Unpack")
def unpack(op: Writer, x: ir.Value, *, num: int, axis: int) -> list[ir.Value]:
    if num == 0:
        return []
    if num == 1:
        return [op.Squeeze(x, [axis])]
    parts = op.Split(x, None, axis=axis, num_outputs=num, outputs=num)
    return [op.Squeeze(p, [axis]) for p in parts]


@importer("ConcatV2")
def concat_v2(op: Writer, *operands: ir.Value) -> ir.Value:
    *xs, axis = operands
    return _concat(op, xs, int(op.known(axis, "an axis").reshape(-1)[0]))


@importer("Concat")
def concat(op: Writer, axis: ir.Value, *xs: ir.Value) -> ir.Value:
    return _concat(op, list(xs), int(op.known(axis, "an axis").reshape(-1)[0]))


def _concat(op: Writer, xs: list[ir.Value], axis: int) -> ir.Value:
    return xs[0] if len(xs) == 1 else op.Concat(*xs, axis=axis)


@importer("Split")
def split(op: Writer, axis: ir.Value, x: ir.Value, *, num_split: int) -> list[ir.Value]:
    where = int(op.known(axis, "an axis").reshape(-1)[0])
    if num_split == 1:
        return [x]
    return list(op.Split(x, None, axis=where, num_outputs=num_split, outputs=num_split))


@importer("SplitV")
def split_v(
    op: Writer, x: ir.Value, sizes: ir.Value, axis: ir.Value, *, num_split: int, node: Any
) -> list[ir.Value]:
    where = int(op.known(axis, "an axis").reshape(-1)[0])
    parts = constant(sizes)
    if num_split == 1:
        return [x]
    if parts is not None and (parts < 0).any():
        total = op.dim(x, where)
        rest = int(parts[parts >= 0].sum())
        if not isinstance(total, int):
            return _split_with_rest(op, x, parts, where, total, rest)
        parts = np.where(parts < 0, total - rest, parts)
    if parts is not None:
        return list(op.Split(x, parts.astype(np.int64), axis=where, outputs=num_split))
    wide = op.int64(sizes)
    total_value = op.dim_value(x, where)
    positive = op.Max(wide, [0])
    rest_value = op.Sub(total_value, op.ReduceSum(positive, [0], keepdims=1))
    wide = op.Where(op.Less(wide, [0]), rest_value, wide)
    return list(op.Split(x, wide, axis=where, outputs=num_split))


def _split_with_rest(
    op: Writer, x: ir.Value, parts: np.ndarray, axis: int, total: ir.Value, rest: int
) -> list[ir.Value]:
    sizes = [int(p) if p >= 0 else op.Sub(total, [rest]) for p in parts]
    return list(op.Split(x, op.join(sizes), axis=axis, outputs=len(sizes)))


@importer("Tile")
def tile(op: Writer, x: ir.Value, multiples: ir.Value) -> ir.Value:
    times = constant(multiples)
    if times is not None and (times == 1).all():
        return x
    return op.Tile(x, op.int64(multiples))


# -- padding --------------------------------------------------------------------------------------


@importer("Pad")
def pad(op: Writer, x: ir.Value, paddings: ir.Value) -> ir.Value:
    if x.dtype == T.BOOL:
        return op.cast(pad(op, op.cast(x, T.UINT8), paddings), T.BOOL)
    return op.Pad(x, _pads(op, paddings))


@importer("PadV2")
def pad_v2(op: Writer, x: ir.Value, paddings: ir.Value, value: ir.Value) -> ir.Value:
    if x.dtype == T.BOOL:
        y = pad_v2(op, op.cast(x, T.UINT8), paddings, op.cast(value, T.UINT8))
        return op.cast(y, T.BOOL)
    return op.Pad(x, _pads(op, paddings), value)


def _pads(op: Writer, paddings: ir.Value) -> ir.Value:
    return op.Reshape(op.Transpose(op.int64(paddings), perm=[1, 0]), [-1])


@importer("MirrorPad")
def mirror_pad(op: Writer, x: ir.Value, paddings: ir.Value, *, mode: str) -> ir.Value:
    if mode == "REFLECT" and x.dtype in (T.FLOAT, T.DOUBLE, T.INT32, T.INT64):
        return op.Pad(x, _pads(op, paddings), mode="reflect")
    sizes = op.int64(paddings)
    for axis in range(rank(x)):
        before, after = (_padding(op, sizes, axis, side) for side in (0, 1))
        if constant(before) is not None and not (constant(before).any() or constant(after).any()):  # type: ignore[union-attr]
            continue
        x = op.Gather(x, _mirrored(op, op.dim_value(x, axis), before, after, mode), axis=axis)
    return x


def _padding(op: Writer, sizes: ir.Value, axis: int, side: int) -> ir.Value:
    """One entry of [axes, 2] paddings, as a vector of one."""
    array = constant(sizes)
    if array is not None:
        return op.const(array[axis, side : side + 1])
    return op.Reshape(op.Slice(sizes, [axis, side], [axis + 1, side + 1], [0, 1]), [1])


def _mirrored(op: Writer, size: ir.Value, before: ir.Value, after: ir.Value, mode: str) -> ir.Value:
    """The element at each place of an axis that is mirrored at its ends."""
    skip = int(mode == "REFLECT")
    place = op.Sub(op.count(op.Add(op.Add(size, before), after)), before)
    first = op.Where(op.Less(place, [0]), op.Sub([skip - 1], place), place)
    back = op.Sub(op.Sub(op.Mul(size, [2]), [1 + skip]), first)
    return op.Where(op.GreaterOrEqual(first, size), back, first)


# -- filling --------------------------------------------------------------------------------------


@importer("Fill")
def fill(op: Writer, dims: ir.Value, value: ir.Value) -> ir.Value:
    array = constant(value)
    if array is None or array.dtype.kind in "OSU":
        return op.Expand(value, op.int64(dims))
    return op.ConstantOfShape(op.int64(dims), value=ir.tensor(array.reshape(1)))


@importer("ZerosLike")
def zeros_like(op: Writer, x: Any) -> Any:
    if not isinstance(x, ir.Value):
        raise Refusal("zeros like a list of tensors")
    return op.fill(0, x) if x.dtype != T.STRING else op.Expand(op.const(np.array(b"")), op.Shape(x))


@importer("OnesLike")
def ones_like(op: Writer, x: ir.Value) -> ir.Value:
    return op.fill(1, x)


@importer("Range")
def range_(op: Writer, start: ir.Value, limit: ir.Value, delta: ir.Value) -> ir.Value:
    if start.dtype not in (T.FLOAT, T.DOUBLE, T.INT16, T.INT32, T.INT64):
        wide = T.FLOAT if start.dtype.is_floating_point() else T.INT64  # type: ignore[union-attr]
        values = [op.cast(v, wide) for v in (start, limit, delta)]
        return op.cast(op.Range(*values), start.dtype)
    return op.Range(start, limit, delta)


@importer("LinSpace")
def lin_space(op: Writer, start: ir.Value, stop: ir.Value, num: ir.Value) -> ir.Value:
    steps = op.Max(op.Sub(op.int64(num), op.const(np.int64(1))), op.const(np.int64(1)))
    step = op.Div(op.Sub(stop, start), op.cast(steps, start.dtype))
    places = op.cast(op.count(op.int64(num)), start.dtype)
    return op.Add(start, op.Mul(places, step))


@importer("OneHot")
def one_hot(
    op: Writer, indices: ir.Value, depth: ir.Value, on: ir.Value, off: ir.Value, *, axis: int
) -> ir.Value:
    n = rank(indices)
    where = axis if axis >= 0 else n
    wide = op.int64(indices)
    classes = op.count(op.int64(depth))
    classes = op.unsqueezed(classes, list(range(1, n - where + 1)))
    hot = op.Equal(op.Unsqueeze(wide, [where]), classes)
    return op.where(hot, on, off) if on.dtype != T.BOOL else _flags(op, hot, on, off)


def _flags(op: Writer, hot: ir.Value, on: ir.Value, off: ir.Value) -> ir.Value:
    return op.Or(op.And(hot, on), op.And(op.Not(hot), off))


@importer("Where")
def where_(op: Writer, x: ir.Value) -> ir.Value:
    flags = x if x.dtype == T.BOOL else op.Not(op.Equal(x, op.like(0, x)))
    return op.Transpose(op.NonZero(flags), perm=[1, 0])


@importer("Bitcast")
def bitcast(op: Writer, x: ir.Value, *, type: Any) -> ir.Value:
    raise Refusal("bits that are read as another type")


@importer("ReverseV2")
def reverse_v2(op: Writer, x: ir.Value, axes: ir.Value) -> ir.Value:
    which = [int(a) for a in op.known(axes, "axes").reshape(-1)]
    return _reversed(op, x, which)


@importer("Reverse")
def reverse(op: Writer, x: ir.Value, flags: ir.Value) -> ir.Value:
    return _reversed(op, x, [a for a, f in enumerate(op.known(flags, "axes")) if f])


def _reversed(op: Writer, x: ir.Value, axes: list[int]) -> ir.Value:
    if not axes:
        return x
    n = len(axes)
    y = op.Slice(x, [-1] * n, [SMALLEST] * n, axes, [-1] * n)
    if x.shape is not None:  # free sizes too are those before
        y.shape = ir.Shape(x.shape)
    return y


@importer("Roll")
def roll(op: Writer, x: ir.Value, shift: ir.Value, axis: ir.Value) -> ir.Value:
    axes = op.known(axis, "an axis").reshape(-1).tolist()
    shifts = op.vector(shift)
    for i, where in enumerate(axes):
        count = op.dim_value(x, where)
        places = op.Mod(op.Sub(op.count(count), op.element(shifts, i)), count)
        x = op.Gather(x, places, axis=where)
    return x


@importer("ReverseSequence")
def reverse_sequence(
    op: Writer, x: ir.Value, lengths: ir.Value, *, seq_dim: int, batch_dim: int
) -> ir.Value:
    n = rank(x)
    others = [a for a in range(n) if a not in (seq_dim, batch_dim)]
    order = [batch_dim, seq_dim, *others]
    y = op.ReverseSequence(op.transpose(x, order), op.int64(lengths), batch_axis=0, time_axis=1)
    return op.transpose(y, np.argsort(order).tolist())


@importer("Unique", "UniqueV2")
def unique(op: Writer, x: ir.Value, *axis: ir.Value, node: Any) -> list[ir.Value]:
    return _unique(op, x, node)[: len(node.outputs)]


@importer("UniqueWithCounts", "UniqueWithCountsV2")
def unique_with_counts(op: Writer, x: ir.Value, *axis: ir.Value, node: Any) -> list[ir.Value]:
    return _unique(op, x, node)


def _unique(op: Writer, x: ir.Value, node: Any) -> list[ir.Value]:
    if rank(x) != 1:
        raise Refusal("unique slices of a tensor")
    wide = x if x.dtype in (T.FLOAT, T.DOUBLE, T.STRING) else op.int64(x)
    y, _, places, counts = op.Unique(wide, sorted=0, outputs=4)
    kind = dtype_of(node.outputs[1].dtype)
    return [op.cast(y, x.dtype), op.cast(places, kind), op.cast(counts, kind)]


@importer("DataFormatVecPermute", "DataFormatDimMap")
def data_format(op: Writer, x: ir.Value) -> ir.Value:
    raise Refusal("a format of data that is computed")


@importer("Slice")
def slice_(op: Writer, x: ir.Value, begin: ir.Value, sizes: ir.Value) -> ir.Value:
    starts, lengths = constant(begin), constant(sizes)
    if starts is not None and lengths is not None:
        ends = np.where(lengths == -1, LARGEST, starts.astype(np.int64) + lengths)
        axes = [a for a in range(len(starts)) if starts[a] or lengths[a] != -1]
        return (
            op.Slice(x, starts[axes].astype(np.int64), ends[axes], np.array(axes, np.int64))
            if axes
            else x
        )
    first, count = op.int64(begin), op.int64(sizes)
    end = op.Add(first, count)
    if lengths is None or (lengths == -1).any():
        end = op.Where(op.Equal(count, [-1]), op.const(np.array([LARGEST])), end)
    return op.Slice(x, first, end, np.arange(rank(x)))
