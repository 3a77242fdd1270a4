"""The loss of a record as a model of its own, cut out of the record's algorithm.

A loss that is a graph of the user's, as importers write it, has no name by which it could be made
again; its nodes are in the algorithm, between tensors of the served model and the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model, Record
from sardonyx.opset import TRAINING_DOMAIN
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import reads


@dataclass
class LossGraph:
    """The part of an algorithm that computes a loss.

    predictions -- tensors of the served model that it reads, by their names there: outputs first
    labels      -- inputs of the algorithm that it reads
    """

    total: ir.Value
    nodes: list[ir.Node]
    predictions: dict[str, ir.Value] = field(default_factory=dict)
    labels: dict[str, ir.Value] = field(default_factory=dict)
    constants: dict[ir.Value, ir.TensorProtocol] = field(default_factory=dict)


def loss_graph(model: Model, record: Record, description: Mapping[str, Any]) -> LossGraph:
    """The nodes between the tensors of `model` that the loss of a record judges, and this loss."""
    graph = record.algorithm
    total = next(v for v in graph.outputs if v.name == description["total"])
    served = {v.name or "": v.name or "" for node in model.graph for v in node.outputs}
    served |= {in_training: name for name, in_training in description.get("forward", {}).items()}
    labels = [name for term in description["loss_terms"] for name in term["labels"]]
    inputs = {v.name or "" for v in model.inputs}
    changing = {name for name, _ in record.update_binding}
    part, weights = LossGraph(total, []), []
    pending, visited = [total], {total}
    while pending:
        value = pending.pop(0)
        name, node = value.name or "", value.producer()
        if value is not total and name in served:
            part.predictions[served[name]] = value
        elif node is not None:
            part.nodes.append(node)
            fresh = [v for v in dict.fromkeys(reads(node)) if v not in visited]
            visited |= set(fresh)
            pending += fresh
        elif name in labels or name in inputs:
            (part.labels if name in labels else part.predictions)[name] = value
        elif name in changing:
            weights.append(name)
        else:
            part.constants[value] = _constant(model, record, name)
    if weights:
        raise ArgumentError(
            "the loss of this record reads weights, and not what the model returns alone",
            [[quote(name)] for name in weights],
            hint="sx.prepare_training trains it on every engine",
        )
    outputs = [v.name or "" for v in model.outputs if v.name in part.predictions]
    order = dict.fromkeys([*outputs, *part.predictions])
    part.predictions = {name: part.predictions[name] for name in order}
    part.labels = {name: part.labels[name] for name in dict.fromkeys(labels) if name in part.labels}
    used = set(part.nodes)
    part.nodes = [node for node in graph if node in used]
    return part


def _constant(model: Model, record: Record, name: str) -> ir.TensorProtocol:
    tensor = record.state.get(name)
    return model.initializer(name) if tensor is None else tensor


def as_model(part: LossGraph, source: Model) -> Model:
    """Predictions and labels in, one number out; in the operators of `source`."""
    values: dict[ir.Value, ir.Value | None] = {}
    for name, value in {**part.predictions, **part.labels}.items():
        values[value] = ir.Value(name=name, type=value.type, shape=value.shape)
    inputs = [v for v in values.values() if v is not None]
    constants = []
    for value, tensor in part.constants.items():
        copy = ir.Value(name=value.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape)  # type: ignore[arg-type]
        copy.const_value = tensor
        values[value] = copy
        constants.append(copy)
    nodes = copy_nodes(part.nodes, values, {}, lambda name: name)
    total = values[part.total]
    assert total is not None
    total.name = "loss"
    imports = {k: v for k, v in source.ir.opset_imports.items() if k != TRAINING_DOMAIN}
    graph = ir.Graph(
        inputs, [total], nodes=nodes, initializers=constants, opset_imports=imports, name="loss"
    )
    functions = list(source.ir.functions.values())
    return Model(ir.Model(graph, ir_version=source.ir.ir_version or 10, functions=functions))
