"""Convolutions over few pixels with large kernels: all images of a batch at once.

onnxruntime multiplies the kernel by the windows of one image after the other. Where an image has
few windows, that reads a large kernel again and again (a 512-channel layer on 2×2 pixels spends six
times the time it needs). With the batch as one more spatial axis there is one product:
(N, C, H, W) becomes (1, C, H, W, N) and the kernel gets an axis of one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

# What pays was measured: at 16 windows an image, or at 49 where the kernel exceeds a cache.
FEW, MORE = 16, 49
LARGE, VERY_LARGE = 1 << 14, 1 << 20  # elements of a kernel
TO_BACK, TO_FRONT = [1, 2, 3, 0], [3, 0, 1, 2]


def fold_batches(graph: ir.Graph, taken: Callable[[ir.Node], bool] = lambda _: False) -> None:
    """Rewrite the convolutions of a graph for which it pays, without those that are `taken`."""
    convolutions = [node for node in graph if _pays(node) and not taken(node)]
    if not convolutions:
        return
    first = _constant(graph, "sardonyx/first_axis", 0)
    last = _constant(graph, "sardonyx/last_axis", 4)
    for node in convolutions:
        _fold(graph, node, first, last)


def _pays(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in ("Conv", "ConvTranspose"):
        return False
    if node.attributes.get_int("group", 1) != 1:
        return False
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    if node.attributes.get_ints("output_shape", ()):
        return False
    kernel = _sizes(node.inputs[1], 0)
    # One window per pixel of the output, or for the transpose of the input.
    windows = _sizes(node.outputs[0] if node.op_type == "Conv" else node.inputs[0], 2)
    if kernel is None or windows is None or len(kernel) != 4:
        return False
    count, size = math.prod(windows), math.prod(kernel)
    return (count <= FEW and size >= LARGE) or (count <= MORE and size >= VERY_LARGE)


def _sizes(value: ir.Value | None, first: int) -> list[int] | None:
    """The sizes of a value from an axis on, where all are known."""
    if value is None or value.shape is None:
        return None
    sizes = [d for d in value.shape.dims[first:] if isinstance(d, int)]
    return sizes if len(sizes) == len(value.shape.dims) - first else None


def _fold(graph: ir.Graph, node: ir.Node, first: ir.Value, last: ir.Value) -> None:
    image, kernel, *bias = node.inputs
    out = node.outputs[0]
    name = node.name or out.name
    new_nodes: list[ir.Node] = []

    def new(op_type: str, inputs: list[ir.Value | None], **attributes: object) -> ir.Value:
        new_nodes.append(ir.node(op_type, inputs, attributes, name=f"{name}/fold_{len(new_nodes)}"))  # type: ignore[arg-type]
        (value,) = new_nodes[-1].outputs
        # typed: a reader of unknown type keeps a kernel from being written in place
        value.name, value.type = f"{name}/folded_{len(new_nodes)}", out.type
        return value

    moved = new("Unsqueeze", [new("Transpose", [image], perm=TO_BACK), first])
    tall = new("Unsqueeze", [kernel, last])
    folded = new(node.op_type, [moved, tall, *bias], **_with_one_more_axis(node))
    back = new("Transpose", [new("Squeeze", [folded, first])], perm=TO_FRONT)
    back.type, back.shape = out.type, out.shape
    graph.insert_before(node, new_nodes)
    out_name = out.name
    ir.convenience.replace_all_uses_with(out, back, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    back.name = out_name


def _with_one_more_axis(node: ir.Node) -> dict[str, list[int]]:
    """The attributes of a convolution over (H, W), for one over (H, W, N)."""
    attributes: dict[str, list[int]] = {}
    for name, neutral in (
        ("strides", 1),
        ("dilations", 1),
        ("kernel_shape", 1),
        ("output_padding", 0),
    ):
        items = node.attributes.get_ints(name, ())
        if items:
            attributes[name] = [*items, neutral]
    pads = node.attributes.get_ints("pads", ())
    if pads:
        attributes["pads"] = [*pads[:2], 0, *pads[2:], 0]
    return attributes


def _constant(graph: ir.Graph, name: str, axis: int) -> ir.Value:
    tensor = ir.tensor(np.array([axis], np.int64), name=name)
    value = ir.Value(name=name, const_value=tensor)
    value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape([1])
    graph.register_initializer(value)
    return value
