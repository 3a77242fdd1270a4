"""Inputs and outputs of 2 and 4 bits: onnxruntime computes with them, but its Python binding cannot
pass them. At the inputs and outputs of the graph they are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.model import Model

CARRIERS = {
    ir.DataType.INT4: ir.DataType.INT8,
    ir.DataType.UINT4: ir.DataType.UINT8,
    ir.DataType.INT2: ir.DataType.INT8,
    ir.DataType.UINT2: ir.DataType.UINT8,
}


def widen_ends(model: Model) -> tuple[Model, dict[str, ir.DataType]]:
    """A model whose narrow inputs and outputs are bytes, and their actual types."""
    ends = (*model.graph.inputs, *model.graph.outputs)
    narrow = {v.name or "": v.dtype for v in ends if v.dtype in CARRIERS}
    if not narrow:
        return model, {}
    work = model.copy()
    graph = work.graph
    for index, value in enumerate(list(graph.inputs)):
        if value.dtype in CARRIERS and value.name not in graph.initializers:
            carrier = _carrier(value)
            cast = _cast(carrier, value.dtype, f"{value.name}/narrow")
            value.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
            graph.inputs[index] = carrier
            if len(graph):
                graph.insert_before(graph[0], cast)
            else:
                graph.append(cast)
    for index, value in enumerate(list(graph.outputs)):
        if value.dtype in CARRIERS:
            name = model.graph.outputs[index].name
            if value.name == name:
                value.name = f"{name}/narrow"
            cast = _cast(value, CARRIERS[value.dtype], name or "")
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]
    return work, {n: t for n, t in narrow.items() if t is not None}


def to_carriers(feeds: Mapping[str, Any], types: Mapping[str, ir.DataType]) -> dict[str, Any]:
    """What is fed, narrow numbers as bytes."""
    return {
        name: np.asarray(value).astype(CARRIERS[types[name]].numpy()) if name in types else value
        for name, value in feeds.items()
    }


def from_carriers(outputs: Mapping[str, Any], types: Mapping[str, ir.DataType]) -> dict[str, Any]:
    """The outputs, with bytes converted to the narrow types that they hold."""
    return {
        name: value.astype(types[name].numpy()) if name in types else value
        for name, value in outputs.items()
    }


def _carrier(value: ir.Value) -> ir.Value:
    kind = ir.TensorType(CARRIERS[value.dtype])  # type: ignore[index]
    return ir.Value(name=value.name, type=kind, shape=value.shape)


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(to))], num_outputs=1)
    (out,) = node.outputs
    out.name, out.type = name, ir.TensorType(to)
    out.shape = ir.Shape(value.shape) if value.shape is not None else None
    return node
