"""Put a model together: the inputs of a source, the nodes that a builder has, named outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import Builder, constant
from sardonyx.model import Model
from sardonyx.passes.dead import remove_dead

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
    """The model of what `op` has built and the outputs need; `outputs` get their names."""
    results = [_named(op, value, key) for key, value in outputs.items()]
    for node in list(op.nodes):
        _keep_scale(op, node)
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
    remove_dead(graph)
    model = ir.Model(graph, ir_version=IR_VERSION, producer_name="sardonyx")
    model.metadata_props.update(metadata or {})
    return Model(model)


def _keep_scale(op: Builder, node: ir.Node) -> None:
    """Repeat the scalar factor of a matrix of doubles over the columns of the matrix.

    onnxruntime 1.31 moves a scalar factor into the product of matrices beside it, where it is an
    attribute, and attributes are float32.
    """
    if node.domain or node.op_type not in ("Mul", "Div") or len(node.inputs) != 2:
        return
    for i, value in enumerate(node.inputs):
        other = node.inputs[1 - i]
        if value is None or other is None or other.shape is None or len(other.shape) < 2:
            continue
        array, width = constant(value), other.shape[-1]
        if array is None or array.size != 1 or array.dtype != np.float64:
            continue
        if isinstance(width, int) and width > 1:
            row = np.full((1,) * (len(other.shape) - 1) + (width,), array.item())
            node.replace_input_with(i, op.const(row))
        elif _is_product(other) or any(
            use.op_type == "MatMul" for use, _ in node.outputs[0].uses()
        ):
            _as_product(
                op, node, other, array.item() if node.op_type == "Mul" else 1 / array.item()
            )


def _is_product(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "MatMul"


def _as_product(op: Builder, node: ir.Node, value: ir.Value, factor: float) -> None:
    """Write the factor of a matrix of one column as a product with a matrix of one element."""
    if node.op_type == "Div" and node.inputs[0] is not value:
        return
    product = ir.Node(
        "",
        "MatMul",
        [value, op.const(np.full((1, 1), factor))],
        name=op.fresh(f"{node.name}/scale"),
    )
    (out,), (old,) = product.outputs, node.outputs
    out.name, out.type, out.shape = product.name, old.type, old.shape
    old.replace_all_uses_with(out)
    op.nodes.insert(op.nodes.index(node), product)


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
