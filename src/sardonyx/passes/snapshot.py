"""A snapshot of a graph's structure, which tells whether the graph was edited in place since.

It holds references, not copies: nodes, values, attributes and tensors are compared by identity;
shapes, and integers that shape inference may have read, by value. Taking one is linear in the graph
and far cheaper than any pass.
"""

from __future__ import annotations

import operator
from typing import Any

import onnx_ir as ir

from sardonyx.limits import Limits
from sardonyx.passes.nesting import graphs


class Snapshot:
    """The structure of a graph and its bodies at one moment."""

    def __init__(self, graph: ir.Graph):
        self._objects, self._data = _contents(graph)

    def matches(self, graph: ir.Graph) -> bool:
        """Whether `graph` is still made of the same parts."""
        objects, data = _contents(graph)
        return (
            len(objects) == len(self._objects)
            and all(map(operator.is_, objects, self._objects))
            and data == self._data
        )


def _contents(graph: ir.Graph) -> tuple[list[Any], list[Any]]:
    """The objects that make up the graph, and what is compared by value."""
    objects: list[Any] = []
    data: list[Any] = []
    for part in graphs(graph):
        data.append((len(part), len(part.inputs), len(part.outputs), len(part.initializers)))
        objects.extend(part.inputs)
        objects.extend(part.outputs)
        for value in part.initializers.values():
            objects += (value, value.const_value)
            data.append(_integers(value.const_value))
        _values(part.inputs, objects, data)
        for node in part:
            objects.append(node)
            objects += node.inputs
            objects += node.outputs
            if node.attributes:
                objects += node.attributes.values()
            data.append((node.op_type, node.domain, node.version, len(node.inputs)))
            _values(node.outputs, objects, data)
    return objects, data


def _values(values: Any, objects: list[Any], data: list[Any]) -> None:
    for value in values:
        objects.append(value.type)
        shape = value.shape
        data.append(None if shape is None else shape.dims)


def _integers(tensor: ir.TensorProtocol | None) -> bytes | None:
    if tensor is None or not tensor.dtype.is_integer() or tensor.size > Limits.propagated_elements:
        return None
    return tensor.tobytes()
