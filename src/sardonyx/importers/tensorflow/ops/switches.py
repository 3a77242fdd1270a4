"""Rules of branches as TensorFlow 1 writes them: Switch sends a tensor one way, Merge takes either.

Such graphs have no functions for their branches. Here both branches are computed, and If takes the
result of one of them: they may have different shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant
from sardonyx.importers.tensorflow.reader import Reader, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer
from sardonyx.values import same_shape

Context = tuple[tuple[str, int], ...]  # conditions from the outermost in, and the way at each


@importer("Switch", "RefSwitch")
def switch(op: Writer, x: Any, condition: ir.Value) -> list[Any]:
    return [x, x]


@importer("Merge", "RefMerge")
def merge(op: Writer, *values: Any, node: tf.Operation, reader: Reader) -> list[Any]:
    contexts = [_context(t) for t in node.inputs]
    inner = [c[-1] for c in contexts if c]
    sides = [side for _, side in inner]
    is_plain = len(values) == 2 and inner and len({name for name, _ in inner}) == 1
    if not is_plain or (len(inner) == 2 and set(sides) != {0, 1}):
        raise Refusal("branches of TensorFlow 1 that belong to no common condition")
    first_is_true = sides[0] == 1 if contexts[0] else sides[0] == 0
    yes, no = values if first_is_true else reversed(values)
    condition = reader.condition(op, node.graph.get_tensor_by_name(inner[0][0]))
    if not isinstance(condition, ir.Value):
        raise Refusal("branches of TensorFlow 1 on a condition that cannot be read")
    array = constant(condition)
    if array is not None:
        taken = yes if array.any() else no
        return [taken, op.const(np.int32(values.index(taken)))]
    if not isinstance(yes, ir.Value) or not isinstance(no, ir.Value):
        raise Refusal("branches of TensorFlow 1 that give something else than tensors")
    index = op.cast(condition if not first_is_true else op.Not(condition), ir.DataType.INT32)
    return [_taken(op, condition, yes, no), index]


def _taken(op: Writer, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
    graphs = []
    for name, value in (("then_branch", yes), ("else_branch", no)):
        branch = Writer(op.prefix, op)
        result = branch.Identity(value)
        result.type, result.shape = value.type, value.shape
        graph = ir.Graph([], [result], nodes=branch.nodes, name=op.fresh(name))
        graphs.append(ir.AttrGraph(name, graph))
    name = op.fresh(f"{op.prefix}/If")
    node = ir.Node("", "If", [condition], attributes=graphs, num_outputs=1, name=name)
    out = node.outputs[0]
    out.name, out.type = name, yes.type
    if same_shape(yes, no):
        out.shape = yes.shape
    op.nodes.append(node)
    return out


def _context(tensor: tf.Tensor) -> Context:
    """The conditions under which TensorFlow computes a tensor."""
    contexts: dict[tf.Operation, Context] = {}
    stack = [tensor.op]
    while stack:
        node = stack[-1]
        sources = [t.op for t in node.inputs] + list(node.control_inputs)
        missing = [n for n in sources if n not in contexts]
        if node in contexts or not missing:
            stack.pop()
            contexts.setdefault(node, _context_of(node, contexts))
        else:
            stack += missing
    return _at(tensor, contexts)


def _context_of(node: tf.Operation, contexts: dict[tf.Operation, Context]) -> Context:
    inputs = [_at(t, contexts) for t in node.inputs]
    controls = [contexts[n] for n in node.control_inputs if n.type not in ("Switch", "RefSwitch")]
    deepest: Context = max([(), *inputs, *controls], key=len)
    return deepest[:-1] if node.type in ("Merge", "RefMerge") else deepest


def _at(tensor: tf.Tensor, contexts: dict[tf.Operation, Context]) -> Context:
    """The context of a tensor; beyond a Switch, it is one deeper than that of the Switch."""
    context = contexts[tensor.op]
    if tensor.op.type not in ("Switch", "RefSwitch"):
        return context
    return (*context, (_origin(tensor.op.inputs[1]).name, tensor.value_index))


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor
