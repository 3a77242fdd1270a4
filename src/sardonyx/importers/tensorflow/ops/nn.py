"""Rules of activations, normalizations and losses of neural networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.reader import Reader, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


@importer("Relu")
def relu(op: Writer, x: ir.Value) -> ir.Value:
    if x.dtype in (T.INT64, T.INT16, T.UINT8, T.UINT16):
        return op.Max(x, op.like(0, x))
    return op.Relu(x)


@importer("Relu6")
def relu6(op: Writer, x: ir.Value) -> ir.Value:
    return op.Clip(x, op.like(0, x), op.like(6, x))


@importer("Elu")
def elu(op: Writer, x: ir.Value) -> ir.Value:
    return op.Elu(x)


@importer("Selu")
def selu(op: Writer, x: ir.Value) -> ir.Value:
    return op.Selu(x)


@importer("LeakyRelu")
def leaky_relu(op: Writer, x: ir.Value, *, alpha: float) -> ir.Value:
    if alpha > 1:  # TensorFlow takes the larger of x and alpha x
        return op.Max(x, op.Mul(x, op.like(alpha, x)))
    return op.LeakyRelu(x, alpha=alpha)


@importer("Softsign")
def softsign(op: Writer, x: ir.Value) -> ir.Value:
    return op.Softsign(x)


@importer("Softmax")
def softmax(op: Writer, x: ir.Value) -> ir.Value:
    return op.Softmax(x, axis=-1)


@importer("LogSoftmax")
def log_softmax(op: Writer, x: ir.Value) -> ir.Value:
    return op.LogSoftmax(x, axis=-1)


@importer("BiasAdd", "BiasAddV1")
def bias_add(
    op: Writer,
    x: ir.Value,
    bias: ir.Value,
    *,
    node: Any,
    reader: Reader,
    data_format: str = "NHWC",
) -> ir.Value:
    n = rank(x)
    if data_format.startswith("NC") and n > 2:
        return op.Add(x, op.Unsqueeze(bias, list(range(1, n - 1))))
    conv = _convolution(op, x)
    before = node.inputs[0]
    if conv is not None and len(before.consumers()) == 1 and before.name not in reader.results:
        y = op.call(conv.op_type, [*conv.inputs, bias], dict(conv.attributes))
        return op.channels_last(y)
    return op.Add(x, bias)


def _convolution(op: Writer, x: ir.Value) -> ir.Node | None:
    """The convolution without a bias that gives `x`, through a Transpose that only `x` is."""
    turn = x.producer()
    image = turn.inputs[0] if turn is not None and turn.op_type == "Transpose" else None
    conv = image.producer() if image is not None else None
    if conv is None or image is None or conv.op_type not in ("Conv", "ConvTranspose"):
        return None
    alone = len(image.uses()) == 1 and not x.uses()
    return conv if alone and len(conv.inputs) == 2 and conv in op.nodes else None


@importer("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def fused_batch_norm(
    op: Writer,
    x: ir.Value,
    scale: ir.Value,
    offset: ir.Value,
    mean: ir.Value,
    variance: ir.Value,
    *,
    epsilon: float,
    data_format: str,
    is_training: bool,
    node: Any,
) -> list[Any]:
    first = x if data_format.startswith("NC") else op.channels_first(x)
    if is_training:
        mean, variance, results = _batch_statistics(op, first, mean, variance, node)
    else:
        results = [mean, variance]
    wide = [op.cast(v, first.dtype) for v in (scale, offset, mean, variance)]
    y = op.BatchNormalization(first, *wide, epsilon=epsilon)
    y = y if data_format.startswith("NC") else op.channels_last(y)
    # What is reserved for the gradient is the mean, the variance, and nothing on a CPU.
    nothing = np.zeros(() if first.dtype == T.FLOAT16 else 0, np.float32)
    rest = [*results, mean, variance, op.const(nothing)]
    return [y, *rest[: len(node.outputs) - 1]]


def _batch_statistics(
    op: Writer, x: ir.Value, old_mean: ir.Value, old_variance: ir.Value, node: Any
) -> tuple[ir.Value, ir.Value, list[ir.Value]]:
    """Mean and variance of the batch, and what TensorFlow returns as running statistics."""
    axes = [a for a in range(rank(x)) if a != 1]
    x = op.cast(x, old_mean.dtype)
    mean = op.ReduceMean(x, axes, keepdims=1)
    centered = op.Sub(x, mean)
    variance = op.ReduceMean(op.Mul(centered, centered), axes, keepdims=0)
    flat = op.Squeeze(mean, axes)
    count = op.const(np.array(1, np.int64))
    for axis in axes:
        count = op.Mul(count, op.Squeeze(op.dim_value(x, axis)))
    less = op.Max(op.Sub(count, op.const(np.int64(1))), op.const(np.int64(1)))
    factor = op.Div(op.cast(count, x.dtype), op.cast(less, x.dtype))
    momentum = node.get_attr("exponential_avg_factor") if _has_momentum(node) else 1.0
    new = [flat, op.Mul(variance, factor)]
    if momentum != 1.0:
        share = op.like(momentum, flat)
        rest = op.like(1 - momentum, flat)
        olds = (old_mean, old_variance)
        new = [
            op.Add(op.Mul(old, rest), op.Mul(v, share)) for old, v in zip(olds, new, strict=True)
        ]
    return flat, variance, new


def _has_momentum(node: Any) -> bool:
    return any(a.name == "exponential_avg_factor" for a in node.op_def.attr)


@importer("LRN")
def lrn(
    op: Writer, x: ir.Value, *, depth_radius: int, bias: float, alpha: float, beta: float
) -> ir.Value:
    size = 2 * depth_radius + 1
    y = op.LRN(op.channels_first(x), size=size, alpha=alpha * size, beta=beta, bias=bias)
    return op.channels_last(y)


# -- losses ---------------------------------------------------------------------------------------


@importer("SoftmaxCrossEntropyWithLogits")
def softmax_cross_entropy_with_logits(
    op: Writer, logits: ir.Value, labels: ir.Value
) -> list[ir.Value]:
    log = op.LogSoftmax(logits, axis=-1)
    loss = op.Neg(op.ReduceSum(op.Mul(log, labels), [-1], keepdims=0))
    return [loss, op.Sub(op.Softmax(logits, axis=-1), labels)]


@importer("SparseSoftmaxCrossEntropyWithLogits")
def sparse_softmax_cross_entropy_with_logits(
    op: Writer, logits: ir.Value, labels: ir.Value
) -> list[ir.Value]:
    log = op.LogSoftmax(logits, axis=-1)
    column = op.Unsqueeze(op.int64(labels), [-1])
    loss = op.Neg(op.Squeeze(op.GatherElements(log, column, axis=-1), [-1]))
    hot = op.Equal(column, op.count(op.dim_value(logits, -1)))
    gradient = op.Sub(op.Softmax(logits, axis=-1), op.cast(hot, logits.dtype))
    return [loss, gradient]


@importer("InTopKV2", "InTopK")
def in_top_k(
    op: Writer, predictions: ir.Value, targets: ir.Value, k: ir.Value | None = None, *, node: Any
) -> ir.Value:
    count = op.const(np.array([node.get_attr("k")])) if k is None else op.vector(k)
    column = op.Unsqueeze(op.int64(targets), [-1])
    scores = op.GatherElements(predictions, column, axis=-1)
    above = op.cast(op.Greater(predictions, scores), T.INT64)
    few = op.Less(op.ReduceSum(above, [-1], keepdims=0), count)
    odd = op.Or(op.IsNaN(predictions), op.IsInf(predictions))  # in a row, nothing is among the top
    return op.And(few, op.Not(op.ReduceMax(odd, [-1], keepdims=0)))


@importer("CTCGreedyDecoder")
def ctc_greedy_decoder(
    op: Writer,
    x: ir.Value,
    lengths: ir.Value,
    *,
    merge_repeated: bool,
    blank_index: int = -1,
) -> list[ir.Value]:
    """The best class of each step, without blanks and, if asked for, without repetitions."""
    classes = x.shape[2] if x.shape is not None else None
    if not isinstance(classes, int):
        raise Refusal("a free number of classes")
    blank = blank_index % classes
    best = op.Transpose(op.ArgMax(x, axis=2, keepdims=0), perm=[1, 0])  # [batch, time]
    steps = op.Unsqueeze(op.count(op.dim_value(x, 0)), [0])
    inside = op.Less(steps, op.Unsqueeze(op.int64(lengths), [1]))
    keep = op.And(inside, op.Not(op.Equal(best, op.like(blank, best))))
    if merge_repeated:
        before = op.part(op.Pad(best, [0, 1, 0, 0], op.like(-1, best)), 1, 0, -1)
        keep = op.And(keep, op.Not(op.Equal(best, before)))
    number = op.CumSum(op.cast(keep, T.INT64), op.const(np.int64(1)))
    rows = op.NonZero(keep)
    pairs = op.Transpose(rows, perm=[1, 0])
    values = op.GatherND(best, pairs)
    column = op.Sub(op.GatherND(number, pairs), op.const(np.int64(1)))
    indices = op.Concat(op.part(pairs, 1, 0, 1), op.Unsqueeze(column, [1]), axis=1)
    longest = op.ReduceMax(number, keepdims=0)
    shape = op.Concat(op.dim_value(x, 1), op.Reshape(longest, [1]), axis=0)
    top = op.ReduceMax(x, [2], keepdims=0)  # [time, batch]
    zero = op.like(0, x)
    used = op.Where(op.Transpose(inside, perm=[1, 0]), top, zero)
    score = op.Neg(op.Unsqueeze(op.ReduceSum(used, [0], keepdims=0), [1]))
    return [indices, values, shape, score]
