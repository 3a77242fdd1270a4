"""Remove nodes and initializers that nothing reads. Graph inputs and outputs always stay."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from sardonyx.passes.nesting import bodies, graphs


def remove_dead(graph: ir.Graph, keep: Collection[str] = ()) -> int:
    """Remove unused nodes and initializers, also inside bodies; returns how many nodes went.

    keep -- names of initializers and node outputs that stay although nothing reads them
    """
    names = frozenset(keep)
    removed = _remove_nodes(graph, names)
    for part in graphs(graph):
        _remove_initializers(part, names)
    return removed


def _remove_nodes(graph: ir.Graph, keep: frozenset[str]) -> int:
    """One backward sweep: when a node is reached, every reader that is dead is gone already."""
    removed = 0
    for node in reversed(list(graph)):
        if node.outputs and not any(_is_read(v, keep) for v in node.outputs):
            # The bodies go first: what they captured from outside has one reader less.
            for body in bodies(node):
                removed += _remove_all(body)
            graph.remove(node, safe=True)
            removed += 1
        else:
            for body in bodies(node):
                removed += _remove_nodes(body, keep)
    return removed


def _remove_all(graph: ir.Graph) -> int:
    graph.outputs.clear()
    return _remove_nodes(graph, frozenset())


def _is_read(value: ir.Value, keep: frozenset[str]) -> bool:
    return bool(value.uses()) or value.is_graph_output() or value.name in keep


def _remove_initializers(graph: ir.Graph, keep: frozenset[str]) -> None:
    for name, value in list(graph.initializers.items()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input() or name in keep):
            del graph.initializers[name]
