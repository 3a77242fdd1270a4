"""The operators that small compilers execute as ONNX defines them; all others run elsewhere.

IREE's and tract's importers accept many more, but give other numbers, or end the process, in cases
of the official suite. These are what networks and training steps mostly consist of.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.engines.segments import Refusal
from sardonyx.errors import SardonyxError
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.passes.inlining import inline_functions
from sardonyx.versions import fit

OPERATORS = {
    "Abs", "Add", "And", "BatchNormalization", "Ceil", "Clip", "Concat", "Conv", "Cos", "Div",
    "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "Gemm",
    "GlobalAveragePool", "Greater", "GreaterOrEqual", "Identity", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max", "Min", "Mul", "Neg", "Not", "Or",
    "Reciprocal", "ReduceMean", "ReduceSum", "Relu", "Reshape", "Sigmoid", "Sin", "Slice",
    "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
TYPES = frozenset((ir.DataType.FLOAT, ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.INT32))
OPSET, IR = 17, 8


def lacks(node: ir.Node, engine: str) -> str:
    """Why a node is left to another engine; empty if it is not."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
        return f"{engine} is not known to have this operation as ONNX defines it"
    for value in (*node.inputs, *node.outputs):
        if value is None:
            continue
        if not isinstance(value.type, ir.TensorType) or value.dtype not in TYPES:
            return f"{engine} is given no {value.dtype}"
        if value.shape is None or not all(isinstance(d, int) and d > 0 for d in value.shape):
            return "its sizes depend on data"
    return ""


def declares(op: str, domain: str) -> str:
    """Where an operator runs, by this table."""
    return "here" if domain in ("", "ai.onnx") and op in OPERATORS else "elsewhere"


def plain(model: Model, engine: str) -> Model:
    """A model in old and plain operators; a refusal where it has none."""
    try:
        copy = model.copy()
        inline_functions(copy.graph)
        return fit(normalize(copy), opset=OPSET, ir=IR)
    except SardonyxError as error:
        raise Refusal(f"{engine}: {error}") from error
