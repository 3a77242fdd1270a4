"""Adapters of ONNX's family `math`, in opset order."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.upgrades.driver import feed, ints, like, put, take, upgrade

ONCE_IN_PLACE = (
    *("Abs", "Add", "Ceil", "Clip", "Div", "Elu", "Exp", "Floor", "HardSigmoid", "LeakyRelu"),
    *("Log", "Max", "Mean", "Min", "Mul", "Neg", "PRelu", "Reciprocal", "Relu", "Sigmoid"),
    *("Sqrt", "Sub", "Sum", "Tanh"),
)


@upgrade(*ONCE_IN_PLACE, to=6)
def consumed_inputs_1_6(op, node):
    take(node, "consumed_inputs")


@upgrade("Selu", to=6)
def selu_1_6(op, node):
    take(node, "consumed_inputs")
    put(node, alpha=take(node, "alpha", 1.6732), gamma=take(node, "gamma", 1.0507))


@upgrade("Add", "Sub", "Mul", "Div", "Pow", to=7, shapes=True)
def broadcast_1_7(op, node):
    broadcast, axis = take(node, "broadcast", 0), take(node, "axis")
    if broadcast and axis is not None:
        a, b = node.inputs
        feed(node, a, align(op, a, b, axis))


@upgrade("PRelu", to=7, shapes=True)
def prelu_6_7(op, node):
    x, slope = node.inputs
    feed(node, x, align(op, x, slope, 1))


def align(op: Builder, a: ir.Value, b: ir.Value, axis: int) -> ir.Value:
    """`b` with ones behind its shape, so that its first axis meets `axis` of `a`."""
    if a.shape is not None and b.shape is not None:
        start = len(b.shape)
        end = len(a.shape) - axis % max(len(a.shape), 1)
        return op.Unsqueeze(b, ints(op, range(start, end))) if start < end else b
    rank_a, rank_b = op.Shape(op.Shape(a)), op.Shape(op.Shape(b))
    behind = op.Sub(rank_a, [axis]) if axis >= 0 else op.const([-axis], ir.DataType.INT64)
    count = op.Max(op.Sub(behind, rank_b), [0])
    ones = op.ConstantOfShape(count, value=ir.tensor(np.array([1], np.int64)))
    return op.Reshape(b, op.Concat(op.Shape(b), ones, axis=0), allowzero=1)


@upgrade("Gemm", to=7)
def gemm_6_7(op, node):
    take(node, "broadcast")  # what it allowed is what every Gemm does from 7 on


@upgrade("TopK", to=10)
def topk_1_10(op, node):
    feed(node, node.inputs[0], ints(op, take(node, "k")))


@upgrade("Clip", to=11, shapes=True)
def clip_6_11(op, node):
    x = node.inputs[0]
    limits = (take(node, "min"), take(node, "max"))
    feed(node, x, *(None if limit is None else like(op, limit, x) for limit in limits))


@upgrade("Softmax", "LogSoftmax", "Hardmax", to=13, shapes=True)
def softmax_11_13(op, node):
    axis = take(node, "axis", 1)
    x = node.inputs[0]
    if axis == -1 or (x.shape is not None and axis % max(len(x.shape), 1) == len(x.shape) - 1):
        put(node, axis=-1)
        return None
    rows = op.call(node.op_type, [op.Flatten(x, axis=axis)], {"axis": 1})
    return op.reshape_like(rows, x)


@upgrade("Erf", to=13, shapes=True)
def erf_9_13(op, node):
    x = node.inputs[0]
    if x.dtype is not None and x.dtype.is_integer():
        return op.cast(op.Erf(op.cast(x, ir.DataType.FLOAT)), x.dtype)
    return None


@upgrade("DFT", to=20)
def dft_17_20(op, node):
    axis = op.const(np.int64(take(node, "axis", 1)))
    feed(node, node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None, axis)
