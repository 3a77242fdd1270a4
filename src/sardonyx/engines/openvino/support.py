"""What OpenVINO 2026.4 computes as ONNX defines it; the rest runs on another engine.

Its CPU plug-in computes doubles in single precision and 64-bit integers in 32 bits, and saturates
small integers: nodes that hold data of these types are left to others. Integers that are only
indices, sizes or axes are fine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.passes.nesting import bodies

EXACT = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BOOL, ir.DataType.INT32}
INTEGERS = {"tensor(int64)", "tensor(int32)"}
ELSEWHERE = "OpenVINO computes other numbers"
# Operators that gave other numbers than ONNX's in cases of the official suite, or NaN at other
# places: the compiler assumes that there is none.
WRONG = {
    "Attention", "BitShift", "DFT", "IsInf", "MaxUnpool", "NonMaxSuppression", "RoiAlign",
    "STFT",
}  # fmt: skip
# Operators that it refuses in every official case.
ABSENT = {
    "BitCast", "CausalConvWithState", "CumProd", "DeformConv", "Det", "FlexAttention",
    "LinearAttention", "MelWeightMatrix", "OptionalHasElement", "SwiGLU", "TensorScatter",
    "TfIdfVectorizer",
}  # fmt: skip
TENSORS = {"tensor(float)", "tensor(bool)", "tensor(int32)"}
LINEAR = ("nearest", "linear")
COORDINATES = ("half_pixel", "asymmetric", "pytorch_half_pixel")


def _resize(node: ir.Node) -> bool:
    values = node.attributes
    return (
        values.get_string("mode", "nearest") not in LINEAR
        or values.get_string("coordinate_transformation_mode", "half_pixel") not in COORDINATES
        or values.get_string("keep_aspect_ratio_policy", "stretch") != "stretch"
        or bool(values.get_int("antialias", 0))
    )


def _batch_first(node: ir.Node) -> bool:
    return node.attributes.get_int("layout", 0) == 1


def _has_peepholes(node: ir.Node) -> bool:
    return len(node.inputs) > 7 and node.inputs[7] is not None


# Operators of which some settings are right.
PARTLY: dict[str, Callable[[ir.Node], bool]] = {
    "Resize": _resize,
    "RNN": _batch_first,
    "GRU": _batch_first,
    "LSTM": lambda node: _batch_first(node) or _has_peepholes(node),
    "MaxPool": lambda node: node.attributes.get_int("ceil_mode", 0) == 1,
    "AveragePool": lambda node: node.attributes.get_int("ceil_mode", 0) == 1,
    "SpaceToDepth": lambda node: node.attributes.get_string("mode", "DCR") != "DCR",
}


# Operators whose inputs after the first are sizes, counts or axes.
SIZED = {
    "ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Reshape", "Resize", "Slice", "Split",
    "Squeeze", "Tile", "TopK", "Unsqueeze",
}  # fmt: skip


def declares(op: str, domain: str) -> str:
    """Where an operator runs, by this table; what OpenVINO refuses beyond it runs elsewhere too."""
    schema = opset.schema(op) if domain in ("", "ai.onnx") else None
    if schema is None or op in WRONG or op in ABSENT:
        return "elsewhere"
    ends = (*schema.inputs, *schema.outputs)
    if not all(set(end.types) & (TENSORS | INTEGERS) for end in ends):
        return "elsewhere"
    return "partly" if op in PARTLY or op in SIZED else "here"


def lacks_graph(graph: ir.Graph) -> str:
    """Why OpenVINO must not run any node of a graph; empty if it may."""
    operators = {node.op_type for node in graph}
    if "IsNaN" in operators or ("Equal" in operators and _holds_infinity(graph)):
        return "the model asks for NaN or infinity, which OpenVINO does not keep"
    return ""


def _holds_infinity(graph: ir.Graph) -> bool:
    tensors = [v.const_value for v in graph.initializers.values() if v.const_value is not None]
    numbers = [t.numpy() for t in tensors if t.dtype == ir.DataType.FLOAT and t.size == 1]
    return any(bool(np.isinf(number).any()) for number in numbers)


def _has_free_sizes(node: ir.Node) -> bool:
    """Whether sizes are computed while the model runs."""
    first = 0 if node.op_type in ("ConstantOfShape", "Range") else 1
    values = (
        node.inputs[first:] if node.op_type in SIZED or node.op_type.startswith("Reduce") else ()
    )
    return any(v is not None and v.const_value is None for v in values)


def lacks(node: ir.Node) -> str:
    """Why a node must not run in OpenVINO; empty if it may."""
    schema = opset.schema(node.op_type) if node.domain in ("", "ai.onnx") else None
    if schema is None or node.op_type in ABSENT:
        return "OpenVINO has no such operation"
    if node.op_type in WRONG or (node.op_type in PARTLY and PARTLY[node.op_type](node)):
        return ELSEWHERE
    if _has_free_sizes(node):
        return "its sizes depend on data"
    for values, formal in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for i, value in enumerate(values):
            if value is None or (not value.name and not value.uses()):
                continue
            parameter = formal[min(i, len(formal) - 1)]
            reason = _unfit(value, set(parameter.types) <= INTEGERS)
            if reason:
                return reason
    inside = (lacks(inner) for body in bodies(node) for inner in body)
    return next((reason for reason in inside if reason), "")


def _unfit(value: ir.Value, is_index: bool) -> str:
    if not isinstance(value.type, ir.TensorType):
        return "its types are not tensors"
    if value.shape is not None and 0 in value.shape:
        return "OpenVINO does not take tensors without elements"
    if value.dtype in EXACT or (is_index and value.dtype == ir.DataType.INT64):
        return ""
    return f"OpenVINO does not compute {value.dtype} exactly"
