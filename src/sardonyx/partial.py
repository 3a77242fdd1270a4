"""Partial graphs: graphs that read tensors of another graph by name, as training records do.

What a partial graph reads and nothing in it defines is a *free value*: an `ir.Value` without a
producer that is neither an input nor an initializer. Its name refers to the tensor of that name in
the graph that the partial graph is joined to. A type on a free value is a declaration of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

_GRAPH_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def free_values(graph: ir.Graph) -> list[ir.Value]:
    """The values that a graph or a body inside it reads and nothing in it defines."""
    defined: set[ir.Value | None] = {None}
    read: dict[ir.Value | None, None] = {}
    pending = [graph]
    while pending:
        part = pending.pop()
        defined.update(part.inputs, part.initializers.values())
        inner: list[ir.Graph] = []
        for node in part:
            defined.update(node.outputs)
            for value in node.inputs:
                read[value] = None
            if node.attributes.data:
                inner += bodies(node)
        read.update(dict.fromkeys(part.outputs))
        pending.extend(reversed(inner))
    return [value for value in read if value is not None and value not in defined]


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs that a node holds as attributes."""
    graphs_inside: list[ir.Graph] = []
    for attr in node.attributes.data.values():
        kind = attr.type
        if kind not in _GRAPH_TYPES or attr.is_ref():
            continue
        graphs_inside.extend(attr.value if kind == ir.AttributeType.GRAPHS else [attr.value])
    return graphs_inside


def clone(graph: ir.Graph) -> ir.Graph:
    """An independent copy over the same tensors; its free values are its own."""
    view = ir.GraphView(
        [*graph.inputs, *free_values(graph)],
        graph.outputs,
        nodes=graph,
        initializers=list(graph.initializers.values()),
        doc_string=graph.doc_string,
        opset_imports=dict(graph.opset_imports),
        name=graph.name,
        metadata_props=dict(graph.metadata_props),
    )
    view.meta.update(graph.meta)
    copy = view.clone()
    while len(copy.inputs) > len(graph.inputs):
        copy.inputs.pop()
    return copy


def detach(graph: ir.Graph) -> None:
    """Give a graph free values instead of the values of another graph that its nodes read."""
    nodes = set(graph.all_nodes())
    for value in free_values(graph):
        free = ir.Value(name=value.name)
        for node, index in list(value.uses()):
            if node in nodes:
                node.replace_input_with(index, free)


def join(graph: ir.Graph, part: ir.Graph) -> None:
    """Move all of `part` into `graph`; its free values become the values of those names there."""
    values = named_values(graph)
    connected = {v: values[v.name] for v in free_values(part) if v.name in values}
    outputs = [connected.get(v, v) for v in part.outputs]
    inputs, nodes, initializers = list(part.inputs), list(part), list(part.initializers.values())
    part.outputs.clear()
    part.inputs.clear()
    part.initializers.clear()
    part.remove(nodes)
    for free, value in connected.items():
        if free.uses():
            free.replace_all_uses_with(value)
    graph.inputs.extend(inputs)
    graph.extend(nodes)
    for value in initializers:
        graph.register_initializer(value)
    graph.outputs.extend(outputs)


def add_initializers(graph: ir.Graph, tensors: Mapping[str, ir.TensorProtocol]) -> None:
    """Make initializers of the inputs and free values that have the names of `tensors`."""
    values = {v.name: v for v in (*free_values(graph), *graph.inputs)}
    for name, tensor in tensors.items():
        value = values.get(name) or ir.Value(name=name)
        value.const_value = tensor
        if not value.is_graph_input():
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        graph.register_initializer(value)


def named_values(graph: ir.Graph) -> dict[str, ir.Value]:
    """The values that a graph itself defines, by name."""
    values: Iterable[ir.Value] = (*graph.inputs, *graph.initializers.values())
    named = {v.name: v for v in values if v.name}
    named.update((v.name, v) for node in graph for v in node.outputs if v.name)
    return named
