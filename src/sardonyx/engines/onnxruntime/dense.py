"""Dense convolutions in onnxruntime's blocked layout, where images are large beside their kernel.

As in `depthwise.py`: the kernel is brought into blocks once a step, of the output's channels and of
the input's. The gradient of the images is a convolution with the kernel turned around. The gradient
of the kernel stays as it is: it is one product already.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from sardonyx.build import is_static, static
from sardonyx.engines.onnxruntime.depthwise import (
    DOMAIN,
    Layer,
    Writing,
    block_size,
    gradient_nodes,
    turned_pads,
    turns,
)

PIXELS = 1 << 11  # of the output, over all images: below, blocks of the kernel cost too much


def block_dense(graph: ir.Graph, taken: Callable[[ir.Node], bool] = lambda _: False) -> int:
    """Rewrite the convolutions of a step for which it pays; how many there are.

    taken -- whether a convolution stays as it is
    """
    layers = [Layer(node) for node in graph if _is_dense(node) and not taken(node)]
    size = block_size() if layers else 0
    layers = [d for d in layers if size and all(n % size == 0 for n in _channels(d.node))]
    makers = gradient_nodes(graph, layers)
    for layer in layers:
        w = layer.node.inputs[1]
        nodes = makers.get(layer.node.name or "", [])
        transposed = [n for n in nodes if n.op_type == "ConvTranspose" and n.inputs[1] is w]
        if len(transposed) == 1 and set(layer.strides) == {1} and turns(layer):
            layer.dx, layer.dy = transposed[0], transposed[0].inputs[0]
        _Writing(graph, layer, size).write()
    return len(layers)


def _is_dense(node: ir.Node) -> bool:
    if node.op_type != "Conv" or node.domain != "" or any(v is None for v in node.inputs):
        return False
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    if node.attributes.get_int("group", 1) != 1 or (node.name or "").startswith("grad/"):
        return False
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if any(v is None or v.dtype != ir.DataType.FLOAT or not is_static(v) for v in (x, w, y)):
        return False
    if w is None or w.is_initializer() or len(static(w)) != 4 or static(w)[2:] == (1, 1):
        return False
    return static(y)[0] * math.prod(static(y)[2:]) >= PIXELS


def _channels(node: ir.Node) -> tuple[int, int]:
    w = node.inputs[1]
    assert w is not None
    return static(w)[0], static(w)[1]


class _Writing(Writing):
    """Writes one layer and the gradient of its images."""

    def write(self) -> None:
        layer, node = self.layer, self.layer.node
        x, w, *bias = node.inputs
        assert x is not None and w is not None
        out, _ = _channels(node)
        images = self.node("ReorderInput", [x], DOMAIN)
        inputs = [images, self._blocks(w, [0, 2, 4, 3, 1]), *(v for v in bias if v is not None)]
        blocked = self.convolution(
            inputs, 1, static(w)[2:], layer.pads, layer.strides, layer.dilations
        )
        restored = self.node("ReorderOutput", [blocked], DOMAIN, channels=out)
        self.put(restored, node.outputs[0], node)
        if layer.dx is not None and layer.dy is not None:
            self._gradient(layer.dx, layer.dy, w)

    def _gradient(self, dx: ir.Node, dy: ir.Value, w: ir.Value) -> None:
        dys = self.node("ReorderInput", [dy], DOMAIN)
        ends = [np.array(a, np.int64) for a in ([-1, -1], [-(2**31)] * 2, [2, 3], [-1, -1])]
        flipped = self.node("Slice", [w, *(self.constant(a) for a in ends)])
        kernel = self._blocks(flipped, [2, 0, 4, 1, 3])
        blocked = self.convolution(
            [dys, kernel], 1, static(w)[2:], turned_pads(self.layer), (1, 1), self.layer.dilations
        )
        restored = self.node("ReorderOutput", [blocked], DOMAIN, channels=static(w)[1])
        self.put(restored, dx.outputs[0], dx)

    def _blocks(self, w: ir.Value, order: list[int]) -> ir.Value:
        """A kernel of (O, I, h, w) as (O / b, I / b, h · w, b, b), or with O and I swapped."""
        weight = self.layer.node.inputs[1]
        assert weight is not None
        (out, into, *kernel), size = static(weight), self.size
        parts = [out // size, size, into // size, size, kernel[0] * kernel[1]]
        turned = self.node("Transpose", [self.reshape(w, parts)], perm=order)
        ends = [out, into] if order[0] == 0 else [into, out]
        return self.reshape(turned, [*ends, *kernel])
