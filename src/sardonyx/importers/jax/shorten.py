"""A whole step of JAX, forward and backward, without what it computes twice."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.channels import cancel_transposes

NAME = "train"


def shorten(graph: ir.Graph, names: Collection[str], used_names: Collection[str] = ()) -> None:
    """Remove what a whole step computes twice, or only turns around, in place.

    names      -- inputs that keep their names and their layout
    used_names -- of the graph beside which this one will stand
    """
    constants = set(graph.initializers)
    cancel_transposes(graph, names)
    for name in [n for n in graph.initializers if n not in constants and n in used_names]:
        value = graph.initializers.pop(name)
        value.name = f"{NAME}/{name}"
        graph.register_initializer(value)
    _merge_pools(graph)
    _masks_of_results(graph)


def _merge_pools(graph: ir.Graph) -> None:
    """One MaxPool where a gradient asks once more, for the places of the largest elements."""
    first: dict[tuple[Any, ...], ir.Node] = {}
    for node in [n for n in graph if n.op_type == "MaxPool"]:
        key = node.inputs[0], *sorted((a.name, str(a.value)) for a in node.attributes.values())
        earlier = first.setdefault(key, node)
        if earlier is node:
            continue
        if len(node.outputs) > len(earlier.outputs):
            earlier.resize_outputs(2)
            places, source = earlier.outputs[1], node.outputs[1]
            places.name, places.type, places.shape = source.name, source.type, source.shape
        for old, new in zip(node.outputs, earlier.outputs, strict=False):
            if old.is_graph_output():
                break
            old.replace_all_uses_with(new)
        else:
            graph.remove(node, safe=True)


def _masks_of_results(graph: ir.Graph) -> None:
    """Where a gradient compares with zero what a Relu has read, it compares the Relu's result: what
    was read is not kept until then.
    """
    for node in [n for n in graph if n.op_type == "Relu" and n.domain == ""]:
        value = node.inputs[0]
        for use in list(value.uses()) if value is not None else []:
            reader = use.node
            is_mask = reader.graph is graph and reader.op_type == "Greater" and use.idx == 0
            if is_mask and _is_zero(reader.inputs[1]):
                reader.replace_input_with(0, node.outputs[0])
                graph.remove(reader)
                graph.insert_after(node, reader)


def _is_zero(value: ir.Value | None) -> bool:
    tensor = value.const_value if value is not None and value.is_initializer() else None
    if tensor is None or tensor.size != 1:
        return False
    return bool(np.all(tensor.numpy() == 0))
