"""From the symbolic to the expanded form of a record: plain operators only, for any runtime."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx import partial
from sardonyx.model import Model, Record
from sardonyx.normalize import regular_copy
from sardonyx.opset import TRAINING_DOMAIN
from sardonyx.passes.nesting import graphs
from sardonyx.record.info import initialization_model, metrics
from sardonyx.record.step import compile_step


def expand_records(model: Model) -> Model:
    """The same model with every record written in plain operators (no Gradient, no Adam, …)."""
    expanded = model.copy()
    expanded.records = [expand_record(model, record) for record in model.records]
    expanded.ir.opset_imports.pop(TRAINING_DOMAIN, None)
    return expanded


def upgrade_record(model: Model, record: Record) -> Record:
    """A record at the opset inside, for a model that is brought there: in plain operators."""
    upgraded = expand_record(model, record)
    upgraded.initialization = regular_copy(initialization_model(model, record)).graph
    return upgraded


def expand_record(model: Model, record: Record) -> Record:
    """One record in plain operators. Its forward is a copy, since gradients may ask it for more
    outputs.
    """
    outputs = [*metrics(record), *(value for _, value in record.update_binding)]
    graph = compile_step(model, record).model.graph
    _rename(graph, model.graph, set(outputs))
    values = partial.named_values(graph)
    declared = {v.name: v for v in record.algorithm.outputs}
    inputs = [_declared_like(v, values) for v in record.algorithm.inputs]
    results = [_declared_like(declared[n], values) for n in dict.fromkeys(outputs) if n in declared]
    state = {n: t for n, t in record.state.items() if _is_kept(n, record)}
    for name, value in graph.initializers.items():
        if name not in model.graph.initializers and value.const_value is not None:
            state[name] = value.const_value
    nodes = list(graph)
    graph.outputs.clear()
    graph.inputs.clear()
    graph.initializers.clear()
    graph.remove(nodes)
    algorithm = ir.Graph(inputs, results, nodes=nodes, name=record.algorithm.name)
    partial.detach(algorithm)
    return Record(
        algorithm,
        state,
        record.initialization,
        list(record.update_binding),
        list(record.initialization_binding),
    )


def _rename(graph: ir.Graph, served: ir.Graph, outputs: set[str]) -> None:
    """Rename what the served graph has too: the two become one graph, in which also the names in
    bodies are different. Outputs keep their names.
    """
    used = {node.name for node in served.all_nodes()}
    for node in graph.all_nodes():
        if node.name:
            node.name = _unique(node.name, used)
    reserved = {name for part in graphs(served) for name in partial.named_values(part)}
    used = {v.name for node in graph.all_nodes() for v in node.outputs} | reserved
    values = [v for part in graphs(graph) for node in part for v in node.outputs]
    for part in graphs(graph):
        if part is graph:
            values += [v for n, v in part.initializers.items() if n not in served.initializers]
        else:
            values += [*part.inputs, *part.initializers.values()]
    for value in values:
        if value.name in reserved and value.name not in outputs:
            value.name = _unique(value.name, used)


def _unique(name: str, used: set[str | None]) -> str:
    new = name if name not in used else f"train/{name}"
    while new in used:
        new += "_"
    used.add(new)
    return new


def _declared_like(value: ir.Value, values: Mapping[str, ir.Value]) -> ir.Value:
    """The value of the same name in `values`, or a new one, with the type that `value` declares."""
    declared = values.get(value.name or "") or ir.Value(name=value.name)
    declared.type, declared.shape = value.type, value.shape
    return declared


def _is_kept(name: str, record: Record) -> bool:
    """State variables and defaults of inputs stay; constants are those of the expanded graph."""
    keys = {k for k, _ in (*record.update_binding, *record.initialization_binding)}
    return name in keys or any(v.name == name for v in record.algorithm.inputs)
