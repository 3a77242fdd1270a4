"""Adapters of ONNX's family `nn`, in opset order."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import FLOATS, Builder
from sardonyx.upgrades.driver import feed, ints, is_used, like, present, put, take, upgrade


@upgrade("LpPool", "GlobalLpPool", to=2, shapes=True)
def lppool_1_2(op, node):
    p = take(node, "p", 2.0)
    if float(p).is_integer():
        put(node, p=int(p))
        return None
    x = node.inputs[0]
    powers = op.Pow(op.Abs(x), like(op, p, x))
    attributes = {a.name: a for a in node.attributes.values()}
    return op.Pow(op.call(node.op_type, [powers], {**attributes, "p": 1}), like(op, 1 / p, x))


@upgrade("BatchNormalization", "Dropout", "InstanceNormalization", to=6)
def consumed_inputs_1_6(op, node):
    take(node, "consumed_inputs")


@upgrade("BatchNormalization", to=7, shapes=True)
def batchnormalization_6_7(op, node):
    training = not take(node, "is_test", 0)
    if training or present(node) > 1:
        return batch_normalization(op, node, training)
    return None


@upgrade("Dropout", to=7)
def dropout_6_7(op, node):
    if take(node, "is_test", 0):
        return None
    x = node.inputs[0]
    y, mask = op.Dropout(x, take(node, "ratio", 0.5), True, outputs=2)
    return y, op.CastLike(mask, x) if _has_mask(node) else None


@upgrade("BatchNormalization", to=9, shapes=True)
def batchnormalization_7_9(op, node):
    if node.attributes.get_int("spatial", 1):
        take(node, "spatial")
        return None
    return batch_normalization(op, node, training=present(node) > 1)


@upgrade("Dropout", to=10)
def dropout_7_10(op, node):
    if not _has_mask(node):
        return None
    x = node.inputs[0]
    y = op.Dropout(x, take(node, "ratio", 0.5))
    return y, op.CastLike(_nothing(op, x), x)


@upgrade("Dropout", to=12)
def dropout_10_12(op, node):
    x, ratio = node.inputs[0], take(node, "ratio", 0.5)
    if _has_mask(node):
        return op.Dropout(x, ratio), _nothing(op, x)
    node.resize_outputs(1)
    feed(node, x, op.const(ratio, ir.DataType.FLOAT))
    return None


def _has_mask(node: ir.Node) -> bool:
    return len(node.outputs) > 1 and is_used(node.outputs[1])


def _nothing(op: Builder, x: ir.Value) -> ir.Value:
    """The mask before 12, whose values ONNX does not define: those of onnxruntime."""
    return op.fill(0, x, ir.DataType.BOOL)


@upgrade("BatchNormalization", to=14, shapes=True)
def batchnormalization_9_14(op, node):
    if present(node) > 1:
        return batch_normalization(op, node, training=True)
    node.resize_outputs(1)
    return None


def batch_normalization(op: Builder, node: ir.Node, training: bool) -> tuple[ir.Value | None, ...]:
    """Any BatchNormalization before 14 in today's form: Y, mean, var, saved_mean, saved_var.

    With `spatial=0` every element of a sample is a channel of its own.
    """
    x, *parameters = node.inputs
    assert x is not None
    flat = not take(node, "spatial", 1) and not (x.shape is not None and len(x.shape) == 2)
    mean, var = parameters[2:]
    data = op.Flatten(x, axis=1) if flat else x
    if flat:
        parameters = [op.Reshape(v, [-1]) for v in parameters]
    attributes = {a.name: a for a in node.attributes.values()}
    if not training:
        out = op.call("BatchNormalization", [data, *parameters], attributes)
        return (op.reshape_like(out, x) if flat else out, mean, var, mean, var)
    outs = op.call(
        "BatchNormalization", [data, *parameters], {**attributes, "training_mode": 1}, outputs=3
    )
    outs = (*outs, *_saved(op, node, data))
    if not flat:
        return outs
    return (
        op.reshape_like(outs[0], x),
        *(v if v is None else op.Reshape(v, op.Shape(mean)) for v in outs[1:]),
    )


def _saved(op: Builder, node: ir.Node, x: ir.Value) -> tuple[ir.Value | None, ir.Value | None]:
    """The batch's mean, and what onnxruntime saves as its variance: 1 / sqrt(var + epsilon)."""
    if not any(is_used(v) for v in node.outputs[3:]):
        return None, None
    rows, axes = op.Reshape(x, [0, 0, -1]), ints(op, (0, 2))
    mean = op.ReduceMean(rows, axes)
    off = op.Sub(rows, mean)
    var = op.ReduceMean(op.Mul(off, off), axes, keepdims=0)
    epsilon = like(op, node.attributes.get_float("epsilon", 1e-5), x)
    return op.Squeeze(mean, axes), op.Reciprocal(op.Sqrt(op.Add(var, epsilon)))


@upgrade("GroupNormalization", to=21, shapes=True)
def groupnormalization_18_21(op, node):
    x, scale, bias = node.inputs
    groups, channels = node.attributes.get_int("num_groups"), op.dim(x, 1)
    size = channels // groups if isinstance(channels, int) else op.Div(channels, [groups])
    shape = op.join([1, size])
    per_channel = (op.Reshape(op.Expand(op.Unsqueeze(v, [1]), shape), [-1]) for v in (scale, bias))
    feed(node, x, *per_channel)
    if x.dtype in FLOATS and x.dtype != ir.DataType.FLOAT:
        put(node, stash_type=int(x.dtype))  # before 21, all was computed in the type of X
