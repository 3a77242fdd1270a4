"""A training step in the operators that onnxruntime-web has on WebGPU.

It has no kernel for a BatchNormalization that trains: the statistics of the batch are computed
first, and one that takes them as they are follows. It has no double precision either, which a few
scalars need, such as Adam's corrections of its averages: what depends on scalars, on the sizes of
the data or on its whole numbers alone becomes a graph of its own, which WebAssembly runs before
each step, so that nothing is rounded. `placement.py` has the other formulations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ArgumentError
from sardonyx.grad.nn.batch_norm import statistics
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.functions import replace
from sardonyx.passes.nesting import names, reads
from sardonyx.web import placement

SCALARS = "scalars.onnx"
INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


def rewrite(graph: ir.Graph) -> None:
    """Replace what WebGPU has no kernel for."""
    op = Builder("webgpu")
    op.reserve(names(graph))
    for node in list(graph):
        trains = node.attributes.get_int("training_mode", 0) == 1
        if node.op_type == "BatchNormalization" and trains:
            _normalize_batch(op, node)
    placement.rewrite(op, graph)
    for value in op.constants.values():
        graph.register_initializer(value)


def _normalize_batch(op: Builder, node: ir.Node) -> None:
    x, scale, bias, *running = (value for value in node.inputs if value is not None)
    keep = node.attributes.get_float("momentum", 0.9)
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    with op, op.named(node.name or "batch_norm"):
        batch = statistics(op, x)
        y = op.BatchNormalization(x, scale, bias, *batch, epsilon=epsilon)
        after = list(batch)
        if keep:
            pairs = zip(running, batch, strict=True)
            after = [op.Add(op.Mul(old, keep), op.Mul(new, 1 - keep)) for old, new in pairs]
    nodes, op.nodes = op.nodes, []
    replace(node, nodes, [y, *after][: len(node.outputs)])


def split_scalars(
    folder: Path, train: Mapping[str, Any], state: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Move what needs no GPU to a file of its own: the description of that file.

    That is what depends on scalars, on the sizes of the data or on its whole numbers alone.
    """
    single = {s["name"] for s in (*state, *train["hyperparameters"]) if not s["shape"]}
    path = folder / train["file"]
    step, scalars = ir.load(path), ir.load(path)
    names = _outputs_beside(step.graph, single, {i["name"] for i in train["inputs"]})
    _cut(step.graph, names)
    _refuse_double(step.graph)
    _keep(scalars.graph, names)
    ir.save(step, path)
    ir.save(scalars, folder / SCALARS)
    return {"file": SCALARS, "outputs": names}


def _outputs_beside(graph: ir.Graph, single: set[str], data: set[str]) -> list[str]:
    """The results of nodes that need no GPU, as far as others read them."""
    fed = {v for v in graph.inputs if v.name in data}
    values = {v for v in graph.inputs if v.name in single}
    values |= {v for v in fed if v.dtype in INTEGERS}
    available = values | {v for v in graph.initializers.values() if _is_small(v)}
    nodes = []
    for node in graph:
        read = reads(node)
        sizes = node.op_type in ("Shape", "Size") and fed.issuperset(read)
        if sizes or (available.issuperset(read) and not values.isdisjoint(read)):
            nodes.append(node)
            available.update(node.outputs)
            values.update(node.outputs)
    inside = set(nodes)
    return [
        value.name or ""
        for node in nodes
        for value in node.outputs
        if value.is_graph_output() or any(n not in inside for n, _ in value.uses())
    ]


def _is_small(value: ir.Value) -> bool:
    """Whether a constant is a scalar, or whole numbers such as axes and shapes."""
    return value.dtype in INTEGERS or value.shape is None or math.prod(value.shape.numpy()) == 1


def _cut(graph: ir.Graph, names: Sequence[str]) -> None:
    """Make inputs of values, and remove what computed them."""
    values = {v.name: v for node in graph for v in node.outputs}
    for name in names:
        value = values[name]
        if value.is_graph_output():
            graph.outputs.remove(value)
        outside = ir.Value(name=name, type=value.type, shape=value.shape)
        value.replace_all_uses_with(outside)
        value.name = f"{name}/scalar"
        if outside.uses():
            graph.inputs.append(outside)
    _tidy(graph)


def _keep(graph: ir.Graph, names: Sequence[str]) -> None:
    """Make values the outputs of a graph, and remove what does not lead to them."""
    values = {v.name: v for node in graph for v in node.outputs}
    graph.outputs.clear()
    graph.outputs.extend(values[name] for name in names)
    _tidy(graph)


def _refuse_double(graph: ir.Graph) -> None:
    """An error for what is computed of gradients in double precision, such as their norm."""
    double = ir.DataType.DOUBLE
    rows = [[n.name or n.op_type] for n in graph if any(v.dtype == double for v in n.outputs)]
    if rows:
        raise ArgumentError(
            "WebGPU has no double precision, in which these nodes compute",
            rows[:8],
            hint='target="wasm" computes in it; without clip_norm, a step does not need it',
        )


def _tidy(graph: ir.Graph) -> None:
    remove_dead(graph)
    for value in list(graph.inputs):
        if not value.uses() and not value.is_graph_output():
            graph.inputs.remove(value)


def check(state: list[Mapping[str, Any]]) -> None:
    """Refuse weights of a type that no browser computes in on a GPU."""
    rows = [[s["name"], s["type"]] for s in state if s["type"] == "float64" and s["shape"]]
    if rows:
        raise ArgumentError(
            "WebGPU has no double precision", rows, hint='target="wasm" computes in it'
        )
