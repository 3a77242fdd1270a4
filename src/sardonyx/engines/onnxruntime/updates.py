"""The updates of a step, which onnxruntime need not optimize: taken out before, put back after.

An update is a chain of elementwise operators of its own for each parameter, in which onnxruntime
finds nothing to fuse. In a transformer these are more than half of the nodes and three quarters of
the inputs and outputs, and the time to optimize a graph grows with all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.engines.onnxruntime import blocks
from sardonyx.engines.onnxruntime.blocks import ELEMENTWISE

PRODUCTS = frozenset(("Conv", "ConvTranspose", "FusedMatMul", "Gemm", "MatMul", "Transpose"))


@dataclass
class Updates:
    """What was taken out of a graph.

    nodes    -- in order
    inputs   -- those of the graph that only these nodes read
    outputs  -- of the whole graph, as they were
    """

    nodes: list[ir.Node]
    inputs: list[ir.Value]
    outputs: list[ir.Value]


def take_updates(graph: ir.Graph, new_values: Iterable[str]) -> Updates:
    """Take out the elementwise nodes that lead to new values and to nothing else.

    new_values -- the outputs that variables are set to

    What these nodes read of the rest of the graph becomes an output of it.
    """
    nodes = _nodes(graph, set(new_values))
    if len(nodes) == len(graph):
        nodes = []  # onnxruntime refuses an empty graph
    inside = set(nodes)
    outputs = list(graph.outputs)
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
    inputs = [
        v
        for v in graph.inputs
        if v in read and not v.is_graph_output() and all(n in inside for n in v.consumers())
    ]
    remaining = [v for v in outputs if v.producer() not in inside]
    shown = set(remaining)
    crossing = [v for v in read if v.producer() not in inside and v.producer() and v not in shown]
    kept = set(inputs)
    graph.outputs.clear()
    graph.outputs.extend([*remaining, *crossing])
    rest = [v for v in graph.inputs if v not in kept]
    graph.inputs.clear()
    graph.inputs.extend(rest)
    graph.remove(nodes)
    return Updates(nodes, inputs, outputs)


def _nodes(graph: ir.Graph, new_values: set[str]) -> list[ir.Node]:
    """Elementwise nodes, and loops over them, of which all readers are such nodes too."""
    inside: set[ir.Node] = set()
    for node in reversed(graph):
        if (
            _is_update(node)
            and not _is_fused(node)
            and all(
                all(reader in inside for reader in value.consumers())
                and (not value.is_graph_output() or value.name in new_values)
                for value in node.outputs
            )
        ):
            inside.add(node)
    return [node for node in graph if node in inside]


def _is_update(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    return node.op_type in ELEMENTWISE or (node.name or "").startswith(blocks.NAME)


def _is_fused(node: ir.Node) -> bool:
    """Whether onnxruntime may fuse a node with the product before it: a constant factor or bias."""
    makers = [v.producer() for v in node.inputs if v is not None]
    follows = any(m is not None and m.op_type in PRODUCTS for m in makers)
    return follows and any(v is not None and v.is_initializer() for v in node.inputs)


def keep_apart(graph: ir.Graph, new_values: Iterable[str]) -> None:
    """Let onnxruntime fuse nothing that `take_updates` would have taken out of its reach: a product
    and an Add, which adds the other gradient of a weight that is used twice, become a Gemm.
    """
    for node in _nodes(graph, set(new_values)):
        makers = [v.producer() for v in node.inputs if v is not None]
        if node.op_type == "Add" and any(m is not None and m.op_type == "MatMul" for m in makers):
            node.op_type = "Sum"


def put_back(graph: ir.Graph, updates: Updates) -> None:
    """Put the updates behind the optimized rest of their graph, whose names are the same."""
    # a constant can be an output
    present = [*graph.inputs, *updates.inputs, *graph.outputs]
    present += [v for node in graph for v in node.outputs]
    values = {v.name: v for v in present}
    inside = {v for node in updates.nodes for v in node.outputs}
    constants: dict[ir.Value, ir.Value] = {}
    for node in updates.nodes:
        for index, value in enumerate(node.inputs):
            if value is None or value in inside:
                continue
            if value.is_initializer():
                node.replace_input_with(index, _constant(graph, value, constants))
            else:
                node.replace_input_with(index, values[value.name])
    graph.inputs.extend(updates.inputs)
    graph.extend(updates.nodes)
    results = [v if v in inside else values[v.name] for v in updates.outputs]
    graph.outputs.clear()
    graph.outputs.extend(results)


def _constant(graph: ir.Graph, value: ir.Value, constants: dict[ir.Value, ir.Value]) -> ir.Value:
    """A constant of the updates, under a name that onnxruntime has not given to another."""
    if value not in constants:
        copy = ir.Value(name=f"sardonyx/updates/{value.name}", const_value=value.const_value)
        copy.type, copy.shape = value.type, value.shape
        graph.register_initializer(copy)
        constants[value] = copy
    return constants[value]
