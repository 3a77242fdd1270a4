"""`from_tflite`: a TensorFlow Lite file as an ONNX model."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from sardonyx.errors import ArgumentError, did_you_mean, quote
from sardonyx.importers.channels import cancel_transposes
from sardonyx.importers.state import STATE, described
from sardonyx.importers.tflite.driver import imported
from sardonyx.importers.tflite.proof import prove
from sardonyx.importers.tflite.reader import File, Signature, read
from sardonyx.limits import Limits
from sardonyx.lower.precompute import compute
from sardonyx.model import Model
from sardonyx.normalize import regularize
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold

USUAL = "serving_default"  # the signature that is meant where none is named
FOLDED_ELEMENTS = 64  # sizes and axes; weights stay what they are


def from_tflite(
    path: str | Path | bytes, *, signature: str | None = None, limits: Limits | None = None
) -> Model:
    """Import a TensorFlow Lite file as an ONNX model, compared with it in LiteRT.

    Floats, halves, integers (QuantizeLinear and DequantizeLinear) and weights as integers alone
    are read. Tensors keep their names. Inputs and outputs have the layout of the file; in between,
    images have ONNX's, and are transposed as little as possible. A variable that the file keeps
    between calls becomes an input and an output; the metadata `sardonyx.state` has both names and
    its first value, as JSON.

    path      -- the file, or its content
    signature -- the entry to import, where the file has several
    limits    -- on what an untrusted file may cost

    >>> import sardonyx as sx
    >>> _ = sx.to_tflite("model.onnx", "model.tflite")
    >>> model = sx.from_tflite("model.tflite")
    >>> [value.name for value in model.inputs]
    ['x']
    """
    name = "model"
    if not isinstance(path, bytes):
        name = Path(path).stem
        if not Path(path).is_file():
            raise ArgumentError(f"there is no file {quote(path)}")
        content = Path(path).read_bytes()
    else:
        content = path
    file = read(content, limits)
    chosen = _chosen(file, signature)
    entry = file.signatures.get(chosen, Signature())
    model, variables = imported(file, name, entry)
    model = _regular(model)
    if variables:
        states = {name: (v.output, v.start) for name, v in variables.items()}
        model.metadata[STATE] = described(states)
    model.metadata["sardonyx.importer"] = "TensorFlow Lite"
    graph = file.graphs[entry.graph]
    called = (chosen, entry) if entry.graph else None
    model.metadata["sardonyx.verified"] = prove(model, graph, content, variables, called)
    return model


def _chosen(file: File, name: str | None) -> str:
    """The name of the signature that is asked for, or of the only one; "" of the first graph."""
    names = list(file.signatures)
    listed = ", ".join(map(quote, names))
    if name is not None and name not in names:
        raise ArgumentError(
            f"there is no signature {quote(name)}, but {listed or 'none'}",
            hint=did_you_mean(name, names),
        )
    if name is not None:
        return name
    if len(names) > 1 and USUAL not in names:
        raise ArgumentError(
            f"there are {len(names)} signatures: {listed}",
            hint=f"choose one: from_tflite(…, signature={quote(names[0])})",
        )
    return USUAL if USUAL in names else "".join(names)


def _regular(model: Model) -> Model:
    """The model in its regular form, shapes computed, and without Transposes that cancel out."""
    regular = regularize(model)
    graph = regular.graph
    weights = [name for name, value in graph.initializers.items() if _is_weight(value)]
    fold(graph, keep=weights, elements=FOLDED_ELEMENTS, compute=compute)
    cancel_transposes(graph)
    remove_dead(graph)
    for node in graph.all_nodes():
        _leave_out_dilations(node)
    return regular


def _leave_out_dilations(node: ir.Node) -> None:
    """Leave out dilations of one: onnxruntime 1.31 hands them on to QLinearAveragePool, and fails.

    That is what it makes of an AveragePool between DequantizeLinear and QuantizeLinear.
    """
    if node.op_type == "AveragePool" and set(node.attributes.get_ints("dilations", ())) <= {1}:
        node.attributes.pop("dilations", None)


def _is_weight(value: ir.Value) -> bool:
    """Whether a constant stays what it is: a large one, and one of integers with a scale.

    onnxruntime 1.31 makes integers of a Conv's weights that are floats between quantized tensors,
    with one scale for all channels.
    """
    quantized = any(node.op_type == "DequantizeLinear" for node, _ in value.uses())
    return quantized or getattr(value.const_value, "size", 0) > FOLDED_ELEMENTS
