"""The captured graph in two: what is served, and what computes the loss from it and from labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.errors import ArgumentError, quote
from sardonyx.importers.torch.translate import KIND
from sardonyx.model import Model
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import reads

CRITERION = "criterion."  # where weights and buffers of the loss itself are


@dataclass
class Split:
    """A model that serves, and its loss.

    loss   -- a model whose inputs are tensors of the served one, then labels; it has one output
    reads  -- the names of these tensors
    labels -- the names of the label inputs
    """

    served: Model
    loss: Model
    reads: list[str]
    labels: list[str]


def split(model: Model, loss_name: str, labels: Sequence[str]) -> Split:
    """Separate the loss from the outputs; `model` becomes the served part."""
    graph = model.graph
    loss = next(v for v in graph.outputs if v.name == loss_name)
    outputs = [v for v in graph.outputs if v is not loss]
    served = _before(outputs)
    rest = [n for n in graph if n in _before([loss]) and n not in served]
    read = list(dict.fromkeys(v for n in rest for v in reads(n) if v.producer() not in rest))
    values_of_served = {v for n in served for v in reads(n)}
    label_values = [
        v
        for v in graph.inputs
        if v.name in labels and v not in values_of_served and v not in outputs
    ]
    tensors = [v for v in read if v not in label_values and not _is_constant(v)]
    _refuse(loss, rest, tensors, [v for v in read if v in label_values], labels, values_of_served)
    part = _as_model(model, rest, tensors, label_values, loss)
    graph.outputs.remove(loss)
    for node in reversed(rest):
        graph.remove(node, safe=True)
    for value in label_values:
        graph.inputs.remove(value)
    _drop_constants(graph)
    names = [v.name or "" for v in tensors]
    return Split(model, part, names, [v.name or "" for v in label_values])


def _before(values: Iterable[ir.Value]) -> set[ir.Node]:
    """Every node that these values depend on."""
    stack = [n for v in values if (n := v.producer()) is not None]
    nodes: set[ir.Node] = set()
    while stack:
        node = stack.pop()
        if node not in nodes:
            nodes.add(node)
            stack += [n for v in reads(node) if (n := v.producer()) is not None]
    return nodes


def _is_constant(value: ir.Value) -> bool:
    """Whether a value is an initializer that neither the module nor training changes."""
    kind = value.metadata_props.get(KIND, "")
    is_buffer_of_loss = kind == "BUFFER" and (value.name or "").startswith(CRITERION)
    return value.const_value is not None and (
        kind not in ("PARAMETER", "BUFFER") or is_buffer_of_loss
    )


def _refuse(
    loss: ir.Value,
    nodes: Sequence[ir.Node],
    tensors: Sequence[ir.Value],
    labels: Sequence[ir.Value],
    names: Sequence[str],
    other_values: set[ir.Value],
) -> None:
    ignored = set(names) - {v.name for v in (*labels, *other_values)}
    if ignored and nodes:
        raise ArgumentError(
            "the loss ignores its labels",
            [[quote(n), "is not read"] for n in sorted(ignored)],
            hint="a loss is a function of what the module returns and of the labels",
        )
    if not nodes or not tensors:
        raise ArgumentError(
            f"the loss {quote(loss.name)} does not depend on what the module computes"
        )


def _as_model(
    model: Model,
    nodes: Sequence[ir.Node],
    tensors: Sequence[ir.Value],
    labels: Sequence[ir.Value],
    loss: ir.Value,
) -> Model:
    """The nodes of the loss as a model of their own."""
    values: dict[ir.Value, ir.Value | None] = {}
    inputs = []
    for value in (*tensors, *labels):
        shape = ir.Shape(value.shape) if value.shape is not None else None
        values[value] = ir.Value(name=value.name, type=value.type, shape=shape)
        inputs.append(values[value])
    read = dict.fromkeys(v for n in nodes for v in reads(n) if v not in values)
    constants = [v for v in read if v.const_value is not None]
    initializers = []
    for value in constants:
        shape = ir.Shape(value.shape) if value.shape is not None else None
        copy = ir.Value(name=value.name, type=value.type, shape=shape)
        copy.const_value = value.const_value
        values[value] = copy
        initializers.append(copy)
    copies = copy_nodes(nodes, values, {}, lambda name: name)
    result = values[loss]
    assert result is not None
    graph = ir.Graph(
        [v for v in inputs if v is not None],
        [result],
        nodes=copies,
        initializers=initializers,
        opset_imports=dict(model.ir.opset_imports),
        name="loss",
    )
    return Model(ir.Model(graph, ir_version=model.ir.ir_version or 10))


def _drop_constants(graph: ir.Graph) -> None:
    """Remove constants that only the loss has read."""
    unused = [
        n
        for n, v in graph.initializers.items()
        if _is_constant(v) and not v.uses() and not v.is_graph_output()
    ]
    for name in unused:
        del graph.initializers[name]
