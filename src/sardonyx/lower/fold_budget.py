"""What may be computed while a model is prepared, and what is left to each run.

A node that reads only constants is computed once, ahead of time, if its results are small. Their
sizes are known before their values: ONNX's inference derives them from the constants themselves,
never from a shape that the file declares. The total is bounded by the size of the file's constants,
so that a small file stays a small program. What exceeds the budget is computed at each run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import infer
from sardonyx.cost import node_flops
from sardonyx.lower.xp import is_string
from sardonyx.passes.folding import LIMIT_EACH, LIMIT_TOTAL, PROPAGATED_ELEMENTS

KEPT = 1 << 16  # elements that a result may have beyond those of the node's inputs
WORK = 1 << 28  # operations in all, besides some for each element of a constant
WORK_PER_ELEMENT = 8
# Operators whose output size ONNX cannot infer, but which is at most that of their inputs.
WITHIN_INPUTS = frozenset(("NonZero", "Unique", "Compress", "NonMaxSuppression", "StringSplit"))


class Budget:
    """What is left to spend on one model: bytes of results, and operations."""

    def __init__(self, graph: ir.Graph):
        tensors = [v.const_value for v in graph.initializers.values() if v.const_value is not None]
        numbers = [t for t in tensors if t.dtype != ir.DataType.STRING]
        self.bytes = LIMIT_TOTAL + sum(t.nbytes for t in numbers)
        self.work = WORK + WORK_PER_ELEMENT * sum(t.size for t in numbers)
        self.is_large = False
        """Whether the node refused last is known to be too large, or may be of any size."""

    def takes(self, node: ir.Node, values: Sequence[Any]) -> bool:
        """Whether `node` may be computed on `values`, arrays all of them; if so, it is charged."""
        self.is_large = False
        if not all(isinstance(a, np.ndarray) or a is None for a in values):
            return False
        shapes = _shapes(node, values)
        if shapes is None:
            self.is_large = node.op_type not in WITHIN_INPUTS
            return False
        input_elements = sum(a.size for a in values if a is not None)
        elements = sum(map(math.prod, shapes))
        size = sum(_bytes(v, math.prod(s), values) for v, s in zip(node.outputs, shapes))
        work = (node_flops(node) or 0) + input_elements + elements
        self.is_large = elements > KEPT + input_elements or size > self.bytes or work > self.work
        if self.is_large:
            return False
        self.bytes -= size
        self.work -= work
        return True


def remember(node: ir.Node, results: Sequence[Any]) -> None:
    """Note the results of a node in the graph: the sizes of its readers depend on them."""
    for value, array in zip(node.outputs, results):
        if isinstance(array, np.ndarray):
            value.shape = ir.Shape(array.shape)
            if array.size <= PROPAGATED_ELEMENTS and array.dtype.kind in "iu":
                value.const_value = ir.Tensor(array)


def _shapes(node: ir.Node, values: Sequence[Any]) -> list[tuple[int, ...]] | None:
    """The shapes of the node's results, from its constants alone; None where ONNX cannot tell."""
    for value, array in zip(node.inputs, values):
        if value is not None and array is not None:
            value.shape = ir.Shape(array.shape)
    declared = [value.shape for value in node.outputs]
    for value in node.outputs:
        value.shape = None
    infer(node)
    shapes = [v.shape.numpy() for v in node.outputs if v.shape is not None and v.shape.is_static()]
    if len(shapes) == len(declared):
        return shapes
    for value, shape in zip(node.outputs, declared):
        value.shape = shape
    return None


def _bytes(value: ir.Value, elements: int, values: Sequence[Any]) -> int:
    """The bytes of a result; a text is taken to be as long as the longest ones given together."""
    if value.dtype != ir.DataType.STRING:
        return elements * (8 if value.dtype is None else max(value.dtype.bitwidth // 8, 1))
    texts = [a for a in values if a is not None and is_string(a.dtype)]
    longest = sum(max((len(t) for t in a.flat), default=0) for a in texts)
    size = elements * (32 + longest)
    return size if size <= LIMIT_EACH else LIMIT_TOTAL * size
