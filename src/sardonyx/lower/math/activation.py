"""Activations."""

from __future__ import annotations

import math

from sardonyx.lower.driver import lowering, table

table(
    {
        "HardSwish": lambda xp, x: x * xp.clip(x / 6 + 0.5, xp.scalar(0, x), xp.scalar(1, x)),
        "Mish": lambda xp, x: x * xp.tanh(xp.softplus(x)),
        "PRelu": lambda xp, x, slope: xp.where(
            xp.less(x, xp.scalar(0, x)), xp.multiply(slope, x), x
        ),
        "Relu": lambda xp, x: xp.maximum(x, xp.scalar(0, x)),
        "Softsign": lambda xp, x: x / (1 + xp.abs(x)),
    },
    __name__,
)


def below_zero(xp, x):
    return xp.less(x, xp.scalar(0, x))


@lowering("LeakyRelu")
def leaky_relu(xp, x, *, alpha):
    return xp.where(below_zero(xp, x), x * alpha, x)


@lowering("ThresholdedRelu")
def thresholded_relu(xp, x, *, alpha):
    return xp.where(xp.greater(x, xp.scalar(alpha, x)), x, xp.scalar(0, x))


@lowering("Elu")
def elu(xp, x, *, alpha):
    # exp only of what is not positive: the branch that is not taken must not overflow
    below = xp.minimum(x, xp.scalar(0, x))
    return xp.where(below_zero(xp, x), alpha * xp.expm1(below), x)


@lowering("Celu")
def celu(xp, x, *, alpha):
    below = xp.minimum(x, xp.scalar(0, x))
    return xp.maximum(x, xp.scalar(0, x)) + alpha * xp.expm1(below / alpha)


@lowering("Selu")
def selu(xp, x, *, alpha, gamma):
    below = xp.minimum(x, xp.scalar(0, x))
    return gamma * xp.where(below_zero(xp, x), alpha * xp.expm1(below), x)


@lowering("HardSigmoid")
def hard_sigmoid(xp, x, *, alpha, beta):
    return xp.clip(alpha * x + beta, xp.scalar(0, x), xp.scalar(1, x))


@lowering("Swish")
def swish(xp, x, *, alpha):
    return x * xp.sigmoid(alpha * x)


@lowering("Gelu")
def gelu(xp, x, *, approximate):
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + xp.tanh(inner))
    return 0.5 * x * (1 + xp.erf(x * math.sqrt(0.5)))
