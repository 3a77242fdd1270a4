"""What is known of a value: its type, its shape, its constant; and inference of one node's outputs.

The commonest operators are inferred here, all others by ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import opset
from sardonyx.errors import ArgumentError, quote
from sardonyx.limits import Limits

FOLDED_CONSTANT = Limits.propagated_elements


def rank(x: ir.Value) -> int:
    """The rank of `x`, which must be known."""
    if x.shape is None:
        raise ArgumentError(
            f"the rank of {quote(x.name)} is not known",
            hint="declare the shapes of the model's inputs",
        )
    return len(x.shape)


def is_static(x: ir.Value) -> bool:
    """Whether every dimension of `x` is known."""
    shape = x.shape
    if shape is None:
        return False
    for dim in shape.dims:  # noqa: SIM110 -- a generator takes twice the time
        if not isinstance(dim, int):
            return False
    return True


def static(x: ir.Value) -> tuple[int, ...]:
    """The shape of `x`, all of whose dimensions must be known."""
    assert x.shape is not None
    return tuple([d for d in x.shape.dims if isinstance(d, int)])


def same_dim(a: Any, b: Any) -> bool:
    """Whether two dimensions are known to be equal: equal numbers, or the same symbol."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value


def same_dims(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(same_dim(x, y) for x, y in zip(a, b, strict=True))


def same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are known to have the same shape."""
    if a is b:
        return True
    return a.shape is not None and b.shape is not None and same_dims(a.shape.dims, b.shape.dims)


def constant(x: ir.Value | None) -> np.ndarray | None:
    """The array behind a constant (an initializer or a Constant node), or None.

    An initializer that is also a graph input is a default that a caller may override: no constant.
    """
    if x is None or x.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(x)
    return None if tensor is None else tensor.numpy()


def content(x: ir.Value) -> tuple[Any, ...] | None:
    """The elements of a vector of sizes, as ints and symbols, where they are known."""
    if "content" in x.meta:
        return x.meta["content"]
    if x.is_graph_input():
        return None
    if x.const_value is not None and x.const_value.size <= FOLDED_CONSTANT:
        return tuple(int(v) for v in np.atleast_1d(x.const_value.numpy()))
    return None


def type_proto(x: ir.Value) -> onnx.TypeProto | None:
    """The type and shape of `x` as ONNX writes them."""
    if x.type is None:
        return None
    proto = onnx.TypeProto()
    ir.serde.serialize_type_into(proto, x.type)
    if x.shape is not None:
        ir.serde.serialize_shape_into(proto, x.shape)
    return proto


# Operators whose output has the type and shape of their input, and those of two operands.
UNARY = frozenset(
    [
        "Abs",
        "Ceil",
        "Cos",
        "Erf",
        "Exp",
        "Floor",
        "Identity",
        "Log",
        "Neg",
        "Not",
        "Reciprocal",
        "Relu",
        "Round",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sqrt",
        "Tanh",
    ]
)
BINARY = frozenset(["Add", "Sub", "Mul", "Div"])
COMPARISONS = frozenset(["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])


def infer_elementwise(node: ir.Node) -> bool:
    """Handle the plain cases of the commonest operators without ONNX; whether it was one."""
    op_type, inputs = node.op_type, node.inputs
    if op_type == "ConstantOfShape":
        return _infer_constant_of_shape(node)
    is_unary = op_type in UNARY or (op_type == "Cast" and _is_plain_cast(node))
    if not is_unary and op_type not in BINARY and op_type not in COMPARISONS:
        return False
    if node.domain or len(node.outputs) != 1 or len(inputs) != 2 - is_unary:
        return False
    first, last = inputs[0], inputs[-1]
    if first is None or last is None or first.shape is None or last.shape is None:
        return False
    shape = first.shape
    if not is_unary and len(last.shape) and not same_dims(shape.dims, last.shape.dims):
        if len(shape):
            return False
        shape = last.shape
    value = node.outputs[0]
    if value.type is None:
        value.type = _elementwise_type(node, first)
    if value.shape is None:
        value.shape = ir.Shape(shape.dims)
    return True


def _infer_constant_of_shape(node: ir.Node) -> bool:
    target, value = node.inputs[0], node.attributes.get("value")
    if node.domain or target is None or value is None or value.type != ir.AttributeType.TENSOR:
        return False
    if value.is_ref() or target.const_value is None or target.is_graph_input():
        return False
    if target.dtype != ir.DataType.INT64 or target.const_value.size > FOLDED_CONSTANT:
        return False
    sizes = target.const_value.numpy()
    if sizes.ndim != 1 or (sizes < 0).any():
        return False
    (output,) = node.outputs
    if output.type is None:
        output.type = ir.TensorType(value.value.dtype)
    if output.shape is None:
        output.shape = ir.Shape(sizes.tolist())
    return True


def _is_plain_cast(node: ir.Node) -> bool:
    to = node.attributes.get("to")
    return to is not None and not to.is_ref()


def _elementwise_type(node: ir.Node, first: ir.Value) -> ir.TypeProtocol | None:
    if node.op_type in COMPARISONS:
        return ir.TensorType(ir.DataType.BOOL)
    if node.op_type == "Cast":
        return ir.TensorType(ir.DataType(node.attributes["to"].as_int()))
    return first.type


def infer(node: ir.Node, version: int | None = None) -> None:
    """Set types and shapes of a node's outputs from those of its inputs, where ONNX can tell."""
    if infer_elementwise(node):
        return
    types, data = {}, {}
    names = []
    for i, x in enumerate(node.inputs):
        if x is None:
            names.append("")
            continue
        names.append(f"i{i}")
        proto = type_proto(x)
        if proto is not None:
            types[f"i{i}"] = proto
        tensor = None if x.is_graph_input() else x.const_value
        if tensor is not None and tensor.size <= FOLDED_CONSTANT:
            data[f"i{i}"] = ir.serde.serialize_tensor(tensor)
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name or "")
    proto.input.extend(names)
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    for attr in node.attributes.values():
        if attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return
        proto.attribute.append(ir.serde.serialize_attribute(attr))
    if len(types) < sum(1 for n in names if n):
        return
    for key, inferred in opset.infer_outputs(proto, types, data, version).items():
        value = node.outputs[int(key[1:])]
        value_type = ir.serde.deserialize_type_proto_for_type(inferred)
        if value_type is not None and value.type is None:
            value.type = value_type
        shape = ir.serde.deserialize_type_proto_for_shape(inferred)
        if shape is not None and value.shape is None:
            value.shape = shape
    _types_by_schema(node, version)


def _types_by_schema(node: ir.Node, version: int | None) -> None:
    """Where ONNX infers nothing, an output has the type of inputs that share its type variable."""
    schema = opset.schema(node.op_type, node.domain, version)
    if schema is None or all(v.type is not None for v in node.outputs):
        return
    formal = formal_types(schema, len(node.inputs))
    types = {t: x.type for t, x in zip(formal, node.inputs, strict=True) if x is not None}
    for value, parameter in zip(node.outputs, schema.outputs, strict=False):
        if value.type is None:
            value.type = types.get(parameter.type_str)


def formal_types(schema: opset.Schema | None, count: int) -> list[str]:
    if schema is None or not schema.inputs:
        return ["T"] * count
    types = [i.type_str for i in schema.inputs]
    return (types + [types[-1]] * count)[:count]
