"""Activation functions. At a kink each takes the derivative that torch takes.

Their function bodies are no substitute: they fix other derivatives at the kinks, overflow, and
compute both branches of a Where, of which the unused one may be infinite.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.grad.driver import formulas, gradient_rule

# NOTE [masks]: g·mask is a third faster than Where(mask, g, 0), but turns an infinite cotangent of
# a dead unit into NaN. Sqrt(Relu(x)) makes one at every x < 0. Mixing operators spread each
# cotangent over many inputs, so that an infinity spoils the live units as well: behind them the
# product loses nothing. The rule decides it, not the engine: stock onnxruntime runs gradients as
# files, and only the forward graph shows what reads the output (3 to 8 % of a step of a small
# network, bench/gradients.py).
MIXING = frozenset(
    (
        *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Gemm"),
        *("GlobalAveragePool", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "MatMul", "RMSNormalization", "ReduceMean", "Relu"),
    )
)
PASSING = frozenset(
    (
        *("Add", "Concat", "Dropout", "Flatten", "Identity", "MaxPool", "Pad", "Reshape"),
        *("Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
    )
)


def _only_mixed(y: ir.Value) -> bool:
    """Whether all of the forward graph that `y` reaches mixes it (see NOTE [masks])."""
    pending, values = [y], {y}
    while pending:
        value = pending.pop()
        for node in value.consumers():
            if node.graph is None or _reads_form(node, value):
                continue  # of the gradient that is being built, or not of its numbers
            if node.domain or node.op_type not in MIXING | PASSING:
                return False
            if node.op_type in PASSING:
                pending += [v for v in node.outputs if v not in values]
                values.update(node.outputs)
    return True


def _reads_form(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node reads only the type or the shape of a value."""
    if node.op_type == "CastLike":
        return node.inputs[0] is not value
    return node.op_type in ("Shape", "Size")


@gradient_rule("Relu")
def relu(op, g, x, *, out, node):
    live = op.cast(out[0], ir.DataType.BOOL)
    if node.graph is not None and _only_mixed(out[0]):
        return g * op.cast(live, g.dtype)
    return op.Where(live, g, 0.0)


@gradient_rule("LeakyRelu")
def leaky_relu(op, g, x, *, alpha):
    return op.Where(op.Greater(x, 0.0), g, g * alpha)


@gradient_rule("PRelu", broadcasts=True)
def prelu(op, g, x, slope):
    positive = op.Greater(x, 0.0)
    return op.Where(positive, g, g * slope), op.Where(positive, 0.0, g * x)


@gradient_rule("ThresholdedRelu")
def thresholded_relu(op, g, x, *, alpha):
    return op.Where(op.Greater(x, alpha), g, 0.0)


def _negative_exp(op: Builder, x: ir.Value, alpha: float = 1.0) -> ir.Value:
    """exp(x / alpha) where x is negative, else 1: never overflows."""
    below = op.Min(x, 0.0)
    return op.Exp(below if alpha == 1.0 else below / alpha)


@gradient_rule("Celu")
def celu(op, g, x, *, alpha):
    return g * _negative_exp(op, x, alpha)


@gradient_rule("Elu")
def elu(op, g, x, *, alpha):
    if alpha == 1.0:
        return g * _negative_exp(op, x)
    return op.Where(op.Greater(x, 0.0), g, g * (_negative_exp(op, x) * alpha))


@gradient_rule("Selu")
def selu(op, g, x, *, alpha, gamma):
    scaled = g * gamma
    return op.Where(op.Greater(x, 0.0), scaled, scaled * (_negative_exp(op, x) * alpha))


@gradient_rule("HardSigmoid")
def hard_sigmoid(op, g, x, *, alpha, beta, out):
    inside = op.And(op.Greater(out[0], 0.0), op.Less(out[0], 1.0))
    return op.Where(inside, g * alpha, 0.0)


def _hard_swish(op: Builder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    slope = op.Where(op.Less(x, 3.0), x / 3.0 + 0.5, 1.0)
    return op.Where(op.Greater(x, -3.0), g * slope, 0.0)


def _mish(op: Builder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    # tanh(log(1 + e^x)) = n / (n + 2), n = e^x (e^x + 2); it is 1 in float64 beyond x = 20.
    e = op.Exp(op.Min(x, 20.0))
    n = e * (e + 2.0)
    d = n + 2.0
    slope = (n + 1.0) / d / d * 4.0
    return g * (n / d + x * slope * op.Sigmoid(x))


def _softsign(op: Builder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    d = op.Abs(x) + 1.0
    return g / (d * d)


formulas({"HardSwish": _hard_swish, "Mish": _mish, "Softsign": _softsign}, __name__)


@gradient_rule("Gelu")
def gelu(op, g, x, *, approximate):
    if approximate == "tanh":
        root, cubic = math.sqrt(2 / math.pi), 0.044715
        square = x * x
        t = op.Tanh(x * (square * (root * cubic) + root))
        slope = square * (3 * root * cubic) + root
        return g * ((t + 1.0 + x * slope * (1.0 - t * t)) * 0.5)
    # Twice the derivative is 1 + erf(u) + 2/sqrt(pi) u exp(-u^2) with u = x/sqrt(2); the factor
    # goes into the exponent, which saves a pass over memory.
    u = x * math.sqrt(0.5)
    bump = u * op.Exp(math.log(2 / math.sqrt(math.pi)) - u * u)
    return g * ((op.Erf(u) + bump + 1.0) * 0.5)


def _swish_parts(op: Builder, x: ir.Value, alpha: float) -> tuple[ir.Value, ir.Value]:
    """sigmoid(alpha x), and the derivative of x sigmoid(alpha x)."""
    scaled = x if alpha == 1.0 else x * alpha
    s = op.Sigmoid(scaled)
    return s, s * (scaled * (1.0 - s) + 1.0)


@gradient_rule("Swish")
def swish(op, g, x, *, alpha):
    return g * _swish_parts(op, x, alpha)[1]


@gradient_rule("SwiGLU")
def swiglu(op, g, a, b, *, alpha):
    s, slope = _swish_parts(op, a, alpha)
    return g * b * slope, g * (a * s)


@gradient_rule("Clip", broadcasts=True)
def clip(op, g, x, low, high, *, out):
    """x keeps its gradient at a bound; where low > high, everything belongs to high."""
    lowest, highest = constant(low), constant(high)
    ordered = (
        low is None
        or high is None
        or (lowest is not None and highest is not None and bool((lowest <= highest).all()))
    )
    if ordered:
        dx = op.Where(op.Equal(x, out[0]), g, 0.0)
        dlow = None if low is None else op.Where(op.Less(x, low), g, 0.0)
        dhigh = None if high is None else op.Where(op.Greater(x, high), g, 0.0)
        return dx, dlow, dhigh
    inside = op.And(op.GreaterOrEqual(x, low), op.LessOrEqual(x, high))
    below = op.And(op.Less(x, low), op.LessOrEqual(low, high))
    above = op.Or(op.Greater(x, high), op.Greater(low, high))
    return tuple(op.Where(where, g, 0.0) for where in (inside, below, above))
