"""Which tensors of a model are weights, which are statistics, which are constants, and why.

One function, `weights`, answers for every part. What the file says itself goes first (a training
record, torch's export metadata); else the use decides: an initializer is not a weight by itself,
and a weight may hide in a Constant node. The caller can overrule the answer wherever it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import FLOATS
from sardonyx.errors import quote
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.passes.nesting import graphs

TORCH_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
IDENTITY_BYTES = 16 * 2**20

# Inputs, by their name in the schema, that set something up; training does not move them.
SETTINGS = {
    "Clip": ("min", "max"),
    "Resize": ("roi", "scales"),
    "Upsample": ("scales",),
    "Pad": ("constant_value",),
    "Dropout": ("ratio",),
    "OneHot": ("values",),
    "Range": ("start", "limit", "delta"),
    "RoiAlign": ("rois",),
    "MaxRoiPool": ("rois",),
    "NonMaxSuppression": ("boxes", "scores", "iou_threshold", "score_threshold"),
    "STFT": ("frame_step", "window"),
    "GridSample": ("grid",),
    "AffineGrid": ("size",),
    "CastLike": ("target_type",),
    "Shape": ("data",),
    "Size": ("data",),
    "Attention": ("attn_mask",),
    "CenterCropPad": ("shape",),
    "SoftmaxCrossEntropyLoss": ("weights",),
    "NegativeLogLikelihoodLoss": ("weight",),
}
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
STATISTICS = ("input_mean", "input_var")
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Mod", "Where")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")


@dataclass(frozen=True)
class Weight:
    """One tensor of a model: what it is (`weight`, `statistic` or `constant`), and the reason."""

    name: str
    kind: str
    reason: str
    shape: tuple[int, ...]
    dtype: ir.DataType

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=object))


def weights(model: Model) -> list[Weight]:
    """Every initializer of the model (and every Constant), as weight, statistic or constant.

    >>> import onnx, sardonyx as sx
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,2] y)
    ... <float[2,2] w = {1.0, 2.0, 3.0, 4.0}, float s = {2.0}> {h = MatMul(x, w)  y = Mul(h, s)}'''
    >>> for tensor in sx.weights(sx.load(onnx.parser.parse_model(text))):
    ...     print(tensor.name, tensor.kind, "-", tensor.reason)
    w weight - B of MatMul
    s constant - a single number
    """
    normal = normalize(model)
    updated = {key for record in model.records for key, _ in record.update_binding}
    told = any(
        "PARAMETER" in v.metadata_props.get(TORCH_KIND, "")
        for v in normal.graph.initializers.values()
    )
    found = []
    for part in graphs(normal.graph):
        for name, value in part.initializers.items():
            if value.const_value is None:
                continue
            if part is normal.graph:
                kind, reason = _classify(value, name in updated, told)
            else:
                kind, reason = "constant", f"inside the body {quote(part.name)}"
            tensor = value.const_value
            found.append(Weight(name, kind, reason, tuple(tensor.shape.numpy()), tensor.dtype))
    return found


def _classify(value: ir.Value, updated: bool, told: bool) -> tuple[str, str]:
    if value.dtype not in FLOATS:
        dtype = value.dtype.name.lower() if value.dtype is not None else "of no known type"
        return "constant", f"{dtype}, not a float"
    roles = [_role(node, position) for node, position in value.uses()]
    statistic = next((reason for kind, reason in roles if kind == "statistic"), None)
    if statistic is not None:
        return "statistic", statistic
    if updated:
        return "weight", "the training record updates it"
    said = value.metadata_props.get(TORCH_KIND, "")
    if "PARAMETER" in said:
        return "weight", "a parameter of the exported torch module"
    if "BUFFER" in said:
        return "constant", "a buffer of the exported torch module"
    if told and not any(node.op_type in PRODUCTS for node, _ in value.uses()):
        # The exporter names every parameter; only those folded into a product lose their name.
        return "constant", "not among the parameters of the exported torch module"
    if not roles:
        return "constant", "nothing reads it" if not value.is_graph_output() else "it is an output"
    wanted = next((reason for kind, reason in roles if kind == "weight"), None)
    if wanted is None:
        return "constant", roles[0][1]
    if _is_identity(value):
        return "constant", "an identity matrix"
    return "weight", wanted


def _role(node: ir.Node, position: int) -> tuple[str, str]:
    """What one use makes of a tensor: the kind, and the words for it."""
    formal = _formal(node, position)
    words = f"{formal} of {node.op_type}"
    if node.op_type == "BatchNormalization" and formal in STATISTICS:
        return "statistic", words
    if formal in SETTINGS.get(node.op_type, ()) or node.op_type in COMPARISONS:
        return "constant", words
    quantizer = node.op_type in QUANTIZERS or node.op_type.startswith("QLinear")
    if quantizer and ("scale" in formal or "zero_point" in formal):
        return "constant", words
    value = node.inputs[position]
    assert value is not None and value.const_value is not None
    if value.const_value.size == 1 and node.op_type in ELEMENTWISE and not _is_bias(node, position):
        return "constant", "a single number"
    return "weight", words


def _formal(node: ir.Node, position: int) -> str:
    schema = opset.schema(node.op_type, node.domain)
    if schema is None or not schema.inputs:
        return f"input {position}"
    return schema.inputs[min(position, len(schema.inputs) - 1)].name


def _is_bias(node: ir.Node, position: int) -> bool:
    """Whether a single number is added to a product with a single column: then it is its bias."""
    if node.op_type != "Add" or len(node.inputs) != 2:
        return False
    value, other = node.inputs[position], node.inputs[1 - position]
    producer = other.producer() if other is not None else None
    if value is None or value.shape is None or not len(value.shape):
        return False
    if producer is None or producer.op_type not in PRODUCTS:
        return False
    matrix = producer.inputs[1]
    if matrix is None or matrix.shape is None:
        return False
    channel = {"MatMul": -1, "Conv": 0, "ConvTranspose": 1}.get(producer.op_type, -1)
    return matrix.shape[channel] == 1


def _is_identity(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.nbytes > IDENTITY_BYTES:
        return False
    dims = tuple(tensor.shape.numpy())
    if len(dims) != 2 or dims[0] != dims[1] or dims[0] < 2:
        return False
    return bool(np.array_equal(tensor.numpy(), np.eye(dims[0])))
