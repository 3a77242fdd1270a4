"""`to_tensorflow`: an ONNX model as a tf.Module."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.callout import refused
from sardonyx.engines.channels import channels_last
from sardonyx.engines.native import Native, Stored, bind, native
from sardonyx.engines.tensorflow import backend  # noqa: F401  (registers the kernels)
from sardonyx.engines.tensorflow.nn import CHANNELS_LAST
from sardonyx.engines.tensorflow.xp import arrays, tf
from sardonyx.errors import quote
from sardonyx.external import Private
from sardonyx.lower.program import DependsOnData, Program, element_type
from sardonyx.model import Model, ModelSource


class OnnxModule(tf.Module):
    """An ONNX model as a tf.Module; made by `sardonyx.to_tensorflow`.

    weights -- the variables by the model's own names; those of statistics are not trainable
    """

    def __init__(self, parts: Native):
        super().__init__(name=identifier(parts.served.graph.name or "model").replace(".", "_"))
        xp = arrays()
        private = Private()
        self.input_names = [v.name or "" for v in parts.inputs]
        self.output_names = parts.outputs
        self.weights = {
            name: tf.Variable(
                _initial(xp, parts.array(name), private),
                trainable=kind == "weight",
                name=identifier(name),
            )
            for name, kind in parts.kinds.items()
        }
        self._updates = dict(parts.updates)
        self._served = _program(parts, parts.served)
        self._training = self._served
        if parts.training is not None:
            self._training = _program(parts, parts.training)
        self.signature = [_spec(v) for v in parts.inputs]
        # Sequences and maps are Python's; a model that takes them is no graph of tensorflow.
        self._is_graph = all(isinstance(v.type, ir.TensorType) for v in parts.inputs)
        # A stored module has one function, with sizes that stay free where the model's are.
        self.serve = tf.function(self._serve, input_signature=self.signature, autograph=False)
        self._called = tf.function(self._call, autograph=False)
        self.__call__ = self.serve  # type: ignore[method-assign]  # for the module once loaded

    def __call__(self, *inputs: Any, training: bool = False, **named: Any) -> Any:
        feeds = bind(self.input_names, inputs, named)
        tensors = [_tensor(feeds[n]) for n in self.input_names]
        graph, function = (self._called, self._call) if training else (self.serve, self._serve)
        if self._is_graph:
            try:
                return graph(*tensors)
            except DependsOnData as error:
                self._is_graph = False
                if tf.executing_eagerly():
                    warnings.warn(f"the model runs node by node: {error}", stacklevel=2)
        return function(*tensors)

    def _serve(self, *inputs: Any) -> Any:
        return self._outputs(self._run(self._served, inputs))

    def _call(self, *inputs: Any) -> Any:
        values = self._run(self._training, inputs)
        for name, output in self._updates.items():
            self.weights[name].assign(values[output])
        return self._outputs(values)

    def _run(self, program: Program, inputs: Any) -> dict[str, Any]:
        weights = {name: variable.read_value() for name, variable in self.weights.items()}
        outputs = program(dict(zip(self.input_names, inputs, strict=True)), weights)
        return dict(zip(program.outputs, map(_tensor, outputs), strict=True))

    def _outputs(self, values: Mapping[str, Any]) -> Any:
        outputs = tuple(values[n] for n in self.output_names)
        return outputs[0] if len(outputs) == 1 else outputs

    def save(self, folder: str | Path) -> None:
        """Write a SavedModel, which loads and serves without sardonyx; outputs by name."""
        with refused("tensorflow"):
            self._served.report("error")

        @tf.function(input_signature=self.signature, autograph=False)
        def serving(*inputs: Any) -> dict[str, Any]:
            values = self._run(self._served, inputs)
            return {identifier(n): values[n] for n in self.output_names}

        module = tf.Module(name=self.name)
        module.weights, module.serve = self.weights, self.serve
        module.__call__ = self.serve
        tf.saved_model.save(module, str(folder), signatures={"serving_default": serving})


def _program(parts: Native, model: Model) -> Program:
    """A graph as tensorflow runs it: with channels last, unless other engines take part."""
    if not parts.options["place"]:
        model = channels_last(model, CHANNELS_LAST, parts.kinds)
    return Program(model, arrays(), parameters=parts.kinds, **parts.options)


def _tensor(value: Any) -> Any:
    """A value as a tensor, text included; sequences are lists of tensors, maps stay as they are."""
    if isinstance(value, list):
        return [_tensor(v) for v in value]
    return value if value is None or isinstance(value, dict) else arrays().asarray(value)


ALIGNED = 64  # the addresses of tensors that tensorflow's kernels take for granted


def _initial(xp: Any, array: np.ndarray, private: Private) -> Any:
    """The value a variable starts from: the mapped file itself, where the file has it at such an
    address; tensorflow copies it before it writes.
    """
    mapped = private.array(array)
    if mapped is None or mapped.ctypes.data % ALIGNED or mapped.dtype.kind not in "fiu":
        return xp.asarray(array)
    return tf.experimental.dlpack.from_dlpack(mapped.__dlpack__())


def _spec(value: Any) -> Any:
    shape = None
    if value.shape is not None:
        shape = [d if isinstance(d, int) else None for d in value.shape]
    return tf.TensorSpec(shape, tf.as_dtype(element_type(value)), name=identifier(value.name))


def identifier(name: str) -> str:
    """A name as tensorflow allows it."""
    allowed = re.sub(r"[^A-Za-z0-9_.]", "_", name)
    return allowed if allowed[:1].isalpha() else f"x{allowed}"


def to_tensorflow(
    model: ModelSource,
    *,
    fallback: str = "warn",
    place: Mapping[str, str] | None = None,
) -> OnnxModule:
    """An ONNX model as a tf.Module: every weight a trainable variable, sizes free where the model's
    are.

    Called with inputs in order or by name; `training=True` lets BatchNormalization and Dropout
    train. `module.save(folder)` writes a SavedModel.

    fallback -- what happens to nodes that tensorflow cannot run: they run in numpy, with a warning
                ("warn") or without ("allow"), or are refused ("error")
    place    -- pattern of node names or operators → the engine that runs these nodes

    >>> import numpy as np, sardonyx as sx
    >>> module = sx.to_tensorflow("model.onnx")
    >>> sorted(module.weights)
    ['body.bias', 'body.weight', 'head.bias', 'head.weight']
    >>> module(np.zeros((2, 8), np.float32)).shape
    TensorShape([2, 3])
    """
    return OnnxModule(native(model, fallback=fallback, place=place))


def weight_arrays(module: Any) -> dict[str, np.ndarray]:
    """The weights of a tf.Module or Keras model by name; a Keras variable is named by its path."""
    if isinstance(module, OnnxModule):
        variables = module.weights
    elif hasattr(module, "get_config"):
        variables = {variable.path: variable.value for variable in module.variables}
    else:
        variables = {variable.name.removesuffix(":0"): variable for variable in module.variables}
    return {name: array_of(variable) for name, variable in variables.items()}


def array_of(tensor: Any) -> np.ndarray:
    return np.array(tf.convert_to_tensor(tensor))


def store(model: ModelSource, path: Path) -> Stored:
    """Write a model as a SavedModel."""
    with refused("tensorflow"):
        module = to_tensorflow(model, fallback="error")
        module.save(path)
    loaded = tf.saved_model.load(str(path))

    def run(*arrays: Any) -> Any:
        return loaded(*map(tf.constant, arrays))

    rows = [
        [f"input {quote(n)}", f"{spec.dtype.name}{spec.shape}"]
        for n, spec in zip(module.input_names, module.signature, strict=True)
    ]
    trained = module.trainable_variables
    count = sum(int(np.prod(v.shape)) for v in trained)
    rows.append(["parameters", f"{count:,} in {len(trained)} variables"])
    rows.append(["to load it", f"tf.saved_model.load({str(path)!r})(*inputs)"])
    return Stored(path, run, rows)
