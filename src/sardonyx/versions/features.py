"""The IR version that a model needs, by the features of the format that it uses.

Nothing in ONNX checks a file's IR version against its content, and its own estimate is too high;
this table is what the format's history says.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.errors import quote
from sardonyx.model import Model
from sardonyx.passes.nesting import graphs

OLDEST = 3
Feature = tuple[str, int]

TYPES = {
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 9),
    **dict.fromkeys(("INT4", "UINT4"), 10),
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    **dict.fromkeys(("INT2", "UINT2"), 13),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 14),
}


def least_ir(model: Model) -> int:
    """The lowest IR version that has everything that the model uses."""
    return newest_feature(model)[1]


def newest_feature(model: Model) -> Feature:
    """The feature that needs the highest IR version, and that version."""
    return max(_features(model), key=lambda feature: feature[1])


def _features(model: Model) -> Iterator[Feature]:
    yield "a model", OLDEST
    # In files of IR 3, an initializer that is listed as an input is a constant.
    if (model.ir.ir_version or 0) > OLDEST and any(
        value.is_graph_input() for value in model.graph.initializers.values()
    ):
        yield "inputs with default values", 4
    if model.records:
        yield "training records", 7
    for record in model.records:
        for name, tensor in record.state.items():
            yield (
                f"state {quote(name)} of type {tensor.dtype.name}",
                TYPES.get(tensor.dtype.name, OLDEST),
            )
        for graph in record.graphs:
            yield from _graph_features(graph, in_function=False)
    if model.ir.functions:
        yield "model-local functions", 8
    for key, function in model.ir.functions.items():
        if key[2]:
            yield f"overloads of function {quote(key[1])}", 10
        if any(not a.is_ref() and a.value is not None for a in function.attributes.values()):
            yield f"defaults of function {quote(key[1])}", 9
        yield from _graph_features(function.graph, in_function=True)
    yield from _graph_features(model.graph, in_function=False)


def _graph_features(graph: ir.Graph, in_function: bool) -> Iterator[Feature]:
    for part in graphs(graph):
        if any(not value.is_graph_input() for value in part.initializers.values()):
            yield "initializers that are not inputs", 4
        if part.metadata_props:
            yield f"metadata of graph {quote(part.name)}", 10
        values = [*part.inputs, *part.initializers.values(), *(v for n in part for v in n.outputs)]
        for value in values:
            yield from _value_features(value)
            if in_function and value.type is not None and value.producer() is not None:
                yield f"a type for {quote(value.name)} inside a function", 10
        for node in part:
            if node.metadata_props:
                yield f"metadata of node {quote(node.name)}", 10
            if node.device_configurations:
                yield f"devices of node {quote(node.name)}", 11


def _value_features(value: ir.Value) -> Iterator[Feature]:
    kind = value.type
    if value.metadata_props:
        yield f"metadata of {quote(value.name)}", 10
    if isinstance(kind, ir.OptionalType):
        yield f"{quote(value.name)}, which is optional", 8
    dtype = value.dtype
    if dtype is not None and dtype.name in TYPES:
        yield f"{quote(value.name)} of type {dtype.name}", TYPES[dtype.name]
