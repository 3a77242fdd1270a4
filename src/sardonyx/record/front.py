"""The front of a model: what turns raw data into the numbers that the trained part reads.

Text, operators of other libraries and nodes that are marked as preparation do not belong into a
training step: engines bind numbers only, and the result is the same in every epoch. `separate`
cuts them off, as long as they read data and constants alone. The rest is a model, with its
records, that takes the features as inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import FLOATS
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.partial import free_values
from sardonyx.passes.cse import RANDOM
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.nesting import graphs, reads
from sardonyx.record.info import state_names

STAGE = "stage"  # the metadata key of a node that says to which part of a model it belongs
PREPARATION = "preprocessing"
# Domains of operators that engines have, or that normalization rewrites.
ORDINARY_DOMAINS = ("", "ai.onnx.ml", "com.microsoft", opset.TRAINING_DOMAIN, "ai.onnx.preview")


@dataclass(frozen=True)
class Front:
    """A model in two: `model` computes the `features` that `rest` takes as inputs.

    passed   -- features that are outputs of the whole model as well
    inputs   -- the raw inputs that nothing but the front reads
    """

    model: Model
    rest: Model
    features: tuple[str, ...]
    passed: tuple[str, ...]
    inputs: tuple[str, ...]

    @property
    def is_random(self) -> bool:
        """Whether the features of a row differ from one run to the next."""
        return any(n.op_type in RANDOM for part in graphs(self.model.graph) for n in part)


def separate(model: Model) -> Front | None:
    """The front of a model and the rest; None for a model of numbers throughout."""
    if not any(_needs_a_look(model)):
        return None
    typed = {v.name: v for n in normalize(model).graph for v in n.outputs if v.name}
    names = _front_names(model, typed)
    if not names:
        return None
    rest = model.copy()
    nodes = [n for n in rest.graph if n.outputs and n.outputs[0].name in names]
    boundary = _boundary(rest, nodes)
    front = Model(model.ir.clone(), [], model.source)
    values = {v.name: v for node in front.graph for v in node.outputs}
    front.graph.outputs.clear()
    front.graph.outputs.extend(values[v.name] for v in boundary)
    remove_dead(front.graph)
    _drop_unread_inputs(front.graph)
    passed = tuple(v.name or "" for v in boundary if v.is_graph_output())
    raw = [v.name or "" for v in rest.graph.inputs]
    for value in boundary:
        inferred = typed.get(value.name or "", value)
        value.type, value.shape = value.type or inferred.type, value.shape or inferred.shape
    features = _cut(rest.graph, nodes, boundary)
    left = {v.name for v in rest.graph.inputs}
    return Front(front, rest, features, passed, tuple(n for n in raw if n not in left))


def _needs_a_look(model: Model) -> Iterator[bool]:
    """Whether a model holds anything that belongs into a front, without inferring types."""
    for graph in model.graphs():
        yield any(v.dtype == ir.DataType.STRING for v in (*graph.inputs, *graph.outputs))
        for node in graph:
            yield _is_marked(node) or _is_foreign(node, model)
            yield any(v is not None and v.dtype == ir.DataType.STRING for v in node.inputs)


def _is_marked(node: ir.Node) -> bool:
    return node.metadata_props.get(STAGE) == PREPARATION


def _is_foreign(node: ir.Node, model: Model) -> bool:
    """An operator that neither the standard nor onnxruntime nor the model itself defines."""
    if node.op_identifier() in model.ir.functions:
        return False
    return opset.domain_name(node.domain) not in ORDINARY_DOMAINS


def _front_names(model: Model, typed: Mapping[str, ir.Value]) -> set[str]:
    """The first outputs of the nodes in the front.

    typed -- values by name, with the types and shapes that normalization infers
    """
    trained = _trained(model)
    front: set[ir.Node] = set()
    for node in model.graph:
        values = reads(node)
        may_be_cut = _is_marked(node) and not model.records
        if not may_be_cut and any(v in trained for v in values):
            trained.update(node.outputs)
        elif any(v.is_graph_input() or v.producer() is not None for v in values) and (
            _is_marked(node)
            or _is_foreign(node, model)
            or any(_may_be_text(v, typed) for v in (*values, *node.outputs))
        ):
            front.add(node)
    pending = list(front)
    while pending:
        node = pending.pop()
        for value in reads(node):
            producer = value.producer()
            if producer is not None and producer not in front:
                front.add(producer)
                pending.append(producer)
    return {n.outputs[0].name or "" for n in front if n.outputs}


def _trained(model: Model) -> set[ir.Value]:
    """The initializers that a step may change; without records, all that could be weights."""
    initializers = model.graph.initializers
    if not model.records:
        return {v for v in initializers.values() if v.dtype in FLOATS}
    state = {n for record in model.records for n in state_names(model, record)}
    overridable = {v.name for v in model.graph.inputs if v.name in initializers}
    return {v for n, v in initializers.items() if n in state | overridable}


def _may_be_text(value: ir.Value, typed: Mapping[str, ir.Value]) -> bool:
    inferred = typed.get(value.name or "", value)
    return (value.dtype or inferred.dtype) in (None, ir.DataType.STRING)


# -- the cut -----------------------------------------------------------------------------


def _boundary(model: Model, nodes: list[ir.Node]) -> list[ir.Value]:
    """The values of the front that the rest, a record or the caller reads."""
    front = set(nodes)
    by_name = {v.name for r in model.records for g in r.graphs for v in free_values(g)}
    read = {v for node in model.graph if node not in front for v in reads(node)}
    return [
        value
        for node in nodes
        for value in node.outputs
        if value in read or value.is_graph_output() or value.name in by_name
    ]


def _cut(graph: ir.Graph, nodes: list[ir.Node], boundary: list[ir.Value]) -> tuple[str, ...]:
    """Make the boundary inputs of the graph, and remove what is before it; the new inputs."""
    outputs = [v for v in graph.outputs if v.producer() not in set(nodes)]
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    features = []
    for value in boundary:
        feature = ir.Value(name=value.name, type=value.type, shape=value.shape)
        value.name = None
        value.replace_all_uses_with(feature)
        graph.inputs.append(feature)
        features.append(feature.name or "")
    for node in reversed(nodes):
        graph.remove(node, safe=True)
    _drop_unread_inputs(graph, keep=features)
    return tuple(features)


def _drop_unread_inputs(graph: ir.Graph, keep: Collection[str] = ()) -> None:
    """Drop the inputs that nothing reads."""
    read = [v for v in graph.inputs if v.uses() or v.is_graph_output() or v.name in keep]
    graph.inputs.clear()
    graph.inputs.extend(read)
