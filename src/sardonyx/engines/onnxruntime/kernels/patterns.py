"""What several rewrites of a step look for: which node makes a value, and constants."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

FLOAT, BOOL = ir.DataType.FLOAT, ir.DataType.BOOL


def maker(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """The node that makes a value, if it is of this operator."""
    node = value.producer() if value is not None else None
    return node if node is not None and (node.domain, node.op_type) == (domain, op_type) else None


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The numbers of a constant."""
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None
    return value.const_value.numpy() if value.const_value is not None else None


def is_zero(value: ir.Value | None) -> bool:
    """Whether a tensor consists of zeros, whatever its shape."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type in ("Expand", "Identity", "Reshape"):
        return is_zero(node.inputs[0])
    if node is not None and node.op_type == "ConstantOfShape":
        filled = node.attributes.get_tensor("value", None)
        return filled is None or not filled.numpy().any()
    numbers = constant(value)
    return numbers is not None and not numbers.any()


def other_operand(node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """The operand of a node with two that is not this one."""
    first, second = node.inputs[:2]
    return second if first is value else first if second is value else None


def sizes(value: ir.Value | None) -> list[int | None] | None:
    """The sizes of a float tensor, None for an unknown one."""
    if value is None or value.shape is None or value.dtype != FLOAT:
        return None
    return [d if isinstance(d, int) else None for d in value.shape]


def count(value: ir.Value | None, unknown: int) -> int:
    """How many numbers a tensor has, where an unknown size is taken to be `unknown`."""
    return math.prod(unknown if d is None else d for d in sizes(value) or [])


def mask_of(value: ir.Value | None) -> ir.Value | None:
    """The tensor of whose zeros a value is 0, and 1 elsewhere: two casts."""
    last = maker(value, "Cast")
    first = maker(last.inputs[0], "Cast") if last is not None else None
    if last is None or first is None or last.outputs[0].dtype != FLOAT:
        return None
    source = first.inputs[0]
    fits = first.outputs[0].dtype == BOOL and source is not None and source.dtype == FLOAT
    return source if fits else None
