"""Operators whose inputs are known while building, computed by TensorFlow itself.

Constants are computed in full. Elements of shapes, some of which are free, are followed through
operators that only move elements: TensorFlow moves their numbers instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant
from sardonyx.importers.tensorflow.writer import Writer

ELEMENTS = 4096  # of a result that inputs of fewer elements may grow to
# Operators that move elements, with the first operands that are moved (all, where None).
MOVES = {
    "StridedSlice": 1, "Slice": 1, "GatherV2": 1, "Gather": 1, "Reshape": 1, "Squeeze": 1,
    "ExpandDims": 1, "Identity": 1, "Transpose": 1, "ReverseV2": 1, "Pack": None, "ConcatV2": -1,
    "Unpack": 1, "Split": None, "SplitV": 1, "Cast": 1, "Tile": 1, "StopGradient": 1,
}  # fmt: skip


# Operators that wait for one of their inputs: computed by themselves, they take any.
WAITING = frozenset(["Switch", "RefSwitch", "Merge", "RefMerge", "Exit", "RefExit"])


def evaluated(op: Writer, node: tf.Operation, inputs: Sequence[Any]) -> list[Any] | None:
    """The results of an operator of constants or of sizes; None where it is neither.

    Only operators that have a rule come here: some that have none read files.
    """
    if not inputs or not all(isinstance(v, ir.Value) and not v.meta.get("complex") for v in inputs):
        return None
    if node.type in WAITING or node.op_def.is_stateful:
        return None
    if any(a.type in ("func", "list(func)") for a in node.op_def.attr):
        return None
    arrays = [_constant(v) for v in inputs]
    if all(a is not None for a in arrays):
        return _computed(op, node, arrays)
    if node.type in MOVES:
        return _moved(op, node, inputs, arrays)
    return None


def _constant(value: ir.Value) -> np.ndarray | None:
    return None if value.meta.get("weight") else constant(value)


def _computed(op: Writer, node: tf.Operation, arrays: Sequence[Any]) -> list[Any] | None:
    if any(not _plain(t.dtype) for t in node.outputs):
        return None
    allowed = max(ELEMENTS, 2 * sum(a.size for a in arrays))
    sizes = [t.shape.num_elements() for t in node.outputs]
    if any(s is not None and s > allowed for s in sizes):
        return None
    results = run(node, arrays)
    if results is None or any(r.size > allowed for r in results):
        return None
    return [op.const(r) for r in results]


def _moved(
    op: Writer, node: tf.Operation, inputs: Sequence[ir.Value], arrays: Sequence[Any]
) -> list[Any] | None:
    """The elements of shapes behind an operator that moves them."""
    first = MOVES[node.type]
    if node.type == "Split":
        which = {1}
    else:
        count = len(inputs) if first is None else first if first > 0 else len(inputs) - 1
        which = set(range(count))
    if any(a is None for i, a in enumerate(arrays) if i not in which):
        return None
    if any(t.dtype not in (tf.int32, tf.int64) for t in node.outputs):
        return None
    elements: list[Any] = []
    numbers = list(arrays)
    followed = False
    for i in sorted(which):
        own_elements = op.elements(inputs[i])
        followed = followed or own_elements is not None
        own_elements = op.parts(inputs[i]) if own_elements is None else own_elements
        if own_elements is None:
            return None
        kind = node.inputs[i].dtype.as_numpy_dtype
        numbers[i] = np.arange(len(elements), len(elements) + own_elements.size, dtype=kind)
        numbers[i] = numbers[i].reshape(own_elements.shape)
        elements += list(own_elements.reshape(-1))
    results = run(node, numbers) if followed else None
    if results is None or any(r.ndim > 1 or r.size > ELEMENTS for r in results):
        return None
    return [_chosen(op, elements, r) for r in results]


def _chosen(op: Writer, elements: list[Any], places: np.ndarray) -> ir.Value:
    out = np.empty(places.shape, object)
    flat = out.reshape(-1)
    for i, place in enumerate(places.reshape(-1)):
        flat[i] = elements[int(place)]
    return op.sized(flat.reshape(places.shape), ir.DataType.from_numpy(places.dtype))


def _plain(dtype: tf.DType) -> bool:
    return not (dtype.is_complex or dtype.is_quantized or dtype in (tf.resource, tf.variant))


def run(node: tf.Operation, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The results of one operator on arrays, computed by TensorFlow; None where it cannot."""
    function = getattr(tf.raw_ops, node.type, None)
    if function is None:
        return None
    parameters = list(inspect.signature(function).parameters)
    arguments: dict[str, Any] = {}
    rest = list(zip(arrays, node.inputs, strict=True))
    for place, argument in enumerate(node.op_def.input_arg):
        # Python's name of an argument may be another one: `axis` for `reduction_indices`.
        label = argument.name if argument.name in parameters else parameters[place]
        if argument.number_attr or argument.type_list_attr:
            attribute = argument.number_attr or argument.type_list_attr
            number = node.get_attr(attribute)
            number = number if isinstance(number, int) else len(number)
            part, rest = rest[:number], rest[number:]
            arguments[label] = [tf.constant(a, t.dtype) for a, t in part]
        else:
            (array, tensor), *rest = rest
            arguments[label] = tf.constant(array, tensor.dtype)
    names = set(parameters) - {"name"}
    attributes = {a.name for a in node.op_def.attr}
    for name in names - set(arguments):
        if name in attributes:
            arguments[name] = node.get_attr(name)
    try:
        with tf.init_scope(), tf.device("cpu"):
            results = function(**arguments)
    except (ValueError, TypeError, tf.errors.OpError, NotImplementedError):
        return None
    results = results if isinstance(results, (list, tuple)) else [results]
    return [np.asarray(r.numpy()) for r in results]
