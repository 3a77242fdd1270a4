"""Rules of lookup tables that do not change: LabelEncoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.importers.tensorflow.reader import Reader, importer
from sardonyx.importers.tensorflow.state import Table, TableHandle
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


@importer("HashTableV2", "HashTable")
def hash_table(op: Writer, *, node: Any, reader: Reader) -> TableHandle:
    if reader.fetch is None:
        raise Refusal("a lookup table whose content is not in the graph; give the SavedModel")
    return TableHandle(reader.fetch(node.outputs[0]))


@importer("LookupTableFindV2", "LookupTableFind")
def lookup_table_find(
    op: Writer, handle: Any, keys: ir.Value, default: ir.Value, *, Tin: tf.DType, Tout: tf.DType
) -> ir.Value:
    table = _table(handle, Tin, Tout)
    other = op.known(default, "a default")
    if table.keys.ndim != 1 or table.values.ndim != 1:
        raise Refusal("a table of vectors")
    entries, values, fill = _entries(table, other)
    attributes = {
        f"keys_{_stem(entries)}s": _plain(entries),
        f"values_{_stem(values)}s": _plain(values),
        f"default_{_stem(values)}": _plain(np.array([fill], values.dtype))[0],
    }
    wide = keys if keys.dtype == T.STRING else op.cast(keys, _kind(entries))
    encoded = op.call("LabelEncoder", [wide], attributes, domain="ai.onnx.ml")
    encoded.type, encoded.shape = ir.TensorType(_kind(values)), keys.shape
    return op.cast(encoded, _kind_of(Tout))


def _table(handle: Any, keys: tf.DType, values: tf.DType) -> Table:
    if isinstance(handle, Table):
        return handle
    if not isinstance(handle, TableHandle):
        raise Refusal("a lookup table whose content is not known")
    return handle.table(keys, values)


def _entries(table: Table, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    """Keys, values and the default in types that LabelEncoder has."""
    return _supported(table.keys), _supported(table.values), _supported(other.reshape(1))[0]


def _supported(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "OSU":
        return array
    if array.dtype.kind in "iub":
        return array.astype(np.int64)
    if array.dtype != np.float32:
        raise Refusal(f"a lookup table of {array.dtype}")
    return array


def _kind(array: np.ndarray) -> ir.DataType:
    return T.STRING if array.dtype.kind in "OSU" else T.from_numpy(array.dtype)


def _kind_of(dtype: tf.DType) -> ir.DataType:
    return T.STRING if dtype == tf.string else T.from_numpy(np.dtype(dtype.as_numpy_dtype))


def _stem(array: np.ndarray) -> str:
    """How LabelEncoder calls the type of an attribute."""
    return {"i": "int64", "f": "float"}.get(array.dtype.kind, "string")


def _plain(array: np.ndarray) -> list[Any]:
    if array.dtype.kind not in "OSU":
        return array.tolist()
    return [t.decode() if isinstance(t, bytes) else str(t) for t in array]


@importer("LookupTableSizeV2", "LookupTableSize")
def lookup_table_size(op: Writer, handle: Any) -> ir.Value:
    if isinstance(handle, TableHandle):
        size = tf.raw_ops.LookupTableSizeV2(table_handle=handle.handle)
        return op.const(np.asarray(size.numpy()))
    raise Refusal("a lookup table whose content is not known")
