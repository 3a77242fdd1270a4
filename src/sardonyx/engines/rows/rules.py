"""How operators compute with parts of tensors: which rule each of them has.

`parted` either settles a node (its outputs get their axes in `work.axes`, or are whole), or raises
`NeedsWhole` before it has changed anything.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from sardonyx.engines.rows import shapes, values
from sardonyx.engines.rows.work import NeedsWhole, Work
from sardonyx.lower.custom_native import NATIVE

Rule = Callable[[Work, ir.Node], None]

# Computed element by element, with broadcasting.
ELEMENTWISE = frozenset([
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift",
    "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu",
    "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu",
    "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu",
    "Where", "Xor",
])  # fmt: skip
# One image or sequence after the other, along the first axis.
IMAGES = frozenset([
    "AveragePool", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool",
    "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool",
    "SpaceToDepth",
])  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(values.ALONG, values.along),
    **dict.fromkeys(values.FROM, values.layer_norm),
    **dict.fromkeys(values.REDUCTIONS, values.reduction),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), values.recurrent),
    **dict.fromkeys(("ArgMax", "ArgMin"), values.arg_max),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"), values.cross_entropy),
    "BatchNormalization": values.batch_norm,
    "Concat": shapes.concat,
    "CumSum": values.cumulative,
    "Einsum": values.einsum,
    "Expand": shapes.expand,
    "Flatten": shapes.flatten,
    "Gather": shapes.gather,
    "GatherElements": shapes.gather_elements,
    "Gemm": values.gemm,
    "MatMul": values.matmul,
    "OneHot": values.one_hot,
    "Pad": shapes.pad,
    "Range": shapes.number_rows,
    "Reshape": shapes.reshape,
    "Shape": shapes.shape,
    "Size": shapes.size,
    "Slice": shapes.slice_,
    "Split": shapes.split,
    "Squeeze": shapes.squeeze,
    "Tile": shapes.tile,
    "Transpose": shapes.transpose,
    "Unsqueeze": shapes.unsqueeze,
}
NATIVE_RULES: dict[str, Rule] = {
    "Linear": values.linear,
    "DotProductAttention": values.attention,
    "Softmax": values.along,
}


def parted(work: Work, node: ir.Node) -> None:
    """Settle a node of which some inputs are parted."""
    if node.domain == NATIVE:
        rule = NATIVE_RULES.get(node.op_type)
    elif node.domain == "" and node.op_type in ELEMENTWISE:
        rule = values.elementwise
    elif node.domain == "" and node.op_type in IMAGES:
        rule = values.first_axis
    else:
        rule = RULES.get(node.op_type) if node.domain == "" else None
    if rule is None:
        raise NeedsWhole
    rule(work, node)
