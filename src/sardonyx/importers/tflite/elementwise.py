"""Operators of TensorFlow Lite that work element by element."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.importers import arithmetic
from sardonyx.importers.tflite.rules import RAW, RULES, Unsupported, known, rank, rule

PLAIN = {
    "ABS": "Abs", "ADD": "Add", "CEIL": "Ceil", "COS": "Cos", "DIV": "Div",
    "EXP": "Exp", "FLOOR": "Floor", "LOG": "Log", "LOGICAL_AND": "And",
    "LOGICAL_NOT": "Not", "LOGICAL_OR": "Or", "LOGISTIC": "Sigmoid", "MUL": "Mul", "NEG": "Neg",
    "RELU": "Relu", "ROUND": "Round", "SIGN": "Sign",
    "SIN": "Sin", "SQRT": "Sqrt", "SUB": "Sub", "TANH": "Tanh", "HARD_SWISH": "HardSwish",
    "POW": "Pow", "ADD_N": "Sum",
}  # fmt: skip
COMPARISONS = {
    "EQUAL": "Equal", "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual", "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
}  # fmt: skip
FINE = np.float32(256)  # steps of one, to which LiteRT rounds quantized numbers that it compares
# Operators of StableHLO that LiteRT has kernels for: none looks at scales.
STABLEHLO = {"ADD": "Add", "MAXIMUM": "Max", "MINIMUM": "Min", "MULTIPLY": "Mul"}


def _plain(name):
    def apply(op, node, *inputs):
        return op.call(name, inputs)

    apply.__name__ = name
    return apply


RULES.update({source: _plain(target) for source, target in PLAIN.items()})
RULES.update({f"STABLEHLO_{source}": _plain(target) for source, target in STABLEHLO.items()})
RAW.update(f"STABLEHLO_{source}" for source in STABLEHLO)


@rule("MAXIMUM")
def maximum(op, node, a, b):
    return arithmetic.larger(op, a, b)


@rule("MINIMUM")
def minimum(op, node, a, b):
    return arithmetic.smaller(op, a, b)


def _comparison(name):
    def apply(op, node, a, b):
        return op.call(name, _comparable(op, node, a, b))

    apply.__name__ = name
    return apply


def _comparable(op, node, a, b):
    if not any(t is not None and t.is_quantized for t in node.inputs):
        return [a, b]
    steps = [op.Add(op.Mul(op.Abs(v), FINE), np.float32(0.5)) for v in (a, b)]
    return [op.Mul(op.Sign(v), op.Floor(s)) for v, s in zip((a, b), steps)]


RULES.update({source: _comparison(target) for source, target in COMPARISONS.items()})


@rule()
def not_equal(op, node, a, b):
    return op.Not(op.Equal(*_comparable(op, node, a, b)))


@rule()
def square(op, node, x):
    return op.Mul(x, x)


@rule()
def rsqrt(op, node, x):
    return op.Reciprocal(op.Sqrt(x))


@rule()
def squared_difference(op, node, a, b):
    difference = op.Sub(a, b)
    return op.Mul(difference, difference)


@rule()
def floor_div(op, node, a, b):
    return arithmetic.floor_div(op, a, b)


@rule()
def floor_mod(op, node, a, b):
    return arithmetic.floor_mod(op, a, b)


@rule("RIGHT_SHIFT")
def right_shift(op, node, x, count):
    # ONNX shifts integers without a sign only; a shift is a division that rounds down.
    most = np.int64(_bits(node) - 1)
    count = op.Min(op.Max(op.cast(count, ir.DataType.INT64), np.int64(0)), most)
    power = op.Gather(np.left_shift(np.int64(1), np.arange(most + 1)), count, axis=0)
    return arithmetic.floor_div(op, op.cast(x, ir.DataType.INT64), power)


@rule("STABLEHLO_SHIFT_LEFT", raw=True)
def shift_left(op, node, x, count):
    # LiteRT leaves other counts to the processor.
    numbers = known(count, "the number of bits").astype(np.int64)
    if ((numbers < 0) | (numbers >= _bits(node))).any():
        raise Unsupported("a shift of a number beyond its bits")
    return op.Mul(op.cast(x, ir.DataType.INT64), np.left_shift(np.int64(1), numbers))


def _bits(node):
    return 8 * np.dtype(node.inputs[0].dtype).itemsize


@rule("STABLEHLO_AND", raw=True)
def stablehlo_and(op, node, a, b):
    return op.And(a, b) if a.dtype == ir.DataType.BOOL else op.BitwiseAnd(a, b)


@rule()
def bitcast(op, node, x):
    before, after = (np.dtype(t.dtype) for t in (node.inputs[0], node.outputs[0]))
    if before.itemsize != after.itemsize or "b" in before.kind + after.kind:
        raise Unsupported("a cast of bits to another number of them")
    return op.BitCast(x, to=int(ir.DataType.from_numpy(after)))


@rule()
def atan2(op, node, y, x):
    return arithmetic.atan2(op, y, x)


@rule("RELU6")
def relu6(op, node, x):
    return clipped(op, x, 0.0, 6.0)


@rule("RELU_N1_TO_1")
def relu_n1_to_1(op, node, x):
    return clipped(op, x, -1.0, 1.0)


@rule("RELU_0_TO_1")
def relu_0_to_1(op, node, x):
    return clipped(op, x, 0.0, 1.0)


def clipped(op, x, low, high):
    return op.Clip(x, np.float32(low), np.float32(high))


def activated(op, x, kind):
    """The activation that is fused into an operator: NONE, RELU, RELU_N1_TO_1, RELU6, TANH."""
    if kind == 1:
        return op.Relu(x)
    if kind in (2, 3):
        return clipped(op, x, -1.0 if kind == 2 else 0.0, 1.0 if kind == 2 else 6.0)
    return op.Tanh(x) if kind == 4 else x


@rule()
def elu(op, node, x):
    return op.Elu(x)


@rule()
def gelu(op, node, x):
    return op.Gelu(x, approximate="tanh" if node.get("approximate") else "none")


@rule()
def leaky_relu(op, node, x):
    return op.LeakyRelu(x, alpha=node["alpha"])


@rule()
def prelu(op, node, x, slope):
    return op.PRelu(x, slope)


@rule("SELECT", "SELECT_V2")
def select(op, node, condition, a, b):
    missing = rank(a) - rank(condition)
    if node.operator.name == "SELECT" and rank(condition) == 1 and missing > 0:
        condition = op.Unsqueeze(condition, np.arange(1, missing + 1))
    return op.Where(condition, a, b)


@rule()
def cast(op, node, x):
    return op.cast(x, ir.DataType.from_numpy(np.dtype(node.outputs[0].dtype)))


@rule("ZEROS_LIKE")
def zeros_like(op, node, x):
    return op.zeros_like(x)


@rule()
def softmax(op, node, x):
    beta = node["beta"]
    return op.Softmax(x if beta == 1.0 else op.Mul(x, np.float32(beta)), axis=-1)


@rule()
def log_softmax(op, node, x):
    return op.LogSoftmax(x, axis=-1)


@rule("L2_NORMALIZATION")
def l2_normalization(op, node, x):
    length = op.Sqrt(op.ReduceSum(op.Mul(x, x), [-1], keepdims=1))
    return op.Div(x, op.Max(length, np.float32(1e-6)))


@rule("QUANTIZE", "DEQUANTIZE", "DENSIFY")
def requantized(op, node, x):
    return x  # the driver reads and writes quantized tensors; halves become floats there
