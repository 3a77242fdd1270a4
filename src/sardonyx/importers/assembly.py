"""Put a model together: the inputs of a source, the nodes that a builder has, named outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import Builder
from sardonyx.model import Model

IR_VERSION = 13


def graph_input(name: str, dtype: ir.DataType, shape: Sequence[int | str | None]) -> ir.Value:
    """A graph input; names and None in `shape` are free sizes."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(list(shape)))


def assemble(
    op: Builder,
    inputs: Sequence[ir.Value],
    outputs: Mapping[str, ir.Value],
    name: str = "model",
    metadata: Mapping[str, str] | None = None,
) -> Model:
    """The model of everything that `op` has built, with `outputs` under their names."""
    results = [_named(op, value, key) for key, value in outputs.items()]
    domains = {"": opset.OPSET, **{n.domain: opset.INSIDE.get(n.domain, 1) for n in op.nodes}}
    read = {id(v) for node in op.nodes for v in node.inputs if v is not None}
    read |= {id(v) for g in _bodies(op) for node in g for v in node.inputs if v is not None}
    graph = ir.Graph(
        list(inputs),
        results,
        nodes=op.nodes,
        initializers=[v for v in op.constants.values() if id(v) in read],
        opset_imports=domains,
        name=name,
    )
    model = ir.Model(graph, ir_version=IR_VERSION, producer_name="sardonyx")
    model.metadata_props.update(metadata or {})
    return Model(model)


def _bodies(op: Builder) -> list[ir.Graph]:
    attributes = (a for node in op.nodes for a in node.attributes.values())
    graphs = [a.as_graph() for a in attributes if a.type == ir.AttributeType.GRAPH]
    return graphs + [inner for graph in graphs for inner in graph.subgraphs()]


def _named(op: Builder, value: ir.Value, name: str) -> ir.Value:
    """`value` under the name of an output, which no other output or input shares."""
    if value.producer() is None or value.meta.get("output"):
        value = op.Identity(value)
    value.name = name
    value.meta["output"] = True
    return value


def free_names(op: Builder, inputs: Sequence[ir.Value], outputs: Sequence[str]) -> None:
    """Keep the names of inputs and outputs away from inner values, before nodes are built."""
    op.reserve([v.name or "" for v in inputs] + list(outputs))


def entry(text: Any) -> str:
    """A value of metadata as text."""
    return text if isinstance(text, str) else repr(text)
