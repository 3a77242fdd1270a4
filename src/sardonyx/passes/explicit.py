"""One form for each operation, so that no rule has to handle the others.

- `auto_pad` becomes `pads`, or a Pad with pads computed at run time where sizes are not known
- convolutions and pools carry `kernel_shape`, `strides`, `dilations` and `pads`
- `output_shape` of ConvTranspose becomes `pads` and `output_padding`
- vectors in MatMul become matrices; Split names its sizes; axes are not negative
- trailing inputs and outputs that are empty go

Some forms stay where sizes are known only at run time: `auto_pad` of a MaxPool that also returns
indices or of a quantized convolution, and `output_shape` (also where it is larger than any
output_padding allows). Axes of a tensor of unknown rank stay as well. Names are kept: the last of
the nodes that replace a node gives its output the old name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import Builder, constant, infer
from sardonyx.passes.functions import replace
from sardonyx.passes.nesting import graphs, names

Rewrite = Callable[[Builder, ir.Node], None]
REWRITES: dict[str, Rewrite] = {}


def make_explicit(graph: ir.Graph) -> None:
    """Rewrite every node of the graph and of its bodies; shapes must have been inferred."""
    op: Builder | None = None
    for part in graphs(graph):
        for node in [n for n in part if _may_change(n)]:
            if op is None:
                op = Builder()
                op.reserve(names(graph))
            _trim(node)
            if node.domain != "":
                continue
            _positive_axis(node)
            _positive_axes(op, node)
            rewrite = REWRITES.get(node.op_type)
            if rewrite is not None:
                with op.named(node.name or node.op_type):
                    rewrite(op, node)
    for value in op.constants.values() if op is not None else ():
        graph.register_initializer(value)


def _may_change(node: ir.Node) -> bool:
    """Whether a node may have another form; most have operators with one form only."""
    if len(node.outputs) > 1 or node.inputs[-1:] == (None,):
        return True
    return node.domain == "" and _has_forms(node.op_type)


@functools.cache
def _has_forms(op_type: str) -> bool:
    attributes = opset.attribute_defaults(op_type)
    return (
        op_type in REWRITES
        or op_type in AXES_INPUT
        or op_type.startswith("Reduce")
        or not attributes.keys().isdisjoint(("axis", "axes"))
        or opset.schema(op_type) is None
    )


def rewrites(*op_types: str) -> Callable[[Rewrite], Rewrite]:
    def register(function: Rewrite) -> Rewrite:
        REWRITES.update(dict.fromkeys(op_types, function))
        return function

    return register


def _trim(node: ir.Node) -> None:
    count = len(node.inputs)
    while count and node.inputs[count - 1] is None:
        count -= 1
    if count < len(node.inputs):
        node.resize_inputs(count)
    count = len(node.outputs)
    while count > 1 and not node.outputs[count - 1].name and not node.outputs[count - 1].uses():
        count -= 1
    if count < len(node.outputs):
        node.resize_outputs(count)


def _before(op: Builder, node: ir.Node) -> None:
    """Put what the builder has collected before `node`."""
    assert node.graph is not None
    node.graph.insert_before(node, op.nodes)
    op.nodes.clear()


def _substitute(op: Builder, node: ir.Node, result: ir.Value) -> None:
    """Put what the builder has collected in the place of `node`; `result` is its output now."""
    new_nodes = list(op.nodes)
    op.nodes.clear()
    replace(node, new_nodes, [result])


# -- axes ---------------------------------------------------------------------------

ONE_MORE = ("OneHot", "Unsqueeze", "ConcatFromSequence")  # their axes count in the output
AXES_INPUT = {"Squeeze": 1, "Unsqueeze": 1, "Slice": 3, "Pad": 3, "CumSum": 1}


def _rank(node: ir.Node) -> int | None:
    source = node.outputs[0] if node.op_type in ONE_MORE else (node.inputs or [None])[0]
    return None if source is None or source.shape is None else len(source.shape)


def _positive_axis(node: ir.Node) -> None:
    for name in ("axis", "axes"):
        default = opset.attribute_defaults(node.op_type).get(name)
        attribute = node.attributes.get(name)
        if attribute is None and default is None:
            continue
        value: Any = attribute.value if attribute is not None else default
        axes = [value] if isinstance(value, int) else list(value)
        rank = _rank(node)
        if rank is None or all(a >= 0 for a in axes):
            continue
        positive = [a % rank if a < 0 and rank else a for a in axes]
        node.attributes.add(
            ir.AttrInt64(name, positive[0])
            if isinstance(value, int)
            else ir.AttrInt64s(name, positive)
        )


def _positive_axes(op: Builder, node: ir.Node) -> None:
    position = AXES_INPUT.get(node.op_type, 1 if node.op_type.startswith("Reduce") else None)
    if position is None or len(node.inputs) <= position:
        return
    axes_input, rank = node.inputs[position], _rank(node)
    if axes_input is None or axes_input.is_graph_input() or not rank:
        return
    axes = constant(axes_input)
    if axes is None or axes.dtype.kind != "i" or not (axes < 0).any():
        return
    node.replace_input_with(position, op.const(np.where(axes < 0, axes + rank, axes)))


# -- convolutions and pools -----------------------------------------------------------


class Window:
    """The sliding window of a convolution or pool, as far as it is known."""

    def __init__(self, node: ir.Node, weight: int | None):
        self.node = node
        self.kernel = self._kernel(weight)
        count = len(self.kernel) if self.kernel is not None else _spatial_rank(node)
        self.rank = count
        ones = [1] * (count or 0)
        self.strides = self._ints("strides") or ones
        self.dilations = self._ints("dilations") or ones
        self.pads = self._ints("pads") or [0] * (2 * len(ones))
        self.auto_pad = node.attributes.get_string("auto_pad", "NOTSET")

    def _ints(self, name: str) -> list[int]:
        attr = self.node.attributes.get(name)
        return [] if attr is None else [int(v) for v in attr.as_ints()]

    def _kernel(self, weight: int | None) -> list[int] | None:
        kernel = self._ints("kernel_shape")
        if kernel or weight is None:
            return kernel or None
        w = self.node.inputs[weight]
        if w is None or w.shape is None or not all(isinstance(d, int) for d in w.shape[2:]):
            return None
        return [d for d in w.shape[2:] if isinstance(d, int)]

    @property
    def extent(self) -> list[int]:
        """How many elements the window spans along each axis."""
        assert self.kernel is not None
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def write(self, **changed: Sequence[int]) -> None:
        """Write all window attributes on the node, in place of `auto_pad`."""
        attributes = {"strides": self.strides, "pads": self.pads, **changed}
        if self.kernel is not None:
            attributes["kernel_shape"] = self.kernel
        allowed = opset.attribute_defaults(self.node.op_type)
        if "dilations" in allowed:
            attributes["dilations"] = self.dilations
        for name, values in attributes.items():
            self.node.attributes.add(ir.AttrInt64s(name, list(values)))
        self.node.attributes.pop("auto_pad", None)


def _spatial_rank(node: ir.Node) -> int | None:
    x = node.inputs[0]
    return None if x is None or x.shape is None else len(x.shape) - 2


def _spatial(node: ir.Node) -> list[Any]:
    x = node.inputs[0]
    return [] if x is None or x.shape is None else list(x.shape)[2:]


def _ends(totals: Sequence[int], lower: bool) -> list[int]:
    """Begin and end pads of given totals; the odd one goes to the begin for SAME_LOWER."""
    small = [t // 2 for t in totals]
    large = [t - s for t, s in zip(totals, small, strict=True)]
    return large + small if lower else small + large


def _same_totals(window: Window, sizes: list[Any]) -> list[int] | None:
    """The total padding of SAME along each axis; None where it depends on a size not known."""
    totals = []
    for axis, (stride, extent) in enumerate(zip(window.strides, window.extent, strict=True)):
        size = sizes[axis] if axis < len(sizes) else None
        if isinstance(size, int):
            totals.append(max((-(-size // stride) - 1) * stride + extent - size, 0))
        elif stride == 1:
            totals.append(extent - 1)
        else:
            return None
    return totals


def _resolve(op: Builder, node: ir.Node, weight: int | None, pad: Rewrite | None) -> None:
    """Fill in the window; `pad` rewrites a node whose padding is known only at run time."""
    window = Window(node, weight)
    if window.rank is None:
        return
    if window.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        if window.kernel is None:
            return
        totals = _same_totals(window, _spatial(node))
        if totals is None:
            if pad is not None:
                pad(op, node)
            return
        window.pads = _ends(totals, window.auto_pad == "SAME_LOWER")
    elif window.auto_pad == "VALID":
        window.pads = [0] * (2 * window.rank)
    window.write()


def _run_time_pads(op: Builder, x: ir.Value, window: Window) -> ir.Value:
    """The pads input of a Pad equivalent to SAME, computed from the shape of `x`."""
    i64 = ir.DataType.INT64
    sizes = op.Shape(x, start=2)
    strides, extent = (op.const(v, i64) for v in (window.strides, window.extent))
    steps = op.Div(op.Sub(op.Add(sizes, strides), op.const(1, i64)), strides)
    reach = op.Add(op.Mul(op.Sub(steps, op.const(1, i64)), strides), extent)
    total = op.Sub(reach, sizes)
    if any(e < s for e, s in zip(window.extent, window.strides, strict=True)):
        total = op.Max(total, op.const(0, i64))  # else it is never negative
    small = op.Div(total, op.const(2, i64))
    large = op.Sub(total, small)
    begin, end = (large, small) if window.auto_pad == "SAME_LOWER" else (small, large)
    none = op.const([0, 0], i64)
    return op.Concat(none, begin, none, end, axis=0)


def _pad_input(op: Builder, node: ir.Node, weight: int | None, fill: float) -> None:
    """Pad the input of `node` by a node before it; the node itself no longer pads."""
    x = node.inputs[0]
    assert x is not None and x.dtype is not None
    window = Window(node, weight)
    pads = _run_time_pads(op, x, window)
    padded = op.Pad(x, pads, op.const(np.array(fill), x.dtype))
    if x.shape is not None:
        padded.shape = ir.Shape([*list(x.shape)[:2], *[None] * window.rank])  # type: ignore[operator]
    node.replace_input_with(0, padded)
    window.pads = [0] * (2 * (window.rank or 0))
    window.write()
    _before(op, node)


@rewrites("Conv")
def conv(op: Builder, node: ir.Node) -> None:
    _resolve(op, node, 1, lambda op, node: _pad_input(op, node, 1, 0.0))


@rewrites("ConvInteger", "DeformConv")
def quantized_conv(op: Builder, node: ir.Node) -> None:
    _resolve(op, node, 1, None)


@rewrites("QLinearConv")
def qlinear_conv(op: Builder, node: ir.Node) -> None:
    _resolve(op, node, 3, None)


@rewrites("LpPool")
def lp_pool(op: Builder, node: ir.Node) -> None:
    _resolve(op, node, None, lambda op, node: _pad_input(op, node, None, 0.0))


@rewrites("MaxUnpool")
def max_unpool(op: Builder, node: ir.Node) -> None:
    _resolve(op, node, None, None)


@rewrites("MaxPool")
def max_pool(op: Builder, node: ir.Node) -> None:
    def pad(op: Builder, node: ir.Node) -> None:
        dtype = node.inputs[0].dtype  # type: ignore[union-attr]
        # Indices count in the unpadded tensor.
        if len(node.outputs) == 1 and dtype is not None:
            _pad_input(op, node, None, _lowest(dtype))

    _resolve(op, node, None, pad)


def _lowest(dtype: ir.DataType) -> float:
    numpy_type = np.dtype(dtype.numpy())
    if numpy_type.kind in "iu":
        return int(np.iinfo(numpy_type).min)
    return float(ml_dtypes.finfo(numpy_type).min)


@rewrites("AveragePool")
def average_pool(op: Builder, node: ir.Node) -> None:
    def pad(op: Builder, node: ir.Node) -> None:
        x = node.inputs[0]
        if node.attributes.get_int("count_include_pad", 0):
            _pad_input(op, node, None, 0.0)
            return
        # The mean over real elements only: mean with zeros, over the share of real elements.
        window = Window(node, None)
        assert x is not None and x.dtype is not None and window.kernel is not None
        i64 = ir.DataType.INT64
        pads = _run_time_pads(op, x, window)
        one = ir.tensor(np.ones(1, x.dtype.numpy()))
        ones = op.ConstantOfShape(
            op.Concat(op.const([1, 1], i64), op.Shape(x, start=2), axis=0), value=one
        )
        zero = op.const(np.array(0.0), x.dtype)
        settings = {
            "kernel_shape": window.kernel,
            "strides": window.strides,
            "dilations": window.dilations,
            "pads": [0] * (2 * len(window.kernel)),
            "ceil_mode": node.attributes.get_int("ceil_mode", 0),
        }
        total, share = (op.AveragePool(op.Pad(v, pads, zero), **settings) for v in (x, ones))
        _substitute(op, node, op.Div(total, share))

    _resolve(op, node, None, pad)


@rewrites("ConvTranspose")
def conv_transpose(op: Builder, node: ir.Node) -> None:
    window = Window(node, 1)
    if window.rank is None:
        return
    extra = window._ints("output_padding") or [0] * window.rank
    output_shape = window._ints("output_shape")[-window.rank :]
    same = window.auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if output_shape or same:
        if window.kernel is None:
            return
        totals = _transposed_totals(window, _spatial(node), extra, output_shape)
        if totals is None:
            return
        # A negative total asks for elements beyond the last window: that is output padding.
        extra = [e + max(-t, 0) for e, t in zip(extra, totals, strict=True)]
        limits = zip(extra, window.strides, window.dilations, strict=True)
        if any(e >= max(s, d) for e, s, d in limits):
            return
        window.pads = _ends([max(t, 0) for t in totals], window.auto_pad != "SAME_UPPER")
    elif window.auto_pad == "VALID":
        window.pads = [0] * (2 * window.rank)
    window.write(output_padding=extra)
    node.attributes.pop("output_shape", None)
    if output_shape or same:
        # ONNX's own inference is wrong for SAME_* where the kernel is smaller than the stride.
        node.outputs[0].shape = None
        infer(node)


def _transposed_totals(
    window: Window, sizes: list[Any], extra: list[int], output_shape: list[int]
) -> list[int] | None:
    totals = []
    for axis, (stride, extent) in enumerate(zip(window.strides, window.extent, strict=True)):
        size = sizes[axis] if axis < len(sizes) else None
        if not output_shape:
            totals.append(extent + extra[axis] - stride)  # the size cancels out
        elif isinstance(size, int):
            totals.append(stride * (size - 1) + extra[axis] + extent - output_shape[axis])
        else:
            return None
    return totals


# -- the rest -----------------------------------------------------------------------


@rewrites("MatMul")
def matmul(op: Builder, node: ir.Node) -> None:
    a, b = node.inputs
    if a is None or b is None or a.shape is None or b.shape is None:
        return
    row, column = len(a.shape) == 1, len(b.shape) == 1
    if not (row or column):
        return
    left = op.Unsqueeze(a, [0]) if row else a
    right = op.Unsqueeze(b, [1]) if column else b
    product = op.MatMul(left, right)
    rank = max(len(a.shape) + row, len(b.shape) + column)
    axes = [rank - 2] * row + [rank - 1] * column
    _substitute(op, node, op.Squeeze(product, axes))


@rewrites("Split")
def split(op: Builder, node: ir.Node) -> None:
    x = node.inputs[0]
    if len(node.inputs) > 1 or x is None or x.shape is None:
        return
    count = node.attributes.get_int("num_outputs", len(node.outputs))
    size = x.shape[node.attributes.get_int("axis", 0)]
    if not isinstance(size, int):
        return
    each = -(-size // count)
    sizes = [max(min(each, size - i * each), 0) for i in range(count)]
    node.resize_inputs(2)
    node.replace_input_with(1, op.const(sizes, ir.DataType.INT64))
    node.attributes.pop("num_outputs", None)


@rewrites("Pad")
def pad(op: Builder, node: ir.Node) -> None:
    """Pads over all axes, as the builder writes them: see NOTE [Pad without axes] there."""
    if len(node.inputs) < 4 or node.inputs[3] is None:
        return
    x, pads, value, axes = node.inputs
    if x is None or x.shape is None or constant(axes) is None:
        return
    mode = node.attributes.get_string("mode", "constant")
    _substitute(op, node, op.Pad(x, pads, value, axes, mode=mode))
