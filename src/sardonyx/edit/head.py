"""Find the layer that makes a model's class scores, and replace it.

The head is the last layer with weights before an output: Gemm, MatMul with or without a bias, or
Conv. Between it and the output may stand what changes no channel: activations (also spelled out in
several operators), pooling, reshapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant, rank
from sardonyx.errors import ArgumentError, quote
from sardonyx.initializer import Initializer, draw
from sardonyx.passes.activation import final_activation

# What may stand between the head and the output: element-wise, or over axes other than the classes.
PASSED = {
    "Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Relu", "Tanh", "Identity", "Cast",
    "Dropout",
    "Flatten", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "GlobalAveragePool", "GlobalMaxPool",
    "AveragePool", "MaxPool", "ReduceMean", "ReduceMax", "Clip", "Mul", "Div",
}  # fmt: skip


@dataclass
class Head:
    """The layer found: its node, weight and bias, and the nodes between it and the output."""

    node: ir.Node
    weight: ir.Value
    class_axis: int
    bias: tuple[ir.Node, int] | None = None
    after: list[ir.Node] = field(default_factory=list)

    @property
    def classes(self) -> int:
        return int(self.weight.shape[self.class_axis])  # type: ignore[index,arg-type]

    @property
    def features(self) -> ir.Value:
        value = self.node.inputs[0]
        assert value is not None
        return value

    @property
    def scores(self) -> ir.Value:
        """What the layer computes, its bias included."""
        return (self.bias[0] if self.bias else self.node).outputs[0]


def find_head(output: ir.Value) -> Head:
    """The head that `output` comes from; an error that shows the way walked where there is none."""
    after: list[ir.Node] = []
    value: ir.Value | None = output
    while value is not None and (node := value.producer()) is not None:
        layer = _layer(node)
        if layer is not None:
            layer.after = after
            return layer
        activation = final_activation(value)
        if activation is not None:
            after += activation.nodes
            value = activation.logits
            continue
        if not _is_passed(node):
            break
        after.append(node)
        value = node.inputs[0]
    stop = value.producer() if value is not None else None
    rows = [[n.op_type, f"node {quote(n.name)}", "passed"] for n in after]
    last = (
        [stop.op_type, f"node {quote(stop.name)}", "no layer with weights"]
        if stop
        else ["an input"]
    )
    raise ArgumentError(
        f"no classification head was found before {quote(output.name)}",
        [*rows, last],
        hint="cut the model at the features, then insert a layer: sx.cut, sx.insert",
    )


def _is_passed(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in PASSED:
        return False
    if node.op_type in ("Mul", "Div"):  # a temperature, not a gate
        other = constant(node.inputs[1])
        return other is not None and other.size == 1
    return True


def _layer(node: ir.Node) -> Head | None:
    if node.domain != "":
        return None
    if node.op_type == "Add":
        return _with_bias(node)
    if node.op_type not in ("Gemm", "MatMul", "Conv") or len(node.inputs) < 2:
        return None
    weight = node.inputs[1]
    if weight is None or not _is_stored(weight):
        return None
    bias = (node, 2) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if node.op_type == "Conv":
        if node.attributes.get_int("group", 1) != 1:
            raise ArgumentError(
                f"the last layer, Conv {quote(node.name)}, is grouped: it is not a head"
            )
        return Head(node, weight, 0, bias)
    if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1:
        return Head(node, weight, 0, bias)
    return Head(node, weight, rank(weight) - 1, bias)


def _with_bias(node: ir.Node) -> Head | None:
    """MatMul and Add, in either order of the sum's operands."""
    for position, other in ((0, 1), (1, 0)):
        product, bias = node.inputs[position], node.inputs[other]
        producer = product.producer() if product is not None else None
        if producer is None or bias is None or producer.op_type not in ("MatMul", "Conv"):
            continue
        layer = _layer(producer)
        if layer is not None and layer.bias is None and _is_stored(bias):
            layer.bias = (node, other)
            return layer
    return None


def _is_stored(value: ir.Value) -> bool:
    """Whether a tensor is a weight of known shape: an initializer, one that is merely rearranged,
    or one that is kept small beside its scale.
    """
    if value.shape is None or not all(isinstance(d, int) for d in value.shape):
        return False
    source: ir.Value | None = value
    while source is not None and (node := source.producer()) is not None:
        if node.op_type == "Mul":
            return all(v is not None and _is_stored(v) for v in node.inputs)
        if node.op_type not in ("Transpose", "Identity", "Cast", "DequantizeLinear", "Reshape"):
            return False
        source = node.inputs[0]
    return source is not None and source.const_value is not None


def new_weights(
    head: Head, classes: int, start: Initializer, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray | None]:
    """A fresh weight and a bias of zeros (None where there was no bias) for another number of
    classes.
    """
    shape = [int(d) for d in head.weight.shape]  # type: ignore[union-attr,arg-type]
    shape[head.class_axis] = classes
    kind = head.weight.dtype.numpy()  # type: ignore[union-attr]
    if head.class_axis == 0:
        weight = draw(start, tuple(shape), rng)
    else:
        weight = np.swapaxes(draw(start, (*shape[:-2], shape[-1], shape[-2]), rng), -1, -2)
    bias = None
    if head.bias is not None:
        old = head.bias[0].inputs[head.bias[1]]
        assert old is not None and old.shape is not None
        bias = np.zeros(_resized(old, head.classes, classes), kind)
    return np.ascontiguousarray(weight, kind), bias


def _resized(value: ir.Value, before: int, classes: int) -> list[int]:
    """The shape of a bias for the new number of classes; one number for all classes stays one."""
    dims = [int(d) for d in value.shape]  # type: ignore[union-attr,arg-type]
    axes = [a for a, d in enumerate(dims) if d == before]
    if axes and before > 1:
        dims[axes[-1]] = classes
        return dims
    return [*dims[:-1], classes]


def resize_reshapes(head: Head, classes: int) -> list[tuple[ir.Node, np.ndarray]]:
    """The Reshape nodes after the head that name the old number of classes, with their new
    target.
    """
    targets = []
    for node in head.after:
        if node.op_type != "Reshape":
            continue
        target = constant(node.inputs[1])
        if target is None:
            continue
        old = [a for a, d in enumerate(target) if d == head.classes]
        if old:
            new = target.copy()
            new[old[-1]] = classes
            targets.append((node, new))
    return targets
