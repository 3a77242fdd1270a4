"""Ranks implied by consumers: the input of Conv has the rank of its weights, that of LSTM rank 3.

Shape inference goes forwards and loses the rank where the branches of an If disagree on it. One
sweep backwards recovers it from the value's consumers. Only values of the same graph are refined: a
branch implies nothing about the values around it, because it may never run.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import constant, infer
from sardonyx.passes.nesting import graphs
from sardonyx.values import formal_types

SAME_RANK = frozenset(
    [
        "Abs",
        "Cast",
        "Ceil",
        "Clip",
        "Cos",
        "Dropout",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Log",
        "LogSoftmax",
        "Neg",
        "Reciprocal",
        "Relu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softmax",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Tanh",
    ]
)
RECURRENT = {0: 3, 1: 3, 2: 3, 3: 2, 4: 1, 5: 3, 6: 3, 7: 2}
# Operators whose inputs have one rank, by position.
FIXED = {
    "RNN": RECURRENT,
    "GRU": RECURRENT,
    "LSTM": RECURRENT,
    "Gemm": {0: 2, 1: 2},
    "DepthToSpace": {0: 4},
    "SpaceToDepth": {0: 4},
    "RoiAlign": {0: 4, 1: 2, 2: 1},
    "MaxRoiPool": {0: 4, 1: 2},
    "AffineGrid": {0: 3, 1: 1},
}


def imply_ranks(graph: ir.Graph) -> None:
    """Refine values of unknown rank, in the graph and its bodies, until nothing new is found."""
    for part in graphs(graph):
        while _has_unknown(part) and _sweep(part):
            for node in part:
                if any(v.shape is None for v in node.outputs):
                    infer(node)


def _has_unknown(graph: ir.Graph) -> bool:
    return any(v.shape is None for v in graph.inputs) or any(
        v.shape is None for node in graph for v in node.outputs
    )


def _sweep(graph: ir.Graph) -> bool:
    changed = False
    for node in reversed(graph):
        for position, value, rank in _demands(node):
            if value.shape is not None or rank < 0 or not _belongs(value, graph):
                continue
            value.type = value.type or _demanded_type(node, position)
            if value.type is not None:  # a shape without a type cannot be written
                value.shape = ir.Shape([None] * rank)
                changed = True
    return changed


def _demanded_type(node: ir.Node, position: int) -> ir.TypeProtocol | None:
    """The type of an input, where others that share its type variable have one."""
    schema = opset.schema(node.op_type, node.domain)
    if schema is None:
        return None
    formal = formal_types(schema, len(node.inputs))
    pairs = [*zip(node.inputs, formal, strict=True)]
    pairs += zip(node.outputs, [p.type_str for p in schema.outputs], strict=False)
    types = (v.type for v, name in pairs if v is not None and name == formal[position])
    return next((t for t in types if t is not None), None)


def _belongs(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether `graph` itself computes the value or has it as an input."""
    producer = value.producer()
    if producer is None:
        return value.is_graph_input() and value.graph is graph
    return producer.graph is graph


def _demands(node: ir.Node) -> Iterator[tuple[int, ir.Value, int]]:
    """The inputs of `node` whose rank the node implies, by position, and that rank."""
    if node.domain != "":
        return
    for i, value in enumerate(node.inputs):
        rank = None if value is None else _demanded(node, i)
        if value is not None and rank is not None:
            yield i, value, rank


def _demanded(node: ir.Node, position: int) -> int | None:
    if node.op_type in FIXED:
        return FIXED[node.op_type].get(position)
    if node.op_type in ("Conv", "ConvTranspose"):
        weight = node.inputs[1]
        if weight is None or weight.shape is None or position > 0:
            return None
        return len(weight.shape)
    out = node.outputs[0].shape if node.outputs else None
    if out is None or (position > 0 and node.op_type != "Concat"):
        return None
    if node.op_type in SAME_RANK or node.op_type == "Concat":
        return len(out)
    if node.op_type in ("Unsqueeze", "Squeeze") and len(node.inputs) > 1:
        axes_input = node.inputs[1]
        axes = constant(axes_input)
        if axes_input is None or axes is None or axes_input.is_graph_input():
            return None
        return len(out) + axes.size * (-1 if node.op_type == "Unsqueeze" else 1)
    return None
