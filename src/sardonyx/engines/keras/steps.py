"""The training records of a model as pure functions of the arrays of Keras's backend."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from sardonyx import partial
from sardonyx.engines.array_training import ArrayStep
from sardonyx.engines.native_step import NativeStep
from sardonyx.errors import EngineError
from sardonyx.lower.program import element_type
from sardonyx.model import Model
from sardonyx.record.builder import RATE
from sardonyx.record.describe import settings_of
from sardonyx.record.info import state_names
from sardonyx.record.step import compile_evaluation

BACKENDS = ("tensorflow", "jax", "torch")
# JAX holds no integers of 64 bits, and Keras none of PyTorch's unsigned ones.
VARIABLE_TYPES = {"jax": {"int64": "int32", "uint64": "uint32"}, "torch": {"uint32": "int64"}}


def engine_name() -> str:
    """The engine that Keras's backend is."""
    name = str(keras.backend.backend())
    if name not in BACKENDS:
        raise EngineError(
            f"Keras's backend {name} is no engine here", hint=f"it may be {', '.join(BACKENDS)}"
        )
    return name


def engine() -> Any:
    """The package of that engine; importing it registers its kernels."""
    return importlib.import_module(f"sardonyx.engines.{engine_name()}.backend")


def held_dtype(dtype: np.dtype) -> str:
    """The type of a Keras variable for numbers of `dtype`."""
    return VARIABLE_TYPES.get(engine_name(), {}).get(dtype.name, dtype.name)


def _with_all_as_state(model: Model, held: Iterable[str]) -> Model:
    """A copy of a model whose first record also assigns the held tensors that it does not change.

    A step reads its state from Keras's variables. Any other tensor is a constant in it, as it was
    when the step was built; a model out of a file of Keras has no weights then.
    """
    updated = {n for record in model.records for n in state_names(model, record)}
    names = [n for n in held if n not in updated and n in model.graph.initializers]
    copy = model.copy()
    record = copy.records[0]
    algorithm = partial.clone(record.algorithm)
    taken = {v.name for node in algorithm.all_nodes() for v in node.outputs}
    for name in names:
        label = f"{name}/kept"
        while label in taken:
            label += "_"
        result = ir.Value(name=label, type=model.graph.initializers[name].type)
        algorithm.append(ir.Node("", "Identity", [ir.Value(name=name)], outputs=[result]))
        algorithm.outputs.append(result)
        record.update_binding.append((name, label))
    record.algorithm = algorithm
    return copy


class Steps:
    """The records of one model.

    inputs -- what a step is fed, by name, with types
    rate   -- the default of the learning rate; None where no record takes one
    held   -- the tensors that are variables of Keras
    """

    def __init__(self, model: Model, held: Iterable[str]):
        model = _with_all_as_state(model, held)
        self.model = model
        self.rep = engine().TrainingRep(model, compile=False, fallback="allow")
        values = {v.name or "": v for v in self.rep.step_inputs}
        self.inputs = {n: element_type(v) for n, v in values.items()}
        rates = [s.hyper[RATE] for s in self.rep.steps if RATE in s.hyper]
        self.rate = float(rates[0]) if rates else None
        self.types = {n: v.dtype for n, v in self.rep.variables.items()}
        forward = settings_of(model).get("forward", {})
        record = self.rep.rest.records[0]
        graph = compile_evaluation(self.rep.rest, record, forward, ())
        with self.rep.context():
            self._evaluation = ArrayStep(graph, self.rep)

    def train(
        self, state: Mapping[str, Any], feeds: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The metrics of one step of all records, and the new values of variables."""
        metrics: dict[str, Any] = {}
        updates: dict[str, Any] = {}
        for step in self.rep.steps:
            function = step.function if isinstance(step, NativeStep) else step._function
            numbers, new = self._run(step, function, {**state, **updates}, feeds)
            metrics.update(numbers)
            updates.update(new)
        return metrics, updates

    def evaluate(self, state: Mapping[str, Any], feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of the first record, as the served graph gives them; nothing changes."""
        step = self._evaluation
        metrics, _ = self._run(step, step._function, state, feeds)
        return metrics

    def _run(
        self, step: Any, function: Any, state: Mapping[str, Any], feeds: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        xp = self.rep.arrays()
        with self.rep.context():
            types = {**self.types, **self.inputs, **{n: v.dtype for n, v in step.hyper.items()}}
            defaults = {n: xp.asarray(v) for n, v in step.hyper.items() if n not in feeds}
            fed = {n: xp.cast(v, types[n]) for n, v in feeds.items() if n in types}
            variables = {n: xp.cast(state[n], types[n]) for n in step.graph.state}
            metrics, updates = function(variables, {**defaults, **fed})
            new = {n: xp.cast(v, np.dtype(held_dtype(self.types[n]))) for n, v in updates.items()}
            single = np.dtype("float32")
            return {n: xp.cast(v, single) for n, v in metrics.items()}, new
