"""Operators of TensorFlow Lite that move, choose, count and reduce elements."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.importers.arithmetic import extreme
from sardonyx.importers.tflite.rules import RULES, Unsupported, known, rank, rule, sizes

INT64 = ir.DataType.INT64


def wide(op, x):
    array = constant(x)
    return op.cast(x, INT64) if array is None else op.const(array.astype(np.int64))


@rule()
def reshape(op, node, x, shape=None):
    if shape is None:
        return op.Reshape(x, np.array(node["new_shape"], np.int64))
    return op.Reshape(x, wide(op, shape), allowzero=1)


@rule()
def squeeze(op, node, x):
    axes = node.get("squeeze_dims") or [a for a, d in enumerate(sizes(x)) if d == 1]
    return op.Squeeze(x, np.array(axes, np.int64)) if axes else op.Identity(x)


@rule("EXPAND_DIMS")
def expand_dims(op, node, x, axis):
    return op.Unsqueeze(x, known(axis, "the axis").astype(np.int64).reshape(-1))


@rule()
def transpose(op, node, x, perm):
    order = [int(p) % rank(x) for p in known(perm, "the permutation")]
    return op.Transpose(x, perm=order)


@rule()
def concatenation(op, node, *xs):
    return op.Concat(*xs, axis=node["axis"])


@rule()
def split(op, node, axis, x):
    where, count = int(known(axis, "the axis").item()), len(node.outputs)
    return op.Split(x, axis=where, num_outputs=count, outputs=count)


@rule("SPLIT_V")
def split_v(op, node, x, lengths, axis):
    where = int(known(axis, "the axis").item())
    parts = [int(v) for v in known(lengths, "the lengths")]
    whole = sizes(x)[where]
    if -1 in parts:
        if not isinstance(whole, int):
            raise Unsupported("the length of the axis is not known")
        parts[parts.index(-1)] = whole - sum(parts) - 1
    return op.Split(x, np.array(parts, np.int64), axis=where, outputs=len(node.outputs))


@rule()
def pack(op, node, *xs):
    axis = node["axis"]
    return op.Concat(*(op.Unsqueeze(x, [axis]) for x in xs), axis=axis)


@rule()
def unpack(op, node, x):
    axis, count = node["axis"], len(node.outputs)
    return tuple(op.Gather(x, np.int64(i), axis=axis) for i in range(count))


@rule("SLICE")
def slice_(op, node, x, begin, size):
    starts, lengths = wide(op, begin), wide(op, size)
    largest = np.iinfo(np.int64).max
    first, count = constant(starts), constant(lengths)
    if first is not None and count is not None:
        stops = op.const(np.where(count < 0, largest, first + count))
    else:
        stops = op.Where(op.Less(lengths, np.int64(0)), np.int64(largest), op.Add(starts, lengths))
    return op.Slice(x, starts, stops, np.arange(rank(x)))


@rule("STRIDED_SLICE")
def strided_slice(op, node, x, begin, end, strides):
    if node["ellipsis_mask"] or node["new_axis_mask"]:
        raise Unsupported("a mask of an ellipsis or of new axes")
    steps = known(strides, "the strides").astype(np.int64)
    count = len(steps)
    bits = {n: [node[f"{n}_mask"] >> i & 1 for i in range(count)] for n in ("begin", "end")}
    axes_to_drop = [i for i in range(count) if node["shrink_axis_mask"] >> i & 1]
    bounds = [constant(v) for v in (begin, end)]
    if any(b is None for b in bounds):
        return _dynamic_slice(op, x, begin, end, steps, bits, axes_to_drop)
    starts, stops = (np.array(b, np.int64) for b in bounds)
    largest = np.iinfo(np.int64).max
    for i in range(count):
        if i in axes_to_drop:
            stops[i] = starts[i] + 1 if starts[i] != -1 else largest
            steps[i] = 1
            continue
        if bits["begin"][i]:
            starts[i] = 0 if steps[i] > 0 else largest
        if bits["end"][i]:
            stops[i] = largest if steps[i] > 0 else -largest
        elif node.get("offset"):
            stops[i] += starts[i]
    y = op.Slice(x, starts, stops, np.arange(count), steps)
    return op.Squeeze(y, np.array(axes_to_drop, np.int64)) if axes_to_drop else y


def _dynamic_slice(op, x, begin, end, steps, bits, axes_to_drop):
    """Bounds that are computed: ends of axes that a mask leaves open are replaced."""
    if (steps < 0).any():
        raise Unsupported("computed bounds with steps backwards")
    largest = np.iinfo(np.int32).max
    starts = op.Where(np.array(bits["begin"], bool), np.int64(0), wide(op, begin))
    stops = op.Where(np.array(bits["end"], bool), np.int64(largest), wide(op, end))
    shrunk = np.array([i in axes_to_drop for i in range(len(steps))])
    stops = op.Where(shrunk, op.Add(starts, np.int64(1)), stops) if axes_to_drop else stops
    y = op.Slice(x, starts, stops, np.arange(len(steps)), np.where(shrunk, 1, steps))
    return op.Squeeze(y, np.array(axes_to_drop, np.int64)) if axes_to_drop else y


@rule()
def gather(op, node, x, indices):
    batch, axis, n = node.get("batch_dims", 0), node["axis"] % rank(x), rank(x)
    batch %= rank(indices) + 1
    if not batch:
        return op.Gather(x, indices, axis=axis)
    if batch == axis and rank(indices) == batch + 1:
        flat = rank(x) - axis - 1
        places = op.Unsqueeze(indices, np.arange(batch + 1, batch + 1 + flat)) if flat else indices
        shape = op.join([*op.dims(indices), *op.dims(x, axis + 1)])
        return op.GatherElements(x, op.Expand(places, shape), axis=axis)
    order = [*range(batch), axis, *(i for i in range(batch, n) if i != axis)]
    places = op.Unsqueeze(wide(op, indices), [-1])
    y = op.GatherND(op.transpose(x, order), places, batch_dims=batch)
    # Its axes: those of the batch, the other ones of the indices, those of `x` before and after.
    chosen, between = rank(indices) - batch, axis - batch
    moved = [*range(batch + chosen, batch + chosen + between), *range(batch, batch + chosen)]
    return op.transpose(
        y, [*range(batch), *moved, *range(batch + chosen + between, n + chosen - 1)]
    )


@rule("GATHER_ND")
def gather_nd(op, node, x, indices):
    return op.GatherND(x, wide(op, indices))


@rule("SCATTER_ND", raw=True)  # what is not written is the integer 0, whatever the zero point is
def scatter_nd(op, node, indices, updates, shape):
    zero = ir.tensor(np.zeros(1, updates.dtype.numpy()))
    canvas = op.ConstantOfShape(wide(op, shape), value=zero)
    return op.ScatterND(canvas, wide(op, indices), updates, reduction="add")


@rule("EMBEDDING_LOOKUP")
def embedding_lookup(op, node, indices, table):
    return op.Gather(table, indices, axis=0)


@rule("ONE_HOT", raw=True)
def one_hot(op, node, indices, depth, on, off):
    values = op.Concat(op.Reshape(off, [1]), op.Reshape(on, [1]), axis=0)
    indices, depth = (op.cast(v, ir.DataType.INT64) for v in (indices, depth))
    indices = op.Where(op.Less(indices, np.int64(0)), depth, indices)  # ONNX counts from the end
    return op.OneHot(indices, op.Reshape(depth, [1]), values, axis=node["axis"])


def _widths(value):
    return known(value, "the padding").astype(np.int64).reshape(-1, 2).T.reshape(-1)


@rule("PAD", "PADV2")
def pad(op, node, x, widths, value=None):
    return op.Pad(
        x, _widths(widths), None if value is None else op.Reshape(value, np.zeros(0, np.int64))
    )


@rule("MIRROR_PAD")
def mirror_pad(op, node, x, widths):
    if node["mode"] == 0:
        return op.Pad(x, _widths(widths), mode="reflect")
    dims = sizes(x)
    for axis, (before, after) in enumerate(known(widths, "the padding").astype(np.int64).tolist()):
        if before or after:
            if not isinstance(dims[axis], int):
                raise Unsupported("symmetric padding of a free size")
            places = np.pad(np.arange(dims[axis]), (before, after), "symmetric")
            x = op.Gather(x, places, axis=axis)
    return x


@rule()
def tile(op, node, x, repeats):
    return op.Tile(x, wide(op, repeats))


@rule("BROADCAST_TO")
def broadcast_to(op, node, x, shape):
    return op.Expand(x, wide(op, shape))


@rule()
def shape(op, node, x):
    return op.shape(x)


@rule()
def fill(op, node, shape, value):
    return op.Expand(value, wide(op, shape))


@rule("RANGE")
def range_(op, node, start, limit, delta):
    return op.Range(*(op.Reshape(v, np.zeros(0, np.int64)) for v in (start, limit, delta)))


@rule()
def cumsum(op, node, x, axis):
    settings = {"exclusive": int(node["exclusive"]), "reverse": int(node["reverse"])}
    return op.CumSum(x, np.int64(known(axis, "the axis").item()), **settings)


@rule("REVERSE_V2")
def reverse_v2(op, node, x, axes):
    where = known(axes, "the axes").astype(np.int64).reshape(-1)
    low = np.iinfo(np.int64).min
    return op.Slice(
        x, np.full(len(where), -1), np.full(len(where), low), where, np.full(len(where), -1)
    )


@rule("TOPK_V2")
def topk_v2(op, node, x, k):
    return op.TopK(x, wide(op, op.Reshape(k, [1])), axis=-1, outputs=2)


@rule("WHERE")
def where(op, node, condition):
    return op.Transpose(op.NonZero(condition), perm=[1, 0])


@rule("SPACE_TO_BATCH_ND")
def space_to_batch_nd(op, node, x, block, pads):
    steps, count = known(block, "the block").tolist(), len(known(block, "the block"))
    around = known(pads, "the padding").astype(np.int64)
    full = np.zeros((2, rank(x)), np.int64)
    full[:, 1 : 1 + count] = around.T
    x = op.Pad(x, full.reshape(-1)) if full.any() else x
    dims = sizes(x)
    if not all(isinstance(d, int) for d in dims[1:]):
        raise Unsupported("free sizes of the image")
    apart = [n for size, s in zip(dims[1:], steps) for n in (size // s, s)]
    rest = dims[1 + count :]
    y = op.Reshape(x, np.array([-1 if not isinstance(dims[0], int) else dims[0], *apart, *rest]))
    inner = [2 * i + 2 for i in range(count)]
    outer = [2 * i + 1 for i in range(count)]
    tail = list(range(1 + 2 * count, 1 + 2 * count + len(rest)))
    y = op.Transpose(y, perm=[*inner, 0, *outer, *tail])
    return op.Reshape(y, np.array([-1, *(size // s for size, s in zip(dims[1:], steps)), *rest]))


@rule("BATCH_TO_SPACE_ND")
def batch_to_space_nd(op, node, x, block, crops):
    steps = [int(v) for v in known(block, "the block")]
    count, dims = len(steps), sizes(x)
    if not all(isinstance(d, int) for d in dims[1:]):
        raise Unsupported("free sizes of the image")
    rest = dims[1 + count :]
    y = op.Reshape(x, np.array([*steps, -1, *dims[1:]]))
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    y = op.Transpose(y, perm=[*order, *range(2 * count + 1, 2 * count + 1 + len(rest))])
    whole = [size * s for size, s in zip(dims[1:], steps)]
    y = op.Reshape(y, np.array([-1, *whole, *rest]))
    around = known(crops, "the crops").astype(np.int64)
    if not around.any():
        return y
    stops = np.array(whole) - around[:, 1]
    return op.Slice(y, around[:, 0], stops, np.arange(1, 1 + count))


# -- reductions --------------------------------------------------------------------

REDUCTIONS = {
    "MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
}  # fmt: skip


def _reduction(name):
    def reduce(op, node, x, axes):
        where = known(axes, "the axes").astype(np.int64).reshape(-1)
        if not where.size:
            return op.Identity(x)
        keep = int(node["keep_dims"])
        if name in ("ReduceMax", "ReduceMin") and not x.dtype.is_floating_point():
            return extreme(op, name, x, where.tolist(), keepdims=keep)
        return op.call(name, [x, where], {"keepdims": keep})

    return reduce


RULES.update({source: _reduction(target) for source, target in REDUCTIONS.items()})


@rule("REDUCE_ANY", "REDUCE_ALL")
def reduce_bool(op, node, x, axes):
    where = known(axes, "the axes").astype(np.int64).reshape(-1)
    reduce = op.ReduceMax if node.operator.name == "REDUCE_ANY" else op.ReduceMin
    number = reduce(op.cast(x, ir.DataType.INT32), where, keepdims=int(node["keep_dims"]))
    return op.cast(number, ir.DataType.BOOL)


@rule("ARG_MAX", "ARG_MIN")
def arg_max(op, node, x, axis):
    function = op.ArgMax if node.operator.name == "ARG_MAX" else op.ArgMin
    return function(x, axis=int(known(axis, "the axis").item()), keepdims=0)
