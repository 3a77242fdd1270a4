"""Which tensors of a model are weights, which are statistics, which are constants, and why.

The whole package uses this one classification, `weights`. What the file itself says has precedence
(a training record, torch's export metadata). Otherwise the nodes that read a tensor decide, also
those behind operators that only move numbers, such as Concat and Transpose: not every initializer
is a weight, and a Constant node may hold one. Functions that need weights let the caller overrule
the classification by name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import FLOATS
from sardonyx.errors import quote
from sardonyx.fixed_tables import LARGEST, MASK, fixed_tables
from sardonyx.model import ModelSource, load
from sardonyx.normalize import normalize
from sardonyx.passes.nesting import graphs
from sardonyx.passes.stages import PREPARATION, stage_of

KIND = "sardonyx.kind"  # what an edit of the model says that a tensor is
TORCH_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = (
    "pkg.onnxscript.optimizer.folded_from"  # what torch's newer exporter computed a tensor from
)
# Functions of torch that make tensors from numbers of the code alone.
FACTORIES = re.compile(
    r"(arange|empty|eye|full|linspace|ones|rand|randn|scalar_tensor|tril|triu|zeros)(_like)?(_default)?(_\d+)?"
)
# Functions of torch that compute: what they made of a parameter is not the parameter.
ARITHMETIC = frozenset({
    "abs", "add", "addmm", "bmm", "clamp", "cos", "cumsum", "div", "einsum", "exp",
    "linalg_vector_norm", "log", "matmul", "mean", "mm", "mul", "neg", "norm", "pow", "reciprocal",
    "rsqrt", "sigmoid", "sin", "softmax", "softplus", "sqrt", "square", "sub", "sum", "tanh",
})  # fmt: skip
# Functions of torch that only move numbers.
MOVING = frozenset({
    "alias", "broadcast_to", "cat", "chunk", "clone", "contiguous", "copy", "detach",
    "detach_", "expand", "expand_as", "flatten", "flip", "getitem", "index_select",
    "lift_fresh_copy", "movedim", "narrow", "permute", "repeat", "reshape", "roll", "select",
    "slice", "split", "squeeze", "stack", "t", "tile", "to", "transpose", "type_as", "unflatten",
    "unsqueeze", "view",
})  # fmt: skip
IDENTITY_BYTES = 16 * 2**20  # larger matrices are not compared with the identity

# Inputs, by their name in the schema, that are settings of an operator and never trained.
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
# Operators that only move numbers: the readers of their outputs decide.
MOVES = (
    "Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split",
    "Expand", "Tile", "Concat",
)  # fmt: skip
MAX_MOVES = 500  # tensors to follow behind such operators, for each initializer
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Mod", "Where")
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
RECURRENT = ("RNN", "LSTM", "GRU")
INITIAL_STATES = ("initial_h", "initial_c")
NORMALIZATIONS = (
    "BatchNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "LayerNormalization",
    "RMSNormalization",
)
WITH_PARAMETERS = (*PRODUCTS, *RECURRENT, "PRelu", *NORMALIZATIONS)
# torch's exporters give such names to constants of their own; parameters keep their names.
EXPORTER_CONSTANT = re.compile(r"(val_\d+|(.*/)?Constant(_\d+)?_output_0)")
# The older one writes parameters, and what it computes from them, as initializers: a Constant node
# is a number or a tensor that the module made while it was traced, such as a first state of zeros.
TRACED_CONSTANT = re.compile(r"(.*/)?Constant(_\d+)?_output_0")
# torch's older exporter marks no parameters, but its constants have other names than parameters.
OLDER_EXPORTER = ("main_graph", "torch_jit", "torch-jit-export")
BY_NUMBERS = "its numbers are no weights"
NAMED_NUMBER = "a single number with a name of the torch module"
PARAMETER_NAME = re.compile(r"(?!\d+$|val_\d+$|_)\w+(\.\w+)*")


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


def weights(model: ModelSource) -> list[Weight]:
    """Every initializer of the model (and every Constant), as weight, statistic or constant.

    >>> import onnx, sardonyx as sx
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,2] y)
    ... <float[2,2] w = {1.0, 2.0, 3.0, 4.0}, float s = {2.0}> {h = MatMul(x, w)  y = Mul(h, s)}'''
    >>> for tensor in sx.weights(sx.load(onnx.parser.parse_model(text))):
    ...     print(tensor.name, tensor.kind, "-", tensor.reason)
    w weight - B of MatMul
    s constant - a single number
    """
    loaded = load(model)
    updated = {key for record in loaded.records for key, _ in record.update_binding}
    return classified(normalize(loaded).graph, updated)


def classified(graph: ir.Graph, updated: Collection[str] = ()) -> list[Weight]:
    """The tensors of a normalized graph; `updated` are the names that a training record updates."""
    marks_parameters = any(
        "PARAMETER" in v.metadata_props.get(TORCH_KIND, "") for v in graph.initializers.values()
    )
    keeps_names = graph.name in OLDER_EXPORTER and any(
        name.endswith((".weight", ".bias")) for name in graph.initializers
    )
    tensors = []
    for part in graphs(graph):
        for name, value in part.initializers.items():
            tensor = value.const_value
            if tensor is None:
                continue
            if part is graph:
                has_name = keeps_names and PARAMETER_NAME.fullmatch(name) is not None
                kind, reason = _classify(value, name in updated, marks_parameters, has_name)
                if keeps_names and name not in updated and TRACED_CONSTANT.fullmatch(name):
                    kind, reason = "constant", "a constant that torch's exporter traced"
            else:
                kind, reason = "constant", f"inside the body {quote(part.name)}"
            tensors.append(Weight(name, kind, reason, tuple(tensor.shape.numpy()), tensor.dtype))
    tables = _tables(graph, tensors, updated)
    return [
        replace(t, kind="constant", reason=f"{tables[t.name]}: {BY_NUMBERS}")
        if t.kind == "weight" and t.name in tables
        else t
        for t in tensors
    ]


def _tables(graph: ir.Graph, tensors: Sequence[Weight], updated: Collection[str]) -> dict[str, str]:
    """Weights by their use alone, and constants, that are fixed tables by their numbers."""
    arrays = {}
    for tensor in tensors:
        value = graph.initializers.get(tensor.name)
        if value is None or value.const_value is None or not 1 < tensor.size <= LARGEST:
            continue
        if tensor.kind == "statistic" or tensor.dtype not in FLOATS or tensor.name in updated:
            continue
        is_marked = KIND in value.metadata_props or TORCH_KIND in value.metadata_props
        if not is_marked and not any(map(_is_parameter, value.uses())):
            arrays[tensor.name] = value.const_value.numpy()
    return {
        name: what
        for name, what in fixed_tables(arrays).items()
        if what != MASK or not any(map(_is_lookup, graph.initializers[name].uses()))
    }


def _is_lookup(use: tuple[ir.Node, int]) -> bool:
    """Whether rows of a tensor are looked up by computed numbers, as those of embeddings are: a
    table of zeros and ones may be one, of categories.
    """
    node, position = use
    if node.op_type != "Gather" or position != 0 or node.attributes.get_int("axis", 0) != 0:
        return False
    return node.inputs[1] is not None and node.inputs[1].const_value is None


def _is_parameter(use: tuple[ir.Node, int]) -> bool:
    """Whether a layer reads a tensor as one of its parameters; the first matrix of a product is
    none.
    """
    node, position = use
    return node.op_type in WITH_PARAMETERS and position > 0


def folded_from(value: ir.Value) -> tuple[str, ...]:
    """The tensors from which torch's newer exporter computed one: parameters, their buffers, and
    results in between.
    """
    try:
        names = ast.literal_eval(value.metadata_props.get(FOLDED, "[]"))
    except (ValueError, SyntaxError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def named_origins(value: ir.Value) -> tuple[str, ...]:
    """What torch's newer exporter computed a tensor from, without what is named after a function of
    torch: parameters and buffers.
    """
    return tuple(
        n
        for n in folded_from(value)
        if not EXPORTER_CONSTANT.fullmatch(n)
        and not FACTORIES.fullmatch(n)
        and re.sub(r"_\d+$", "", n) not in (*ARITHMETIC, *MOVING)
    )


def _is_made_by_code(value: ir.Value) -> bool:
    """Whether a function such as `zeros` made a tensor, by itself or through other functions."""
    names = (value.name or "", *folded_from(value))
    return any(map(FACTORIES.fullmatch, names)) and not named_origins(value)


@dataclass(frozen=True)
class _Role:
    """The kind that one use of a tensor suggests, and the reason.

    parameter -- the use is an input that holds parameters, such as the weight of a Conv
    scale     -- the use is the scale or the zero point of a quantized tensor
    """

    kind: str
    reason: str
    parameter: bool = False
    scale: bool = False


def _classify(
    value: ir.Value, updated: bool, marks_parameters: bool, has_name: bool
) -> tuple[str, str]:
    """The kind of a tensor and the reason; `has_name`: its name is one of the torch module."""
    if value.dtype not in FLOATS:
        dtype = value.dtype.name.lower() if value.dtype is not None else "of no known type"
        return "constant", f"{dtype}, not a float"
    if value.metadata_props.get(KIND) in ("weight", "constant"):
        return value.metadata_props[KIND], "so marked in the file"
    uses = value.uses()
    if uses and not updated and all(stage_of(use.node) == PREPARATION for use in uses):
        return "constant", "part of the data preparation"
    roles = list(_roles(value, has_name))
    weight = next((r for r in roles if r.kind == "weight"), None)
    statistic = next((r for r in roles if r.kind == "statistic"), None)
    if statistic is not None and weight is None:
        return "statistic", statistic.reason
    if updated:
        return "weight", "the training record updates it"
    # Its product with another scale may be that of a bias: the scale itself is no weight.
    scale = next((r for r in roles if r.scale), None)
    if scale is not None:
        return "constant", scale.reason
    mark = value.metadata_props.get(TORCH_KIND, "")
    if "PARAMETER" in mark:
        return "weight", "a parameter of the exported torch module"
    if "BUFFER" in mark:
        return "constant", "a buffer of the exported torch module"
    if marks_parameters:
        # The exporter marks every parameter, but a tensor that it computed from one has no mark.
        weight = next((r for r in roles if r.parameter), None)
        if _is_made_by_code(value):
            return "constant", "made by the code of the torch module"
        parameters = [n for n in folded_from(value) if n.endswith((".weight", ".bias"))]
        if weight is None and not parameters:
            return "constant", "not among the parameters of the exported torch module"
        if parameters:
            return "weight", f"computed by the exporter from {', '.join(map(quote, parameters))}"
    if not roles:
        return "constant", "nothing reads it" if not value.is_graph_output() else "it is an output"
    if weight is None:
        return "constant", roles[0].reason
    if _is_identity(value):
        return "constant", "an identity matrix"
    return "weight", weight.reason


def _roles(tensor: ir.Value, has_name: bool) -> Iterator[_Role]:
    """The role of a tensor in each of its uses, also behind operators that only move numbers."""
    pending: list[tuple[ir.Value, tuple[str, ...]]] = [(tensor, ())]
    values = {tensor}
    while pending:
        value, path = pending.pop()
        for node, position in value.uses():
            if node.domain != "" or node.op_type not in MOVES or len(values) > MAX_MOVES:
                role = _role(tensor, node, position, path, has_name)
                if path:
                    role = replace(role, reason=f"{role.reason}, through {', '.join(path)}")
                yield role
                continue
            through_node = (*path, node.op_type) if node.op_type not in path else path
            for output in node.outputs:
                if output.is_graph_output():
                    yield _Role("constant", f"an output, through {node.op_type}")
                if output not in values:
                    values.add(output)
                    pending.append((output, through_node))


def _role(
    tensor: ir.Value, node: ir.Node, position: int, path: tuple[str, ...], has_name: bool
) -> _Role:
    """The role of a tensor in one use: as an input of `node`, reached through operators `path`."""
    formal = _formal_name(node, position)
    reason = f"{formal} of {node.op_type}"
    if node.op_type == "BatchNormalization" and formal in STATISTICS:
        return _Role("statistic", reason)
    if formal in SETTINGS.get(node.op_type, ()) or node.op_type in COMPARISONS:
        return _Role("constant", reason)
    quantizer = node.op_type in QUANTIZERS or node.op_type.startswith("QLinear")
    if quantizer and ("scale" in formal or "zero_point" in formal):
        return _Role("constant", reason, scale=True)
    assert tensor.const_value is not None
    single = tensor.const_value.size == 1
    alone = node.op_type in ELEMENTWISE and not _is_bias(node, position)
    if single and (alone or "Expand" in path):
        return _Role("weight", NAMED_NUMBER) if has_name else _Role("constant", "a single number")
    if node.op_type in RECURRENT and formal in INITIAL_STATES:
        # A state that is learned may begin with zeros: the name of a parameter tells.
        zeros = not has_name and not np.any(tensor.const_value.numpy())
        return _Role("constant" if zeros else "weight", f"{reason}{', all zeros' * zeros}")
    if node.op_type in NORMALIZATIONS and not path and _is_filler(tensor, formal):
        return _Role("constant", f"{reason}, written by the exporter for a layer without weights")
    parameter = node.op_type in WITH_PARAMETERS or _is_affine(node, position)
    return _Role("weight", reason, parameter=parameter)


def _formal_name(node: ir.Node, position: int) -> str:
    """The name of an input in the schema of its operator."""
    schema = opset.schema(node.op_type, node.domain)
    if schema is None or not schema.inputs:
        return f"input {position}"
    return schema.inputs[min(position, len(schema.inputs) - 1)].name


def _is_bias(node: ir.Node, position: int) -> bool:
    """Whether a single number is the bias of a product that has a single output channel."""
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


def _is_filler(tensor: ir.Value, formal: str) -> bool:
    """Whether a tensor stands in for the scale or the shift that a normalization does not have.

    ONNX's operators want a scale; for a layer without one, torch's exporters write ones.
    """
    assert tensor.const_value is not None
    if not EXPORTER_CONSTANT.fullmatch(tensor.name or ""):
        return False
    return bool(np.all(tensor.const_value.numpy() == (formal.lower() in ("scale", "weight"))))


def _is_affine(node: ir.Node, position: int) -> bool:
    """Whether an input is the scale or the shift of a normalization that is written as Mul and Add,
    as torch's exporters write GroupNorm.
    """
    if node.op_type not in ("Mul", "Add") or len(node.inputs) != 2:
        return False
    other = node.inputs[1 - position]
    for op_type in ("Mul", "Reshape") if node.op_type == "Add" else ("Reshape",):
        producer = other.producer() if other is not None else None
        if producer is not None and producer.op_type == op_type:
            other = producer.inputs[0]
    producer = other.producer() if other is not None else None
    return producer is not None and producer.op_type in NORMALIZATIONS


def _is_identity(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.nbytes > IDENTITY_BYTES:
        return False
    dims = tuple(tensor.shape.numpy())
    if len(dims) != 2 or dims[0] != dims[1] or dims[0] < 2:
        return False
    return bool(np.array_equal(tensor.numpy(), np.eye(dims[0])))
