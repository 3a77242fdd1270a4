"""The stages of a model: what prepares the data, the model proper, and what follows it.

Every node may say in its metadata to which stage it belongs (`stage`: preprocessing, model or
postprocessing), so that the boundary survives inlining. `cut_front` and `cut_back` part a graph at
such a boundary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.model import Model
from sardonyx.partial import free_values
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.nesting import graphs, reads

STAGE = "stage"
PREPARATION, MODEL, AFTER = "preprocessing", "model", "postprocessing"


def stage_of(node: ir.Node) -> str:
    """The stage that a node says it belongs to, or ""."""
    return node.metadata_props.get(STAGE, "")


def mark(graph: ir.Graph, stage: str, overwrite: bool = False) -> None:
    """Say of every node, also inside bodies, to which stage it belongs."""
    for part in graphs(graph):
        for node in part:
            if overwrite or not stage_of(node):
                node.metadata_props[STAGE] = stage


@dataclass(frozen=True)
class Cut:
    """A model in two.

    front, rest -- the parts; `rest` has the records
    boundary    -- the tensors that leave the front and are inputs of the rest
    passed      -- those of them that are outputs of the whole model as well
    """

    front: Model
    rest: Model
    boundary: tuple[str, ...]
    passed: tuple[str, ...]


def cut_front(model: Model, names: Collection[str]) -> Cut:
    """Cut off the nodes whose first outputs are called `names`; they read no other nodes."""
    rest = model.copy()
    nodes = [n for n in rest.graph if n.outputs and n.outputs[0].name in names]
    boundary = _boundary(rest, nodes)
    front = without_records(model)
    values = {v.name: v for node in front.graph for v in node.outputs}
    _set_outputs(front.graph, [values[v.name] for v in boundary])
    tensors = tuple(v.name or "" for v in boundary)
    passed = tuple(v.name or "" for v in boundary if v.is_graph_output())
    _remove_front(rest, nodes, boundary)
    return Cut(front, rest, tensors, passed)


def cut_back(model: Model, names: Collection[str]) -> Cut:
    """Cut off the nodes whose first outputs are called `names`, which no other nodes read."""
    whole = without_records(model)
    inner = [n.outputs[0].name or "" for n in whole.graph if n.outputs]
    parts = cut_front(whole, [name for name in inner if name not in names])
    front = model.copy()
    values = {v.name: v for node in front.graph for v in node.outputs}
    kept = [v for v in front.graph.outputs if v.name in parts.boundary or v.name not in names]
    boundary = [values[n] for n in parts.boundary if n in values and values[n] not in kept]
    _set_outputs(front.graph, [v for v in (*kept, *boundary) if _is_in_front(v, names)])
    return Cut(front, parts.rest, parts.boundary, parts.passed)


def _is_in_front(value: ir.Value, names: Collection[str]) -> bool:
    producer = value.producer()
    return producer is None or producer.outputs[0].name not in names


def without_records(model: Model) -> Model:
    """An independent copy of the served graph."""
    return Model(model.ir.clone(), [], model.source)


def _boundary(model: Model, nodes: list[ir.Node]) -> list[ir.Value]:
    """The values of the nodes that others, a record or the caller reads."""
    front = set(nodes)
    by_name = _read_by_records(model)
    read = {v for node in model.graph if node not in front for v in reads(node)}
    return [
        value
        for node in nodes
        for value in node.outputs
        if value in read or value.is_graph_output() or value.name in by_name
    ]


def _read_by_records(model: Model) -> set[str]:
    return {v.name or "" for r in model.records for g in r.graphs for v in free_values(g)}


def _remove_front(model: Model, nodes: list[ir.Node], boundary: Iterable[ir.Value]) -> None:
    """Make the boundary inputs of the graph, and remove what computes it."""
    graph, front = model.graph, set(nodes)
    outputs = [v for v in graph.outputs if v.producer() not in front]
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    features = []
    for value in boundary:
        feature = ir.Value(name=value.name, type=value.type, shape=value.shape)
        value.name = None
        value.replace_all_uses_with(feature)
        features.append(feature)
    for node in reversed(nodes):
        graph.remove(node, safe=True)
    bound = {key for r in model.records for key, _ in r.update_binding + r.initialization_binding}
    remove_dead(graph, keep=_read_by_records(model) | bound)
    _drop_unread_inputs(graph)
    graph.inputs.extend(features)


def _set_outputs(graph: ir.Graph, values: Iterable[ir.Value]) -> None:
    graph.outputs.clear()
    graph.outputs.extend(values)
    remove_dead(graph)
    _drop_unread_inputs(graph)


def _drop_unread_inputs(graph: ir.Graph) -> None:
    read = [v for v in graph.inputs if v.uses() or v.is_graph_output()]
    graph.inputs.clear()
    graph.inputs.extend(read)
