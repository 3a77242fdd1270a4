"""Depthwise convolutions in onnxruntime's blocked layout: 16 channels at a time, or 8.

onnxruntime has fast kernels for convolutions whose channels lie in blocks (its internal domain
`com.microsoft.nchwc`), and takes them only where the kernel is a constant. In a step it is not:
here the nodes that bring images and kernels into that layout are written out. The gradient of the
kernel is such a convolution too: every image and channel is a group, the gradient of the output is
its kernel, strides and dilations change places, and the sum over the images follows. A blocked
kernel of (N·C, 1, H, W) has the same memory as blocked images of (N, C, H, W): nothing is copied.

The domain is internal to onnxruntime, so that this is never in a file; a small convolution is tried
once per process, and without the right result nothing is rewritten.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper

from sardonyx.build import is_static, static

DOMAIN = "com.microsoft.nchwc"
SIZES = (8, 16)
CPU = "CPUExecutionProvider"


@dataclass
class Layer:
    """A convolution of a step, with what its gradient is made of."""

    node: ir.Node
    dx: ir.Node | None = None  # the ConvTranspose that gives the gradient of the images
    dw: ir.Value | None = None  # the gradient of the kernel
    dy: ir.Value | None = None

    def attribute(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.node.attributes.get_ints(name, default))

    @property
    def strides(self) -> tuple[int, ...]:
        return self.attribute("strides", (1, 1))

    @property
    def dilations(self) -> tuple[int, ...]:
        return self.attribute("dilations", (1, 1))

    @property
    def pads(self) -> tuple[int, ...]:
        return self.attribute("pads", (0, 0, 0, 0))


def block_depthwise(graph: ir.Graph) -> int:
    """Rewrite the depthwise convolutions of a step and their gradients; how many there are."""
    layers = [Layer(node) for node in graph if _is_depthwise(node)]
    size = block_size() if layers else 0
    layers = [d for d in layers if size and static(d.node.outputs[0])[1] % size == 0]
    makers = gradient_nodes(graph, layers)
    for layer in layers:
        _find_gradient(layer, makers.get(layer.node.name or "", []))
    for layer in layers:
        Writing(graph, layer, size).write()
    return len(layers)


def _is_depthwise(node: ir.Node) -> bool:
    if node.op_type != "Conv" or node.domain != "" or any(v is None for v in node.inputs):
        return False
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    values = (x, w, y)
    if any(v is None or v.dtype != ir.DataType.FLOAT or not is_static(v) for v in values):
        return False
    if w is None or x is None or w.is_initializer() or len(static(w)) != 4 or 0 in static(x):
        return False
    channels = static(x)[1]
    group = node.attributes.get_int("group", 1)
    return group == channels and static(w)[:2] == (channels, 1)


# -- the gradient of a layer ------------------------------------------------------------------


def gradient_nodes(graph: ir.Graph, layers: Sequence[Layer]) -> dict[str, list[ir.Node]]:
    """The nodes of the gradient of each layer: those are named after it."""
    names = {layer.node.name for layer in layers if layer.node.name}
    nodes: dict[str, list[ir.Node]] = {}
    for node in graph:
        name = (node.name or "").removeprefix("grad/").rpartition("/")[0]
        if name in names and (node.name or "").startswith("grad/"):
            nodes.setdefault(name, []).append(node)
    return nodes


def _find_gradient(layer: Layer, nodes: list[ir.Node]) -> None:
    """Recognize the gradients by what they are computed from: the images, and one tensor of the
    output's shape.
    """
    x, w = layer.node.inputs[:2]
    assert x is not None and w is not None
    shape = static(layer.node.outputs[0])
    transposed = [n for n in nodes if n.op_type == "ConvTranspose" and n.inputs[1] is w]
    if len(transposed) == 1 and set(layer.strides) == {1} and turns(layer):
        layer.dx = transposed[0]
        layer.dy = transposed[0].inputs[0]
    inside = {n for n in nodes if n not in transposed}
    values = {v for n in inside for v in n.outputs}
    ends = [v for v in values if v.is_graph_output() or set(v.consumers()) - inside]
    read = {v for n in inside for v in n.inputs if v is not None and v not in values}
    tensors = {v for v in read if not v.is_initializer()}
    grads = [v for v in tensors if v is not x and is_static(v) and static(v) == shape]
    if len(ends) != 1 or not is_static(ends[0]) or static(ends[0]) != static(w):
        return
    same = tensors == {x, *grads} and len(grads) == 1 and layer.dy in (None, grads[0])
    if same and grads[0].dtype == ir.DataType.FLOAT:
        layer.dw, layer.dy = ends[0], grads[0]


def turns(layer: Layer) -> bool:
    """Whether the gradient of the images is a convolution with pads that are not negative."""
    return all(p >= 0 for p in turned_pads(layer))


def turned_pads(layer: Layer) -> list[int]:
    w = layer.node.inputs[1]
    assert w is not None
    reach = [d * (k - 1) for d, k in zip(layer.dilations, static(w)[2:], strict=True)]
    return [r - p for r, p in zip(reach * 2, layer.pads, strict=True)]


# -- the blocked form ---------------------------------------------------------------------------


class Writing:
    """Writes one layer and its gradients in the blocked layout."""

    def __init__(self, graph: ir.Graph, layer: Layer, size: int):
        self.graph, self.layer, self.size = graph, layer, size
        self.name = f"{layer.node.name or layer.node.outputs[0].name}/blocked"
        self.nodes: list[ir.Node] = []
        self.count = 0

    def write(self) -> None:
        layer, node = self.layer, self.layer.node
        x, w, *bias = node.inputs
        y = node.outputs[0]
        assert x is not None and w is not None
        channels = static(x)[1]
        images = self.node("ReorderInput", [x], DOMAIN)
        inputs = [images, self._kernel(w), *(v for v in bias if v is not None)]
        blocked = self.convolution(
            inputs, channels, static(w)[2:], layer.pads, layer.strides, layer.dilations
        )
        self.put(self.node("ReorderOutput", [blocked], DOMAIN, channels=channels), y, node)
        if layer.dy is None:
            return
        dys = self.node("ReorderInput", [layer.dy], DOMAIN)
        # both gradients read the same blocks: they are written where the first of them stands
        makers = [layer.dx, layer.dw.producer() if layer.dw is not None else None]
        first = next(n for n in self.graph if n in makers)
        self.graph.insert_before(first, self.nodes)
        self.nodes = []
        if layer.dx is not None:
            self._images_gradient(dys, w)
        if layer.dw is not None:
            self._kernel_gradient(dys, x, w)

    def _images_gradient(self, dys: ir.Value, w: ir.Value) -> None:
        layer = self.layer
        assert layer.dx is not None
        channels = static(w)[0]
        ends = [np.array(a, np.int64) for a in ([-1, -1], [-(2**31)] * 2, [2, 3], [-1, -1])]
        flipped = self.node("Slice", [w, *(self.constant(a) for a in ends)])
        pads, ones = turned_pads(layer), (1, 1)
        dx = self.convolution(
            [dys, self._kernel(flipped)], channels, static(w)[2:], pads, ones, layer.dilations
        )
        restored = self.node("ReorderOutput", [dx], DOMAIN, channels=channels)
        self.put(restored, layer.dx.outputs[0], layer.dx)

    def _kernel_gradient(self, dys: ir.Value, x: ir.Value, w: ir.Value) -> None:
        layer, size = self.layer, self.size
        assert layer.dw is not None and layer.dy is not None
        maker = layer.dw.producer()
        assert maker is not None
        (n, c, *pixels), kernel, out = static(x), static(w)[2:], static(layer.dy)[2:]
        groups = n * c
        # in blocks once more: those of the forward pass would have to be kept until now
        flat = self.node("ReorderInput", [self.reshape(x, [1, groups, *pixels])], DOMAIN)
        taps = self.reshape(dys, [groups, 1, *out])
        pads = list(layer.pads)
        for axis in range(2):  # rows that the strides left out at the end
            reach = layer.dilations[axis] * (kernel[axis] - 1) + 1
            whole = (out[axis] - 1) * layer.strides[axis] + reach
            pads[axis + 2] = whole - pixels[axis] - pads[axis]
        each = self.convolution([flat, taps], groups, out, pads, layer.dilations, layer.strides)
        count = kernel[0] * kernel[1]
        parts = self.reshape(each, [n, c // size, count, size])
        total = self.node("ReduceSum", [parts, self.constant(np.zeros(1, np.int64))], keepdims=0)
        turned = self.node("Transpose", [total], perm=[0, 2, 1])
        self.put(self.reshape(turned, list(static(w))), layer.dw, maker)

    def convolution(
        self,
        inputs: Sequence[ir.Value],
        group: int,
        kernel: Sequence[int],
        pads: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
    ) -> ir.Value:
        attributes = {"kernel_shape": kernel, "pads": pads, "strides": strides}
        attributes["dilations"] = dilations
        lists = {name: list(items) for name, items in attributes.items()}
        return self.node("Conv", inputs, DOMAIN, group=group, **lists)

    def _kernel(self, w: ir.Value) -> ir.Value:
        """A kernel of (C, 1, h, w) with blocks of channels innermost."""
        weight = self.layer.node.inputs[1]
        assert weight is not None
        channels, _, *kernel = static(weight)
        count = kernel[0] * kernel[1]
        rows = self.reshape(w, [channels // self.size, self.size, count])
        return self.reshape(self.node("Transpose", [rows], perm=[0, 2, 1]), [channels, 1, *kernel])

    def reshape(self, value: ir.Value, sizes: Sequence[int]) -> ir.Value:
        return self.node("Reshape", [value, self.constant(np.array(sizes, np.int64))])

    def node(
        self, op_type: str, inputs: Sequence[ir.Value], domain: str = "", **attributes: object
    ) -> ir.Value:
        self.count += 1
        name = f"{self.name}/{op_type}_{self.count}"
        node = ir.node(op_type, inputs, attributes, domain=domain, name=name)  # type: ignore[arg-type]
        (out,) = node.outputs
        out.name, out.type = f"{name}/out", ir.TensorType(ir.DataType.FLOAT)
        self.nodes.append(node)
        return out

    def put(self, value: ir.Value, old: ir.Value, node: ir.Node) -> None:
        """Let a value take the place of another, with all nodes that it needs before that one."""
        value.shape, name = old.shape, old.name
        self.graph.insert_before(node, self.nodes)
        self.nodes = []
        ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
        old.name = f"{name}/plain"
        value.name = name

    def constant(self, array: np.ndarray) -> ir.Value:
        self.count += 1
        name = f"{self.name}/constant_{self.count}"
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape(array.shape)
        self.graph.register_initializer(value)
        return value


# -- whether this onnxruntime does it -------------------------------------------------------


@functools.cache
def block_size() -> int:
    """How many channels make a block on this machine; 0 where the kernels are not as expected."""
    try:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2, 32, 5, 4)).astype(np.float32)
        w = rng.normal(size=(32, 1, 3, 3)).astype(np.float32)
        expected = _session(_plain(x, w)).run(None, {"x": x, "w": w})[0]
        for size in SIZES:
            result = _session(_blocked(x, w, size)).run(None, {"x": x, "w": w})[0]
            if np.allclose(result, expected, rtol=1e-5, atol=1e-5):
                return size
    except Exception:  # onnxruntime raises a class per status code
        return 0
    return 0


def _plain(x: np.ndarray, w: np.ndarray) -> onnx.ModelProto:
    return _model(x, w, [helper.make_node("Conv", ["x", "w"], ["y"], group=32, pads=[1] * 4)], {})


def _blocked(x: np.ndarray, w: np.ndarray, size: int) -> onnx.ModelProto:
    where = {"domain": DOMAIN}
    how: dict[str, Any] = {"group": 32, "pads": [1] * 4, "kernel_shape": [3, 3], "strides": [1, 1]}
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["images"], **where),
        helper.make_node("Reshape", ["w", "rows"], ["split"]),
        helper.make_node("Transpose", ["split"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["turned", "whole"], ["kernel"]),
        helper.make_node("Conv", ["images", "kernel"], ["blocked"], **how, **where),
        helper.make_node("ReorderOutput", ["blocked"], ["y"], channels=32, **where),
    ]
    return _model(x, w, nodes, {"rows": [32 // size, size, 9], "whole": [32, 1, 3, 3]})


def _model(
    x: np.ndarray, w: np.ndarray, nodes: list[onnx.NodeProto], shapes: dict[str, list[int]]
) -> onnx.ModelProto:
    kind = TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(n, kind, a.shape) for n, a in (("x", x), ("w", w))]
    y = helper.make_tensor_value_info("y", kind, x.shape)
    constants = [helper.make_tensor(n, TensorProto.INT64, [len(s)], s) for n, s in shapes.items()]
    graph = helper.make_graph(nodes, "probe", ends, [y], constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=[CPU])
