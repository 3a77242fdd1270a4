"""Bodies: values and results of a graph inside a node, and what is read from one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.grad.driver import add
from sardonyx.passes.nesting import bodies, reads

Gradients = Sequence[ir.Value | None]


def like(op: Builder, value: ir.Value, stem: str, shape: Any = None) -> ir.Value:
    """A new value of the type of `value`, and of its shape if no other is given."""
    dims = value.shape if shape is None else shape
    return ir.Value(
        name=op.fresh(f"{op.prefix}/{stem}"),
        type=value.type,
        shape=None if dims is None else ir.Shape(list(dims)),
    )


def seeds_of(op: Builder, ends: Iterable[tuple[ir.Value, ir.Value]]) -> dict[ir.Value, ir.Value]:
    """Cotangents by value: a body may list one value as several outputs."""
    parts: dict[ir.Value, list[ir.Value]] = {}
    for value, g in ends:
        parts.setdefault(value, []).append(g)
    return {value: gs[0] if len(gs) == 1 else add(op, gs) for value, gs in parts.items()}


def own(op: Builder, value: ir.Value) -> ir.Value:
    """`value` as the result of a node of its own: a body may not return what it did not make."""
    out = op.Identity(value)
    out.type, out.shape = value.type, value.shape
    return out


def results_of(op: Builder, values: Sequence[ir.Value]) -> list[ir.Value]:
    outputs = {v for node in op.nodes for v in node.outputs}
    results: list[ir.Value] = []
    for value in values:
        results.append(value if value in outputs and value not in results else own(op, value))
    return results


def body_of(
    op: Builder, stem: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> ir.Graph:
    return ir.Graph(inputs, outputs, nodes=op.nodes, name=op.fresh(f"{op.prefix}/{stem}"))


def is_inside(value: ir.Value, body: ir.Graph) -> bool:
    """Whether `value` belongs to `body`, as an input, an initializer or the result of a node."""
    producer = value.producer()
    if producer is not None:
        return producer.graph is body
    return value.graph is body


def read_inside(nodes: Iterable[ir.Node], body: ir.Graph) -> list[ir.Value]:
    """The values of `body` that `nodes` read, in order of first use."""
    values: dict[ir.Value, None] = {}
    for node in nodes:
        for value in reads(node):
            if is_inside(value, body):
                values.setdefault(value)
    return list(values)


def reread(nodes: Iterable[ir.Node], new: dict[ir.Value, ir.Value]) -> None:
    """Let `nodes`, and the nodes inside them, read other values."""
    for node in nodes:
        for i, value in enumerate(node.inputs):
            if value is not None and value in new:
                node.replace_input_with(i, new[value])
        for body in bodies(node):
            reread(body, new)


def name_outputs(node: ir.Node, inside: Sequence[ir.Value]) -> None:
    """Give a node all the outputs that its body has, and each of them a name and a type."""
    stem = node.name or node.outputs[0].name or node.op_type
    if len(node.outputs) < len(inside):
        node.resize_outputs(len(inside))
    for i, (out, value) in enumerate(zip(node.outputs, inside, strict=True)):
        if not out.name:
            out.name = f"{stem}:{i}"
        if out.type is None:
            out.type = value.type
