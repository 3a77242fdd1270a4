"""From the symbolic to the expanded form of a record: plain operators only, for any runtime."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from sardonyx.model import Model, Record, from_proto
from sardonyx.normalize import IR_INSIDE, normalize
from sardonyx.opset import TRAINING_DOMAIN
from sardonyx.record.info import metrics
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
    start = onnx.ModelProto(ir_version=IR_INSIDE)
    start.graph.CopyFrom(record.initialization)
    for domain, version in model.ir.opset_imports.items():
        start.opset_import.add(domain=domain, version=version)
    start.functions.extend(model.skeleton().functions)
    upgraded.initialization = normalize(from_proto(start)).proto().graph
    return upgraded


def expand_record(model: Model, record: Record) -> Record:
    """One record in plain operators. Its forward is a copy, since gradients may ask it for more
    outputs.
    """
    step = compile_step(model, record)
    graph = step.model.graph
    reserved = {v.name for node in model.graph for v in node.outputs}
    reserved |= {node.name for node in model.graph}
    names = {v.name for node in graph.all_nodes() for v in node.outputs}
    outputs = [*metrics(record), *(value for _, value in record.update_binding)]
    for node in graph:
        if node.name and node.name in reserved:
            node.name = f"train/{node.name}"
        for value in node.outputs:
            if value.name in reserved and value.name not in outputs:
                new = f"train/{value.name}"
                while new in names:
                    new += "_"
                value.name = new
    algorithm = onnx.GraphProto(name=record.algorithm.name)
    algorithm.input.extend(record.algorithm.input)
    declared = {o.name: o for o in record.algorithm.output}
    algorithm.output.extend(declared[o] for o in dict.fromkeys(outputs) if o in declared)
    algorithm.node.extend(ir.serde.serialize_node(node) for node in graph)
    for node in graph:
        for value in node.outputs:
            if value.name and value.type is not None and value.name not in declared:
                algorithm.value_info.append(ir.serde.serialize_value(value))
    initializers = set(model.graph.initializers)
    state = {n: t for n, t in record.state.items() if _is_kept(n, record)}
    for name, value in graph.initializers.items():
        if name not in initializers and value.const_value is not None:
            state[name] = value.const_value
    return Record(
        algorithm,
        state,
        record.initialization,
        list(record.update_binding),
        list(record.initialization_binding),
    )


def _is_kept(name: str, record: Record) -> bool:
    """State variables and defaults of inputs stay; constants are those of the expanded graph."""
    keys = {k for k, _ in (*record.update_binding, *record.initialization_binding)}
    return name in keys or any(i.name == name for i in record.algorithm.input)
