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
from sardonyx.importers.tensorflow.frames import condition_of
from sardonyx.importers.tensorflow.reader import Reader, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer
from sardonyx.values import same_shape


@importer("Switch", "RefSwitch")
def switch(op: Writer, x: Any, condition: ir.Value) -> list[Any]:
    return [x, x]


@importer("Merge", "RefMerge")
def merge(op: Writer, *values: Any, node: tf.Operation, reader: Reader) -> list[Any]:
    pair = reader.conditions.get(node.name) or condition_of(node)
    if pair is None or len(values) != 2:
        raise Refusal("branches of TensorFlow 1 that belong to no common condition")
    name, first_is_true = pair
    yes, no = values if first_is_true else reversed(values)
    condition = reader.condition(op, node.graph, name)
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
