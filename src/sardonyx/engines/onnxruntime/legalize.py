"""Substitutes for operators and types that onnxruntime has no kernel for. This is the last resort,
for a model that onnxruntime refused both as it is and in its normalized form.

Operators that it does not know are replaced by the function that defines them in ONNX. Recurrent
layers with the batch first (layout=1) are put between transposes. Types that a kernel does not take
(bfloat16, 16-bit integers) are widened for that one node and narrowed after it, so that every
tensor between nodes keeps its type.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.model import Model
from sardonyx.passes.functions import expand
from sardonyx.passes.nesting import graphs
from sardonyx.passes.nesting import names as all_names

# type -> the type in which to compute instead
WIDER = {
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
    ir.DataType.INT16: ir.DataType.INT32,
    ir.DataType.UINT16: ir.DataType.UINT32,
}
RECURRENT = ("RNN", "GRU", "LSTM")
# onnxruntime's default, "en_US.UTF-8", is not installed on minimal systems.
LOCALE = "C.UTF-8"


def substitute(model: Model) -> Model:
    """A copy of a normalized model with substitutes for what onnxruntime may lack."""
    work = model.copy()
    op = Builder("substitute")
    op.reserve(all_names(work.graph))
    for graph in graphs(work.graph):
        _expand(graph, op)
        for node in list(graph):
            if node.op_type in RECURRENT and node.attributes.get_int("layout", 0) == 1:
                _batch_second(graph, node, op)
            elif node.op_type == "StringNormalizer" and "locale" not in node.attributes:
                node.attributes.add(ir.AttrString("locale", LOCALE))
        for node in list(graph):
            _widen(graph, node, op)
    for value in op.constants.values():
        work.graph.register_initializer(value)
    return work


def _expand(graph: ir.Graph, op: Builder) -> None:
    """Replace Attention and the operators of ai.onnx.preview by their definitions in ONNX."""
    pending = [n for n in graph if n.op_type == "Attention" or n.domain == "ai.onnx.preview"]
    while pending:
        node = pending.pop()
        new_nodes = expand(node, op)
        pending += [n for n in new_nodes or () if n.op_type == "Attention"]


def _batch_second(graph: ir.Graph, node: ir.Node, op: Builder) -> None:
    """Give a recurrent layer with the batch first the default layout, between transposes."""
    node.attributes.add(ir.AttrInt64("layout", 0))
    for position in (0, 5, 6):
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is not None:
            node.replace_input_with(position, op.Transpose(value, perm=[1, 0, 2]))
    graph.insert_before(node, op.nodes)
    op.nodes = []
    for index, value in enumerate(node.outputs):
        if value.uses() or value.is_graph_output():
            perm = [2, 0, 1, 3] if index == 0 else [1, 0, 2]
            _append(graph, node, value, ir.Node("", "Transpose", [value], _ints("perm", perm)))


def _widen(graph: ir.Graph, node: ir.Node, op: Builder) -> None:
    """Compute one node in wider types, with casts before and after it."""
    if node.op_type in ("Cast", "CastLike", "Constant", "BitCast", "Identity"):
        return
    if any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for a in node.attributes.values()
    ):
        return
    for position, value in enumerate(node.inputs):
        if value is not None and value.dtype in WIDER:
            node.replace_input_with(position, op.cast(value, WIDER[value.dtype]))
    if op.nodes:
        graph.insert_before(node, op.nodes)
        op.nodes = []
    for value in node.outputs:
        if value.dtype in WIDER:
            narrow = value.dtype
            value.type = ir.TensorType(WIDER[narrow])
            _append(
                graph, node, value, ir.Node("", "Cast", [value], _int("to", int(narrow))), narrow
            )


def _append(
    graph: ir.Graph,
    node: ir.Node,
    value: ir.Value,
    after: ir.Node,
    dtype: ir.DataType | None = None,
) -> None:
    """Insert `after` behind `node`: all readers of the output `value` read its result instead."""
    readers = [(n, p) for n, p in value.uses() if n is not after]
    (result,) = after.outputs
    result.type = value.type if dtype is None else ir.TensorType(dtype)
    result.name, value.name = value.name, f"{value.name}/substitute"
    graph.insert_after(node, after)
    for reader, position in readers:
        reader.replace_input_with(position, result)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = result


def _int(name: str, value: int) -> list[ir.Attr]:
    return [ir.AttrInt64(name, value)]


def _ints(name: str, values: list[int]) -> list[ir.Attr]:
    return [ir.AttrInt64s(name, values)]
