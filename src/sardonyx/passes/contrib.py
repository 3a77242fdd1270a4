"""onnxruntime's quantized and fused operators (`com.microsoft`), written with ONNX's own.

Its quantizer and its optimizer write them. A quantized one becomes DequantizeLinear, the operation
on floats, QuantizeLinear: a form that every engine runs and that has a gradient. onnxruntime's
kernels multiply integers instead, so that a value halfway between two levels may be rounded to the
other. A fused product becomes the product and what was fused with it.

A node that none of these forms describes (a rotary embedding, …) stays as it is.
`passes/contrib_transformer.py` has the forms of transformers.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant, is_static, static
from sardonyx.passes import contrib_transformer
from sardonyx.passes.functions import replace
from sardonyx.passes.nesting import graphs, names

DOMAIN = "com.microsoft"
FLOAT = ir.DataType.FLOAT
Result = ir.Value | tuple[ir.Value | None, ...] | None
# Builder, inputs in order (None where omitted), attributes → outputs; None: not a standard form.
# A form may give more outputs than a node has.
FORMS: dict[str, Callable[..., Result]] = {**contrib_transformer.FORMS}


def standardize(graph: ir.Graph) -> None:
    """Rewrite onnxruntime's own operators in a graph and in its bodies."""
    nodes = [n for part in graphs(graph) for n in part if n.domain == DOMAIN and n.op_type in FORMS]
    if not nodes:
        return
    op = Builder()
    op.reserve(names(graph))
    for node in nodes:
        with op.named(node.name or node.op_type), op:
            results = _apply(op, node)
        new_nodes, op.nodes = op.nodes, []
        listed = list(results) if isinstance(results, tuple) else [results]
        if _covers(listed, node):
            replace(node, new_nodes, listed)
            _remove_unread(new_nodes)
    for value in op.constants.values():
        if value.uses():
            graph.register_initializer(value)


def _covers(results: list[ir.Value | None], node: ir.Node) -> bool:
    """Whether a form gives every output that a node has."""
    padded = [*results, *[None] * len(node.outputs)]
    return all(not v.name or r is not None for v, r in zip(node.outputs, padded, strict=False))


def _remove_unread(nodes: list[ir.Node]) -> None:
    for node in reversed(nodes):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            assert node.graph is not None
            node.graph.remove(node, safe=True)


def _apply(op: Builder, node: ir.Node) -> Result:
    form = FORMS[node.op_type]
    parameters = list(inspect.signature(form).parameters.values())[1:]
    count = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    inputs = [*node.inputs, *[None] * (count - len(node.inputs))]
    return form(op, *inputs, **{name: a.value for name, a in node.attributes.items()})


def _form(*op_types: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    def register(function: Callable[..., Result]) -> Callable[..., Result]:
        FORMS.update(dict.fromkeys(op_types, function))
        return function

    return register


def _levels(op: Builder, y: Any, scale: Any, zero: Any, like: ir.Value) -> ir.Value:
    """Floats as levels; without a zero point, as integers of the type of `like`."""
    typed = {} if zero is not None or like.dtype is None else {"output_dtype": int(like.dtype)}
    return op.QuantizeLinear(y, scale, zero, **typed)


def _channels_first(op: Builder, x: ir.Value) -> ir.Value:
    rank = len(x.shape)  # type: ignore[arg-type]
    return op.Transpose(x, perm=[0, rank - 1, *range(1, rank - 1)])


def _channels_last(op: Builder, y: ir.Value, rank: int) -> ir.Value:
    return op.Transpose(y, perm=[0, *range(2, rank), 1])


# -- element by element and along axes -------------------------------------------------------------


def _binary(name: str) -> None:
    def form(op, a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero):
        left, right = (
            op.DequantizeLinear(a, a_scale, a_zero),
            op.DequantizeLinear(b, b_scale, b_zero),
        )
        return _levels(op, op.call(name, [left, right]), c_scale, c_zero, a)

    FORMS[f"QLinear{name}"] = form


def _unary(name: str, op_type: str | None = None, **fixed: Any) -> None:
    def form(op, x, x_scale, x_zero, y_scale, y_zero, **attributes):
        is_last = bool(attributes.pop("channels_last", 0))
        if is_last and x.shape is None:
            return None
        data = _channels_first(op, x) if is_last else x
        y = op.call(
            op_type or name, [op.DequantizeLinear(data, x_scale, x_zero)], {**attributes, **fixed}
        )
        levels = _levels(op, y, y_scale, y_zero, x)
        return _channels_last(op, levels, len(x.shape)) if is_last else levels

    FORMS[f"QLinear{name}"] = form


for _name in ("Add", "Mul"):
    _binary(_name)
for _name in ("Sigmoid", "LeakyRelu", "GlobalAveragePool", "AveragePool"):
    _unary(_name)


@_form("QLinearSoftmax")
def _softmax(op, x, x_scale, x_zero, y_scale, y_zero, *, axis=-1, opset=13):
    if opset < 13 and axis != -1:
        return None  # the older operator flattens its input to a matrix
    return _levels(
        op, op.Softmax(op.DequantizeLinear(x, x_scale, x_zero), axis=axis), y_scale, y_zero, x
    )


@_form("QLinearWhere")
def _where(op, condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero):
    chosen = op.Where(
        condition, op.DequantizeLinear(x, x_scale, x_zero), op.DequantizeLinear(y, y_scale, y_zero)
    )
    return _levels(op, chosen, z_scale, z_zero, x)


@_form("QLinearConcat")
def _concat(op, y_scale, y_zero, *inputs, axis):
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    joined = op.Concat(*(op.DequantizeLinear(*triple) for triple in triples), axis=axis)
    return _levels(op, joined, y_scale, y_zero, inputs[0])


def _same_operator(name: str) -> None:
    FORMS[name] = lambda op, x, scale, zero, *, axis=1: op.call(
        name, [x, scale, zero], {"axis": axis}
    )


for _name in ("QuantizeLinear", "DequantizeLinear"):
    _same_operator(_name)


# -- products --------------------------------------------------------------------------------------


@_form("QLinearConv")
def _conv(
    op, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b, *, channels_last=0, **window
):
    if channels_last and x.shape is None:
        return None
    data = _channels_first(op, x) if channels_last else x
    inputs = [data, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b]
    y = op.call("QLinearConv", inputs, window)
    return _channels_last(op, y, len(x.shape)) if channels_last else y


@_form("QGemm")
def _gemm(
    op, a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero, *, alpha=1.0, transA=0, transB=0
):
    left = op.DequantizeLinear(a, a_scale, a_zero)
    right = op.DequantizeLinear(b, b_scale, b_zero, axis=0 if transB else 1)
    bias = None
    if c is not None:  # integers, added before anything is scaled
        bias = op.DequantizeLinear(c, op.Mul(a_scale, b_scale), axis=-1)
        bias = bias if alpha == 1 else op.Mul(bias, op.const(alpha, FLOAT))
    y = op.Gemm(left, right, bias, alpha=alpha, transA=transA, transB=transB)
    return y if y_scale is None else _levels(op, y, y_scale, y_zero, a)


@_form("MatMulIntegerToFloat")
def _matmul_to_float(op, a, b, a_scale, b_scale, a_zero, b_zero, bias):
    right = op.DequantizeLinear(b, b_scale, b_zero, axis=-1)
    product = op.MatMul(op.DequantizeLinear(a, a_scale, a_zero), right)
    return product if bias is None else op.Add(product, bias)


@_form("DynamicQuantizeMatMul")
def _dynamic_matmul(op, a, b, b_scale, b_zero, bias):
    product = op.MatMul(_rounded(op, a), op.DequantizeLinear(b, b_scale, b_zero, axis=-1))
    return product if bias is None else op.Add(product, bias)


@_form("MatMulNBits")
def _matmul_of_few_bits(
    op, a, b, scales, zeros, order, bias,
    *, K, N, bits=4, block_size, accuracy_level=0, weight_prepacked=0,
):  # fmt: skip
    packed, points = constant(b), constant(zeros)
    float_zeros = zeros is not None and (points is None or points.dtype != np.uint8)
    if packed is None or float_zeros or order is not None or bits not in (4, 8) or weight_prepacked:
        return None
    blocks = -(-K // block_size)
    kind = np.uint8 if bits == 8 else ml_dtypes.uint4
    levels = _unpacked(packed.reshape(N, -1), bits)[:, :K]
    if points is None:
        points = np.full((N, blocks), 1 << (bits - 1), np.uint8)
    else:
        points = _unpacked(points.reshape(N, -1), bits)[:, :blocks]
    weight = op.DequantizeLinear(
        op.weight(b.name, levels.astype(kind)),
        op.Reshape(scales, [N, blocks]),
        op.const(points.astype(kind)),
        axis=1,
        block_size=block_size,
    )
    product = op.MatMul(a, op.Transpose(weight, perm=[1, 0]))
    return product if bias is None else op.Add(product, bias)


def _unpacked(content: np.ndarray, bits: int) -> np.ndarray:
    """Rows of bytes as rows of numbers; of two in a byte, the lower bits come first."""
    if bits == 8:
        return content
    return np.stack([content & 15, content >> 4], axis=-1).reshape(len(content), -1)


@_form("FusedMatMul")
def _fused_matmul(op, a, b, *, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0):
    if transBatchA or transBatchB:
        return None
    factors = []
    for x, transposed in ((a, transA), (b, transB)):
        if transposed and (x.shape is None or len(x.shape) < 2):
            return None
        factors.append(op.swap(x) if transposed else x)
    product = op.MatMul(*factors)
    return product if alpha == 1 else op.Mul(product, op.CastLike(op.const(alpha, FLOAT), product))


@_form("FusedGemm")
def _fused_gemm(
    op, a, b, c, *, activation="", activation_alpha=0.01, activation_beta=0.0,
    activation_gamma=0.0, **settings,
):  # fmt: skip
    y = op.call("Gemm", [a, b, c], settings)
    return _activated(op, y, activation, [activation_alpha, activation_beta])


@_form("FusedConv")
def _fused_conv(op, x, w, b, z, *, activation="", activation_params=(), **window):
    y = op.call("Conv", [x, w, b], window)
    return _activated(op, y if z is None else op.Add(y, z), activation, list(activation_params))


def _activated(op: Builder, y: ir.Value, name: str, numbers: list[float]) -> ir.Value | None:
    if name in ("", "Relu", "Sigmoid", "Tanh"):
        return op.call(name, [y]) if name else y
    if name == "LeakyRelu" and numbers:
        return op.LeakyRelu(y, alpha=numbers[0])
    if name == "HardSigmoid" and len(numbers) == 2:
        return op.HardSigmoid(y, alpha=numbers[0], beta=numbers[1])
    if name == "Clip" and len(numbers) == 2:
        low, high = (op.CastLike(op.const(v, FLOAT), y) for v in numbers)
        return op.Clip(y, low, high)
    return None


def _rounded(op: Builder, x: ir.Value) -> ir.Value:
    """`x` on the levels that its own range gives."""
    return op.DequantizeLinear(*op.DynamicQuantizeLinear(x, outputs=3))


@_form("DynamicQuantizeLSTM")
def _lstm(op, x, w, r, b, lengths, h, c, p, w_scale, w_zero, r_scale, r_zero, **attributes):
    # The kernel also rounds the state of each step, by the range of those rows of the batch that
    # one thread computes: its result depends on the number of threads. Here the state stays exact.
    kernels = [_gates(op, *three) for three in ((w, w_scale, w_zero), (r, r_scale, r_zero))]
    if kernels[0] is None or kernels[1] is None:
        return None
    inputs = [_rounded(op, x), *kernels, b, lengths, h, c, p]
    return op.call("LSTM", inputs, attributes, outputs=3)


def _gates(op: Builder, w: ir.Value, scale: ir.Value, zero: ir.Value) -> ir.Value | None:
    """(D, I, 4H) integers as (D, 4H, I) floats; scales per direction, or per direction and gate."""
    if scale.shape is None or not is_static(w):
        return None
    turned = op.Transpose(w, perm=[0, 2, 1])
    if len(scale.shape) == 1:
        return op.DequantizeLinear(turned, scale, zero, axis=0)
    directions, width, gates = static(w)
    rows = op.Reshape(turned, [directions * gates, width])
    dense = op.DequantizeLinear(rows, op.Reshape(scale, [-1]), op.Reshape(zero, [-1]), axis=0)
    return op.Reshape(dense, [directions, gates, width])


@_form("QAttention")
def _attention(
    op, x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past, **attributes,
):  # fmt: skip
    dense = op.DequantizeLinear(x, x_scale, x_zero)
    weight = op.DequantizeLinear(w, w_scale, w_zero, axis=-1)
    unused = (None, None)  # a bias of scores, the length of what went before
    return contrib_transformer.FORMS["Attention"](
        op, dense, weight, bias, mask, past, *unused, **attributes
    )
