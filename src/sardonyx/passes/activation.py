"""The activation that a model ends with, as one operator or spelled out in several.

Exporters write Softmax, LogSoftmax and Sigmoid also as the exponentials, sums and quotients that
they are. A loss that applies the activation itself, and a head that is replaced, start from the
tensor before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant

ACTIVATIONS = ("Softmax", "LogSoftmax", "Sigmoid")
# Operators between a reduction and the place where its result is broadcast.
SPREADING = ("Reshape", "Expand", "Unsqueeze", "Identity", "Cast", "Squeeze", "Tile")


@dataclass(frozen=True)
class Activation:
    """What it is (`Softmax`, `LogSoftmax` or `Sigmoid`), the tensor before it, its nodes."""

    kind: str
    logits: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def words(self) -> str:
        return self.kind if len(self.nodes) == 1 else f"{self.kind}, spelled out"


def final_activation(value: ir.Value) -> Activation | None:
    """The activation that computes `value`, if it is one."""
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type in ACTIVATIONS:
        before = node.inputs[0]
        return None if before is None else Activation(node.op_type, before, (node,))
    match = _softmax(node) or _log_softmax(node) or _sigmoid(node)
    if match is None:
        return None
    kind, logits = match
    return Activation(kind, logits, tuple(_between(logits, node)))


def _softmax(node: ir.Node) -> tuple[str, ir.Value] | None:
    """exp(z - max z) / sum exp(z - max z), with or without the maximum."""
    if node.op_type != "Div":
        return None
    exponential = _made_by(node.inputs[0], "Exp")
    total = _reduced(node.inputs[1], "ReduceSum")
    if exponential is None or total is None or total is not exponential.outputs[0]:
        return None
    before = exponential.inputs[0]
    return None if before is None else ("Softmax", _unshifted(before))


def _log_softmax(node: ir.Node) -> tuple[str, ir.Value] | None:
    """s - log sum exp s, where s is z or z - max z."""
    if node.op_type != "Sub":
        return None
    shifted, log = node.inputs[0], _through(node.inputs[1])
    logarithm = _made_by(log, "Log")
    total = None if logarithm is None else _reduced(logarithm.inputs[0], "ReduceSum")
    exponential = _made_by(total, "Exp")
    if shifted is None or exponential is None or exponential.inputs[0] is not shifted:
        return None
    return "LogSoftmax", _unshifted(shifted)


def _sigmoid(node: ir.Node) -> tuple[str, ir.Value] | None:
    """1 / (1 + exp -z)."""
    below = node.inputs[0] if node.op_type == "Reciprocal" else None
    if node.op_type == "Div" and _is_one(node.inputs[0]):
        below = node.inputs[1]
    total = _made_by(below, "Add")
    if total is None:
        return None
    for one, other in ((0, 1), (1, 0)):
        exponential = _made_by(total.inputs[other], "Exp")
        negative = None if exponential is None else _made_by(exponential.inputs[0], "Neg")
        if _is_one(total.inputs[one]) and negative is not None and negative.inputs[0] is not None:
            return "Sigmoid", negative.inputs[0]
    return None


def _unshifted(value: ir.Value) -> ir.Value:
    """z of z - max z; a value from which nothing is taken is itself."""
    node = _made_by(value, "Sub")
    if node is None or node.inputs[0] is None:
        return value
    return node.inputs[0] if _reduced(node.inputs[1], "ReduceMax") is node.inputs[0] else value


def _made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and node.domain == "" else None


def _reduced(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """What was reduced by `op_type`, then broadcast again, to give `value`."""
    node = _made_by(_through(value), op_type)
    return node.inputs[0] if node is not None else None


def _through(value: ir.Value | None) -> ir.Value | None:
    """The tensor before operators that only broadcast it, or take its maximum with -inf."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type in SPREADING:
            value = node.inputs[0]
        elif node.op_type == "Max" and len(node.inputs) == 2:
            others = [v for v in node.inputs if not _is_lowest(v)]
            if len(others) != 1:
                return value
            value = others[0]
        else:
            return value
    return value


def _is_one(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and bool((np.asarray(array) == 1).all())


def _is_lowest(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and bool((np.asarray(array) == -np.inf).all())


def _between(logits: ir.Value, last: ir.Node) -> list[ir.Node]:
    """The nodes that compute the activation from its logits, the last one first."""
    downstream: set[ir.Node] = set()
    pending_values = [logits]
    while pending_values:
        for reader in {reader for reader, _ in pending_values.pop().uses()} - downstream:
            downstream.add(reader)
            pending_values += [] if reader is last else reader.outputs
    nodes: dict[ir.Node, None] = {last: None}
    pending_nodes = [last]
    while pending_nodes:
        for value in pending_nodes.pop().inputs:
            node = value.producer() if value is not None and value is not logits else None
            if node is not None and node in downstream and node not in nodes:
                nodes[node] = None
                pending_nodes.append(node)
    return list(nodes)
