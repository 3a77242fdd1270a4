"""The cost of one run, from shapes alone: floating-point operations and memory of activations.

A multiplication and an addition count as two operations. Operators without a formula here count
one per element of output; those that only move data count none. A node whose shapes are not known
is counted in `unknown_nodes`, and in nothing else; a body counts once, whatever the number of its
runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.build import is_static, static
from sardonyx.passes.nesting import bodies, graphs


@dataclass(frozen=True)
class Cost:
    """The cost of one run at given sizes.

    activation_bytes  -- all results of nodes together: what training keeps, at most
    peak_bytes        -- the most that is alive at once when each result goes after its last use
    """

    sizes: dict[str, int] = field(default_factory=dict)
    flops: int = 0
    activation_bytes: int = 0
    peak_bytes: int = 0
    unknown_nodes: int = 0


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


def cost(graph: ir.Graph, sizes: Mapping[str, int]) -> Cost:
    """The cost of running a normalized graph whose sizes are known."""
    flops = unknown = 0
    for part in graphs(graph):
        for node in part:
            counted = node_flops(node)
            unknown += counted is None
            flops += counted or 0
    total, peak = _memory(graph)
    return Cost(dict(sizes), flops, total, peak, unknown)


def node_flops(node: ir.Node) -> int | None:
    """The floating-point operations of one node; None where a shape is not known."""
    if node.domain == "" and node.op_type in MOVES:
        return 0
    operands = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
    if not all(is_static(v) for v in operands):
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


def _memory(graph: ir.Graph) -> tuple[int, int]:
    """Bytes of all results in the graph, and the most alive at once in node order."""
    last: dict[ir.Value, int] = {}
    nodes = list(graph)
    for position, node in enumerate(nodes):
        for inner in [node, *(n for body in bodies(node) for g in graphs(body) for n in g)]:
            for value in inner.inputs:
                if value is not None:
                    last[value] = position
    outputs = set(graph.outputs)
    ending: dict[int, int] = {}
    total = peak = alive = 0
    for value in graph.inputs:
        if value.name not in graph.initializers:
            alive += _bytes(value)
            if value in last and value not in outputs:
                ending[last[value]] = ending.get(last[value], 0) + _bytes(value)
    for position, node in enumerate(nodes):
        for value in node.outputs:
            size = _bytes(value)
            total, alive = total + size, alive + size
            if value not in outputs:
                end = last.get(value, position)
                ending[end] = ending.get(end, 0) + size
        peak = max(peak, alive)
        alive -= ending.pop(position, 0)
    return total, peak


def _bytes(value: ir.Value) -> int:
    dtype = value.dtype
    unsized = (None, ir.DataType.STRING, ir.DataType.UNDEFINED)
    if not is_static(value) or dtype is None or dtype in unsized:
        return 0
    return -(-math.prod(static(value)) * dtype.bitwidth // 8)
