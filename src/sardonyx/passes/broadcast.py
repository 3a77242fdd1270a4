"""Broadcasts that the operators behind them do by themselves.

Traces of JAX and TensorFlow write every broadcast out. An Expand whose readers broadcast anyway, to
a shape that their other operands have, is left out; with it goes the arithmetic of its sizes.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.values import same_dim

BROADCASTING = frozenset([
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "Where", "And", "Or", "Xor", "Equal",
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
])  # fmt: skip


def drop_broadcasts(graph: ir.Graph) -> None:
    """Let readers of an Expand read what is expanded, wherever that gives the same shape."""
    for node in list(graph.all_nodes()):
        if node.op_type != "Expand" or node.domain:
            continue
        x, y = node.inputs[0], node.outputs[0]
        if x is None or x.shape is None or y.shape is None:
            continue
        is_same = len(x.shape) == len(y.shape) and all(map(same_dim, x.shape, y.shape))
        for reader, index in list(y.uses()):
            if is_same or _has_its_shape(reader, index, x):
                reader.replace_input_with(index, x)


def _has_its_shape(reader: ir.Node, index: int, x: ir.Value) -> bool:
    """Whether the result of `reader` has the same shape with `x` as its operand `index`."""
    result = reader.outputs[0].shape
    if reader.op_type not in BROADCASTING or reader.domain or result is None:
        return False
    operands = [x if i == index else v for i, v in enumerate(reader.inputs)]
    shapes = [list(v.shape) for v in operands if v is not None and v.shape is not None]
    if len(shapes) != len(operands):
        return False
    for place, size in enumerate(reversed(list(result))):
        sizes = [shape[-1 - place] for shape in shapes if place < len(shape)]
        if size != 1 and not any(same_dim(size, other) for other in sizes):
            return False
    return True
