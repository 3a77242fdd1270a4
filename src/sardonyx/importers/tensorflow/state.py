"""Variables and tables: values that a graph reads, and that ONNX has no type for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.importers.tensorflow.reader import Reader, Unknown, dtype_of
from sardonyx.importers.tensorflow.sources import Source
from sardonyx.importers.tensorflow.writer import Refusal, Writer


@dataclass
class Variable:
    """A variable and the initializer that it becomes."""

    value: ir.Value


@dataclass
class Table:
    """A lookup table that does not change: keys and values, or a line number per key."""

    keys: np.ndarray
    values: np.ndarray


def weight(op: Writer, reader: Reader, name: str, array: np.ndarray) -> ir.Value:
    """An initializer called `name`, which stays an input until the graph is complete."""
    label = op.fresh(name)
    kind = ir.DataType.from_numpy(array.dtype)
    value = ir.Value(name=label, type=ir.TensorType(kind), shape=ir.Shape(array.shape))
    value.meta["weight"] = True
    reader.weights[label] = (value, array)
    return value


def captured(op: Writer, reader: Reader, thing: Any, source: Source) -> Any:
    """What a graph has captured, as rules take it."""
    if hasattr(thing, "handle") and hasattr(thing, "read_value"):
        array = np.asarray(thing.read_value().numpy())
        if array.dtype.kind in "OSU":
            return Variable(op.const(array))
        name = source.names.get(id(thing.handle)) or thing.name.partition(":")[0]
        value = weight(op, reader, name, array)
        if not getattr(thing, "trainable", True):
            reader.untrained.add(str(value.name))
        return Variable(value)
    if not tf.is_tensor(thing):
        return Unknown()
    if thing.dtype == tf.resource:
        return _resource(op, reader, thing, source)
    if thing.dtype == tf.variant or dtype_of(thing.dtype) is None:
        return Unknown()
    return op.const(np.asarray(thing.numpy()))


def _resource(op: Writer, reader: Reader, handle: Any, source: Source) -> Any:
    """A variable or a table behind a handle of which no object is known."""
    data = getattr(handle, "_handle_data", None)
    pairs = list(data.shape_and_type) if data is not None and data.is_set else []
    if pairs:
        dtype = tf.as_dtype(pairs[0].dtype)
        array = np.asarray(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy())
        name = source.names.get(id(handle)) or "variable"
        return Variable(weight(op, reader, name, array))
    return TableHandle(handle)


def inside(op: Writer, reader: Reader, node: Any, dtype: tf.DType) -> Any:
    """A variable that a graph of TensorFlow 1 holds itself."""
    shared = node.node_def.attr["shared_name"].s.decode()
    name = re.sub(r"_load_\d+$", "", shared) or node.name  # tf.saved_model.load adds a number
    if reader.fetch is None:
        raise Refusal("a variable without a value; freeze the graph, or give the SavedModel")
    try:
        value = reader.fetch(node.outputs[0])
        if value.dtype == tf.resource:
            value = tf.raw_ops.ReadVariableOp(resource=value, dtype=dtype)
    except tf.errors.OpError as error:
        raise Refusal("a variable that was not initialized") from error
    return weight(op, reader, name, np.asarray(value.numpy()))


@dataclass
class TableHandle:
    """The handle of a table, whose types are known where it is read."""

    handle: Any

    def _is_mutable(self, keys: tf.DType, values: tf.DType) -> bool:
        """Whether entries can be added: none is, and tables that are filled once refuse even that.

        The handle itself does not tell; a table of vectors refuses the shape of the values.
        """
        nothing = tf.zeros([0], keys), tf.zeros([0], values)
        try:
            tf.raw_ops.LookupTableInsertV2(
                table_handle=self.handle, keys=nothing[0], values=nothing[1]
            )
        except tf.errors.InvalidArgumentError:
            return True
        except tf.errors.OpError:
            return False
        return True

    def table(self, keys: tf.DType, values: tf.DType) -> Table:
        if self._is_mutable(keys, values):
            raise Refusal("a lookup table with state; use tf.lookup.StaticHashTable")
        try:
            exported = tf.raw_ops.LookupTableExportV2(
                table_handle=self.handle, Tkeys=keys, Tvalues=values
            )
        except tf.errors.OpError as error:
            raise Refusal("a lookup table that was not filled") from error
        return Table(exported.keys.numpy(), exported.values.numpy())
