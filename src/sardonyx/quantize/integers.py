"""`to_integers`: the weights of a quantization-aware model stored as the integers that they are
rounded to.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.edit.surgery import finish
from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model, ModelSource, load
from sardonyx.passes.nesting import names as all_names
from sardonyx.quantize.ranges import LEVELS, Levels, rounded

SUFFIX = "_quantized"


def to_integers(model: ModelSource) -> Model:
    """Store the weights of a model of `quantize_aware` as integers, and its scales as numbers.

    The result is an ordinary QDQ model, without the training record, that gives the same numbers.

    >>> import sardonyx as sx
    >>> net = sx.quantize_aware("model.onnx", "data.npz")
    >>> sx.to_integers(net).initializer("body.weight_quantized").dtype.name
    'INT8'
    """
    loaded = load(model)
    work = Model(loaded.ir.clone(), [], loaded.source)
    for key in [k for k in work.metadata if _is_training(k)]:
        del work.metadata[key]
    op = Builder("integers")
    op.reserve(all_names(work.graph))
    _refuse_scales(work)
    for node in list(work.graph):
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.domain == "":
            _fix_scale(node, op)
    pairs = [node for node in work.graph if _is_weight(node)]
    if not pairs:
        raise ArgumentError(
            "no weight of this model is rounded to integers",
            hint="sx.quantize_aware inserts the rounding",
        )
    for node in pairs:
        _store(work, node, op)
    finish(work, op, "the model cannot be stored with integers")
    return work


def _is_training(key: str) -> bool:
    return key.startswith(("sardonyx.role.", "sardonyx.training", "sardonyx.loop"))


def _product(value: ir.Value | None) -> np.ndarray | None:
    """A scale that is stored, or the product of a stored scale and its factor."""
    if value is None:
        return None
    if value.producer() is None and value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    if node is None or node.op_type != "Mul" or len(node.inputs) != 2:
        return None
    parts = [_product(v) for v in node.inputs]
    return None if any(p is None for p in parts) else parts[0] * parts[1]  # type: ignore[operator]


def _refuse_scales(model: Model) -> None:
    """A factor that training has moved to 0 or below is no scale."""
    rows = []
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            scale = _product(node.inputs[1])
            if scale is not None and not (np.isfinite(scale) & (scale > 0)).all():
                lowest = float(np.min(scale))
                rows.append([quote(node.inputs[0].name), f"has the scale {lowest:g}"])  # type: ignore[union-attr]
    if rows:
        raise ArgumentError(
            "a scale must be above 0", rows, hint="train with a lower learning rate"
        )


def _fix_scale(node: ir.Node, op: Builder) -> None:
    value = node.inputs[1]
    scale = _product(value)
    if value is not None and scale is not None and not value.is_initializer():
        node.replace_input_with(1, op.const(scale))


def _is_weight(node: ir.Node) -> bool:
    """Whether a node rounds a stored tensor that only DequantizeLinear reads then."""
    if node.op_type != "QuantizeLinear" or node.domain != "":
        return False
    value = node.inputs[0]
    stored = value is not None and value.is_initializer() and value.const_value is not None
    readers = node.outputs[0].consumers()
    is_read = bool(readers) and all(n.op_type == "DequantizeLinear" for n in readers)
    return stored and is_read and _product(node.inputs[1]) is not None


def _store(model: Model, node: ir.Node, op: Builder) -> None:
    value, scale = node.inputs[0], _product(node.inputs[1])
    assert value is not None and value.const_value is not None and scale is not None
    levels = _levels(node)
    axis = node.attributes.get_int("axis", 1) if scale.ndim else None
    array = value.const_value.numpy()
    zero = _product(node.inputs[2]) if len(node.inputs) > 2 else None
    if zero is not None and np.any(zero.astype(np.int64)):
        raise ArgumentError(f"the weight {quote(value.name)} has a zero point that is not 0")
    integers = rounded(array, scale.astype(array.dtype), levels, axis).astype(levels.numpy)
    stored = op.weight(f"{value.name}{SUFFIX}", integers)
    out = node.outputs[0]
    ir.convenience.replace_all_uses_with(out, stored)
    model.graph.remove(node, safe=True)


def _levels(node: ir.Node) -> Levels:
    dtype = node.outputs[0].dtype
    for levels in LEVELS.values():
        if levels.dtype == dtype:
            return levels
    raise ArgumentError(f"weights are stored as int8 or int4, not as {dtype}")
