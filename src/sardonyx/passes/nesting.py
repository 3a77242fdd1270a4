"""Graphs inside graphs: the bodies of a node, what they read from outside, every name in use."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.partial import bodies


def graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graph, then every graph inside it, outer before inner."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        inner = [bodies(node) for node in current if node.attributes.data]
        pending.extend(body for graphs_inside in inner for body in graphs_inside)


def captured(node: ir.Node) -> list[ir.Value]:
    """The values from outside that a node's bodies read, in order of first use."""
    read: dict[ir.Value, None] = {}
    inside: set[ir.Value] = set()
    for body in bodies(node):
        _collect(body, read, inside)
    return [value for value in read if value not in inside]


def _collect(graph: ir.Graph, read: dict[ir.Value, None], inside: set[ir.Value]) -> None:
    inside.update(graph.inputs)
    inside.update(graph.initializers.values())
    for node in graph:
        for value in node.inputs:
            if value is not None:
                read[value] = None
        if node.attributes:
            for body in bodies(node):
                _collect(body, read, inside)
        inside.update(node.outputs)
    read.update(dict.fromkeys(graph.outputs))


def reads(node: ir.Node) -> list[ir.Value]:
    """The values that a node depends on, by its inputs or from within its bodies."""
    inputs = [v for v in node.inputs if v is not None]
    return inputs + captured(node) if node.attributes and bodies(node) else inputs


def names(graph: ir.Graph) -> set[str]:
    """Every name of a value or a node, at any depth."""
    every_name: set[str] = set()
    for part in graphs(graph):
        every_name.update(v.name for v in part.inputs if v.name)
        every_name.update(part.initializers)
        for node in part:
            if node.name:
                every_name.add(node.name)
            every_name.update(v.name for v in node.outputs if v.name)
    return every_name
