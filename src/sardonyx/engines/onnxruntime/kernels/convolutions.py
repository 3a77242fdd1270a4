"""Convolutions by kernels of three by three, and the gradients of their images (winograd.h).

The gradient of the images is a convolution too: with the kernel turned around and its channels
exchanged, which the same operator reads so.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.engines.onnxruntime.kernels.images import FEWEST_TILES, UNKNOWN, Rewrite, new_node
from sardonyx.engines.onnxruntime.kernels.patterns import sizes

FEWEST_CHANNELS = 16  # of images and of results: they are the vectors of the kernel


def choose_convolutions(graph: ir.Graph, threads: int) -> list[Rewrite]:
    """Convolutions that the operator Winograd computes."""
    return [r for node in graph if (r := _transformed(node, threads)) is not None]


def can_transform(node: ir.Node) -> bool:
    """Whether a convolution, or the transpose of one, is one of those."""
    return _pads(node) is not None


def _transformed(node: ir.Node, threads: int) -> Rewrite | None:
    pads = _pads(node)
    if pads is None:
        return None
    settings = [int(node.op_type == "ConvTranspose"), *pads, threads]
    inputs = [v for v in node.inputs if v is not None]
    return new_node("Winograd", inputs, "winograd", settings, node.outputs[0])


def _pads(node: ir.Node) -> list[int] | None:
    """Rows and columns before and behind the images, if the node can be transformed."""
    if node.op_type not in ("Conv", "ConvTranspose") or node.domain != "":
        return None
    attributes, turned = node.attributes, node.op_type == "ConvTranspose"
    if attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    if attributes.get_int("group", 1) != 1 or "output_shape" in attributes:
        return None
    ones = [*attributes.get_ints("strides", (1,)), *attributes.get_ints("dilations", (1,))]
    if set(ones) != {1} or any(attributes.get_ints("output_padding", (0,))):
        return None
    x, w, *bias = node.inputs
    if not _fits(x, w, node.outputs[0]) or any(v is None or sizes(v) is None for v in bias):
        return None
    pads = list(attributes.get_ints("pads", (0, 0, 0, 0)))
    pads = [2 - p for p in pads] if turned else pads
    return pads if min(pads) >= 0 else None


def _fits(x: ir.Value | None, w: ir.Value | None, y: ir.Value) -> bool:
    images, kernel, results = sizes(x), sizes(w), sizes(y)
    if images is None or kernel is None or results is None or w is None or w.is_initializer():
        return False
    if len(images) != 4 or len(kernel) != 4 or len(results) != 4 or kernel[2:] != [3, 3]:
        return False
    if any((n or 0) < FEWEST_CHANNELS for n in kernel[:2]) or None in results[1:]:
        return False
    _, _, high, wide = [n or 0 for n in results]
    count = UNKNOWN if results[0] is None else results[0]
    return count * ((high + 1) // 2) * ((wide + 1) // 2) >= FEWEST_TILES
