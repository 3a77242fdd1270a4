"""Mixed precision: a forward pass whose products are computed in bfloat16 or float16.

As torch's autocast has it: products take and give the narrow type; elementwise operators stay in it
where all their tensors have it, and are computed in float32 where one does not; everything else
(losses, normalization, exponentials, sums) is computed in float32. Parameters, state and outputs
stay float32, and so do gradients, since a Cast is differentiated by casting back.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.errors import ArgumentError
from sardonyx.lower.custom_native import NATIVE
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, regular_copy
from sardonyx.passes.cse import merge_common
from sardonyx.passes.nesting import names as all_names

FLOAT = ir.DataType.FLOAT
TYPES = {"bf16": ir.DataType.BFLOAT16, "fp16": ir.DataType.FLOAT16}
LOWEST = {"bf16": -3.3895313892515355e38, "fp16": -65504.0}
NAMES = (*TYPES, "tf32")
PRODUCTS = {
    ("", "MatMul"), ("", "Gemm"), ("", "Conv"), ("", "ConvTranspose"), ("", "Einsum"),
    (NATIVE, "Linear"), (NATIVE, "DotProductAttention"),
}  # fmt: skip
# Computed in the type of their tensors; of BatchNormalization, the first alone has it.
FOLLOWING = {
    "Abs", "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "DepthToSpace", "Div",
    "Elu", "Equal", "Expand", "Flatten", "Gather", "Gelu", "GlobalAveragePool",
    "GlobalMaxPool", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Less", "LessOrEqual", "Max", "MaxPool", "Min", "Mish", "Mul", "Neg", "PRelu",
    "Pad", "Relu", "Reshape", "Sigmoid", "Sign", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub",
    "Sum", "Swish", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
READS_NO_NUMBERS = {"Shape", "Size", "Cast", "CastLike"}


def mixed(model: Model, precision: str, narrow: Collection[str] = ()) -> NormalizedModel:
    """A copy of a forward pass, its idioms recognized, that computes in a precision of `TYPES`.

    narrow -- outputs that may be narrow; all others have the types that they had
    """
    copy = regular_copy(model)
    work = _Mixed(copy.graph, precision)
    for node in list(copy.graph):
        work.retype(node)
    if not work.count:
        raise ArgumentError(
            f'precision="{precision}" changes nothing: the model has no product of float32'
        )
    work.widen_outputs(narrow)
    merge_common(copy.graph)
    return NormalizedModel.of(copy)


class _Mixed:
    """A graph whose tensors are retyped node by node."""

    def __init__(self, graph: ir.Graph, precision: str):
        self.graph, self.low, self.lowest = graph, TYPES[precision], LOWEST[precision]
        self.casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self.op = Builder("mixed")
        self.op.reserve(all_names(graph))
        self.count = 0

    def retype(self, node: ir.Node) -> None:
        floats = [i for i, v in enumerate(node.inputs) if v is not None and self._is_float(v)]
        if (node.domain, node.op_type) in PRODUCTS:
            if floats and all(v is None or self._is_float(v) for v in node.inputs[:2]):
                self._clip_mask(node)
                self._set(node, floats, self.low)
                self._mark(node, self.low)
                self.count += 1
        elif node.domain == "" and node.op_type in READS_NO_NUMBERS:
            return
        elif node.domain == "" and node.op_type in FOLLOWING:
            self._follow(node, floats)
        else:
            self._set(node, floats, FLOAT)

    def _follow(self, node: ir.Node, floats: list[int]) -> None:
        if node.op_type == "BatchNormalization":
            image = node.inputs[0]
            assert image is not None
            if image.dtype == self.low:
                node.outputs[0].type = ir.TensorType(self.low)
            self._set(node, floats[1:], FLOAT)
            return
        values = [v for v in node.inputs if v is not None and self._is_float(v)]
        low = bool(values) and any(v.dtype == self.low for v in values)
        low = low and all(v.dtype == self.low or self._fits(v) for v in values)
        self._set(node, floats, self.low if low else FLOAT)
        if low:
            self._mark(node, self.low)

    def _is_float(self, value: ir.Value) -> bool:
        return value.dtype in (FLOAT, self.low)

    def _fits(self, value: ir.Value) -> bool:
        """Whether a value is one constant number that the narrow type has exactly."""
        array = constant(value)
        if array is None or array.ndim:
            return False
        return bool(array.astype(self.low.numpy()).astype(array.dtype) == array)

    def _mark(self, node: ir.Node, dtype: ir.DataType) -> None:
        for value in node.outputs:
            if value.dtype == FLOAT:
                value.type = ir.TensorType(dtype)  # the old one is the original's, too

    def _set(self, node: ir.Node, places: list[int], dtype: ir.DataType) -> None:
        """Give a node its float inputs in a type."""
        for place in places:
            value = node.inputs[place]
            assert value is not None
            if value.dtype != dtype:
                node.replace_input_with(place, self._cast(node, value, dtype))

    def _cast(self, node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if (value, dtype) not in self.casts:
            self.casts[value, dtype] = self.op.cast(value, dtype)
            self._insert(node)
        return self.casts[value, dtype]

    def _clip_mask(self, node: ir.Node) -> None:
        """What hides a position stays finite: a row of nothing else would have no softmax."""
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        if node.op_type == "DotProductAttention" and mask is not None and self._is_float(mask):
            mask = self._cast(node, mask, FLOAT) if mask.dtype != FLOAT else mask
            node.replace_input_with(3, self.op.Clip(mask, self.lowest))
            self._insert(node)

    def _insert(self, node: ir.Node | None) -> None:
        """Put the nodes that were built before a node, or at the end."""
        for value in self.op.constants.values():
            if value.name not in self.graph.initializers:
                self.graph.register_initializer(value)
        nodes = list(self.op.nodes)
        self.op.nodes.clear()
        if node is None:
            self.graph.extend(nodes)
        else:
            self.graph.insert_before(node, nodes)

    def widen_outputs(self, narrow: Collection[str]) -> None:
        """Give outputs the types that they had."""
        for place, value in enumerate(self.graph.outputs):
            if value.dtype == self.low and value.name not in narrow:
                name, value.name = value.name, f"{value.name}/narrow"
                result = self.op.cast(value, FLOAT)
                result.name, result.shape = name, value.shape
                self._insert(None)
                self.graph.outputs[place] = result
