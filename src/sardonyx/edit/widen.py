"""The same model in double precision: all that is float32 becomes float64, nothing else changes.

A Cast to a 16-bit type stays: its rounding is part of the model. Only a model that computes in 16
bits is widened from there as well, when asked.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.limits import set_as_loaded
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, regular_copy
from sardonyx.passes.nesting import graphs

TYPE_ATTRIBUTES = (
    *("to", "dtype", "output_dtype", "output_datatype"),
    *("stash_type", "softmax_precision", "precision"),
)
FLOAT = (ir.DataType.FLOAT,)


def widen(model: Model, kinds: Collection[ir.DataType] = FLOAT) -> NormalizedModel:
    """The normal form of `model` with every float of `kinds` widened to float64, on a copy."""
    wide = regular_copy(model)
    set_as_loaded(wide.graph, False)
    for graph in graphs(wide.graph):
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            _widen_value(value, kinds)
        for node in list(graph):
            if node.op_type == "BitCast" and not node.domain:
                _keep_bits(graph, node, kinds)
                continue
            for value in node.outputs:
                _widen_value(value, kinds)
            _write_defaults(node)
            for attr in list(node.attributes.values()):
                _widen_attribute(node, attr, kinds)
    return NormalizedModel.of(wide)


def _keep_bits(graph: ir.Graph, node: ir.Node, kinds: Collection[ir.DataType]) -> None:
    """Leave a BitCast between its own types, which say how many bits it reads: casts go around it.

    The type of its input may be widened already; the width of its result tells what it was.
    """
    (value,), (result,) = node.inputs, node.outputs
    assert value is not None
    to = ir.DataType(node.attributes["to"].as_int())
    if to in kinds:
        name, result.name = result.name, f"{result.name}/bits"
        result.type = ir.TensorType(to)  # a result of the graph may be widened already
        cast = ir.Node("", "Cast", [result], [_to(ir.DataType.DOUBLE)], num_outputs=1, name=name)
        (wide,) = cast.outputs
        wide.name, wide.shape = name, result.shape
        wide.type = ir.TensorType(ir.DataType.DOUBLE)
        result.replace_all_uses_with(wide, replace_graph_outputs=True)
        cast.replace_input_with(0, result)
        graph.insert_after(node, cast)
    elif value.dtype == ir.DataType.DOUBLE and to.bitwidth < 64:
        narrow = next((k for k in kinds if k.bitwidth == to.bitwidth), None)
        if narrow is None:
            return
        cast = ir.Node("", "Cast", [value], [_to(narrow)], num_outputs=1, name=f"{node.name}/Cast")
        (bits,) = cast.outputs
        bits.name, bits.shape, bits.type = f"{node.name}/Cast", value.shape, ir.TensorType(narrow)
        graph.insert_before(node, cast)
        node.replace_input_with(0, bits)


def _to(kind: ir.DataType) -> ir.Attr:
    return ir.AttrInt64("to", int(kind))


def _write_defaults(node: ir.Node) -> None:
    """Types that a node names only by a default."""
    for name, value in opset.attribute_defaults(node.op_type, node.domain).items():
        if name in TYPE_ATTRIBUTES and value and name not in node.attributes:
            node.attributes.add(ir.AttrInt64(name, value))
    if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
        node.attributes.add(ir.AttrTensor("value", ir.tensor(np.zeros(1, np.float32))))


def _widen_value(value: ir.Value, kinds: Collection[ir.DataType]) -> None:
    value.type = _widen_type(value.type, kinds)
    if value.const_value is not None and value.const_value.dtype in kinds:
        value.const_value = _widen_tensor(value.const_value)


def _widen_type(
    kind: ir.TypeProtocol | None, kinds: Collection[ir.DataType]
) -> ir.TypeProtocol | None:
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        return type(kind)(_widen_type(kind.elem_type, kinds))  # type: ignore[arg-type]
    if isinstance(kind, ir.TensorType) and kind.dtype in kinds:
        return ir.TensorType(ir.DataType.DOUBLE)
    return kind


def _widen_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float64), name=tensor.name)


def _widen_attribute(node: ir.Node, attr: ir.Attr, kinds: Collection[ir.DataType]) -> None:
    if attr.type == ir.AttributeType.TENSOR and attr.value.dtype in kinds:
        node.attributes.add(ir.AttrTensor(attr.name, _widen_tensor(attr.value)))
    elif attr.name in TYPE_ATTRIBUTES and attr.value in kinds:
        node.attributes.add(ir.AttrInt64(attr.name, int(ir.DataType.DOUBLE)))
    elif attr.type == ir.AttributeType.TYPE_PROTO:
        wide = ir.TypeAndShape(_widen_type(attr.value.type, kinds), attr.value.shape)
        node.attributes.add(ir.Attr(attr.name, attr.type, wide))
