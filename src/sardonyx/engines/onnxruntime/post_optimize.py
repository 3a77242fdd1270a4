"""Copies and large constants that onnxruntime's own optimization leaves in a step, removed.

The loss of a classifier is a function that onnxruntime inlines: it lays the scores out as (N, C, D)
with D of one, and a softmax over an axis that is not the last copies its input and its result.
It also keeps each `Identity`, which copies.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

SOFTMAX = ("Softmax", "LogSoftmax")
LARGE = 1 << 18  # bytes


def remove_copies(graph: ir.Graph) -> None:
    """Rewrite both in place."""
    for node in list(graph):
        if node.op_type == "Identity" and node.domain == "":
            _bypass(graph, node)
        elif node.op_type in SOFTMAX and node.domain == "":
            _along_the_last_axis(graph, node)


def _bypass(graph: ir.Graph, node: ir.Node) -> None:
    value, source = node.outputs[0], node.inputs[0]
    if source is None or source.producer() is None or value.is_graph_output():
        return
    ir.convenience.replace_all_uses_with(value, source)
    graph.remove(node, safe=True)


def _along_the_last_axis(graph: ir.Graph, node: ir.Node) -> None:
    """A matrix that was given an axis of one element is taken without it."""
    value, out = node.inputs[0], node.outputs[0]
    shaped = value.producer() if value is not None else None
    if shaped is None or shaped.op_type != "Reshape" or node.attributes.get_int("axis", -1) != 1:
        return
    matrix = shaped.inputs[0]
    if matrix is None or matrix.shape is None or len(matrix.shape) != 2 or not _is_ncd(shaped):
        return
    if out.is_graph_output() or any(n.op_type != "Reshape" for n in out.consumers()):
        return
    node.replace_input_with(0, matrix)
    out.shape = matrix.shape
    if not shaped.outputs[0].uses():
        graph.remove(shaped, safe=True)


def _is_ncd(reshape: ir.Node) -> bool:
    """Whether a Reshape keeps two axes and puts the rest on a third."""
    shape = reshape.inputs[1]
    tensor = shape.const_value if shape is not None else None
    return tensor is not None and tensor.numpy().tolist() == [0, 0, -1]


def unfold_constants(graph: ir.Graph) -> None:
    """Large constants of one value become the node that makes them: a file and a session hold a
    number, and the memory is there only while it is used.
    """
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.nbytes < LARGE or value.is_graph_input():
            continue
        array = tensor.numpy()
        if not value.is_graph_output() and array.dtype.kind in "fiu" and _is_one_value(array):
            _fill(graph, name, value, array)


def _is_one_value(array: np.ndarray) -> bool:
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")  # as bits: zeros have signs
    return bool((bits == bits.flat[0]).all())


def _fill(graph: ir.Graph, name: str, value: ir.Value, array: np.ndarray) -> None:
    sizes = np.array(array.shape, np.int64)
    shape = ir.Value(name=f"{name}/sizes", const_value=ir.tensor(sizes, name=f"{name}/sizes"))
    shape.type, shape.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([sizes.size])
    fill = ir.AttrTensor("value", ir.tensor(array.flat[:1].copy()))
    node = ir.Node("", "ConstantOfShape", [shape], [fill], num_outputs=1, name=f"{name}/fill")
    filled = node.outputs[0]
    filled.type, filled.shape = value.type, value.shape
    ir.convenience.replace_all_uses_with(value, filled)
    del graph.initializers[name]
    graph.register_initializer(shape)
    filled.name = name
    graph.insert_before(graph[0], node)
