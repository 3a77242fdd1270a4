"""Parts of a graph as separate models, for replaying: one node, or the nodes between given values.

The inputs of such a model are the values that its nodes read and do not compute; the caller feeds
them. The initializers come from the original model. Nothing is executed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.model import Model, from_proto
from sardonyx.passes.nesting import bodies, graphs

IR_VERSION = 13


def reads(node: ir.Node) -> list[ir.Value]:
    """Every value that a node reads, also inside its bodies, each once."""
    values = dict.fromkeys(v for v in node.inputs if v is not None)
    inner = [part for body in bodies(node) for part in graphs(body)]
    inner_values: set[ir.Value] = set()
    for part in inner:
        inner_values.update(part.inputs)
        inner_values.update(part.initializers.values())
        inner_values.update(v for n in part for v in n.outputs)
    for part in inner:
        used = [v for n in part for v in n.inputs if v is not None]
        values.update(dict.fromkeys(v for v in (*used, *part.outputs) if v not in inner_values))
    return list(values)


def is_constant(value: ir.Value) -> bool:
    """Whether a value is part of the model rather than computed or fed."""
    return value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def between(outputs: Iterable[ir.Value], stop: Callable[[ir.Value], bool]) -> list[ir.Node]:
    """The nodes that compute `outputs` from values for which `stop` holds, in order."""
    selection: dict[ir.Node, None] = {}
    graph = None
    pending = [v.producer() for v in outputs]
    while pending:
        node = pending.pop()
        if node is None or node in selection:
            continue
        graph = node.graph if graph is None else graph
        if node.graph is not graph:
            continue
        selection[node] = None
        pending.extend(v.producer() for v in reads(node) if not stop(v) and not is_constant(v))
    if len(selection) < 2 or graph is None:
        return list(selection)
    return [node for node in graph if node in selection]


def boundary(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """The inputs of a part: what its nodes read and do not compute, without constants."""
    produced = {v for node in nodes for v in node.outputs}
    values = dict.fromkeys(v for node in nodes for v in reads(node) if v not in produced)
    return [v for v in values if not is_constant(v)]


def piece(
    owner: Model, nodes: Sequence[ir.Node], values: Mapping[str, Any], outputs: Sequence[str]
) -> Model:
    """A model of these nodes. `values` holds its inputs by name, for their types and shapes."""
    proto = onnx.ModelProto(ir_version=IR_VERSION)
    inner = [n for node in nodes for body in bodies(node) for part in graphs(body) for n in part]
    used = {"", *(n.domain for n in (*nodes, *inner))}
    for domain, version in owner.ir.opset_imports.items():
        if domain in used:
            proto.opset_import.add(domain=domain, version=version)
    graph = proto.graph
    graph.name = nodes[0].op_type if len(nodes) == 1 else "piece"
    produced = {v: v.name for node in nodes for v in node.outputs}
    for value in dict.fromkeys(v for node in nodes for v in reads(node)):
        if value in produced:
            continue
        if is_constant(value):
            assert value.const_value is not None
            tensor = ir.serde.serialize_tensor(value.const_value)
            tensor.name = value.name or ""
            graph.initializer.append(tensor)
        elif values.get(value.name or "") is not None:
            graph.input.append(_info(value, values[value.name or ""]))
    for node in nodes:
        graph.node.append(ir.serde.serialize_node(node))
    output_names = set(outputs)
    for value in produced:
        if value.name in output_names:
            graph.output.append(_info(value, None))
    return from_proto(proto)


def _info(value: ir.Value, array: Any) -> onnx.ValueInfoProto:
    kind, shape = value.type, value.shape
    if isinstance(array, np.ndarray):
        shape = ir.Shape(array.shape)
        if kind is None:
            kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    return ir.serde.serialize_value(ir.Value(name=value.name, type=kind, shape=shape))
