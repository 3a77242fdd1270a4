"""Gradients of ONNX's quantization family, straight through the rounding.

QuantizeLinear is a staircase: its derivative is zero wherever it exists. Quantization-aware
training passes the cotangent on as if nothing had been rounded, where the value lies inside the
range of the integers, and zero outside. This holds for a QuantizeLinear or DynamicQuantizeLinear
whose output a DequantizeLinear reads; the scale of the dynamic one counts as a constant. A
QuantizeLinear whose output is read otherwise has no gradient, with a warning; a
DynamicQuantizeLinear is an error there. `straight_through("none")` switches all of it off.

The cotangent of a tensor of integers is a float tensor of the same shape.
"""

from __future__ import annotations

import contextvars
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, get_args

import ml_dtypes
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.errors import ArgumentError, quote
from sardonyx.grad.driver import backward, fit, gradient_rule

Switch = Literal["pairs", "all", "none"]
SWITCH = "sardonyx.straight_through"  # in the metadata of a Gradient node
_switch: contextvars.ContextVar[Switch] = contextvars.ContextVar(
    "straight_through", default="pairs"
)


@contextmanager
def straight_through(where: Switch) -> Iterator[None]:
    """Choose, for the gradients built inside, whether cotangents pass through rounding.

    where -- "pairs": from a DequantizeLinear to its QuantizeLinear or DynamicQuantizeLinear (the
             default; "all" is another name for it); "none": no gradient passes. A training
             record that is made inside keeps the choice.

    >>> import sardonyx as sx
    >>> with sx.straight_through("none"):
    ...     g = sx.grad("model.onnx", wrt="x")
    """
    if where not in get_args(Switch):
        raise ArgumentError(f'straight_through takes "pairs" or "none", not {where!r}')
    token = _switch.set(where)
    try:
        yield
    finally:
        _switch.reset(token)


def keep_switch(node: ir.Node) -> None:
    """Note on a Gradient node what is chosen now, where it is not the default."""
    if _switch.get() == "none":
        node.metadata_props[SWITCH] = "none"


def switch_of(node: ir.Node) -> AbstractContextManager[None]:
    """What was chosen when a Gradient node was made: it holds while its gradient is built."""
    closed = node.metadata_props.get(SWITCH) == "none"
    return straight_through("none" if closed else _switch.get())


def carries(value: ir.Value) -> bool:
    """Whether quantized integers pass cotangents on."""
    node = value.producer()
    if _switch.get() == "none" or node is None or value is not node.outputs[0]:
        return False
    if any(use.node.op_type == "DequantizeLinear" and use.idx == 0 for use in value.uses()):
        return True
    if node.op_type == "QuantizeLinear":
        warnings.warn(
            f"no gradient passes the QuantizeLinear {quote(node.name or value.name)}: "
            "no DequantizeLinear reads its output",
            stacklevel=2,
        )
    return False


def _is_paired(integers: ir.Value) -> bool:
    """NOTE [scales of pairs]: whether all that read these integers dequantize them by the scale
    that quantized them. The gradient of the scale is then g · (q - zero - x / scale): a difference
    of numbers as large as the levels, which is taken element by element, not of two sums.
    """
    node = integers.producer()
    if _switch.get() == "none" or node is None or node.op_type != "QuantizeLinear":
        return False
    # What the gradient itself adds is in no graph yet.
    uses = [use for use in integers.uses() if use.node.graph is not None]
    return bool(uses) and all(
        use.node.op_type == "DequantizeLinear"
        and use.idx == 0
        and use.node.inputs[1] is node.inputs[1]
        and _layout(use.node) == _layout(node)
        for use in uses
    )


def _layout(node: ir.Node) -> tuple[int, int]:
    return node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)


@gradient_rule("DequantizeLinear")
def dequantize_linear(op, g, x, scale, zero, *, axis, block_size, output_dtype):
    dtype = g.dtype
    mark = len(op.nodes)
    wide_scale = _spread(op, scale, x, axis, block_size)
    spread_nodes = op.nodes[mark:]
    # Dequantized by a scale of one, not cast: a second gradient passes straight through, too.
    ones = op.fill(1, scale)
    options = {"axis": axis, "block_size": block_size, "output_dtype": output_dtype}
    steps = op.cast(op.DequantizeLinear(x, ones, zero, **options), dtype)
    if _is_paired(x):  # NOTE [scales of pairs]
        source = x.producer().inputs[0]
        ratio, inside = _levels(op, source, wide_scale, zero, axis, block_size, x.dtype)
        steps = op.Where(inside, steps - op.cast(ratio, dtype), steps)
    return g * op.cast(wide_scale, dtype), _gather_back(
        op, spread_nodes, g * steps, wide_scale, scale
    )


@gradient_rule("QuantizeLinear", carries=carries)
def quantize_linear(
    op, g, x, scale, zero, *, axis, block_size, output_dtype, precision, saturate, out
):
    dtype = x.dtype
    mark = len(op.nodes)
    wide_scale = _spread(op, scale, x, axis, block_size)
    spread_nodes = op.nodes[mark:]
    ratio, inside = _levels(op, x, wide_scale, zero, axis, block_size, out[0].dtype)
    dx = op.Where(inside, op.cast(g, dtype) / op.cast(wide_scale, dtype), 0.0)
    if _is_paired(out[0]):  # NOTE [scales of pairs]
        return dx, None
    return dx, _gather_back(op, spread_nodes, op.Neg(dx * ratio), wide_scale, scale)


def _levels(
    op: Builder,
    x: ir.Value | None,
    wide_scale: ir.Value,
    zero: ir.Value | None,
    axis: int,
    block_size: int,
    kind: ir.DataType | None,
) -> tuple[ir.Value, ir.Value]:
    """x over its scale, and where that lies in the range of the integers.

    As in torch, what rounds to the last level is inside.
    """
    assert x is not None and x.dtype is not None and kind is not None
    with op:
        ratio = level = x / op.cast(wide_scale, x.dtype)
        if zero is not None:
            level = ratio + _spread(op, op.Cast(zero, to=int(x.dtype)), x, axis, block_size)
    if not kind.name.startswith("FLOAT"):
        level = op.Round(level)
    low, high = _range(kind)
    return ratio, op.And(op.GreaterOrEqual(level, low), op.LessOrEqual(level, high))


def _only_scale(node: ir.Node) -> tuple[int, ...]:
    """The input of a DynamicQuantizeLinear, if cotangents arrive at its scale alone."""
    return () if _switch.get() == "none" or carries(node.outputs[0]) else (0,)


@gradient_rule("DynamicQuantizeLinear", carries=carries, refuses=_only_scale)
def dynamic_quantize_linear(op, gs, x, *, out):
    # Its range always holds its input, so nothing is cut off. Zeros have the scale 0.
    if gs[0] is None:
        return None
    return gs[0] / op.Where(op.Equal(out[1], 0.0), 1.0, out[1])


def _spread(op: Builder, parameter: ir.Value, x: ir.Value, axis: int, block_size: int) -> ir.Value:
    """A scale or zero point of a tensor, an axis or blocks, so that it broadcasts against `x`."""
    shape = parameter.shape
    if rank(parameter) == 0 or (rank(parameter) == 1 and shape == (1,) and not block_size):
        return parameter
    axis %= rank(x)
    if not block_size:
        return op.Unsqueeze(parameter, [a for a in range(rank(x)) if a != axis])
    dims = op.dims(parameter)
    blocks = op.Expand(
        op.Unsqueeze(parameter, [axis + 1]),
        op.join([*dims[: axis + 1], block_size, *dims[axis + 1 :]]),
    )
    whole = op.reshape(blocks, [*dims[:axis], dims[axis] * block_size, *dims[axis + 1 :]])
    size = op.dim(x, axis)
    return whole if op.dim(whole, axis) == size else op.Slice(whole, [0], op.join([size]), [axis])


def _gather_back(
    op: Builder, nodes: Sequence[ir.Node], g: ir.Value, wide: ir.Value, parameter: ir.Value
) -> ir.Value | None:
    """The cotangent of a parameter, from that of its spread form: sums over the spread."""
    return backward(op, nodes, {wide: fit(op, g, wide, True)}, [parameter])[0]


def _range(dtype: ir.DataType | None) -> tuple[float, float]:
    """The lowest and highest number of a quantized type."""
    assert dtype is not None
    if dtype.name.startswith("FLOAT"):
        most = float(ml_dtypes.finfo(dtype.numpy()).max)
        return -most, most
    bits = dtype.bitwidth
    if dtype.name.startswith("U"):
        return 0.0, float(2**bits - 1)
    return -float(2 ** (bits - 1)), float(2 ** (bits - 1) - 1)
