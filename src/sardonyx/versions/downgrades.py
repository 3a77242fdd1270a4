"""Downgrades: how a node of a newer opset is written at an older one.

One small function per signature change, named after it (`reduce_18_13`), as in `upgrades/`, the
other way round. A downgrade is `function(op, node)`: it changes the node in place and returns
True, or returns False where the older form has no equivalent. A change of types, or an
attribute that has its default, needs none; an operator that ONNX defines by a function is replaced
by its definition where it has none.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from sardonyx.build import Builder, constant

Downgrade = Callable[[Builder, ir.Node], bool]
DOWNGRADES: dict[tuple[str, str, int], Downgrade] = {}
# Which nodes mean something that older forms do not, though their signature is the same.
ONLY_SINCE: dict[tuple[str, str, int], Callable[[ir.Node], bool]] = {}


def downgrade(*op_types: str, since: int) -> Callable[[Downgrade], Downgrade]:
    """Register how nodes of the form that began with opset `since` look in the form before."""

    def register(function: Downgrade) -> Downgrade:
        for op_type in op_types:
            DOWNGRADES["", op_type, since] = function
        return function

    return register


def _axes_to_attribute(node: ir.Node, position: int) -> bool:
    """Move a constant input of axes into the attribute `axes`."""
    if len(node.inputs) <= position:
        return True
    axes = constant(node.inputs[position])
    if axes is None:
        return False
    node.attributes.add(ir.AttrInt64s("axes", [int(a) for a in axes.reshape(-1)]))
    node.resize_inputs(position)
    return True


REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")


@downgrade("ReduceLogSum", "ReduceLogSumExp", since=28)
def reducelogsum_28_18(op: Builder, node: ir.Node) -> bool:
    x = node.inputs[0]
    return x is not None and x.dtype is not None and not x.dtype.is_integer()


@downgrade("BitShift", since=28)
def bitshift_28_11(op: Builder, node: ir.Node) -> bool:
    """Before 28, only unsigned numbers were shifted; 64 bits of them hold every signed one."""
    x, y = node.inputs
    if x is None or y is None or x.dtype is None:
        return False
    kind = x.dtype
    if not kind.is_signed():
        return True
    wide, by = op.cast(x, ir.DataType.INT64), op.cast(y, ir.DataType.INT64)
    fits = op.And(op.GreaterOrEqual(by, 0), op.Less(by, kind.bitwidth))
    by = op.cast(op.Where(fits, by, 0), ir.DataType.UINT64)
    direction = node.attributes.get_string("direction")
    if direction == "LEFT":
        moved = op.BitShift(op.cast(wide, ir.DataType.UINT64), by, direction=direction)
        result = op.Where(fits, op.cast(moved, ir.DataType.INT64), 0)
    else:
        # the complement of a negative number has no sign bit that would have to be copied
        negative = op.Less(wide, 0)
        whole = op.Where(negative, op.Sub(-1, wide), wide)
        moved = op.BitShift(op.cast(whole, ir.DataType.UINT64), by, direction=direction)
        moved = op.Where(fits, op.cast(moved, ir.DataType.INT64), 0)
        result = op.Where(negative, op.Sub(-1, moved), moved)
    node.op_type = "Cast"
    node.attributes.clear()
    node.attributes.add(ir.AttrInt64("to", int(kind)))
    node.resize_inputs(1)
    node.replace_input_with(0, result)
    return True


def _floor_of_floats(node: ir.Node) -> bool:
    dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    is_integer = dtype is not None and dtype.is_integer()
    return not is_integer and not node.attributes.get_int("fmod", 0)


ONLY_SINCE["", "Mod", 28] = _floor_of_floats


@downgrade("Mod", since=28)
def mod_28_13(op: Builder, node: ir.Node) -> bool:
    """Before 28, floats had only the remainder with the sign of the dividend."""
    a, b = node.inputs
    if a is None or b is None or a.dtype is None:
        return False
    rest = op.Mod(a, b, fmod=1)
    is_other_sign = op.Xor(op.Less(rest, 0.0), op.Less(b, 0.0))
    moved = op.And(op.Not(op.Equal(rest, 0.0)), is_other_sign)
    node.op_type = "Where"
    node.attributes.pop("fmod", None)
    node.resize_inputs(3)
    for i, value in enumerate((moved, op.Add(rest, b), rest)):
        node.replace_input_with(i, value)
    return True


@downgrade(*(f"Reduce{name}" for name in REDUCTIONS), since=18)
def reduce_18_13(op: Builder, node: ir.Node) -> bool:
    empty = len(node.inputs) < 2 or node.inputs[1] is None
    if node.attributes.get_int("noop_with_empty_axes", 0):
        if empty:
            return False
        axes = constant(node.inputs[1])
        if axes is None or not axes.size:
            return False
    node.attributes.pop("noop_with_empty_axes", None)
    return empty or _axes_to_attribute(node, 1)


@downgrade("Split", since=18)
def split_18_13(op: Builder, node: ir.Node) -> bool:
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return True
    x = node.inputs[0]
    size = (
        x.shape[node.attributes.get_int("axis", 0)]
        if x is not None and x.shape is not None
        else None
    )
    count = len(node.outputs)
    if not isinstance(size, int):
        return False
    share = -(-size // count)
    sizes = [max(min(share, size - i * share), 0) for i in range(count)]
    node.resize_inputs(2)
    node.replace_input_with(1, op.const(sizes, ir.DataType.INT64))
    node.attributes.pop("num_outputs", None)
    return True


@downgrade("GridSample", since=20)
def gridsample_20_16(op: Builder, node: ir.Node) -> bool:
    x = node.inputs[0]
    if x is None or x.shape is None or len(x.shape) != 4:
        return False
    mode = node.attributes.get_string("mode", "linear")
    older = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    node.attributes.add(ir.AttrString("mode", older))
    return True


@downgrade("DFT", since=20)
def dft_20_17(op: Builder, node: ir.Node) -> bool:
    axis_input = node.inputs[2] if len(node.inputs) > 2 else None
    axis = -2 if axis_input is None else constant(axis_input)
    if axis is None:
        return False
    node.attributes.add(ir.AttrInt64("axis", int(axis)))
    node.resize_inputs(min(len(node.inputs), 2))
    return True


@downgrade("RoiAlign", since=16)
def roialign_16_10(op: Builder, node: ir.Node) -> bool:
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode != "output_half_pixel":
        return False
    node.attributes.pop("coordinate_transformation_mode", None)
    return True


@downgrade("Shape", since=15)
def shape_15_13(op: Builder, node: ir.Node) -> bool:
    """Before 15, a Shape was whole."""
    start, end = (node.attributes.get_int(name, None) for name in ("start", "end"))
    whole = op.Shape(node.inputs[0])
    bounds = [start or 0, 2**31 - 1 if end is None else end]
    node.op_type = "Slice"
    node.attributes.clear()
    node.resize_inputs(3)
    node.replace_input_with(0, whole)
    for i, bound in enumerate(bounds):
        node.replace_input_with(i + 1, op.const([bound], ir.DataType.INT64))
    return True


@downgrade("Reshape", since=14)
def reshape_14_13(op: Builder, node: ir.Node) -> bool:
    shape = constant(node.inputs[1])
    if shape is None or not shape.all():
        return False
    node.attributes.pop("allowzero", None)
    return True


@downgrade("BatchNormalization", since=14)
def batchnormalization_14_9(op: Builder, node: ir.Node) -> bool:
    """Before 14, no form says what training computes; plain operators do."""
    x, scale, bias, mean, variance = node.inputs
    if x is None or x.shape is None or not node.attributes.get_int("training_mode", 0):
        return False
    assert scale is not None and bias is not None
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    momentum = node.attributes.get_float("momentum", 0.9)
    axes = [i for i in range(len(x.shape)) if i != 1]
    dims = [1, -1, *[1] * (len(x.shape) - 2)]
    with op:
        centred = x - op.mean(x, axes, keepdims=True)
        spread = op.mean(op.Mul(centred, centred), axes, keepdims=True)
        factor = op.Div(op.reshape(scale, dims), op.Sqrt(spread + epsilon))
        moved = [
            op.Add(op.Mul(old, momentum), op.Mul(op.reshape(new, [-1]), 1 - momentum))
            for old, new in ((mean, op.mean(x, axes, keepdims=True)), (variance, spread))
        ]
        normal = op.Mul(centred, factor)
    for output, value in zip(node.outputs[1:], moved):
        output.replace_all_uses_with(value, replace_graph_outputs=True)
        output.name, value.name = None, output.name
    node.op_type = "Add"
    node.attributes.clear()
    node.resize_inputs(2)
    node.replace_input_with(0, normal)
    node.replace_input_with(1, op.reshape(bias, dims))
    node.resize_outputs(1)
    return True


@downgrade("ReduceSum", since=13)
def reducesum_13_11(op: Builder, node: ir.Node) -> bool:
    return reduce_18_13(op, node)


@downgrade("Squeeze", "Unsqueeze", since=13)
def squeeze_13_11(op: Builder, node: ir.Node) -> bool:
    return _axes_to_attribute(node, 1)
