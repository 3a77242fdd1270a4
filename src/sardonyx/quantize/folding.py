"""Batch normalization folded into the product before it: the weights that are rounded are those
that serve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.model import Model
from sardonyx.weights import KIND

PRODUCTS = ("Conv", "ConvTranspose", "Gemm")


def fold_batch_norm(model: Model, op: Builder) -> list[str]:
    """Fold every BatchNormalization that alone reads a product with stored weights; their names."""
    folded = []
    for node in list(model.graph):
        if node.op_type == "BatchNormalization" and node.domain == "":
            layer = _layer(node)
            if layer is not None:
                _fold(model, op, node, layer)
                folded.append(node.name or node.outputs[0].name or "")
    return folded


@dataclass
class _Layer:
    """A product, the axis of its outputs in the weight, and the bias that it adds."""

    node: ir.Node
    axis: int
    bias: np.ndarray


def _layer(norm: ir.Node) -> _Layer | None:
    value = norm.inputs[0]
    node = value.producer() if value is not None else None
    if node is None or node.op_type not in PRODUCTS or node.domain != "" or value is None:
        return None
    alone = len(value.uses()) == 1 and not value.is_graph_output()
    if not alone or norm.attributes.get_int("training_mode", 0) != 0:
        return None
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if weight is None or not weight.is_initializer() or len(weight.uses()) != 1:
        return None
    if node.op_type == "ConvTranspose" and node.attributes.get_int("group", 1) != 1:
        return None
    if any(constant(v) is None for v in norm.inputs[1:]):
        return None
    axis = {"Conv": 0, "ConvTranspose": 1}.get(node.op_type)
    if axis is None:
        axis = 0 if node.attributes.get_int("transB", 0) else 1
    size = constant(weight).shape[axis]  # type: ignore[union-attr]
    added = np.zeros(size) if bias is None else constant(bias)
    if added is None or added.size != size or (added.ndim > 1 and added.shape[-1] != size):
        return None
    factor = node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0
    return _Layer(node, axis, added.astype(np.float64).reshape(-1) * factor)


def _fold(model: Model, op: Builder, norm: ir.Node, layer: _Layer) -> None:
    scale, shift, mean, variance = (constant(v).astype(np.float64) for v in norm.inputs[1:5])  # type: ignore[union-attr]
    factor = scale / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
    weight = layer.node.inputs[1]
    assert weight is not None and weight.const_value is not None
    array = weight.const_value.numpy()
    spread = factor.reshape([-1 if a == layer.axis else 1 for a in range(array.ndim)])
    kernel = (array.astype(np.float64) * spread).astype(array.dtype)
    weight.const_value = ir.Tensor(kernel, name=weight.name, shape=ir.Shape(kernel.shape))
    weight.metadata_props[KIND] = "weight"
    bias = ((layer.bias - mean) * factor + shift).astype(array.dtype)
    added = op.weight(f"{weight.name}/bias", bias)
    added.metadata_props[KIND] = "weight"
    if len(layer.node.inputs) < 3:
        layer.node.resize_inputs(3)
    layer.node.replace_input_with(2, added)
    if layer.node.op_type == "Gemm":
        layer.node.attributes.add(ir.AttrFloat32("beta", 1.0))
    out, result = norm.outputs[0], layer.node.outputs[0]
    name = out.name
    ir.convenience.replace_all_uses_with(out, result, replace_graph_outputs=True)
    model.graph.remove(norm, safe=True)
    result.name = name
