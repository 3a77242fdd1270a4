"""The floating-point operations of one node, from its shapes.

A multiplication and an addition count as two operations. Operators without a formula here count
one per element of output; those that only move data count none.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from sardonyx.build import is_static, static

MOVES = frozenset(
    [
        "Identity",
        "Reshape",
        "Transpose",
        "Concat",
        "Split",
        "Slice",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "ScatterND",
        "ScatterElements",
        "Expand",
        "Tile",
        "Pad",
        "Cast",
        "CastLike",
        "Shape",
        "Size",
        "Constant",
        "ConstantOfShape",
        "DepthToSpace",
        "SpaceToDepth",
        "If",
        "Loop",
        "Scan",
        "Dropout",
        "ReverseSequence",
        "SequenceConstruct",
        "SequenceAt",
        "SequenceInsert",
        "SequenceEmpty",
        "SequenceLength",
        "SplitToSequence",
        "ConcatFromSequence",
        "OneHot",
        "Range",
        "EyeLike",
        "Compress",
        "Trilu",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "BitCast",
    ]
)


def node_flops(node: ir.Node) -> int | None:
    """The floating-point operations of one node; None where a shape is not known."""
    if node.domain == "" and node.op_type in MOVES:
        return 0
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.name and not is_static(value):
            return None
    formula = FORMULAS.get(node.op_type) if node.domain == "" else None
    if formula is not None:
        return formula(node)
    if node.op_type.startswith(("Reduce", "Arg")):
        return _elements(node.inputs[0])
    return _elements(node.outputs[0]) if node.outputs else 0


def _elements(value: ir.Value | None) -> int:
    return 0 if value is None else math.prod(static(value))


def _matmul(node: ir.Node) -> int:
    a, _ = node.inputs
    return 2 * _elements(node.outputs[0]) * static(a)[-1]  # type: ignore[arg-type]


def _gemm(node: ir.Node) -> int:
    a = static(node.inputs[0])  # type: ignore[arg-type]
    inner = a[0] if node.attributes.get_int("transA", 0) else a[1]
    bias = len(node.inputs) > 2
    return _elements(node.outputs[0]) * (2 * inner + bias)


def _conv(node: ir.Node) -> int:
    weight = static(node.inputs[1])  # type: ignore[arg-type]
    bias = len(node.inputs) > 2
    return _elements(node.outputs[0]) * (2 * math.prod(weight[1:]) + bias)


def _conv_transpose(node: ir.Node) -> int:
    weight = static(node.inputs[1])  # type: ignore[arg-type]
    bias = _elements(node.outputs[0]) if len(node.inputs) > 2 else 0
    return 2 * _elements(node.inputs[0]) * math.prod(weight[1:]) + bias


def _pool(node: ir.Node) -> int:
    return _elements(node.outputs[0]) * math.prod(node.attributes["kernel_shape"].as_ints())


def _whole_input(node: ir.Node) -> int:
    return _elements(node.inputs[0])


def _recurrent(gates: int) -> Callable[[ir.Node], int]:
    def formula(node: ir.Node) -> int:
        steps, batch = static(node.inputs[0])[:2]  # type: ignore[arg-type]
        products = sum(_elements(v) for v in node.inputs[1:3])
        hidden = static(node.inputs[2])[-1] * static(node.inputs[2])[0]  # type: ignore[arg-type]
        return steps * batch * (2 * products + 8 * gates * hidden)

    return formula


def _attention(node: ir.Node) -> int:
    query, key, value = (static(v) for v in node.inputs[:3])  # type: ignore[arg-type]
    scores = math.prod(query) * key[-2]
    return 2 * scores + 2 * math.prod(query[:-1]) * key[-2] * value[-1]


def _times(factor: int) -> Callable[[ir.Node], int]:
    return lambda node: factor * _elements(node.outputs[0])


FORMULAS: dict[str, Callable[[ir.Node], int]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "GlobalAveragePool": _whole_input,
    "GlobalMaxPool": _whole_input,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "Attention": _attention,
    "BatchNormalization": _times(2),
    "LayerNormalization": _times(8),
    "InstanceNormalization": _times(8),
    "GroupNormalization": _times(8),
    "RMSNormalization": _times(5),
    "Softmax": _times(4),
    "LogSoftmax": _times(4),
    "Gelu": _times(8),
    "Sigmoid": _times(3),
}
