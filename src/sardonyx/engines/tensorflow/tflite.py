"""TensorFlow Lite files: a model with fixed sizes and its channels last, through tensorflow's own
converter.

`sardonyx.deploy.to_tflite` calls this, verifies the result in LiteRT (`ai-edge-litert`) and writes
it.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.callout import refused
from sardonyx.engines.channels import turn_channels, write_defaults
from sardonyx.engines.idioms import recognize
from sardonyx.engines.tensorflow import backend, lite, lite_math  # noqa: F401  (registers the kernels)
from sardonyx.engines.tensorflow.convert import identifier
from sardonyx.engines.tensorflow.xp import arrays, tf
from sardonyx.errors import ArgumentError, EngineError, MissingExtra, quote
from sardonyx.lower.precompute import compute
from sardonyx.lower.program import Program, element_type
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, normalize
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold
from sardonyx.passes.layout import LAST, Plan, plan_layout
from sardonyx.passes.layout.absorb import absorb_transposes
from sardonyx.passes.layout.axes import to_first, to_last

QUANTIZATIONS = (None, "dynamic", "float16", "int8")
LAYOUTS = ("nchw", "nhwc")
NONNEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softplus", "Softmax", "Abs", "Exp")


@dataclass
class Prepared:
    """A model on its way to a file.

    program -- the graph in terms of tensorflow
    plan    -- the layout plan
    turned  -- names of inputs and outputs that have channels last in the file, not in the model
    inputs  -- the inputs of the file as tensorflow describes them, in the order of the model
    outputs -- the names of the outputs in the file
    """

    program: Program
    plan: Plan
    turned: dict[str, int]
    inputs: list[Any]
    outputs: list[str]


def specialized(model: Model, sizes: Mapping[str, int] | None = None) -> Model:
    """A copy of a model in which every size of an input is a number.

    A free first axis is a batch of 1 unless `sizes` says otherwise; other free sizes must be there.
    """
    copy = Model(model.ir.clone(), [], model.source)
    chosen: dict[Any, int] = dict(sizes or {})
    used, rows = set(), []
    for value in copy.inputs:
        if not isinstance(value.type, ir.TensorType) or value.shape is None:
            rows.append([quote(value.name), "is no tensor of known rank"])
            continue
        dims: list[int] = []
        for axis, dim in enumerate(value.shape):
            name = None if isinstance(dim, int) else dim.value
            used.add(name)
            number = dim if isinstance(dim, int) else chosen.get(name, 0 if axis else 1)
            if not number and name not in chosen and not isinstance(dim, int):
                rows.append([quote(value.name), f"axis {axis}", quote(name or "without a name")])
            dims.append(number)
        value.shape = ir.Shape(dims)
    unknown = [[quote(name), "is no free size of the model"] for name in chosen if name not in used]
    if rows or unknown:
        raise ArgumentError(
            "a TensorFlow Lite file has fixed sizes",
            rows + unknown,
            hint='give each free size a number: sizes={"height": 224}, or --size height=224',
        )
    return copy


def prepare(model: Model, inputs: str = "nchw", outputs: str = "nchw") -> Prepared:
    """The graph with its channels last, as a program of tensorflow; sizes are fixed already."""
    graph_model = Model(recognize(normalize(model), ()).ir, [], model.source)
    fold(graph_model.graph, compute=compute)
    remove_dead(graph_model.graph)
    labels = plan_layout(graph_model.graph, lite.CHANNELS_LAST).labels
    absorb_transposes(graph_model.graph, labels)
    turned = _turned(graph_model, inputs, outputs)
    plan = turn_channels(graph_model, lite.CHANNELS_LAST, turned=turned)
    _to_lite(graph_model.graph)
    with refused("tensorflow"):
        program = Program(NormalizedModel.of(graph_model), arrays(), fallback="error")
    names = _identifiers([v.name or "" for v in (*graph_model.inputs, *graph_model.outputs)])
    count = len(graph_model.inputs)
    specs = [
        tf.TensorSpec(list(v.shape or ()), tf.as_dtype(element_type(v)), name=name)
        for v, name in zip(graph_model.inputs, names)
    ]
    return Prepared(program, plan, turned, specs, names[count:])


def _identifiers(names: Sequence[str]) -> list[str]:
    """Names as tensorflow allows them, all different."""
    results: list[str] = []
    for name in names:
        stem = identifier(name)
        results.append(stem if stem not in results else f"{stem}_{len(results)}")
    return results


def _turned(model: Model, inputs: str, outputs: str) -> dict[str, int]:
    """Inputs and outputs that get channels last, and their ranks."""
    wrong = [name for name in (inputs, outputs) if name not in LAYOUTS]
    if wrong:
        raise ArgumentError(f"there is no layout {wrong[0]!r}", hint="'nchw' or 'nhwc'")
    labels = plan_layout(model.graph, lite.CHANNELS_LAST).labels
    shaped = [v for v in model.inputs if len(v.shape or ()) > 3]
    if inputs == "nhwc" and shaped and not any(v in labels for v in model.inputs):
        raise ArgumentError(
            "no operator of this model reads an input as an image, so that none has channels",
            [[quote(v.name), str(list(v.shape or ()))] for v in shaped],
            hint='leave inputs="nhwc" out: the file takes these inputs as the model does',
        )
    values = [
        *(model.inputs if inputs == "nhwc" else ()),
        *(model.outputs if outputs == "nhwc" else ()),
    ]
    return {v.name or "": len(v.shape or ()) for v in values if v in labels and labels[v] != LAST}


def _to_lite(graph: ir.Graph) -> None:
    """Move nodes into the domain of the kernels for TensorFlow Lite."""
    graph.opset_imports[lite.LITE] = 1
    for node in graph:
        if node.domain == "" and _has_kernel(node):
            node.domain = lite.LITE
            write_defaults(node)
        if node.domain == lite.LITE and node.op_type == "MaxPool":
            source = node.inputs[0].producer() if node.inputs[0] is not None else None
            if source is not None and source.op_type in NONNEGATIVE:
                node.attributes.add(ir.AttrInt64("nonnegative", 1))


def _has_kernel(node: ir.Node) -> bool:
    if node.op_type in lite_math.MOVED_OF_ALL_TYPES:
        return True
    return node.op_type in (*lite.MOVED, *lite_math.MOVED) and _is_single(node)


def _is_single(node: ir.Node) -> bool:
    return node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.FLOAT


def converted(
    prepared: Prepared, quantize: str | None = None, data: Sequence[Sequence[np.ndarray]] = ()
) -> bytes:
    """The file, by tensorflow's converter."""
    program, names = prepared.program, prepared.program.names

    @tf.function(input_signature=prepared.inputs, autograph=False)
    def serve(*values: Any) -> dict[str, Any]:
        outputs = program(dict(zip(names, values, strict=True)))
        tensors = [tf.identity(arrays().asarray(v)) for v in outputs]
        return dict(zip(prepared.outputs, tensors, strict=True))

    with refused("tensorflow"):
        function = serve.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], tf.Module())
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if quantize is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantize == "int8":
        converter.representative_dataset = lambda: ([*map(np.asarray, row)] for row in data)
    with _quiet():
        try:
            content = converter.convert()
        except Exception as error:
            raise EngineError(
                "tensorflow's converter refuses the model",
                _reasons(error),
                hint="cut off operators that TensorFlow Lite lacks with sardonyx.cut",
            ) from error
    return _in_order(content, [spec.name for spec in prepared.inputs], prepared.outputs)


def _in_order(content: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """The file with inputs and outputs in the order of their names, the converter's being any."""
    from ai_edge_litert import schema_py_generated as schema

    changed = bytearray(content)
    model = schema.Model.GetRootAsModel(changed, 0)
    signature = model.SignatureDefs(0)
    graph = model.Subgraphs(signature.SubgraphIndex())
    ends = (
        (inputs, signature.Inputs, signature.InputsLength(), graph.InputsAsNumpy()),
        (outputs, signature.Outputs, signature.OutputsLength(), graph.OutputsAsNumpy()),
    )
    for names, entry, count, places in ends:
        tensors = {entry(i).Name().decode(): entry(i).TensorIndex() for i in range(count)}
        order = [tensors[name] for name in names if name in tensors]
        if sorted(order) == sorted(places.tolist()):
            places[:] = order
    return bytes(changed)


def _reasons(error: Exception) -> list[list[str]]:
    lines = [line.strip() for line in str(error).splitlines()]
    reasons = [line for line in lines if line.startswith(("tf.", "Details:", "error:"))]
    return [[line[:160]] for line in dict.fromkeys(reasons or lines) if line][:12]


@contextlib.contextmanager
def _quiet() -> Any:
    """Without what the converter writes to the standard error stream while it works."""
    with tempfile.TemporaryFile() as sink, contextlib.redirect_stderr(io.StringIO()):
        copy = os.dup(2)
        try:
            os.dup2(sink.fileno(), 2)
            yield
        finally:
            os.dup2(copy, 2)
            os.close(copy)


def runner(content: bytes | Path, prepared: Prepared) -> Callable[..., Any]:
    """A function of the model's inputs, in the model's own layout, that runs a file in LiteRT."""
    signature = litert(content).get_signature_runner()
    names = prepared.program.names

    def run(*values: Any) -> Any:
        feeds = [_turn(v, n in prepared.turned, to_last) for n, v in zip(names, values)]
        specs = zip(prepared.inputs, feeds, strict=True)
        results = signature(**{spec.name: np.asarray(v) for spec, v in specs})
        outputs = zip(prepared.program.outputs, prepared.outputs, strict=True)
        arrays = [_turn(results[key], n in prepared.turned, to_first) for n, key in outputs]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    return run


def _turn(value: Any, turned: bool, permutation: Callable[[int], list[int]]) -> Any:
    return np.transpose(value, permutation(np.ndim(value))) if turned else value


def operators(content: bytes) -> dict[str, int]:
    """How many operators of each kind a file has."""
    from ai_edge_litert import schema_py_generated as schema

    names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
    model = schema.Model.GetRootAsModel(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    kinds = [names.get(max(c.BuiltinCode(), c.DeprecatedBuiltinCode()), "CUSTOM") for c in codes]
    graphs = [model.Subgraphs(i) for i in range(model.SubgraphsLength())]
    return dict(
        Counter(
            kinds[graph.Operators(i).OpcodeIndex()]
            for graph in graphs
            for i in range(graph.OperatorsLength())
        )
    )


def litert(content: bytes | Path, threads: int = 1) -> Any:
    """LiteRT's interpreter of a file."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise MissingExtra("ai-edge-litert", "tflite") from error
    source = (
        {"model_path": str(content)} if isinstance(content, Path) else {"model_content": content}
    )
    return Interpreter(**source, num_threads=threads)
