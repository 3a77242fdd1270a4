"""`from_tensorflow`: a graph of TensorFlow as an ONNX model, compared with TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.edit.surgery import FROZEN, ROLE
from sardonyx.errors import ImportRefused, MissingExtra, quote
from sardonyx.importers.assembly import IR_VERSION
from sardonyx.importers.channels import cancel_transposes
from sardonyx.lower.precompute import compute
from sardonyx.model import Model
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold
from sardonyx.passes.layout import Demands, lay_out
from sardonyx.versions import fit
from sardonyx.weights import weights

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra("tensorflow", "tensorflow") from error

from sardonyx.importers.tensorflow.check import require_same
from sardonyx.importers.tensorflow.reader import Reader, dtype_of, is_complex
from sardonyx.importers.tensorflow.sources import Source, source_of
from sardonyx.importers.tensorflow.state import captured
from sardonyx.importers.tensorflow.writer import Writer

FOLDED = 1 << 14  # elements of a constant that is computed while importing


def from_tensorflow(
    source: Any,
    signature: str | None = None,
    *,
    example: Any = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Model:
    """Import a graph of TensorFlow as an ONNX model.

    Variables become initializers under their names, and sizes that the graph leaves open stay free.
    The result is compared with TensorFlow before it is returned; operators that ONNX cannot express
    are refused, all at once and by name.

    source    -- a `tf.function` or `ConcreteFunction`, a `tf.Module` or Keras model, the folder of
                 a SavedModel, a frozen graph (`GraphDef` or `.pb` file), a Keras `.h5` file
    signature -- the name of a SavedModel's signature, or of a module's function; needed where
                 there are several and none is called "serving_default"
    example   -- arguments to trace a function with that has no input signature, arrays or
                 `tf.TensorSpec`; arrays are compared on as well
    inputs, outputs -- names of tensors of a frozen graph; its placeholders, and what no operator
                 reads, if not given

    >>> import sardonyx as sx, tensorflow as tf
    >>> weight = tf.Variable([[1.0], [2.0]], name="weight")
    >>> @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    ... def predict(x):
    ...     return tf.nn.relu(x @ weight)
    >>> model = sx.from_tensorflow(predict)
    >>> [value.name for value in sx.weights(model)]
    ['weight']
    """
    return from_source(source_of(source, signature, example, inputs, outputs), example)


def from_source(source: Source, example: Any = None) -> Model:
    """The model of a source, compared with TensorFlow."""
    model, reader = imported(source)
    require_same(model, source, example, is_random=reader.random)
    return model


def imported(source: Source) -> tuple[Model, Reader]:
    """The model of a source, not yet compared with it."""
    op, reader = Writer(), Reader()
    reader.frozen, reader.fetch = source.frozen, source.fetch
    op.reserve([*source.inputs, *source.outputs])
    fed: dict[str, Any] = {}
    graph_inputs = []
    for name, tensor in source.inputs.items():
        value = _input(name, tensor)
        graph_inputs.append(value)
        fed[tensor.name] = value
    for name, thing in source.captures.items():
        if name:
            fed[name] = captured(op, reader, thing, source)
    values = reader.graph(op, source.graph, fed, list(source.outputs.values()))
    reader.refuse()
    rows = [[quote(n), "complex"] for n, v in zip(source.outputs, values) if is_complex(v)]
    rows += [
        [quote(n), type(v).__name__]
        for n, v in zip(source.outputs, values, strict=True)
        if not isinstance(v, ir.Value)
    ]
    if rows:
        raise ImportRefused("outputs have types that ONNX has not", rows)
    return _finished(op, reader, source, graph_inputs, values), reader


def _input(name: str, tensor: tf.Tensor) -> ir.Value:
    kind = dtype_of(tensor.dtype)
    if kind is None or tensor.dtype.is_complex:
        raise ImportRefused(f"the input {quote(name)} has type {tensor.dtype.name}")
    value = ir.Value(name=name, type=ir.TensorType(kind))
    if tensor.shape.rank is not None:
        dims = [f"{name}_{a}" if d is None else d for a, d in enumerate(tensor.shape.as_list())]
        value.shape = ir.Shape(dims)
    return value


def _finished(
    op: Writer,
    reader: Reader,
    source: Source,
    inputs: Sequence[ir.Value],
    values: Sequence[ir.Value],
) -> Model:
    outputs: list[ir.Value] = []
    computed = {v for node in op.nodes for v in node.outputs}
    for value, label in zip(values, source.outputs, strict=True):
        if value not in computed or value in outputs:
            kind, shape = value.type, value.shape
            value = op.Identity(value)
            value.type, value.shape = kind, shape
        value.name = label
        outputs.append(value)
    graph = ir.Graph(
        [*inputs, *(value for value, _ in reader.weights.values())],
        outputs,
        nodes=op.nodes,
        initializers=list(op.constants.values()),
        name=source.name,
    )
    remove_dead(graph)
    fold(graph, elements=FOLDED, compute=compute)
    cancel_transposes(graph)
    _settle_weights(graph, {name: array for name, (_, array) in reader.weights.items()})
    lay_out(graph, Demands(), parameters=list(reader.weights))
    graph.opset_imports[""] = opset.OPSET
    domains = {n.domain for n in graph.all_nodes()} - {""}
    graph.opset_imports.update({d: opset.INSIDE.get(d, 1) for d in domains})
    model = Model(ir.Model(graph, ir_version=IR_VERSION, producer_name="sardonyx"))
    for weight in weights(model):  # what was no variable, or none to train, is not to be trained
        constant = weight.kind == "weight" and weight.name not in reader.weights
        if constant or weight.name in reader.untrained:
            model.metadata[f"{ROLE}{weight.name}"] = FROZEN
    return fit(model)


def _settle_weights(graph: ir.Graph, arrays: dict[str, np.ndarray]) -> None:
    """Make initializers of the inputs that stood for variables."""
    for value in [v for v in graph.inputs if v.name in arrays and v.meta.get("weight")]:
        graph.inputs.remove(value)
        if not value.uses() and not value.is_graph_output():
            continue
        array = arrays[value.name]  # type: ignore[index]
        value.const_value = ir.Tensor(array, name=value.name, shape=ir.Shape(array.shape))
        graph.register_initializer(value)
