"""Operators of networks: products, windows, normalizations, reductions, recurrence."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from sardonyx.engines.matlab.elementwise import bool_word, scalar
from sardonyx.engines.matlab.function import (
    FLOAT_CLASSES,
    INTEGERS,
    Call,
    Refused,
    matlab,
    row,
)


@matlab("MatMul")
def mat_mul(m, a, b):
    if m.type() in INTEGERS:
        raise Refused("products of integers")
    if m.rank() == 2 and m.rank(1) == 2:
        return f"{b} * {a}"
    return f"onnx_matmul({a}, {m.rank()}, {b}, {m.rank(1)})"


@matlab("Gemm")
def gemm(m, a, b, c=None, *, alpha, beta, transA, transB):
    if m.type() in INTEGERS:
        raise Refused("products of integers")
    left = f"{a}.'" if transA else a
    right = f"{b}.'" if transB else b
    text = f"{right} * {left}"
    if alpha != 1:
        text = f"{scalar(m, alpha)} * ({text})"
    if c is None or beta == 0:
        return text
    return f"{text} + {c}" if beta == 1 else f"{text} + {scalar(m, beta)} * {c}"


# -- windows -------------------------------------------------------------------------------------


def spatial(m: Call, kernel: Any, strides: Any, pads: Any, dilations: Any, auto_pad: str) -> tuple:
    """Strides, pads before and after, and dilations, in MATLAB's order."""
    d = m.rank() - 2
    if auto_pad not in ("NOTSET", "VALID"):
        raise Refused("sizes of pads that depend on the input")
    strides = list(strides) if strides is not None else [1] * d
    pads = list(pads) if pads is not None and auto_pad == "NOTSET" else [0] * 2 * d
    dilations = list(dilations) if dilations is not None else [1] * d
    return strides[::-1], pads[:d][::-1], pads[d:][::-1], dilations[::-1]


@matlab("Conv")
def conv(m, x, w, b=None, *, auto_pad, dilations, group, kernel_shape, pads, strides):
    if m.type() not in FLOAT_CLASSES:
        raise Refused("integers")
    s, before, after, dil = map(row, spatial(m, None, strides, pads, dilations, auto_pad))
    return f"onnx_conv({x}, {w}, {b or '[]'}, {s}, {before}, {after}, {dil}, {group})"


@matlab("ConvTranspose")
def conv_transpose(
    m, x, w, b=None, *, auto_pad, dilations, group, kernel_shape, output_padding, output_shape,
    pads, strides,
):  # fmt: skip
    if output_shape is not None:
        raise Refused("an output of a given shape")
    s, before, after, dil = map(row, spatial(m, None, strides, pads, dilations, auto_pad))
    extra = row(list(output_padding or [0] * (m.rank() - 2))[::-1])
    words = [x, w, b or "[]", s, before, after, dil, str(group), extra]
    return f"onnx_conv_transpose({', '.join(words)})"


@matlab("MaxPool")
def max_pool(m, x, *, auto_pad, ceil_mode, dilations, kernel_shape, pads, storage_order, strides):
    if m.used(1) or m.type() not in FLOAT_CLASSES:
        raise Refused("positions of the largest elements" if m.used(1) else "integers")
    return pool(m, x, "max", kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, False)


@matlab("AveragePool")
def average_pool(
    m, x, *, auto_pad, ceil_mode, count_include_pad, dilations, kernel_shape, pads, strides
):
    include = bool(count_include_pad)
    return pool(m, x, "mean", kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, include)


def pool(m, x, kind, kernel, strides, pads, dilations, auto_pad, ceil_mode, include):
    parts = spatial(m, kernel, strides, pads, dilations, auto_pad)
    s, before, after, dil = map(row, parts)
    words = [f"'{kind}'", row(list(kernel)[::-1]), s, before, after, dil, bool_word(ceil_mode)]
    return f"onnx_pool({x}, {', '.join(words)}, {bool_word(include)})"


@matlab("GlobalAveragePool")
def global_average_pool(m, x):
    rank = m.rank()
    return f"onnx_reduce({x}, {rank}, {row(range(1, rank - 1))}, 'mean', true)"


@matlab("GlobalMaxPool")
def global_max_pool(m, x):
    rank = m.rank()
    return f"onnx_reduce({x}, {rank}, {row(range(1, rank - 1))}, 'max', true)"


@matlab("LpPool")
def lp_pool(m, x, *, auto_pad, ceil_mode, dilations, kernel_shape, p, pads, strides):
    if ceil_mode:
        raise Refused("windows that reach over the end")
    arguments = (kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, True)
    mean = pool(m, f"abs({x}) .^ {p}", "mean", *arguments)
    return f"({math.prod(kernel_shape)} * {mean}) .^ (1 / {p})"


@matlab("GlobalLpPool")
def global_lp_pool(m, x, *, p):
    dims = row(range(1, m.rank() - 1))
    return f"onnx_reduce(abs({x}) .^ {p}, {m.rank()}, {dims}, 'sum', true) .^ (1 / {p})"


# -- quantization --------------------------------------------------------------------------------


def _aligned(m: Call, position: int, text: str, axis: int) -> str:
    """A scale or zero point beside the axis that it belongs to."""
    if m.rank(position) == 0:
        return text
    if m.rank(position) != 1:
        raise Refused("scales of blocks")
    dim = m.dim(axis, m.rank())
    return text if dim == 1 else f"reshape({text}, [{'1, ' * (dim - 1)}numel({text}), 1])"


@matlab("DequantizeLinear")
def dequantize(m, x, scale, zero=None, *, axis, block_size, output_dtype):
    kind = FLOAT_CLASSES.get(m.node.outputs[0].dtype)
    if kind is None or block_size:
        raise Refused("scales of blocks, or a result of another type")
    s = _aligned(m, 1, scale, axis)
    shift = "" if zero is None else f" - {_aligned(m, 2, zero, axis)}"
    return f"{kind}({x}{shift}) .* {s}"


@matlab("QuantizeLinear")
def quantize(m, x, scale, zero=None, **attributes):
    kind = INTEGERS.get(m.node.outputs[0].dtype)
    if kind is None or attributes["block_size"] or attributes["precision"]:
        raise Refused("scales of blocks, or a result of another type")
    axis = attributes["axis"]
    text = f"double(onnx_round({x} ./ {_aligned(m, 1, scale, axis)}))"
    if zero is not None:
        text += f" + {_aligned(m, 2, zero, axis)}"
    return f"min(max({text}, double(intmin('{kind}'))), double(intmax('{kind}')))"


# -- normalizations ------------------------------------------------------------------------------


@matlab("BatchNormalization")
def batch_norm(m, x, scale, shift, average, variance, *, epsilon, momentum, training_mode):
    if training_mode:
        raise Refused("statistics of the batch")
    words = f"{x}, {m.rank()}, {scale}, {shift}, {average}, {variance}, {scalar(m, epsilon)}"
    return f"onnx_batchnorm({words})"


@matlab("InstanceNormalization")
def instance_norm(m, x, scale, shift, *, epsilon):
    return f"onnx_instancenorm({x}, {m.rank()}, {scale}, {shift}, {scalar(m, epsilon)})"


@matlab("LayerNormalization")
def layer_norm(m, x, scale, shift=None, *, axis, epsilon, stash_type):
    if m.type() != ir.DataType.FLOAT:
        raise Refused("statistics of another type")
    rank = m.rank()
    dims = row(range(1, rank - axis % rank + 1))
    words = f"{x}, {rank}, {dims}, {scale}, {shift or '[]'}, {scalar(m, epsilon)}"
    m.emit(*m.outputs(), expression=f"onnx_layernorm({words})")


@matlab("LRN")
def lrn(m, x, *, alpha, beta, bias, size):
    numbers = ", ".join(scalar(m, n) for n in (alpha, beta, bias))
    return f"onnx_lrn({x}, {m.rank()}, {size}, {numbers})"


@matlab("Softmax", "LogSoftmax")
def softmax(m, x, *, axis):
    return f"onnx_{m.node.op_type.lower()}({x}, {m.dim(axis, m.rank())})"


@matlab("Hardmax")
def hardmax(m, x, *, axis):
    return f"onnx_hardmax({x}, {m.rank()}, {m.dim(axis, m.rank())})"


@matlab("LpNormalization")
def lp_norm(m, x, *, axis, p):
    dim = m.dim(axis, m.rank())
    size = f"sum(abs({x}), {dim})" if p == 1 else f"sqrt(sum({x} .^ 2, {dim}))"
    return f"onnx_fill({size} == 0, zeros(1, class({x})), {x} ./ {size})"


# -- reductions ----------------------------------------------------------------------------------

REDUCTIONS = {
    "ReduceSum": ("sum", "{}", "{}"),
    "ReduceMean": ("mean", "{}", "{}"),
    "ReduceMax": ("max", "{}", "{}"),
    "ReduceMin": ("min", "{}", "{}"),
    "ReduceProd": ("prod", "{}", "{}"),
    "ReduceL1": ("sum", "abs({})", "{}"),
    "ReduceL2": ("sum", "{} .^ 2", "sqrt({})"),
    "ReduceSumSquare": ("sum", "{} .^ 2", "{}"),
    "ReduceLogSum": ("sum", "{}", "onnx_real(log({}))"),
}


def _left(m: Call, x: str, axes: Any = None, *, keepdims: int, noop_with_empty_axes: int) -> str:
    dims = _dims(m, axes, noop_with_empty_axes)
    if keepdims or not dims:
        return str(m.rank())
    return "0" if isinstance(dims, str) else f"{m.rank()} - {len(dims)}"


@matlab(*REDUCTIONS, ranks=_left)
def reduction(m, x, axes=None, *, keepdims, noop_with_empty_axes):
    kind, inner, outer = REDUCTIONS[m.node.op_type]
    return reduced(m, x, axes, keepdims, noop_with_empty_axes, kind, inner, outer)


@matlab("ReduceLogSumExp", ranks=_left)
def log_sum_exp(m, x, axes=None, *, keepdims, noop_with_empty_axes):
    dims = _dims(m, axes, noop_with_empty_axes)
    if not dims:
        return x
    return f"onnx_logsumexp({x}, {m.rank()}, {_row(dims)}, {bool_word(keepdims)})"


def _dims(m: Call, axes: Any, noop: int) -> list[Any] | str:
    rank = m.rank()
    numbers = m.numbers(1, "axes") if axes is not None else []
    if not numbers and not noop:
        return f"1:{rank}" if isinstance(rank, str) else list(range(1, rank + 1))
    return m.dims(numbers, rank)


def _row(dims: list[Any] | str) -> str:
    return dims if isinstance(dims, str) else row(dims)


def reduced(m, x, axes, keepdims, noop, kind, inner, outer):
    if any(d == 0 for d in m.node.inputs[0].shape or ()):
        raise Refused("a reduction of nothing")
    dims = _dims(m, axes, noop)
    if m.type() == ir.DataType.BOOL:
        inner, outer = "double({})", "{} ~= 0"
    text = inner.format(x)
    if dims:
        text = f"onnx_reduce({text}, {m.rank()}, {_row(dims)}, '{kind}', {bool_word(keepdims)})"
    text = outer.format(text)
    dtype = m.node.outputs[0].dtype
    if dtype in INTEGERS:
        if kind == "mean" or outer != "{}":
            raise Refused("a mean of integers")
        return f"onnx_wrap({text}, '{INTEGERS[dtype]}')"
    return text


@matlab("ArgMax", "ArgMin")
def arg(m, x, *, axis, keepdims, select_last_index):
    rank = m.rank()
    words = f"'{m.node.op_type[3:].lower()}', {bool_word(keepdims)}, {bool_word(select_last_index)}"
    return f"onnx_arg({x}, {rank}, {m.dim(axis, rank)}, {words})"


# -- recurrence ----------------------------------------------------------------------------------

DIRECTIONS = {"forward": [0], "reverse": [1], "bidirectional": [0, 1]}
PLAIN = ("sigmoid", "tanh", "relu", "softsign", "softplus")


def _recurrent(m: Call, defaults: list[str], attributes: dict[str, Any]) -> tuple[str, str]:
    """The directions and the activations of a recurrent layer; what it has beyond is refused."""
    reversed_ = DIRECTIONS[attributes["direction"]]
    names = [str(a).lower() for a in attributes["activations"] or defaults * len(reversed_)]
    if attributes["clip"] is not None or attributes["layout"] or not set(names) <= set(PLAIN):
        raise Refused("a clip, a layout or an activation")
    if m.has(4):
        raise Refused("lengths of sequences")
    kinds = [names[i : i + len(defaults)] for i in range(0, len(names), len(defaults))]
    text = "; ".join(", ".join(f"'{n}'" for n in part) for part in kinds)
    return row(reversed_), f"{{{text}}}"


def _padded(inputs: tuple[Any, ...], count: int) -> list[str]:
    return [v or "[]" for v in (*inputs, *(None,) * count)[:count]]


@matlab("LSTM")
def lstm(m, x, w, r, *rest, **attributes):
    backwards, kinds = _recurrent(m, ["sigmoid", "tanh", "tanh"], attributes)
    if attributes["input_forget"]:
        raise Refused("coupled gates")
    b, _, h, c, p = _padded(rest, 5)
    m.emit(
        *m.outputs(),
        expression=f"onnx_lstm({x}, {w}, {r}, {b}, {h}, {c}, {p}, {backwards}, {kinds})",
    )


@matlab("GRU")
def gru(m, x, w, r, *rest, **attributes):
    backwards, kinds = _recurrent(m, ["sigmoid", "tanh"], attributes)
    b, _, h = _padded(rest, 3)
    linear = bool_word(attributes["linear_before_reset"])
    m.emit(
        *m.outputs(),
        expression=f"onnx_gru({x}, {w}, {r}, {b}, {h}, {backwards}, {kinds}, {linear})",
    )


@matlab("RNN")
def rnn(m, x, w, r, *rest, **attributes):
    backwards, kinds = _recurrent(m, ["tanh"], attributes)
    b, _, h = _padded(rest, 3)
    m.emit(*m.outputs(), expression=f"onnx_rnn({x}, {w}, {r}, {b}, {h}, {backwards}, {kinds})")


@matlab("Det")
def det(m, x):
    if m.rank() != 2:
        raise Refused("more than one matrix")
    return f"det({x})"
