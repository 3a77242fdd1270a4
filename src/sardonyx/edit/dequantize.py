"""Float weights for a quantized model, so that it can be trained.

Products of integers become products of floats between DequantizeLinear and QuantizeLinear, and
integer weights become the floats that they represent. The results stay the same up to the
rounding of float32: activations are still rounded to their levels, or only limited to their range.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.edit.surgery import finish, open_model
from sardonyx.errors import ArgumentError, ModelError, quote
from sardonyx.model import Model, ModelSource
from sardonyx.passes.functions import replace
from sardonyx.passes.nesting import graphs

SUFFIX = "_quantized"  # what onnxruntime's quantizer adds to the name of a weight
PRODUCTS = ("QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger")
MOVES = ("Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")


def dequantize(model: ModelSource, *, activations: Literal["keep", "clip"] = "keep") -> Model:
    """Give a quantized model float weights, so that `trainable` can train them.

    activations -- "keep": they are rounded as before, and gradients pass straight through the
                   rounding; "clip": they are only limited to the range of their integers

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,2] x) => (float[N,2] y) <int8[2,2] w_quantized = {1,2,3,4}, float s = {0.5}>
    ... {d = DequantizeLinear(w_quantized, s) y = MatMul(x, d)}'''))
    >>> sx.dequantize(model).initializer("w").numpy().tolist()
    [[0.5, 1.0], [1.5, 2.0]]
    """
    if activations not in ("keep", "clip"):
        raise ArgumentError(f'activations is "keep" or "clip", not {activations!r}')
    work, op = open_model(model)
    for node in _nodes(work, PRODUCTS):
        with op.named(node.name or node.op_type), op:
            results = FORMS[node.op_type](op, node)
        _put(op, node, results)
    for node in _nodes(work, (*MOVES, "MaxPool")):
        _float_move(op, node)
    for node in _nodes(work, ["DequantizeLinear"]):
        _float_weight(work, op, node)
    if activations == "clip":
        for node in _nodes(work, ["DequantizeLinear"]):
            _clip(op, node)
    finish(work, op, "the model cannot be given float weights")
    return work


def _nodes(model: Model, op_types: Iterable[str]) -> list[ir.Node]:
    every = [node for part in graphs(model.graph) for node in part]
    return [n for n in every if n.domain == "" and n.op_type in op_types]


def _put(op: Builder, node: ir.Node, result: ir.Value | None) -> None:
    """Put what the builder has collected in the place of `node`, if there is a result."""
    new_nodes, op.nodes = op.nodes, []
    if result is not None:
        replace(node, new_nodes, [result])


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: a.value for name, a in node.attributes.items()}


# -- products of integers ------------------------------------------------------------------


def _qlinear_matmul(op: Builder, node: ir.Node) -> ir.Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    left = op.DequantizeLinear(a, a_scale, a_zero, axis=_rank(a) - 2)
    right = op.DequantizeLinear(b, b_scale, b_zero, axis=_rank(b) - 1)
    return op.QuantizeLinear(op.MatMul(left, right), y_scale, y_zero)


def _qlinear_conv(op: Builder, node: ir.Node) -> ir.Value:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.inputs
    image = op.DequantizeLinear(x, x_scale, x_zero)
    kernel = op.DequantizeLinear(w, w_scale, w_zero, axis=0)
    added = [
        op.DequantizeLinear(b, op.Mul(x_scale, w_scale), axis=0) for b in bias if b is not None
    ]
    y = op.call("Conv", [image, kernel, *added], _attributes(node))
    return op.QuantizeLinear(y, y_scale, y_zero)


def _integer_product(op: Builder, node: ir.Node) -> ir.Value | None:
    """A product of integers, with the Cast and the product by both scales that follow it."""
    a, b, *zeros = [*node.inputs, None, None][:4]
    scaled = _scales(node)
    if scaled is None:
        return None
    last, a_scale, b_scale = scaled
    is_conv = node.op_type == "ConvInteger"
    left = op.DequantizeLinear(a, a_scale, zeros[0])
    vector = b_scale.shape is not None and len(b_scale.shape) > 1
    scale = op.Reshape(b_scale, [-1]) if vector else b_scale
    right = op.DequantizeLinear(b, scale, zeros[1], axis=0 if is_conv else _rank(b) - 1)
    y = op.call("Conv" if is_conv else "MatMul", [left, right], _attributes(node))
    # The nodes between are dead from here on: `last` is what the model reads.
    new_nodes, op.nodes = op.nodes, []
    replace(last, new_nodes, [y])
    return None


def _scales(node: ir.Node) -> tuple[ir.Node, ir.Value, ir.Value] | None:
    """The product of a float result by scale·scale, and both scales, as quantizers write them."""
    cast = _only_reader(node.outputs[0], "Cast")
    last = cast and _only_reader(cast.outputs[0], "Mul")
    if not cast or not last:
        return None
    both = next((v for v in last.inputs if v is not cast.outputs[0]), None)
    maker = both.producer() if both is not None else None
    if maker is None or maker.op_type != "Mul":
        return None
    # Only their product counts: the left factor gets one number, the right what is left.
    first, second = maker.inputs
    if first is not None and not _is_single(first):
        first, second = second, first
    if first is None or second is None or not _is_single(first):
        return None
    return last, first, second


def _is_single(scale: ir.Value) -> bool:
    return scale.shape is not None and all(d == 1 for d in scale.shape)


def _only_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    readers = list(value.consumers())
    alone = len(readers) == 1 and not value.is_graph_output()
    return readers[0] if alone and readers[0].op_type == op_type else None


def _rank(value: ir.Value | None) -> int:
    return 2 if value is None or value.shape is None else len(value.shape)


FORMS = {
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
    "MatMulInteger": _integer_product,
    "ConvInteger": _integer_product,
}


def _float_move(op: Builder, node: ir.Node) -> None:
    """What only moves or selects levels of an activation does so with floats."""
    levels = node.inputs[0]
    quantizer = None if levels is None else levels.producer()
    if quantizer is None or quantizer.op_type not in QUANTIZERS or len(node.outputs) > 1:
        return
    dynamic = quantizer.op_type == "DynamicQuantizeLinear"
    scale, zero = quantizer.outputs[1:3] if dynamic else [*quantizer.inputs, None][1:3]
    if levels is not quantizer.outputs[0] or scale is None or not _is_single(scale):
        return
    with op.named(node.name or node.op_type):
        dense = op.DequantizeLinear(levels, scale, zero)
        moved = op.call(node.op_type, [dense, *node.inputs[1:]], _attributes(node))
        result = op.QuantizeLinear(moved, scale, zero, output_dtype=int(levels.dtype or 0))
    _put(op, node, result)


# -- weights and activations ---------------------------------------------------------------


def _float_weight(model: Model, op: Builder, node: ir.Node) -> None:
    """A DequantizeLinear of constants becomes an initializer, named after its integers."""
    levels, moves = _source(node.inputs[0])
    x, s, z = (_array(v) for v in [levels, *node.inputs[1:], None][:3])
    known_zero = z is not None or len(node.inputs) < 3 or node.inputs[2] is None
    if x is None or s is None or not known_zero or (moves and s.size > 1):
        return
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    try:
        scale, zero = (None if v is None else along(v, x, axis, block) for v in (s, z))
        assert scale is not None
        centred = x.astype(np.float32) - (0 if zero is None else zero.astype(np.float32))
        array = (centred * scale.astype(np.float32)).astype(scale.dtype)
        fits = array.shape == x.shape
    except ValueError:
        fits = False
    if not fits:
        label = quote(node.name or node.outputs[0].name)
        raise ModelError(
            f"the scales of DequantizeLinear {label} do not fit its integers",
            [["integers", str(x.shape)], ["scales", str(s.shape)]],
        )
    weight = _weight(model, op, node.outputs[0], _origin(levels).removesuffix(SUFFIX), array)
    for move in moves:
        weight = op.call(move.op_type, [weight, *move.inputs[1:]], _attributes(move))
    _put(op, node, weight if moves else None)
    if not moves:
        node.outputs[0].replace_all_uses_with(weight, replace_graph_outputs=True)


def _source(levels: ir.Value | None) -> tuple[ir.Value | None, list[ir.Node]]:
    """The stored integers behind a tensor, and the nodes that only move them, in order."""
    moves: list[ir.Node] = []
    while levels is not None and _array(levels) is None:
        node = levels.producer()
        if node is None or node.domain != "" or node.op_type not in MOVES:
            break
        moves.insert(0, node)
        levels = node.inputs[0]
    return levels, moves


def _weight(model: Model, op: Builder, out: ir.Value, name: str, array: np.ndarray) -> ir.Value:
    """An initializer of that content, under that name where it is free: `out` gives it up."""
    before = model.graph.initializers.get(name)
    if before is not None and np.array_equal(before.const_value.numpy(), array):  # type: ignore[union-attr]
        return before
    if out.name == name:
        out.name = op.fresh(f"{name}/dequantized")
    else:
        name = op.fresh(name)
    tensor = ir.Tensor(array, name=name)
    value = ir.Value(name=tensor.name, const_value=tensor, type=ir.TensorType(tensor.dtype))
    value.shape = ir.Shape(array.shape)
    model.graph.register_initializer(value)
    return value


def _array(value: ir.Value | None) -> np.ndarray | None:
    """The array behind constants, also through changes of layout and products of scales."""
    constant_array = constant(value)
    node = None if value is None else value.producer()
    if constant_array is not None or node is None:
        return constant_array
    inputs: list[Any] = [_array(v) for v in node.inputs]
    if any(array is None for array in inputs):
        return None
    if node.op_type == "Transpose":
        return np.transpose(inputs[0], node.attributes.get_ints("perm"))
    if node.op_type == "Reshape":
        return np.reshape(inputs[0], inputs[1])
    return np.multiply(*inputs) if node.op_type == "Mul" else None


def _origin(value: ir.Value | None) -> str:
    while value is not None and value.producer() is not None:
        value = value.producer().inputs[0]  # type: ignore[union-attr]
    return (value.name if value is not None else None) or "weight"


def along(parameter: np.ndarray, x: np.ndarray, axis: int, block: int) -> np.ndarray:
    """A scale or zero point so that it broadcasts against `x`."""
    if block:
        wide = np.repeat(parameter, block, axis)
        return wide[tuple(slice(0, n) for n in x.shape)]
    if parameter.size == 1:
        return parameter.reshape(())
    sizes = [1] * x.ndim
    sizes[axis] = -1
    return parameter.reshape(sizes)


def _clip(op: Builder, node: ir.Node) -> None:
    """A quantizer with its DequantizeLinear only limits values to the range of the integers."""
    levels, scale, zero = [*node.inputs, None][:3]
    quantizer = None if levels is None else levels.producer()
    if quantizer is None or quantizer.op_type not in QUANTIZERS or levels is None:
        return
    x = quantizer.inputs[0]
    assert x is not None and levels.dtype is not None
    s, z = _array(scale), _array(zero)
    if quantizer.op_type == "DynamicQuantizeLinear":
        node.outputs[0].replace_all_uses_with(x, replace_graph_outputs=True)
        return
    if s is None or s.size != 1 or not levels.dtype.is_integer():
        return  # per channel, or floats of few bits: stays
    info = ml_dtypes.iinfo(levels.dtype.numpy())
    offset = 0 if z is None else int(z.reshape(-1)[0])
    low, high = (
        np.asarray((int(v) - offset) * s.reshape(()), s.dtype) for v in (info.min, info.max)
    )
    with op.named(node.name or node.op_type):
        y = op.Clip(x, op.const(low), op.const(high))
    _put(op, node, y)
