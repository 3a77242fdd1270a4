"""Initializers of bodies move to the outermost graph, where a weight can be named, trained and
shared.

A name that is free outside stays; two branches that use one name for different tensors keep one
of them under it. Shapes must have been inferred: ONNX's inference does not see constants of the
graph around.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.passes.nesting import graphs, names


def hoist_initializers(graph: ir.Graph) -> int:
    """Move every initializer of a body to `graph`; returns how many moved."""
    parts = list(graphs(graph))[1:]
    if not any(part.initializers for part in parts):
        return 0
    name_counts = _uses_of_names(graph)
    namer = Builder()
    namer.reserve(names(graph))
    moved = 0
    for part in parts:
        for name, value in list(part.initializers.items()):
            if value.is_graph_output():
                continue  # a body's outputs must belong to the body
            del part.initializers[name]
            if name_counts[name] > 1:
                name_counts[name] -= 1
                value.name = namer.fresh(name)
                if value.const_value is not None:
                    value.const_value.name = value.name
            graph.register_initializer(value)
            moved += 1
    return moved


def _uses_of_names(graph: ir.Graph) -> Counter[str]:
    """How many different values have each name."""
    values: set[ir.Value] = set()
    for part in graphs(graph):
        values.update(part.inputs)
        values.update(part.initializers.values())
        values.update(v for node in part for v in node.outputs)
    return Counter(v.name for v in values if v.name)
