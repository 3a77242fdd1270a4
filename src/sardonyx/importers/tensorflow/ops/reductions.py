"""Rules of sums, means, extremes and running sums over axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant, rank
from sardonyx.importers.arithmetic import extreme, place_among_numbers
from sardonyx.importers.tensorflow.reader import dtype_of, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType
REDUCTIONS = {"Sum": "ReduceSum", "Max": "ReduceMax", "Min": "ReduceMin", "Prod": "ReduceProd"}
SHORT = (T.INT8, T.UINT8, T.INT16, T.UINT16)


def _reduced(op: Writer, name: str, x: ir.Value, axes: ir.Value, keep: bool) -> ir.Value:
    which = constant(axes)
    if which is not None:
        if which.size == 0:
            return x
        where: Any = [int(a) for a in which.reshape(-1)]
        if x.shape is not None and 0 in list(x.shape) and name in ("ReduceMax", "ReduceMin"):
            raise Refusal("an extreme of nothing")
    else:
        where = op.vector(axes)
    attributes = {"keepdims": int(keep), "noop_with_empty_axes": 1}
    if name in ("ReduceMax", "ReduceMin"):
        return extreme(op, name, x, where, **attributes)
    return op.call(name, [x, where], attributes)


def _reduction(operator: str) -> Callable[..., ir.Value]:
    def rule(op: Writer, x: ir.Value, axes: ir.Value, *, keep_dims: bool) -> ir.Value:
        wide = None
        if operator == "ReduceSum":
            wide = {T.FLOAT16: T.FLOAT, T.INT32: T.INT64}.get(x.dtype)  # type: ignore[arg-type]
        elif operator == "ReduceProd":
            wide = T.FLOAT if x.dtype == T.FLOAT16 else None
            if x.dtype in SHORT:
                return _product_of_short(op, x, axes, keep_dims)
        if wide is None:
            return _reduced(op, operator, x, axes, keep_dims)
        return op.cast(_reduced(op, operator, op.cast(x, wide), axes, keep_dims), x.dtype)

    return rule


def _product_of_short(op: Writer, x: ir.Value, axes: ir.Value, keep: bool) -> ir.Value:
    """A product that wraps around; in a wider type, onnxruntime's would stop at its largest."""
    n = rank(x)
    where = sorted(int(a) % n for a in op.known(axes, "axes of a product").reshape(-1))
    for axis in reversed(where):
        x, _ = _running(op, x, op.const(np.int64(axis)), 1.0, _times, False, False)
    return op.unsqueezed(x, where) if keep else x


for _name, _operator in REDUCTIONS.items():
    importer(_name)(_reduction(_operator))


@importer("Mean")
def mean(op: Writer, x: ir.Value, axes: ir.Value, *, keep_dims: bool) -> ir.Value:
    if x.dtype.is_floating_point():  # type: ignore[union-attr]
        if x.dtype == T.FLOAT16:
            return op.cast(
                _reduced(op, "ReduceMean", op.cast(x, T.FLOAT), axes, keep_dims), T.FLOAT16
            )
        return _reduced(op, "ReduceMean", x, axes, keep_dims)
    total = _reduced(op, "ReduceSum", op.cast(x, T.INT64), axes, keep_dims)
    which = constant(axes)
    if which is None:
        raise Refusal("a mean of integers over computed axes")
    count = op.const(np.array(1, np.int64))
    for axis in which.reshape(-1):
        count = op.Mul(count, op.Squeeze(op.dim_value(x, int(axis))))
    return op.cast(op.Div(total, count), x.dtype)


@importer("All")
def all_(op: Writer, x: ir.Value, axes: ir.Value, *, keep_dims: bool) -> ir.Value:
    return op.cast(_reduced(op, "ReduceMin", op.cast(x, T.INT32), axes, keep_dims), T.BOOL)


@importer("Any")
def any_(op: Writer, x: ir.Value, axes: ir.Value, *, keep_dims: bool) -> ir.Value:
    return op.cast(_reduced(op, "ReduceMax", op.cast(x, T.INT32), axes, keep_dims), T.BOOL)


@importer("EuclideanNorm")
def euclidean_norm(op: Writer, x: ir.Value, axes: ir.Value, *, keep_dims: bool) -> ir.Value:
    return op.Sqrt(_reduced(op, "ReduceSum", op.Mul(x, x), axes, keep_dims))


@importer("L2Loss")
def l2_loss(op: Writer, x: ir.Value) -> ir.Value:
    return op.Mul(op.ReduceSum(op.Mul(x, x), keepdims=0), op.like(0.5, x))


@importer("ArgMax")
def arg_max(op: Writer, x: ir.Value, axis: ir.Value, *, output_type: tf.DType) -> ir.Value:
    return _place(op, "ArgMax", x, axis, output_type)


@importer("ArgMin")
def arg_min(op: Writer, x: ir.Value, axis: ir.Value, *, output_type: tf.DType) -> ir.Value:
    return _place(op, "ArgMin", x, axis, output_type)


def _place(op: Writer, name: str, x: ir.Value, axis: ir.Value, kind: tf.DType) -> ir.Value:
    where = int(op.known(axis, "an axis").reshape(-1)[0])
    return op.cast(place_among_numbers(op, name, x, where), dtype_of(kind))


# -- running sums ---------------------------------------------------------------------------------


@importer("Cumsum")
def cumsum(op: Writer, x: ir.Value, axis: ir.Value, *, exclusive: bool, reverse: bool) -> ir.Value:
    where = op.cast(axis, T.INT64)
    return op.CumSum(x, where, exclusive=int(exclusive), reverse=int(reverse))


@importer("Cumprod")
def cumprod(op: Writer, x: ir.Value, axis: ir.Value, *, exclusive: bool, reverse: bool) -> ir.Value:
    return _running(op, x, axis, 1.0, _times, exclusive, reverse)[1]


def _times(body: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
    return body.Mul(a, b)


@importer("CumulativeLogsumexp")
def cumulative_logsumexp(
    op: Writer, x: ir.Value, axis: ir.Value, *, exclusive: bool, reverse: bool
) -> ir.Value:
    def combined(body: Writer, a: ir.Value, b: ir.Value) -> ir.Value:
        difference = body.Where(body.Equal(a, b), body.like(0, a), body.Sub(a, b))  # two of -inf
        less = body.Exp(body.Neg(body.Abs(difference)))
        return body.Add(body.Max(a, b), body.Log(body.Add(less, body.like(1, less))))

    return _running(op, x, axis, -np.inf, combined, exclusive, reverse)[1]


def _running(
    op: Writer,
    x: ir.Value,
    axis: ir.Value,
    start: float,
    combined: Callable[[Writer, ir.Value, ir.Value], ir.Value],
    exclusive: bool,
    reverse: bool,
) -> tuple[ir.Value, ir.Value]:
    """A Scan over the axis that combines its elements as it goes: the last result, and all."""
    n = rank(x)
    where = int(op.known(axis, "an axis").reshape(-1)[0]) % n
    body = Writer(op.prefix, op)
    dims = [d for a, d in enumerate(list(x.shape)) if a != where]  # type: ignore[arg-type]

    def parameter(stem: str) -> ir.Value:
        shape = ir.Shape(dims)
        name = op.fresh(f"{op.prefix}/{stem}")
        return ir.Value(name=name, type=ir.TensorType(x.dtype), shape=shape)  # type: ignore[arg-type]

    state, part = parameter("product"), parameter("part")
    product = combined(body, state, part)
    result = body.Identity(state if exclusive else product)
    graph = ir.Graph([state, part], [product, result], nodes=body.nodes, name=op.fresh("body"))
    first = op.Gather(x, op.const(np.int64(0)), axis=where)
    ones = op.fill(start, first)
    attributes = [
        ir.AttrGraph("body", graph),
        ir.AttrInt64("num_scan_inputs", 1),
        ir.AttrInt64s("scan_input_axes", [where]),
        ir.AttrInt64s("scan_output_axes", [where]),
        ir.AttrInt64s("scan_input_directions", [int(reverse)]),
        ir.AttrInt64s("scan_output_directions", [int(reverse)]),
    ]
    name = op.fresh(f"{op.prefix}/Scan")
    node = ir.Node("", "Scan", [ones, x], attributes=attributes, num_outputs=2, name=name)
    for i, value in enumerate(node.outputs):
        value.name = name if i == 0 else op.fresh(f"{name}:{i}")
        value.type = ir.TensorType(x.dtype)  # type: ignore[arg-type]
    node.outputs[0].shape = ir.Shape(dims)
    node.outputs[1].shape = ir.Shape(list(x.shape))  # type: ignore[arg-type]
    op.nodes.append(node)
    return node.outputs[0], node.outputs[1]


@importer("DenseBincount")
def dense_bincount(
    op: Writer, x: ir.Value, size: ir.Value, weights: ir.Value, *, binary_output: bool
) -> ir.Value:
    """How often each number occurs, or the sum of the weights where it does."""
    hot = op.Equal(op.Unsqueeze(op.int64(x), [-1]), op.count(op.int64(size)))
    return _counted(op, x, hot, weights, binary_output)


@importer("Bincount")
def bincount(op: Writer, x: ir.Value, size: ir.Value, weights: ir.Value) -> ir.Value:
    hot = op.Equal(op.Unsqueeze(op.int64(x), [-1]), op.count(op.int64(size)))
    return _counted(op, x, hot, weights, False)


@importer("HistogramFixedWidth")
def histogram(
    op: Writer, x: ir.Value, limits: ir.Value, count: ir.Value, *, dtype: tf.DType
) -> ir.Value:
    """How many values are in each of `count` equal parts of a range; the rest in the outermost."""
    wide = T.DOUBLE
    x, limits = op.cast(op.Reshape(x, [-1]), wide), op.cast(limits, wide)
    low, high = (op.Gather(limits, op.const(np.int64(i))) for i in (0, 1))
    width = op.Div(op.Sub(high, low), op.cast(count, wide))
    last = op.Sub(op.cast(count, wide), op.like(1, x))
    bin_ = op.Clip(op.Floor(op.Div(op.Sub(x, low), width)), op.like(0, x), last)
    hot = op.Equal(op.Unsqueeze(op.int64(bin_), [-1]), op.count(op.int64(count)))
    return op.cast(op.ReduceSum(op.int64(hot), [-2], keepdims=0), dtype_of(dtype))


def _counted(op: Writer, x: ir.Value, hot: ir.Value, weights: ir.Value, binary: bool) -> ir.Value:
    kind = weights.dtype
    ones = op.cast(hot, T.FLOAT if kind.is_floating_point() else T.INT64)  # type: ignore[union-attr]
    ones = op.cast(ones, T.DOUBLE) if kind == T.DOUBLE else ones
    if binary:
        return op.cast(op.ReduceMax(ones, [-2], keepdims=0), kind)
    is_empty = weights.shape is not None and list(weights.shape) == [0]
    if not is_empty:
        ones = op.Mul(ones, op.cast(op.Unsqueeze(weights, [-1]), ones.dtype))
    return op.cast(op.ReduceSum(ones, [-2], keepdims=0), kind)
