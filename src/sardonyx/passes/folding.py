"""Constants computed ahead of time: the one folder, and the one budget of every way into it.

`fold` replaces nodes that read only constants by initializers. A `Budget` comes from the `Limits`
under which the model was loaded: a small file must not become a large model. The size of a result
is known before its value. `evaluate` computes shape arithmetic, symbols included, by the rules in
`fold_rules.py`; a caller that has rules for more operators passes a function `compute`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import infer
from sardonyx.limits import Limits, limits_of
from sardonyx.passes.flops import node_flops
from sardonyx.passes.fold_rules import (
    RULES,
    Contents,
    is_whole,
    itemsize,
    objects,
    settle,
    shape_of,
)
from sardonyx.passes.nesting import bodies

WORK = 1 << 28  # operations in all, besides some for each element of a constant
WORK_PER_ELEMENT = 8
# Operators whose results ONNX cannot size; they have no more elements than the inputs.
WITHIN_INPUTS = frozenset(("NonZero", "Unique", "Compress", "NonMaxSuppression", "StringSplit"))


class Budget:
    """What may still be folded for one graph: bytes of results, and operations.

    growth -- elements that a result may have beyond those of its inputs; None: any number
    """

    def __init__(self, graph: ir.Graph, growth: int | None = None):
        limits = limits_of(graph)
        values = [v.const_value for v in graph.initializers.values() if v.const_value is not None]
        numbers = [t for t in values if t.dtype != ir.DataType.STRING]
        self.growth = growth
        self.tensor_bytes = limits.fold_tensor_bytes
        self.bytes = limits.fold_total_bytes + sum(t.nbytes for t in numbers)
        self.work = WORK + WORK_PER_ELEMENT * sum(t.size for t in numbers)
        self.is_large = False
        """Whether the last node that was refused is too large, or of unknown size."""

    def takes(self, node: ir.Node, values: Sequence[Any]) -> bool:
        """Whether `node` may be computed on `values`, all of them arrays; if so, it is charged."""
        self.is_large = False
        if not all(isinstance(a, np.ndarray) or a is None for a in values):
            return False
        shapes = _shapes(node, values)
        if shapes is None and node.op_type == "Reshape" and values[0] is not None:
            shapes = [(values[0].size,)]  # sizes that are symbols decide the shape, not the size
        if shapes is None:
            self.is_large = node.op_type not in WITHIN_INPUTS
            return False
        inputs = sum(a.size for a in values if a is not None)
        counts = [math.prod(shape) for shape in shapes]
        elements = sum(counts)
        sizes = [self._bytes(v, n, values) for v, n in zip(node.outputs, counts, strict=True)]
        work = (node_flops(node) or 0) + inputs + elements
        beyond = sum(sizes) * max(elements - inputs, 0) // max(elements, 1)
        self.is_large = (
            (self.growth is not None and elements > self.growth + inputs)
            or beyond > self.tensor_bytes
            or sum(sizes) > self.bytes
            or work > self.work
        )
        if self.is_large:
            return False
        self.bytes -= sum(sizes)
        self.work -= work
        return True

    def _bytes(self, value: ir.Value, elements: int, values: Sequence[Any]) -> int:
        """The bytes of a result; a text counts as long as the longest texts read, together."""
        if value.dtype != ir.DataType.STRING:
            return elements * (8 if value.dtype is None else max(value.dtype.bitwidth // 8, 1))
        texts = [a for a in values if a is not None and a.dtype.kind in "OSUT"]
        longest = sum(max((len(t) for t in a.flat), default=0) for a in texts)
        size = elements * (32 + longest)
        return size if size <= self.tensor_bytes else self.bytes + 1


def _shapes(node: ir.Node, values: Sequence[Any]) -> list[tuple[int, ...]] | None:
    """The shapes of the results, inferred from the constants alone; None where ONNX cannot.

    A shape that the file declares is not used.
    """
    declared = [value.shape for value in node.outputs]
    before = [None if v is None else v.const_value for v in node.inputs]
    for value, array in zip(node.inputs, values, strict=False):
        if value is not None and array is not None:
            value.shape = ir.Shape(array.shape)
            if array.size <= Limits.propagated_elements and array.dtype.kind in "iu":
                value.const_value = ir.Tensor(array)
    for value in node.outputs:
        value.shape = None
    infer(node)
    shapes = [v.shape.numpy() for v in node.outputs if v.shape is not None and v.shape.is_static()]
    for value, tensor in zip(node.inputs, before, strict=True):
        if value is not None:
            value.const_value = tensor
    if len(shapes) == len(declared):
        return shapes
    for value, shape in zip(node.outputs, declared, strict=True):
        value.shape = shape
    return None


# -- the contents of values ---------------------------------------------------------


def contents(value: ir.Value | None, bound: int = Limits.fold_tensor_bytes) -> Contents | None:
    """What is known of a value: an array; one of objects where some elements are symbols.

    An initializer that is also a graph input is a default, which a caller may override: not known.

    bound -- bytes of a constant that are still read
    """
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        tensor = value.const_value
        if tensor.dtype == ir.DataType.STRING or tensor.nbytes > bound:
            return None
        return tensor.numpy()
    content = value.meta.get("content")
    if content is None or value.shape is None:
        return None
    return objects(content, tuple(d for d in value.shape if isinstance(d, int)))


def remember(value: ir.Value, array: Contents) -> None:
    """Write down on `value` what is known of it."""
    if value.shape is None or not value.shape.is_static():
        value.shape = ir.Shape(array.shape)
    if is_whole(array):
        dtype = value.dtype or ir.DataType.from_numpy(array.dtype)
        array = np.ascontiguousarray(array.astype(dtype.numpy(), copy=False)).reshape(array.shape)
        value.const_value = ir.Tensor(array, dtype, name=value.name)
        value.meta.pop("content", None)
    else:
        value.meta["content"] = tuple(array.flat)


def evaluate(node: ir.Node, bound: int = Limits.fold_tensor_bytes) -> Contents | None:
    """The contents of a node's only output, where those of its inputs decide it, or None.

    bound -- bytes that an input or the result may have
    """
    if (
        node.domain != ""
        or len(node.outputs) != 1
        or any(a.is_ref() for a in node.attributes.values())
    ):
        return None
    constant = node.outputs[0].const_value
    if constant is not None:
        return constant.numpy() if constant.nbytes <= bound else None
    if node.op_type in ("Shape", "Size"):
        return shape_of(node)
    rule = RULES.get(node.op_type)
    if rule is None:
        return None
    size, compute = rule
    inputs = [contents(v, bound) for v in node.inputs]
    if any(a is None and v is not None for a, v in zip(inputs, node.inputs, strict=True)):
        return None
    try:
        elements = size(node, inputs)
        if elements is None or elements * itemsize(node, inputs) > bound:
            return None
        with np.errstate(all="raise", under="ignore"):
            array = compute(node, inputs)
    except (ArithmeticError, ValueError, IndexError, TypeError, KeyError, AttributeError):
        return None  # what cannot be computed here fails, or not, where it is run
    return None if array is None else settle(np.asarray(array))


# -- folding a graph ----------------------------------------------------------------

Compute = Callable[[ir.Node, Sequence[Any], Budget], Sequence[Any] | None]


def fold(
    graph: ir.Graph,
    *,
    keep: Collection[str] = (),
    elements: int | None = None,
    compute: Compute | None = None,
) -> int:
    """Replace nodes that read only constants by initializers; returns how many nodes went.

    Names stay: an initializer has the name of the output that it replaces. A node that makes a
    graph output stays.

    keep     -- names of initializers whose readers stay
    elements -- the most elements of an initializer that is made
    compute  -- the results of a node that `evaluate` has no rule for, or None
    """
    return _fold(graph, Budget(graph), frozenset(keep), elements, compute)


def _fold(
    graph: ir.Graph,
    budget: Budget,
    keep: frozenset[str],
    most: int | None,
    compute: Compute | None,
) -> int:
    folded = 0
    for node in list(graph):
        inner = bodies(node)
        for body in inner:
            folded += _fold(body, budget, keep, most, compute)
        if inner or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
            continue
        if keep and any(v is not None and v.name in keep for v in node.inputs):
            continue
        array = _value(node, budget, compute)
        if array is not None and (most is None or array.size <= most):
            _to_initializer(graph, node, array)
            folded += 1
    return folded


def _value(node: ir.Node, budget: Budget, compute: Compute | None) -> Contents | None:
    """The whole value of a node that reads only constants, charged to the budget, or None."""
    array = evaluate(node, min(budget.bytes, budget.tensor_bytes))
    if array is not None and is_whole(array):
        budget.bytes -= array.nbytes
        return array
    if compute is None or not node.inputs:
        return None
    values = [contents(v, budget.tensor_bytes) for v in node.inputs]
    if any(a is None and v is not None for a, v in zip(values, node.inputs, strict=True)):
        return None
    if not all(a is None or is_whole(a) for a in values):
        return None
    results = compute(node, values, budget)
    if results is None or not isinstance(results[0], np.ndarray):
        return None
    return results[0] if is_whole(results[0]) else None


def _to_initializer(graph: ir.Graph, node: ir.Node, array: Contents) -> None:
    (old,) = node.outputs
    name, old.name = old.name, None
    new = ir.Value(name=name, type=old.type, shape=ir.Shape(array.shape))
    remember(new, array)
    if new.type is None:
        new.type = ir.TensorType(new.const_value.dtype)  # type: ignore[union-attr]
    new.metadata_props.update(old.metadata_props)
    old.replace_all_uses_with(new)
    graph.remove(node, safe=True)
    graph.register_initializer(new)
