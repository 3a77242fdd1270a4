"""Operators on single elements: arithmetic, comparisons, activations, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.matlab.function import (
    FLOAT_CLASSES,
    INTEGERS,
    TEXT,
    Call,
    Refused,
    _number,
    matlab,
    table,
    widest,
)

table(
    {
        "Acosh": "onnx_real(acosh(x))",
        "And": "a & b",
        "Acos": "onnx_real(acos(x))",
        "Asin": "onnx_real(asin(x))",
        "Asinh": "asinh(x)",
        "Atan": "atan(x)",
        "Atanh": "onnx_real(atanh(x))",
        "Ceil": "ceil(x)",
        "Cos": "cos(x)",
        "Cosh": "cosh(x)",
        "Erf": "erf(x)",
        "Exp": "exp(x)",
        "Floor": "floor(x)",
        "Greater": "a > b",
        "GreaterOrEqual": "a >= b",
        "HardSwish": "x .* max(min(x / 6 + 0.5, 1), 0)",
        "Identity": "x",
        "IsNaN": "isnan(x)",
        "Less": "a < b",
        "LessOrEqual": "a <= b",
        "Log": "onnx_real(log(x))",
        "Mish": "x .* tanh(log1p(exp(-abs(x))) + max(x, 0))",
        "Not": "~x",
        "Or": "a | b",
        "PRelu": "onnx_max(x, 0) + b .* min(x, 0)",
        "Reciprocal": "1 ./ x",
        "Relu": "onnx_max(x, 0)",
        "Round": "onnx_round(x)",
        "Sigmoid": "1 ./ (1 + exp(-x))",
        "Sign": "sign(x)",
        "Sin": "sin(x)",
        "Sinh": "sinh(x)",
        "Softplus": "log1p(exp(-abs(x))) + onnx_max(x, 0)",
        "Softsign": "x ./ (1 + abs(x))",
        "Sqrt": "onnx_real(sqrt(x))",
        "Tan": "tan(x)",
        "Tanh": "tanh(x)",
        "Xor": "xor(a, b)",
    },
    __name__,
)


def wrapped(m: Call, expression: str, dtype: ir.DataType | None = None) -> str:
    """Integers wrap around; floats are what they are."""
    dtype = m.node.outputs[0].dtype if dtype is None else dtype
    return f"onnx_wrap({expression}, '{INTEGERS[dtype]}')" if dtype in INTEGERS else expression


@matlab("Add", ranks=widest)
def add(m, a, b):
    return wrapped(m, f"{a} + {b}")


@matlab("Equal", ranks=widest)
def equal(m, a, b):
    return f"onnx_same({a}, {b})" if m.type() == TEXT else f"{a} == {b}"


@matlab("Sub", ranks=widest)
def sub(m, a, b):
    return wrapped(m, f"{a} - {b}")


@matlab("Mul", ranks=widest)
def mul(m, a, b):
    dtype = m.node.outputs[0].dtype
    if dtype in INTEGERS:
        return f"onnx_times({a}, {b}, '{INTEGERS[dtype]}')"
    return f"{a} .* {b}"


@matlab("Neg", ranks=widest)
def neg(m, x):
    return wrapped(m, f"-{x}")


@matlab("Abs", ranks=widest)
def absolute(m, x):
    return wrapped(m, f"abs({x})")


@matlab("Div", ranks=widest)
def div(m, a, b):
    if m.node.outputs[0].dtype in INTEGERS:
        return wrapped(m, f"fix({a} ./ {b})")
    return f"{a} ./ {b}"


@matlab("Pow", ranks=widest)
def power(m, a, b):
    dtype = m.node.outputs[0].dtype
    if dtype in INTEGERS:
        raise Refused("powers of integers")
    if m.type(1) in INTEGERS:
        b = f"cast({b}, '{FLOAT_CLASSES[dtype]}')"
    elif m.type(1) != dtype:
        raise Refused("a power of two types")
    exponent = m.known(1)
    if exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]).is_integer():
        return f"{a} .^ {_number(float(exponent.reshape(-1)[0]))}"
    return f"onnx_pow({a}, {b})"


@matlab("Mod", ranks=widest)
def mod(m, a, b, *, fmod):
    return f"onnx_mod({a}, {b}, {bool_word(fmod)})"


@matlab("Max", "Min", ranks=widest)
def extremum(m, *values):
    name = f"onnx_{m.node.op_type.lower()}"
    text = values[0]
    for value in values[1:]:
        text = f"{name}({text}, {value})"
    return text


@matlab("Sum", ranks=widest)
def total(m, *values):
    return " + ".join(values)


@matlab("Mean", ranks=widest)
def average(m, *values):
    return f"({' + '.join(values)}) / {len(values)}"


@matlab("Where", ranks=widest)
def where(m, condition, a, b):
    return f"onnx_fill({condition}, {a}, {b})"


@matlab("Clip", ranks=widest)
def clip(m, x, low=None, high=None):
    text = x
    if low is not None:
        text = f"onnx_max({text}, {low})"
    return text if high is None else f"onnx_min({text}, {high})"


@matlab("IsInf", ranks=widest)
def is_inf(m, x, *, detect_negative, detect_positive):
    signs = [f"{x} == {s}Inf" for s, on in (("-", detect_negative), ("", detect_positive)) if on]
    return " | ".join(f"({s})" for s in signs) or f"false(size({x}))"


@matlab("Elu", ranks=widest)
def elu(m, x, *, alpha):
    return f"onnx_max({x}, 0) + {scalar(m, alpha)} * expm1(min({x}, 0))"


@matlab("Celu", ranks=widest)
def celu(m, x, *, alpha):
    a = scalar(m, alpha)
    return f"onnx_max({x}, 0) + {a} * expm1(min({x}, 0) / {a})"


@matlab("Selu", ranks=widest)
def selu(m, x, *, alpha, gamma):
    a, g = scalar(m, alpha), scalar(m, gamma)
    return f"{g} * (onnx_max({x}, 0) + {a} * expm1(min({x}, 0)))"


@matlab("LeakyRelu", ranks=widest)
def leaky_relu(m, x, *, alpha):
    return f"onnx_max({x}, 0) + {scalar(m, alpha)} * min({x}, 0)"


@matlab("ThresholdedRelu", ranks=widest)
def thresholded_relu(m, x, *, alpha):
    return f"onnx_fill({x} > {scalar(m, alpha)}, {x}, zeros(1, class({x})))"


@matlab("HardSigmoid", ranks=widest)
def hard_sigmoid(m, x, *, alpha, beta):
    return f"onnx_min(onnx_max({scalar(m, alpha)} * {x} + {scalar(m, beta)}, 0), 1)"


@matlab("Gelu", ranks=widest)
def gelu(m, x, *, approximate):
    if approximate == "tanh":
        inner = f"sqrt(2 / pi) * ({x} + 0.044715 * {x} .^ 3)"
        return f"0.5 * {x} .* (1 + tanh({inner}))"
    return f"0.5 * {x} .* (1 + erf({x} / sqrt(2)))"


@matlab("Swish", ranks=widest)
def swish(m, x, *, alpha):
    return f"{x} ./ (1 + exp(-{scalar(m, alpha)} * {x}))"


@matlab("Shrink", ranks=widest)
def shrink(m, x, *, bias, lambd):
    b, l = scalar(m, bias), scalar(m, lambd)
    inside = f"onnx_fill({x} > {l}, {x} - {b}, zeros(1, class({x})))"
    return f"onnx_fill({x} < -{l}, {x} + {b}, {inside})"


@matlab("Cast", ranks=widest)
def cast(m, x, **attributes):
    return converted(m, x, m.type(), m.node.outputs[0].dtype)


@matlab("CastLike", ranks=lambda m, *inputs, **attributes: str(m.rank()))
def cast_like(m, x, like, **attributes):
    return converted(m, x, m.type(), m.node.outputs[0].dtype)


def converted(m: Call, x: str, before: Any, after: Any) -> str:
    """A value in another type."""
    if after in FLOAT_CLASSES:
        return x if before == after else f"{FLOAT_CLASSES[after]}({x})"
    if after == ir.DataType.BOOL:
        return x if before == after else f"{x} ~= 0"
    text = f"double({x})" if before in FLOAT_CLASSES or before == ir.DataType.BOOL else x
    if before in FLOAT_CLASSES:
        text = f"fix({text})"
    return f"onnx_wrap({text}, '{INTEGERS[after]}')"


@matlab("Dropout")
def dropout(m, x, ratio=None, training_mode=None, **attributes):
    mode = m.known(2)
    if m.has(2) and (mode is None or bool(mode.any())):
        raise Refused("a Dropout that trains")
    y, mask = (*m.outputs(), "~")[:2]
    m.emit(y, expression=x)
    if mask != "~":
        m.emit(mask, expression=f"true(size({x}))")


def scalar(m: Call, number: float) -> str:
    """An attribute, which is single: in short where the input is single too."""
    is_double = m.type() == ir.DataType.DOUBLE
    return _number(float(number) if is_double else float(str(np.float32(number))))


def bool_word(flag: Any) -> str:
    return "true" if flag else "false"
