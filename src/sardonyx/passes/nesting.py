"""Graphs inside graphs: the bodies of a node, every graph below one, every name in use."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs that a node holds as attributes."""
    found: list[ir.Graph] = []
    for attr in node.attributes.values():
        if attr.is_ref():
            continue
        if attr.type == ir.AttributeType.GRAPH:
            found.append(attr.value)
        elif attr.type == ir.AttributeType.GRAPHS:
            found.extend(attr.value)
    return found


def graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graph, then every graph inside it, outer before inner."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(body for node in current for body in bodies(node))


def names(graph: ir.Graph) -> set[str]:
    """Every name of a value or a node, at any depth."""
    found: set[str] = set()
    for part in graphs(graph):
        found.update(v.name for v in part.inputs if v.name)
        found.update(part.initializers)
        for node in part:
            if node.name:
                found.add(node.name)
            found.update(v.name for v in node.outputs if v.name)
    return found
