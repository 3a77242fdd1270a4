"""What each operator does to images: which operands share a layout, and how a node is written in
the other one.

A role has two functions. `ports(node, written)` gives the kind of each operand that is an image,
for a node whose images are written in the layout `written`; operands that it does not name are read
and given as they are written. `turned(turn, node)` writes the node for the layouts that the plan
has chosen. Operators without a role have every operand as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.passes.layout.axes import (
    FIRST,
    LAST,
    is_image,
    permutation,
    rank_of,
    turn,
    turns_freely,
    unknown_sizes,
)
from sardonyx.passes.layout.axes import other as other_layout
from sardonyx.values import constant, same_dim

LINKED = "linked"  # has the layout of the node
FREE = "free"  # any layout will do, at no cost


@dataclass
class Ports:
    """The kinds of a node's operands, by their places; `broadcast` has inputs of fewer axes."""

    inputs: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, str] = field(default_factory=dict)
    broadcast: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Role:
    ports: Callable[[ir.Node, str], Ports | None]
    turned: Callable[[Any, ir.Node], ir.Node | None]


def linked(node: ir.Node, inputs: Sequence[int] = (0,)) -> Ports:
    """Images in, images out, all in one layout."""
    outputs = dict.fromkeys(range(len(node.outputs)), LINKED)
    return Ports(dict.fromkeys(inputs, LINKED), outputs)


def attribute(node: ir.Node, name: str) -> Any:
    """An attribute, or its default by the schema."""
    attr = node.attributes.get(name)
    return opset.attribute_defaults(node.op_type).get(name) if attr is None else attr.value


def same_rank(node: ir.Node, *values: ir.Value | None) -> bool:
    rank = rank_of(node.outputs[0])
    return rank >= 3 and all(rank_of(v) == rank for v in (*values, *node.outputs))


def copy_of(node: ir.Node, inputs: Sequence[ir.Value | None], **changes: Any) -> ir.Node:
    """The same operator over other inputs and with some attributes changed."""
    attrs = [a for n, a in node.attributes.items() if n not in changes]
    attrs += ir.convenience.convert_attributes(changes)
    return ir.Node(node.domain, node.op_type, inputs, attrs, num_outputs=len(node.outputs))


# -- elementwise -------------------------------------------------------------------


def elementwise_ports(node: ir.Node, written: str) -> Ports | None:
    rank = rank_of(node.outputs[0])
    if rank < 3 or any(v is not None and v.shape is None for v in node.inputs):
        return None
    if any(rank_of(v) != rank for v in node.outputs if v.uses() or v.is_graph_output()):
        return None
    ports = linked(node, ())
    for place, value in enumerate(node.inputs):
        if value is None or rank_of(value) == 0 or all(d == 1 for d in value.shape):  # type: ignore[union-attr]
            continue
        if rank_of(value) == rank:
            ports.inputs[place] = LINKED
        else:
            ports.broadcast.append(place)
    return ports


def elementwise(turn: Any, node: ir.Node) -> ir.Node:
    return copy_of(node, turn.inputs(node))


def quantized_ports(node: ir.Node, written: str) -> Ports | None:
    x, scale = node.inputs[:2]
    plain = scale is not None and rank_of(scale) <= 1 and not attribute(node, "block_size")
    return linked(node) if plain and scale.shape is not None and same_rank(node, x) else None  # type: ignore[union-attr]


def quantized(turn: Any, node: ir.Node) -> ir.Node:
    rank = rank_of(node.inputs[0])
    axis = turn.axis(node, attribute(node, "axis") % rank, rank)
    return copy_of(node, turn.inputs(node), axis=axis)


# -- channels at axis 1 ------------------------------------------------------------


def window_ports(node: ir.Node, written: str) -> Ports | None:
    x = node.inputs[0]
    if written != FIRST or len(node.outputs) != 1 or not is_image(x):
        return None
    return linked(node) if rank_of(x) == rank_of(node.outputs[0]) else None


def norm_ports(node: ir.Node, written: str) -> Ports | None:
    x = node.inputs[0]
    if not attribute(node, "training_mode"):
        return window_ports(node, written)
    # beside the image it gives statistics, which have one axis
    return Ports({0: LINKED}, {0: LINKED}) if written == FIRST and is_image(x) else None


def window(turn: Any, node: ir.Node) -> ir.Node:
    new = copy_of(node, turn.inputs(node))
    new.domain = turn.domain
    return new


def global_pool(turn: Any, node: ir.Node) -> ir.Node:
    pixels = np.arange(1, rank_of(node.inputs[0]) - 1)
    name = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}[node.op_type]
    inputs = [*turn.inputs(node), turn.const(pixels)]
    return ir.Node("", name, inputs, [ir.AttrInt64("keepdims", 1)])


# -- one axis ----------------------------------------------------------------------


def axis_ports(node: ir.Node, written: str) -> Ports | None:
    return linked(node) if same_rank(node, node.inputs[0]) else None


def along_axis(turn: Any, node: ir.Node) -> ir.Node:
    rank = rank_of(node.inputs[0])
    axis = turn.axis(node, attribute(node, "axis") % rank, rank)
    return copy_of(node, turn.inputs(node), axis=axis)


def concat_ports(node: ir.Node, written: str) -> Ports | None:
    every = range(len(node.inputs))
    return linked(node, every) if same_rank(node, *node.inputs) else None


def cumsum_ports(node: ir.Node, written: str) -> Ports | None:
    return axis_ports(node, written) if constant(node.inputs[1]) is not None else None


def cumsum(turn: Any, node: ir.Node) -> ir.Node:
    x, axis = node.inputs[:2]
    moved = turn.axis(node, int(constant(axis).item()) % rank_of(x), rank_of(x))  # type: ignore[union-attr]
    inputs = list(turn.inputs(node))
    inputs[1] = turn.const(np.asarray(moved, np.int64))
    return copy_of(node, inputs)


def gather_ports(node: ir.Node, written: str) -> Ports | None:
    data, indices = node.inputs
    if indices is None or indices.shape is None or not is_image(data):
        return None
    if rank_of(indices) == 1:
        return axis_ports(node, written)
    if rank_of(indices) == 0:
        return dropped(node, [attribute(node, "axis") % rank_of(data)], written)
    return None


def slice_ports(node: ir.Node, written: str) -> Ports | None:
    return axis_ports(node, written) if slice_axes(node) is not None else None


def slice_axes(node: ir.Node) -> list[int] | None:
    rank = rank_of(node.inputs[0])
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = constant(node.inputs[3])
        return None if axes is None or not rank else [int(a) % rank for a in axes]
    starts = node.inputs[1]
    count = None if starts is None or starts.shape is None else starts.shape[0]
    return list(range(count)) if isinstance(count, int) else None


def sliced(turn: Any, node: ir.Node) -> ir.Node:
    rank = rank_of(node.inputs[0])
    axes = [turn.axis(node, a, rank) for a in slice_axes(node) or ()]
    inputs = [*turn.inputs(node), None, None][: max(4, len(node.inputs))]
    inputs[3] = turn.const(np.array(axes, np.int64))
    return copy_of(node, inputs)


# -- a number for every axis -------------------------------------------------------


def pad_ports(node: ir.Node, written: str) -> Ports | None:
    x, pads = node.inputs[:2]
    whole = len(node.inputs) < 4 or node.inputs[3] is None
    complete = pads is not None and pads.shape is not None and pads.shape[0] == 2 * rank_of(x)
    return axis_ports(node, written) if whole and complete else None


def pad(turn: Any, node: ir.Node) -> ir.Node:
    rank = rank_of(node.inputs[0])
    order = turn.order(node, rank)
    inputs = list(turn.inputs(node))
    inputs[1] = turn.reordered(inputs[1], [*order, *(rank + a for a in order)])
    return copy_of(node, inputs)


def sizes_ports(node: ir.Node, written: str) -> Ports | None:
    """Expand and Tile."""
    x, sizes = node.inputs
    complete = sizes is not None and sizes.shape is not None and sizes.shape[0] == rank_of(x)
    return axis_ports(node, written) if complete else None


def sizes(turn: Any, node: ir.Node) -> ir.Node:
    inputs = list(turn.inputs(node))
    inputs[1] = turn.reordered(inputs[1], turn.order(node, rank_of(node.inputs[0])))
    return copy_of(node, inputs)


def resize_ports(node: ir.Node, written: str) -> Ports | None:
    rank = rank_of(node.inputs[0])
    whole = attribute(node, "axes") is None or len(attribute(node, "axes")) == rank
    roi = node.inputs[1] if len(node.inputs) > 1 else None
    empty = roi is None or (roi.shape is not None and roi.shape[0] == 0)
    cropped = attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize"
    aspect = attribute(node, "keep_aspect_ratio_policy") != "stretch"
    if (cropped and not empty) or (aspect and not whole):
        return None
    return axis_ports(node, written)


def resize(turn: Any, node: ir.Node) -> ir.Node:
    rank = rank_of(node.inputs[0])
    axes = attribute(node, "axes")
    inputs = list(turn.inputs(node))
    if axes is not None:
        return copy_of(node, inputs, axes=[turn.axis(node, a % rank, rank) for a in axes])
    order = turn.order(node, rank)
    for place in range(2, len(inputs)):
        value = inputs[place]
        if value is not None and value.shape is not None and value.shape[0] == rank:
            inputs[place] = turn.reordered(value, order)
    return copy_of(node, inputs)


# -- axes that come and go ---------------------------------------------------------


def dropped(node: ir.Node, axes: Sequence[int], written: str) -> Ports | None:
    """Ports of a node that removes axes of its input."""
    rank = rank_of(node.inputs[0])
    kept = [a for a in range(rank) if a not in axes]
    order = [a for a in turn(rank, other_layout(written)) if a in kept]
    if order == kept:  # what is left has the same order in both layouts
        return Ports({0: FREE})
    return linked(node) if _stays_image(kept, order, written) else None


def _stays_image(kept: list[int], order: list[int], written: str) -> bool:
    """Whether axes that are left of an image are those of an image of the same layout."""
    smaller = turn(len(kept), other_layout(written))
    return len(kept) >= 3 and kept[0] == 0 and [kept[a] for a in smaller] == order


def reduced_axes(node: ir.Node) -> list[int] | None:
    rank = rank_of(node.inputs[0])
    if node.op_type in ("ArgMax", "ArgMin"):
        return [attribute(node, "axis") % rank]
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return [] if attribute(node, "noop_with_empty_axes") else list(range(rank))
    axes = constant(node.inputs[1])
    if axes is None:
        return None
    if not axes.size and not attribute(node, "noop_with_empty_axes"):
        return list(range(rank))
    return [int(a) % rank for a in axes.reshape(-1)]


def reduction_ports(node: ir.Node, written: str) -> Ports | None:
    if not is_image(node.inputs[0]):
        return None
    axes = reduced_axes(node)
    if axes is None:
        return None
    if attribute(node, "keepdims"):
        return linked(node) if same_rank(node, node.inputs[0]) else None
    return dropped(node, axes, written)


def reduction(turn: Any, node: ir.Node) -> ir.Node:
    rank = rank_of(node.inputs[0])
    axes = [turn.axis(node, a, rank) for a in reduced_axes(node) or ()]
    if node.op_type in ("ArgMax", "ArgMin"):
        return copy_of(node, turn.inputs(node), axis=axes[0])
    if len(axes) in (0, rank):
        return copy_of(node, turn.inputs(node))
    return copy_of(node, [turn.inputs(node)[0], turn.const(np.array(sorted(axes), np.int64))])


def squeezed_axes(node: ir.Node) -> list[int] | None:
    x = node.inputs[0]
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = constant(node.inputs[1])
        return None if axes is None else [int(a) % rank_of(x) for a in axes.reshape(-1)]
    assert x is not None and x.shape is not None
    return None if unknown_sizes(x) else [a for a, d in enumerate(x.shape) if d == 1]


def squeeze_ports(node: ir.Node, written: str) -> Ports | None:
    axes = squeezed_axes(node) if is_image(node.inputs[0]) else None
    return None if axes is None else dropped(node, axes, written)


def squeeze(turn: Any, node: ir.Node) -> ir.Node:
    rank = rank_of(node.inputs[0])
    axes = sorted(turn.axis(node, a, rank) for a in squeezed_axes(node) or ())
    return copy_of(node, [turn.inputs(node)[0], turn.const(np.array(axes, np.int64))])


def unsqueeze_ports(node: ir.Node, written: str) -> Ports | None:
    (out,) = node.outputs
    axes = constant(node.inputs[1])
    rank = rank_of(out)
    if axes is None or rank < 3:
        return None
    fresh = [int(a) % rank for a in axes.reshape(-1)]
    kept = [a for a in range(rank) if a not in fresh]
    order = [a for a in turn(rank, other_layout(written)) if a in kept]
    if order == kept:
        return Ports({}, {0: FREE})
    return linked(node) if _stays_image(kept, order, written) else None


def unsqueeze(turn: Any, node: ir.Node) -> ir.Node:
    rank = rank_of(node.outputs[0])
    axes = [int(a) % rank for a in constant(node.inputs[1]).reshape(-1)]  # type: ignore[union-attr]
    moved = sorted(turn.axis(node, a, rank, output=True) for a in axes)
    return copy_of(node, [turn.inputs(node)[0], turn.const(np.array(moved, np.int64))])


def reshape_ports(node: ir.Node, written: str) -> Ports | None:
    """Reshape and Flatten: pixels may be joined or split, and where both layouts are the same
    bytes, the elements are in order anyway.
    """
    x, (out,) = node.inputs[0], node.outputs
    if x is None or x.shape is None or unknown_sizes(out) > 1:
        return None
    if any(d == 0 for d in (*x.shape, *out.shape)):  # type: ignore[misc]
        return None
    ports = Ports()
    if is_image(x) and turns_freely(x, written):
        ports.inputs[0] = FREE
    if is_image(out) and turns_freely(out, written):
        ports.outputs[0] = FREE
    if ports.inputs or ports.outputs:
        return ports
    if not (is_image(x) and is_image(out)):
        return None
    channel = 1 if written == FIRST else -1
    before, after = list(x.shape), list(out.shape)  # type: ignore[arg-type]
    same = same_dim(before[0], after[0]) and same_dim(before[channel], after[channel])
    return linked(node) if same else None


def reshape(turn: Any, node: ir.Node) -> ir.Node:
    (out,) = node.outputs
    dims = list(out.shape)  # type: ignore[arg-type]
    order = turn.order(node, len(dims), output=True)
    sizes = [d if isinstance(d, int) else -1 for d in (dims[a] for a in order)]
    return ir.Node("", "Reshape", [turn.inputs(node)[0], turn.const(np.array(sizes, np.int64))])


# -- readers of axes ---------------------------------------------------------------


def shape_ports(node: ir.Node, written: str) -> Ports | None:
    return Ports({0: FREE}) if is_image(node.inputs[0]) else None


def shape(turn: Any, node: ir.Node) -> ir.Node:
    rank = rank_of(node.inputs[0])
    axes = range(rank)[slice(attribute(node, "start"), attribute(node, "end"))]
    places = np.array([turn.axis(node, a, rank) for a in axes], np.int64)
    whole = turn.build("Shape", turn.inputs(node))
    return ir.Node("", "Gather", [whole, turn.const(places)], [ir.AttrInt64("axis", 0)])


def transpose_ports(node: ir.Node, written: str) -> Ports | None:
    """A Transpose that is no change of layout moves its elements from and to any layout."""
    return Ports({0: FREE}, {0: FREE})


def transpose(turn: Any, node: ir.Node) -> ir.Node:
    perm = order_of(node)
    before, after = turn.order(node, len(perm)), turn.order(node, len(perm), output=True)
    composed = [before.index(perm[a]) for a in after]
    if composed == sorted(composed):
        return ir.Node("", "Identity", turn.inputs(node))
    return copy_of(node, turn.inputs(node), perm=composed)


ELEMENTWISE = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift"),
    *("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos"),
    *("Cosh", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater"),
    *("GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu"),
    *("Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or"),
    *("PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin"),
    *("Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh"),
    *("ThresholdedRelu", "Where", "Xor"),
)
REDUCTIONS = (
    *("ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
    *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
WINDOWS = (
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "LRN", "DepthToSpace"),
    *("SpaceToDepth", "InstanceNormalization", "GroupNormalization"),
)
ROLES: dict[str, Role] = {
    **dict.fromkeys(ELEMENTWISE, Role(elementwise_ports, elementwise)),
    **dict.fromkeys(REDUCTIONS, Role(reduction_ports, reduction)),
    **dict.fromkeys(WINDOWS, Role(window_ports, window)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), Role(window_ports, global_pool)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), Role(quantized_ports, quantized)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "TopK"), Role(axis_ports, along_axis)),
    **dict.fromkeys(("Expand", "Tile"), Role(sizes_ports, sizes)),
    **dict.fromkeys(("Reshape", "Flatten"), Role(reshape_ports, reshape)),
    "BatchNormalization": Role(norm_ports, window),
    "Concat": Role(concat_ports, along_axis),
    "Split": Role(axis_ports, along_axis),
    "CumSum": Role(cumsum_ports, cumsum),
    "Gather": Role(gather_ports, along_axis),
    "Slice": Role(slice_ports, sliced),
    "Pad": Role(pad_ports, pad),
    "Resize": Role(resize_ports, resize),
    "Squeeze": Role(squeeze_ports, squeeze),
    "Unsqueeze": Role(unsqueeze_ports, unsqueeze),
    "Shape": Role(shape_ports, shape),
    "Transpose": Role(transpose_ports, transpose),
}
# Operators whose channels are at axis 1 by definition: where labels start.
ANCHORS = frozenset((*WINDOWS, "BatchNormalization", "GlobalAveragePool", "GlobalMaxPool"))


def order_of(node: ir.Node) -> list[int]:
    """The permutation of a Transpose."""
    perm = node.attributes.get("perm")
    return list(range(rank_of(node.inputs[0])))[::-1] if perm is None else list(perm.value)


def changes_layout(node: ir.Node) -> tuple[str, str] | None:
    """The layouts before and after a Transpose between the two; None for any other node.

    Of three axes, one permutation is both: it is given as (FIRST, LAST).
    """
    if node.op_type != "Transpose" or node.domain != "" or rank_of(node.inputs[0]) < 3:
        return None
    perm = order_of(node)
    for before, after in ((FIRST, LAST), (LAST, FIRST)):
        if perm == permutation(len(perm), before, after):
            return before, after
    return None
