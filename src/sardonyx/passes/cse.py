"""Common subexpressions: of nodes that compute the same from the same inputs, one stays.

Random operators, Dropout that may be training, operators of unknown domains and nodes with bodies
are never merged. Initializers are told apart by name, not by value: two equal weights train apart.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import array_bytes, constant
from sardonyx.passes.nesting import bodies

RANDOM = frozenset(
    (
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
    )
)


def is_random(node: ir.Node) -> bool:
    """Whether two nodes like this one may give different results for equal inputs."""
    if node.domain != "":
        return False
    if node.op_type != "Dropout":
        return node.op_type in RANDOM
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    if mode is None:
        return False
    fixed = None if mode.is_graph_input() else constant(mode)
    return fixed is None or bool(fixed)


def merge_common(graph: ir.Graph) -> int:
    """Merge equal nodes, in the graph and inside its bodies; returns how many nodes went."""
    merged = 0
    originals: dict[tuple[Any, ...], ir.Node] = {}
    for node in list(graph):
        inner = bodies(node)
        for body in inner:
            merged += merge_common(body)
        if inner or node.domain not in opset.INSIDE or is_random(node):
            continue
        first = originals.setdefault(_key(node), node)
        if first is not node and _replace(node, first):
            graph.remove(node, safe=True)
            merged += 1
    return merged


def _key(node: ir.Node) -> tuple[Any, ...]:
    inputs = tuple(node.inputs)
    present = tuple(bool(v.name) for v in node.outputs)
    attributes = tuple(sorted((a.name, _attribute_key(a)) for a in node.attributes.values()))
    return (node.domain, node.op_type, node.overload, inputs, present, attributes)


def _attribute_key(attr: ir.Attr) -> tuple[str, str]:
    if attr.type == ir.AttributeType.TENSOR and not attr.is_ref():
        tensor = attr.value
        is_text = tensor.dtype == ir.DataType.STRING
        data = array_bytes(tensor.numpy()) if is_text else tensor.tobytes()
        return f"{tensor.dtype}{tensor.shape}", data.hex()
    return str(attr.type), repr(attr.ref_attr_name if attr.is_ref() else attr.value)


def _replace(node: ir.Node, other: ir.Node) -> bool:
    """Let the readers of `node` read `kept`; not where a graph output would lose its name."""
    if any(v.is_graph_output() for v in node.outputs):
        return False
    for old, new in zip(node.outputs, other.outputs, strict=True):
        old.replace_all_uses_with(new)
        if new.type is None:
            new.type = old.type
        if new.shape is None:
            new.shape = old.shape
    return True
