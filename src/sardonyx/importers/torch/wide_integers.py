"""Extremes of int64, which onnxruntime gets wrong for large numbers, by comparisons.

See NOTE [wide integers] in `importers/arithmetic.py`. Sizes of tensors stay as they are: they are
small, and what reads them knows these operators.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.importers.arithmetic import extreme, larger, smaller

EXTREMES = ("Max", "Min", "Clip", "ReduceMax", "ReduceMin")


def compare_wide_integers(graph: ir.Graph) -> None:
    """Rewrite the extremes of int64 in a graph and its bodies."""
    nodes = list(graph.all_nodes())
    op = Builder()
    op.reserve({v.name for v in (*graph.inputs, *graph.initializers.values()) if v.name})
    op.reserve({v.name for node in nodes for v in node.outputs if v.name})
    for node in nodes:
        if node.op_type in EXTREMES and not node.domain:
            _rewrite(op, node)
    for value in op.constants.values():
        graph.register_initializer(value)


def _rewrite(op: Builder, node: ir.Node) -> None:
    old = node.outputs[0]
    operands = [v for v in node.inputs if v is not None]
    compared = operands[:1] if node.op_type.startswith("Reduce") else operands
    if old.dtype != ir.DataType.INT64 or all(_holds_sizes(v) for v in compared):
        return
    op.nodes.clear()
    with op.named(old.name or ""):
        new = _written(op, node, operands)
    if new is None or not op.nodes:
        return
    new.type, new.shape = old.type, old.shape
    node.graph.insert_before(node, op.nodes)  # type: ignore[union-attr]
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)  # type: ignore[union-attr]
    for value in operands:
        if value.is_initializer() and not value.uses() and value.name:
            value.graph.initializers.pop(value.name)  # type: ignore[union-attr]


def _written(op: Builder, node: ir.Node, operands: list[ir.Value]) -> ir.Value | None:
    if node.op_type.startswith("Reduce"):
        axes = constant(operands[1]) if len(operands) > 1 else None
        if operands[0].shape is None or (len(operands) > 1 and axes is None):
            return None
        every = list(range(len(operands[0].shape)))
        listed = every if axes is None else [int(a) for a in axes.reshape(-1)]
        kept = node.attributes.get_int("keepdims", 1)
        return extreme(op, node.op_type, operands[0], listed, keepdims=kept)
    if node.op_type == "Clip":
        low, high = (node.inputs[i] if len(node.inputs) > i else None for i in (1, 2))
        value = operands[0] if low is None else larger(op, operands[0], low)
        return value if high is None else smaller(op, value, high)
    choose = larger if node.op_type == "Max" else smaller
    result = operands[0]
    for other in operands[1:]:
        result = choose(op, result, other)
    return result


def _holds_sizes(value: ir.Value) -> bool:
    """Whether a value is computed from sizes of tensors and constants alone."""
    seen: set[ir.Value] = set()
    left = [value]
    while left:
        value = left.pop()
        node = value.producer()
        if value in seen or value.const_value is not None:
            continue
        seen.add(value)
        if node is None:
            return False
        if node.op_type not in ("Shape", "Size", "Constant"):
            left += [v for v in node.inputs if v is not None]
    return True
