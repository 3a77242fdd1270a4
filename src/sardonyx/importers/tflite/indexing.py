"""Operators of TensorFlow Lite that write, sum or choose elements by their places."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.importers.tflite.rules import Unsupported, known, rank, rule, sizes

INT64 = ir.DataType.INT64
SEGMENTS = {"SUM": ("add", 0), "PROD": ("mul", 1), "MAX": ("max", -1), "MIN": ("min", 1)}


def static(value, what, last=0):
    """The shape of a value, or its last sizes, all of them known."""
    shape = sizes(value)[-last:]
    if not all(isinstance(s, int) for s in shape):
        raise Unsupported(f"{what} has a free size")
    return shape


def vector(op, value):
    """A number as an int64 vector of one."""
    return op.Reshape(op.cast(value, INT64), [1])


@rule("SEGMENT_SUM")
def segment_sum(op, node, x, ids):
    count = op.Add(op.ReduceMax(op.cast(ids, INT64), [0], keepdims=1), [1])
    return _segments(op, x, ids, count, "add", 0)


@rule(*(f"UNSORTED_SEGMENT_{name}" for name in SEGMENTS))
def unsorted_segment(op, node, x, ids, count):
    kind = node.operator.name.rsplit("_", 1)[1]
    reduction, start = SEGMENTS[kind]
    if kind in ("MAX", "MIN"):
        dtype = x.dtype.numpy()
        info = np.finfo(dtype) if x.dtype.is_floating_point() else np.iinfo(dtype)
        start = info.min if kind == "MAX" else info.max
    return _segments(op, x, ids, vector(op, count), reduction, start)


def _segments(op, x, ids, count, reduction, start):
    """Rows combined by their numbers; a row with a negative number goes to one that is cut off."""
    ids = op.cast(ids, INT64)
    rest = op.Slice(op.Shape(x), [rank(ids)], [np.iinfo(np.int64).max])
    shape = op.Concat(op.Add(count, [1]), rest, axis=0)
    ids = op.Where(op.Less(ids, np.int64(0)), count, ids)
    begin = op.Expand(op.const(np.array(start, x.dtype.numpy())), shape)
    y = op.ScatterND(begin, op.Unsqueeze(ids, [-1]), x, reduction=reduction)
    return op.Slice(y, [0], count, [0])


@rule("RANK")
def rank_(op, node, x):
    return op.const(np.array(rank(x), np.int32))


@rule("REVERSE_SEQUENCE")
def reverse_sequence(op, node, x, lengths):
    batch, time = node["batch_dim"], node["seq_dim"]
    order = [batch, time, *(i for i in range(rank(x)) if i not in (batch, time))]
    y = op.Transpose(x, perm=order)
    y = op.ReverseSequence(y, op.cast(lengths, INT64), batch_axis=0, time_axis=1)
    return op.Transpose(y, perm=[int(i) for i in np.argsort(order)])


@rule("MATRIX_DIAG", raw=True)
def matrix_diag(op, node, x):
    (size,) = static(x, "the diagonal", last=1)
    zero = op.const(np.zeros((), x.dtype.numpy()))
    return op.Where(np.eye(size, dtype=bool), op.Unsqueeze(x, [-1]), zero)


@rule("MATRIX_SET_DIAG", raw=True)
def matrix_set_diag(op, node, x, diagonal):
    rows, columns = static(x, "the matrix", last=2)
    line = op.Unsqueeze(diagonal, [-2 if rows >= columns else -1])
    return op.Where(np.eye(rows, columns, dtype=bool), line, x)


@rule("BROADCAST_ARGS")
def broadcast_args(op, node, a, b):
    a, b = op.cast(a, INT64), op.cast(b, INT64)
    lengths = [static(v, "a shape")[0] for v in (a, b)]
    a, b = (
        op.Concat(np.ones(max(lengths) - n, np.int64), v, axis=0) if n < max(lengths) else v
        for v, n in zip((a, b), lengths, strict=True)
    )
    return op.Where(op.Equal(a, np.int64(1)), b, a)


@rule("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(op, node, x, part, begin):
    outer, inner = static(x, "the array"), static(part, "the update")
    different = [axis for axis, (o, i) in enumerate(zip(outer, inner, strict=True)) if o != i]
    if not different:
        return op.Identity(part)
    axes = different[-1] + 1  # later axes are written whole
    most = np.subtract(outer, inner)[:axes].astype(np.int64)
    begin = op.Slice(op.cast(begin, INT64), [0], [axes])
    begin = op.Min(op.Max(begin, np.zeros(axes, np.int64)), most)
    grid = np.stack(np.meshgrid(*map(np.arange, inner[:axes]), indexing="ij"), -1)
    return op.ScatterND(x, op.Add(grid.astype(np.int64), begin), part)


@rule("BITWISE_XOR")
def bitwise_xor(op, node, a, b):
    return op.BitwiseXor(a, b)


@rule()
def bucketize(op, node, x):
    # LiteRT compares integers with boundaries of 32 bits as floats of 32 bits.
    kind = ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    boundaries = np.array(node["boundaries"], np.float32).astype(kind.numpy())
    below = op.Less(op.Unsqueeze(op.cast(x, kind), [-1]), boundaries)
    return op.ReduceSum(op.cast(op.Not(below), ir.DataType.INT32), [-1], keepdims=0)


@rule()
def unique(op, node, x):
    # onnxruntime has no Unique of other integers; the driver casts the results.
    if not x.dtype.is_floating_point():
        x = op.cast(x, INT64)
    values, _, inverse, _ = op.Unique(x, sorted=0, outputs=4)
    return values, inverse


@rule("SPARSE_TO_DENSE", raw=True)
def sparse_to_dense(op, node, indices, shape, values, default):
    width = static(shape, "the shape")[0]
    places = op.Reshape(op.cast(indices, INT64), [-1, width])
    count = op.Slice(op.Shape(places), [0], [1])
    begin = op.Expand(default, op.cast(shape, INT64))
    return op.ScatterND(begin, places, op.Expand(values, count))


@rule("HASHTABLE_LOOKUP", raw=True)
def hashtable_lookup(op, node, x, keys, values):
    if (np.diff(known(keys, "a table's keys").astype(np.int64)) <= 0).any():
        raise Unsupported("keys that do not ascend")
    same = op.cast(op.Equal(op.Unsqueeze(x, [1]), keys), ir.DataType.INT32)
    hits = op.ReduceMax(same, [1], keepdims=0)
    rows = op.Gather(values, op.ArgMax(same, axis=1, keepdims=0), axis=0)
    is_hit = op.Reshape(op.cast(hits, ir.DataType.BOOL), [-1] + [1] * (rank(values) - 1))
    return op.Where(is_hit, rows, op.const(np.zeros((), rows.dtype.numpy()))), hits


@rule("FAKE_QUANT")
def fake_quant(op, node, x):
    low, high = np.float32(node["min"]), np.float32(node["max"])
    first, last = int(bool(node["narrow_range"])), 2 ** node["num_bits"] - 1
    scale = np.float32((high - low) / np.float32(last - first))
    zero = np.clip(np.floor(first - low / scale + np.float32(0.5)), first, last)
    bottom, top = (np.float32((q - np.float32(zero)) * scale) for q in (first, last))
    steps = op.Div(op.Sub(op.Clip(x, bottom, top), bottom), scale)
    return op.Add(op.Mul(op.Floor(op.Add(steps, np.float32(0.5))), scale), bottom)


@rule("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(op, node, boxes, scores, most, overlap, least, sigma=None):
    if sigma is not None and known(sigma, "sigma") != 0:
        raise Unsupported("scores that sink with the overlap (soft non-maximum suppression)")
    # LiteRT drops a box whose overlap is the limit, ONNX one whose overlap is above it. Which of
    # two boxes of the same score comes first is left to LiteRT's heap, in ONNX it is the first.
    limit = np.float32(known(overlap, "the overlap of boxes"))
    if limit <= 0:
        raise Unsupported("an overlap of 0, which leaves one box")
    most = vector(op, most)
    found = op.NonMaxSuppression(
        op.Unsqueeze(boxes, [0]), op.Unsqueeze(scores, [0, 1]), most,
        np.nextafter(limit, np.float32(0)).reshape(1), op.Reshape(least, [1]),
    )  # fmt: skip
    chosen = op.Reshape(op.Slice(found, [2], [3], [1]), [-1])
    count = op.Shape(chosen)
    free = op.Sub(most, count)
    padding = op.Concat(np.zeros(1, np.int64), free, axis=0)
    places = op.Pad(chosen, padding, np.int64(0))
    number = op.Squeeze(count, [0])
    if sigma is None:
        return places, number
    return places, op.Pad(op.Gather(scores, chosen), padding, np.float32(0)), number
