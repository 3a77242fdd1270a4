"""Range of whole numbers in floats, as torch's exporter writes grids: count first, then convert.

Detectors count the cells of an image whose size is free. The size is converted to float before
Range, and a framework that builds a graph no longer knows that it is a size.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import FLOATS

INT64 = ir.DataType.INT64
EXACT = 1 << 11  # up to here, every float has all whole numbers


def ranges(graph: ir.Graph) -> None:
    """Range(Cast(a), Cast(b), Cast(c)) of integers becomes Cast(Range(a, b, c))."""
    for node in list(graph):
        out = node.outputs[0]
        if node.op_type != "Range" or node.domain != "" or out.dtype not in FLOATS:
            continue
        ends = [_integer(graph, node, value) for value in node.inputs]
        whole = [value for value in ends if value is not None]
        if len(whole) < len(ends) or all(v.const_value is not None for v in whole):
            continue
        count = ir.Node("", "Range", whole, name=f"{node.name}/count")
        count.outputs[0].name = f"{out.name}/count"
        count.outputs[0].type, count.outputs[0].shape = ir.TensorType(INT64), out.shape
        node.op_type = "Cast"
        node.resize_inputs(1)
        node.replace_input_with(0, count.outputs[0])
        assert out.dtype is not None
        node.attributes.add(ir.AttrInt64("to", int(out.dtype)))
        graph.insert_before(node, count)


def _integer(graph: ir.Graph, node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """An end of a range as int64: what was converted to float, or a whole constant."""
    if value is None or value.is_graph_input():
        return None
    name = f"{node.name or node.outputs[0].name}/{value.name}"
    if value.const_value is not None:
        number = value.const_value.numpy().astype(np.float64)
        if not (np.all(number == np.round(number)) and np.all(np.abs(number) <= EXACT)):
            return None
        array = number.astype(np.int64)
        end = ir.Value(name=name, type=ir.TensorType(INT64), shape=ir.Shape(array.shape))
        end.const_value = ir.Tensor(array, name=name)
        graph.register_initializer(end)
        return end
    cast = value.producer()
    source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    if source is None or source.dtype not in (INT64, ir.DataType.INT32):
        return None
    if source.dtype == INT64:
        return source
    wide = ir.Node("", "Cast", [source], [ir.AttrInt64("to", int(INT64))], name=name)
    wide.outputs[0].name = name
    wide.outputs[0].type, wide.outputs[0].shape = ir.TensorType(INT64), source.shape
    graph.insert_before(node, wide)
    return wide.outputs[0]
