"""Rules of lists of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant, rank
from sardonyx.importers.tensorflow.lists import TensorList, count_of
from sardonyx.importers.tensorflow.reader import dtype_of, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer


def _list(thing: Any) -> TensorList:
    if not isinstance(thing, TensorList):
        raise Refusal("a value that is no list of tensors")
    return thing


def _kind(element_dtype: tf.DType) -> ir.DataType:
    kind = dtype_of(element_dtype)
    if kind is None or element_dtype.is_complex:
        raise Refusal(f"a list of {element_dtype.name}")
    return kind


def _shape(op: Writer, shape: ir.Value) -> list[int | None] | None:
    """The shape of elements: -1 is free, a scalar -1 is an unknown rank."""
    array = constant(shape)
    if array is None:
        elements = op.elements(shape)
        if elements is None or elements.ndim != 1:
            return None
        return [e if isinstance(e, int) and e >= 0 else None for e in elements]
    if array.ndim == 0:
        return None
    return [None if d < 0 else int(d) for d in array]


@importer("TensorListReserve")
def tensor_list_reserve(
    op: Writer, shape: ir.Value, count: ir.Value, *, element_dtype: tf.DType
) -> TensorList:
    return TensorList(_kind(element_dtype), None, count_of(op, count), _shape(op, shape))


@importer("EmptyTensorList")
def empty_tensor_list(
    op: Writer, shape: ir.Value, limit: ir.Value, *, element_dtype: tf.DType
) -> TensorList:
    zero = op.const(np.zeros(1, np.int64))
    return TensorList(_kind(element_dtype), None, zero, _shape(op, shape))


@importer("TensorListFromTensor")
def tensor_list_from_tensor(op: Writer, x: ir.Value, shape: ir.Value) -> TensorList:
    assert x.dtype is not None
    return TensorList(x.dtype, x)


@importer("TensorListStack")
def tensor_list_stack(op: Writer, elements: Any, shape: ir.Value) -> ir.Value:
    items = _list(elements)
    if items.value is None and items.shape is None:
        items.shape = _shape(op, shape)
    return items.stacked(op)


@importer("TensorListGetItem")
def tensor_list_get_item(op: Writer, elements: Any, index: ir.Value, shape: ir.Value) -> ir.Value:
    items = _list(elements)
    if items.value is None and items.shape is None:
        items.shape = _shape(op, shape)
    return op.Gather(items.stacked(op), index, axis=0)


@importer("TensorListSetItem")
def tensor_list_set_item(
    op: Writer,
    elements: Any,
    index: ir.Value,
    item: Any,
    *,
    resize_if_index_out_of_bounds: bool = False,
) -> TensorList:
    if not isinstance(item, ir.Value):
        raise Refusal("a list of lists")
    return _list(elements).with_item(op, index, item, resize_if_index_out_of_bounds)


@importer("TensorListPushBack")
def tensor_list_push_back(op: Writer, elements: Any, item: Any) -> TensorList:
    if not isinstance(item, ir.Value):
        raise Refusal("a list of lists")
    return _list(elements).pushed(op, op.Unsqueeze(item, [0]))


@importer("TensorListPopBack")
def tensor_list_pop_back(op: Writer, elements: Any, shape: ir.Value) -> list[Any]:
    items = _list(elements)
    stacked = items.stacked(op)
    last = op.Gather(stacked, op.const(np.int64(-1)), axis=0)
    return [TensorList(items.dtype, op.part(stacked, 0, 0, -1)), last]


@importer("TensorListLength")
def tensor_list_length(op: Writer, elements: Any) -> ir.Value:
    return op.cast(op.Squeeze(_list(elements).length(op), [0]), ir.DataType.INT32)


@importer("TensorListResize")
def tensor_list_resize(op: Writer, elements: Any, size: ir.Value) -> TensorList:
    items = _list(elements)
    count = count_of(op, size)
    if items.value is None:
        return TensorList(items.dtype, None, count, items.shape)
    cut = op.Slice(items.value, [0], count, [0])
    more = op.Sub(count, op.dim_value(cut, 0))
    n = rank(cut)
    return TensorList(items.dtype, op.Pad(cut, op.join([0] * n + [more] + [0] * (n - 1))))


@importer("TensorListGather")
def tensor_list_gather(op: Writer, elements: Any, indices: ir.Value, shape: ir.Value) -> ir.Value:
    return op.Gather(_list(elements).stacked(op), indices, axis=0)


@importer("TensorListScatter", "TensorListScatterV2")
def tensor_list_scatter(
    op: Writer, x: ir.Value, indices: ir.Value, shape: ir.Value, count: ir.Value | None = None
) -> TensorList:
    assert x.dtype is not None
    size = op.Add(op.ReduceMax(op.int64(indices), keepdims=0), op.const(np.int64(1)))
    if count is not None:
        size = op.Max(size, op.int64(count))
    items = TensorList(x.dtype, None, op.Reshape(size, [1]))
    zeros = items.zeros(op, op.dims(x, 1))
    return TensorList(x.dtype, op.ScatterND(zeros, op.Unsqueeze(op.int64(indices), [-1]), x))


@importer("TensorListConcatV2", "TensorListConcat")
def tensor_list_concat(op: Writer, elements: Any, *_: ir.Value, node: Any) -> list[ir.Value]:
    stacked = _list(elements).stacked(op)
    count, size, *rest = op.dims(stacked)
    lengths = op.Expand(
        size if isinstance(size, ir.Value) else op.const(np.array([size])),
        count if isinstance(count, ir.Value) else op.const(np.array([count])),
    )
    return [op.reshape(stacked, [-1, *rest]), lengths]


@importer("TensorListSplit")
def tensor_list_split(op: Writer, x: ir.Value, shape: ir.Value, lengths: ir.Value) -> TensorList:
    sizes = op.known(lengths, "lengths").reshape(-1)
    if not sizes.size or (sizes != sizes[0]).any():
        raise Refusal("a list of elements of different sizes")
    assert x.dtype is not None
    return TensorList(x.dtype, op.reshape(x, [sizes.size, int(sizes[0]), *op.dims(x, 1)]))


@importer("TensorListElementShape")
def tensor_list_element_shape(op: Writer, elements: Any, *, shape_type: tf.DType) -> ir.Value:
    items = _list(elements)
    kind = dtype_of(shape_type)
    if items.value is not None:
        return op.cast(op.join(op.dims(items.value, 1)), kind)
    if items.shape is None:
        raise Refusal("the shape of the elements of an empty list")
    return op.const(np.array([-1 if d is None else d for d in items.shape]), kind)
