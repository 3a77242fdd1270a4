"""Rules of arrays of tensors as TensorFlow 1 writes them.

Their operators pass a handle, which is the array, and a number, `flow`, which orders reads and
writes. Here the handle has the settings of the array, and the flow is the list of its elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant
from sardonyx.importers.tensorflow.lists import TensorList, count_of
from sardonyx.importers.tensorflow.ops.functional import same_count
from sardonyx.importers.tensorflow.ops.lists import tensor_list_concat, tensor_list_split
from sardonyx.importers.tensorflow.reader import dtype_of, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer


@dataclass(frozen=True)
class ArrayHandle:
    """An array of tensors, whose elements are elsewhere."""

    grows: bool
    shape: list[int | None] | None


def _elements(handle: Any, flow: Any) -> TensorList:
    if not isinstance(handle, ArrayHandle) or not isinstance(flow, TensorList):
        raise Refusal("an array of tensors that is written outside of the graph")
    if flow.value is None and flow.shape is None:
        flow.shape = handle.shape
    return flow


def _with_shape(elements: TensorList, shape: tf.TensorShape) -> TensorList:
    if elements.value is None and elements.shape is None and shape.rank is not None:
        elements.shape = shape.as_list()
    return elements


@importer("TensorArrayV3")
def tensor_array(
    op: Writer, size: ir.Value, *, dtype: Any, element_shape: Any, dynamic_size: bool
) -> list[Any]:
    kind = dtype_of(dtype)
    if kind is None or dtype.is_complex:
        raise Refusal(f"an array of {dtype.name}")
    shape = tf.TensorShape(element_shape)
    sizes = None if shape.rank is None else shape.as_list()
    count = count_of(op, size)
    return [ArrayHandle(dynamic_size, sizes), TensorList(kind, None, count, sizes)]


@importer("TensorArrayWriteV3")
def tensor_array_write(
    op: Writer, handle: Any, index: ir.Value, item: Any, flow: Any
) -> TensorList:
    return _elements(handle, flow).with_item(op, index, item, handle.grows)


@importer("TensorArrayReadV3")
def tensor_array_read(op: Writer, handle: Any, index: ir.Value, flow: Any) -> ir.Value:
    return op.Gather(_elements(handle, flow).stacked(op), index, axis=0)


@importer("TensorArrayGatherV3")
def tensor_array_gather(
    op: Writer, handle: Any, indices: ir.Value, flow: Any, *, element_shape: Any
) -> ir.Value:
    elements = _with_shape(_elements(handle, flow), tf.TensorShape(element_shape))
    stacked = elements.stacked(op)
    count = elements.count if elements.value is None else op.dim_value(stacked, 0)
    return stacked if _are_all(op, indices, count) else op.Gather(stacked, indices, axis=0)


@importer("TensorArrayScatterV3")
def tensor_array_scatter(
    op: Writer, handle: Any, indices: ir.Value, x: ir.Value, flow: Any
) -> TensorList:
    elements = _elements(handle, flow)
    assert x.dtype is not None
    if elements.value is None and _are_all(op, indices, elements.count):
        return TensorList(x.dtype, x)
    stacked = elements.value
    if stacked is None:
        count = elements.count
        if handle.grows:
            most = op.Add(op.ReduceMax(op.int64(indices), keepdims=0), op.const(np.int64(1)))
            count = op.Max(op.Reshape(most, [1]), count)
        stacked = TensorList(x.dtype, None, count).zeros(op, op.dims(x, 1))
    elif handle.grows:
        raise Refusal("an array of tensors that grows where many elements are written at once")
    places = op.Unsqueeze(op.int64(indices), [-1])
    return TensorList(x.dtype, op.ScatterND(stacked, places, x))


@importer("TensorArraySizeV3")
def tensor_array_size(op: Writer, handle: Any, flow: Any) -> ir.Value:
    return op.cast(op.Squeeze(_elements(handle, flow).length(op), [0]), ir.DataType.INT32)


@importer("TensorArrayConcatV3")
def tensor_array_concat(op: Writer, handle: Any, flow: Any, *, node: Any) -> list[ir.Value]:
    return list(tensor_list_concat(op, _elements(handle, flow), node=node))


@importer("TensorArraySplitV3")
def tensor_array_split(
    op: Writer, handle: Any, x: ir.Value, lengths: ir.Value, flow: Any
) -> TensorList:
    _elements(handle, flow)
    elements: TensorList = tensor_list_split(op, x, lengths, lengths)
    return elements


def _are_all(op: Writer, indices: ir.Value, count: ir.Value | None) -> bool:
    """Whether indices are those of all elements in their order."""
    if count is None:
        return False
    array, number = constant(indices), constant(count)
    if array is not None:
        counted = number is not None and int(number.reshape(-1)[0]) == array.size
        return counted and bool((array.reshape(-1) == np.arange(array.size)).all())
    producer = indices.producer()
    while producer is not None and producer.op_type == "Cast":
        producer = producer.inputs[0].producer() if producer.inputs[0] is not None else None
    if producer is None or producer.op_type != "Range":
        return False
    start, limit, step = producer.inputs
    first, each = constant(start), constant(step)
    if first is None or each is None or first.item() != 0 or each.item() != 1:
        return False
    return same_count(op, limit, count)
