"""The layer that runs an ONNX graph on Keras's backend, and the model around it that trains."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from sardonyx.engines.keras.contents import decoded, encoded, held_names, slot_names
from sardonyx.engines.keras.optimizer import PACKAGE, RecordOptimizer, named_variable, tensor_of
from sardonyx.engines.keras.steps import Steps, engine, engine_name
from sardonyx.engines.native import native
from sardonyx.errors import ArgumentError, EngineError, quote
from sardonyx.lower.program import Program, element_type
from sardonyx.model import Model
from sardonyx.record.info import state_tensor

METRICS = "metrics/"


@keras.saving.register_keras_serializable(PACKAGE)
class OnnxLayer(keras.layers.Layer):
    """An ONNX graph as a layer; its weights are variables of Keras under the model's names.

    variables_by_name -- weights and running statistics, by the model's own names
    """

    def __init__(self, onnx: str | Model, held: Mapping[str, str] | None = None, **more: Any):
        super().__init__(**more)
        model = onnx if isinstance(onnx, Model) else decoded(onnx)
        self.model = model
        self.held = dict(held_names(model) if held is None else held)
        self.parts = native(model, fallback="allow", kinds=dict(self.held))
        self.inputs_by_name = {v.name or "": v for v in self.parts.inputs}
        self.variables_by_name = {}
        for name, kind in self.held.items():
            array = model.initializer(name).numpy()
            is_trained = kind == "weight" and array.dtype.kind == "f"
            variable = named_variable(name, array, is_trained)
            self._track_variable(variable)
            self.variables_by_name[name] = variable
        self.built = True
        self._programs = self._compiled()

    def __setattr__(self, name: str, value: Any) -> None:
        # Dictionaries of variables are tracked already, by `_track_variable`.
        if name in ("variables_by_name", "model", "parts", "held", "_programs", "inputs_by_name"):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _compiled(self) -> dict[bool, Program]:
        """The programs of inference and, where it differs, of training.

        They are made once and early: constants of a function of TensorFlow belong to it alone.
        """
        graphs = {False: self.parts.served, True: self.parts.training}
        backend = engine()
        with _context(backend):
            return {
                trains: Program(graph, backend.arrays(), parameters=self.held, **self.parts.options)
                for trains, graph in graphs.items()
                if graph is not None
            }

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        feeds = self.feeds(inputs)
        trains = bool(training) and self.parts.training is not None
        values = self._run(trains, feeds)
        if trains:
            for name, output in self.parts.updates.items():
                self.variables_by_name[name].assign(values[output])
        names = self.parts.outputs
        return values[names[0]] if len(names) == 1 else {n: values[n] for n in names}

    def feeds(self, inputs: Any) -> dict[str, Any]:
        """Inputs by name, of one tensor, a list or a dictionary."""
        names = list(self.inputs_by_name)
        if isinstance(inputs, Mapping):
            missing = [[quote(n)] for n in names if n not in inputs]
            if missing:
                raise ArgumentError("inputs are missing", missing)
            return {n: inputs[n] for n in names}
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(values) != len(names):
            raise ArgumentError(f"the model takes {len(names)} inputs, not {len(values)}")
        return dict(zip(names, values, strict=True))

    def _run(self, trains: bool, feeds: Mapping[str, Any]) -> dict[str, Any]:
        backend = engine()
        program, xp = self._programs[trains], backend.arrays()
        with _context(backend):
            tensors = {n: keras.ops.convert_to_tensor(x) for n, x in feeds.items()}
            types = {n: element_type(v) for n, v in self.inputs_by_name.items()}
            fed = {n: xp.cast(x, types[n]) for n, x in tensors.items()}
            values = self.values()
            outputs = program(fed, {n: values[n] for n in self.held})
            return dict(zip(program.outputs, map(program.convert, outputs), strict=True))

    def values(self) -> dict[str, Any]:
        """The variables' values, as tensors of the backend."""
        return {n: tensor_of(v) for n, v in self.variables_by_name.items()}

    def compute_output_spec(self, *arguments: Any, **options: Any) -> Any:
        specs = {v.name or "": _spec(v) for v in self.parts.served.outputs}
        return next(iter(specs.values())) if len(specs) == 1 else specs

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {**config, "onnx": encoded(self.model, self.held), "held": self.held}


def _context(backend: Any) -> Any:
    """What the engine needs around its programs: JAX's mode for 64 bits; gradients stay on."""
    if engine_name() == "jax":
        return backend.enable_x64(True)
    return contextlib.nullcontext()


def _spec(value: ir.Value) -> Any:
    if value.shape is None or value.dtype is None:
        raise EngineError(f"the rank of output {quote(value.name)} is not known")
    shape = [d if isinstance(d, int) else None for d in value.shape]
    return keras.KerasTensor(tuple(shape), dtype=np.dtype(element_type(value)).name)


@keras.saving.register_keras_serializable(PACKAGE)
class OnnxModel(keras.Model):
    """An ONNX model as a Keras model; made by `sardonyx.to_keras`.

    Its training record is compiled in: `fit` takes the steps of the record. `compile` replaces it
    by a loss and an optimizer of Keras's.
    """

    def __init__(
        self, onnx: str | Model, held: Mapping[str, str] | None = None, name: str | None = None
    ):
        layer = OnnxLayer(onnx, held, name="onnx")
        inputs = {n: _input(v) for n, v in layer.inputs_by_name.items()}
        first = next(iter(inputs.values())) if len(inputs) == 1 else inputs
        super().__init__(inputs=first, outputs=layer(first), name=name)
        self.layer = layer
        self._follow_record = False

    # -- the record --------------------------------------------------------------------------

    def compile_record(self) -> None:
        """Compile the model with the loss, the optimizer and the state of its training record."""
        model = self.layer.model
        steps = Steps(model, self.layer.held)
        arrays = {n: _state(model, n) for n in slot_names(model)}
        optimizer = RecordOptimizer(arrays, steps.rate or 0.0)
        super().compile(optimizer=optimizer, loss=None, jit_compile=engine_name() == "jax")
        object.__setattr__(self, "_steps", steps)
        numbers = [n for n in steps.rep.metrics if n != "loss"]
        self._trackers = {n: keras.metrics.Mean(n.removeprefix(METRICS)) for n in numbers}
        self._follow_record = True

    def to_onnx_model(self, training: bool | None = None) -> Model | None:
        """The ONNX model with the present weights and state, for `from_keras`.

        training -- whether with its record; None: where there is one
        None where `compile` has replaced the record by something that only Keras knows.
        """
        from sardonyx.engines.with_weights import with_weights

        if self._follow_record and training is not False:
            return with_weights(self.layer.model, self, optimizer=True)
        if training or (self.compiled and training is None):
            return None
        model = with_weights(self.layer.model, self)
        model.records = []
        return model

    def compile(self, *arguments: Any, **options: Any) -> None:
        self._follow_record = False
        super().compile(*arguments, **options)

    @property
    def metrics(self) -> list[Any]:
        metrics = list(super().metrics)
        trackers = self._trackers.values() if self._follow_record else ()
        return [*metrics, *(t for t in trackers if not any(t is m for m in metrics))]

    def train_step(self, *arguments: Any) -> Any:
        if not self._follow_record:
            return super().train_step(*arguments)
        if engine_name() != "jax":
            return self._train(*arguments)
        (trained, others, slots, metrics), data = arguments
        groups = [
            (self.trainable_variables, trained),
            (self.non_trainable_variables, others),
            (self.optimizer.variables, slots),
            (self.metrics_variables, metrics),
        ]
        logs, new = _stateless(groups, lambda: self._train(data))
        return logs, tuple(new)

    def test_step(self, *arguments: Any) -> Any:
        if not self._follow_record:
            return super().test_step(*arguments)
        if engine_name() != "jax":
            return self._test(*arguments)
        (trained, others, metrics), data = arguments
        groups = [
            (self.trainable_variables, trained),
            (self.non_trainable_variables, others),
            (self.metrics_variables, metrics),
        ]
        logs, new = _stateless(groups, lambda: self._test(data))
        return logs, tuple(new)

    def _train(self, data: Any) -> Any:
        feeds, batch = self._feeds(data)
        state = {n: tensor_of(v) for n, v in self.state_variables.items()}
        rate = tensor_of(self.optimizer.learning_rate)
        fed = feeds if self._steps.rate is None else {**feeds, "learning_rate": rate}
        metrics, updates = self._steps.train(state, fed)
        for name, value in updates.items():
            self.state_variables[name].assign(value)
        self.optimizer._iterations.assign_add(1)
        return self._logs(metrics, batch)

    def _test(self, data: Any) -> Any:
        feeds, batch = self._feeds(data)
        state = {n: tensor_of(v) for n, v in self.state_variables.items()}
        return self._logs(self._steps.evaluate(state, feeds), batch)

    def _logs(self, metrics: Mapping[str, Any], batch: tuple[Any, Any, Any]) -> Any:
        x, y, weight = batch
        size = keras.ops.shape(keras.tree.flatten(x)[0])[0]
        for name, value in metrics.items():
            tracker = self._loss_tracker if name == "loss" else self._trackers[name]
            tracker.update_state(value, sample_weight=size)
        if self._compile_metrics is None:
            return self.get_metrics_result()
        return self.compute_metrics(x, y, self(x, training=False), weight)

    @property
    def state_variables(self) -> dict[str, Any]:
        """Everything that a step of the record reads and writes, by the record's names."""
        return {**self.layer.variables_by_name, **self.optimizer.slots}

    def _feeds(self, data: Any) -> tuple[dict[str, Any], tuple[Any, Any, Any]]:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        feeds = self.layer.feeds(x)
        rest = [n for n in self._steps.inputs if n not in feeds]
        if "sample_weight" in rest and weight is not None:
            feeds["sample_weight"] = weight
            rest.remove("sample_weight")
        if isinstance(y, Mapping):
            labels = {n: y.get(n, y.get(n.removeprefix("label_"))) for n in rest}
        else:
            flat = [] if y is None else keras.tree.flatten(y)
            labels = dict(zip(rest, [*flat, *[None] * len(rest)]))
        missing = [[quote(n)] for n in rest if labels[n] is None]
        if missing:
            raise ArgumentError("the training step needs these labels", missing)
        tensors = {n: keras.ops.convert_to_tensor(v) for n, v in {**feeds, **labels}.items()}
        return {n: v for n, v in tensors.items() if n in self._steps.inputs}, (x, y, weight)

    # -- files -------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        config = self.layer.get_config()
        return {"onnx": config["onnx"], "held": config["held"], "name": self.name}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> OnnxModel:
        return cls(**{k: config[k] for k in ("onnx", "held", "name")})

    def get_compile_config(self) -> Any:
        return {"record": True} if self._follow_record else super().get_compile_config()

    def compile_from_config(self, config: Any) -> None:
        if config.get("record"):
            self.compile_record()
            return
        # Keras's own method leaves out models whose `compile` is not its own.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)


def _stateless(groups: list[tuple[list[Any], Any]], function: Any) -> tuple[Any, list[list[Any]]]:
    """What `function` returns, and the variables' new values, without a change of any."""
    mapping = [pair for variables, values in groups for pair in zip(variables, values)]
    with keras.StatelessScope(state_mapping=mapping) as scope:
        result = function()
    return result, [[scope.get_current_value(v) for v in variables] for variables, _ in groups]


def _state(model: Model, name: str) -> np.ndarray:
    for record in model.records:
        tensor = state_tensor(model, record, name)
        if tensor is not None:
            return tensor.numpy()
    raise KeyError(name)


def _input(value: ir.Value) -> Any:
    """An input of Keras for one of the graph."""
    if value.shape is None or not isinstance(value.type, ir.TensorType):
        raise EngineError(f"input {quote(value.name)} has no known rank, or is no tensor")
    shape = [d if isinstance(d, int) else None for d in value.shape]
    dtype = np.dtype(element_type(value))
    if dtype.kind not in "fiub" and dtype.name != "bfloat16":
        raise EngineError(f"input {quote(value.name)} is not numeric: {dtype}")
    name = "".join(c if c.isalnum() or c in "_." else "_" for c in value.name or "input")
    return keras.Input(batch_shape=shape, dtype=dtype.name, name=name)
