"""Rules of constants, variables and placeholders."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.importers.tensorflow.reader import Reader, importer
from sardonyx.importers.tensorflow.state import Variable, inside, weight
from sardonyx.importers.tensorflow.writer import Refusal, Writer


@importer("Const")
def const(op: Writer, *, node: Any, reader: Reader) -> ir.Value:
    array = np.asarray(tf.make_ndarray(node.get_attr("value")))
    if array.dtype.kind == "c":
        value = op.const(np.stack([array.real, array.imag], -1))
        value.meta["complex"] = True
        return value
    if reader.frozen and array.dtype.kind == "f" and array.ndim and array.size > 1:
        return weight(op, reader, node.name, array)
    return op.const(array)


@importer("Placeholder")
def placeholder(op: Writer, *, node: Any) -> ir.Value:
    raise Refusal("a placeholder that is no input")


@importer("PlaceholderWithDefault")
def placeholder_with_default(op: Writer, x: ir.Value) -> ir.Value:
    return x


@importer("VarHandleOp")
def var_handle_op(op: Writer, *, node: Any, reader: Reader, dtype: Any) -> Variable:
    return Variable(inside(op, reader, node, dtype))


@importer("VariableV2", "Variable")
def variable_v2(op: Writer, *, node: Any, reader: Reader, dtype: Any) -> ir.Value:
    return inside(op, reader, node, dtype)


@importer("ReadVariableOp")
def read_variable_op(op: Writer, variable: Any) -> ir.Value:
    if not isinstance(variable, Variable):
        raise Refusal("a resource that is no variable")
    return variable.value


@importer("VariableShape")
def variable_shape(op: Writer, variable: Any, *, out_type: Any) -> ir.Value:
    if not isinstance(variable, Variable):
        raise Refusal("a resource that is no variable")
    elements = op.shape_elements(variable.value)
    assert elements is not None
    return op.sized(elements, ir.DataType.from_numpy(out_type.as_numpy_dtype))


@importer("ResourceGather")
def resource_gather(
    op: Writer, variable: Any, indices: ir.Value, *, batch_dims: int = 0
) -> ir.Value:
    if not isinstance(variable, Variable) or batch_dims:
        raise Refusal("a resource that is no variable")
    return op.Gather(variable.value, indices, axis=0)


@importer("ResourceGatherNd")
def resource_gather_nd(op: Writer, variable: Any, indices: ir.Value) -> ir.Value:
    if not isinstance(variable, Variable):
        raise Refusal("a resource that is no variable")
    return op.GatherND(variable.value, op.int64(indices))
