"""A model in training on any engine: its state, the steps that change it, the trained model.

`TrainingRep` is the interface that the loop uses. An engine defines how a variable is stored
(`variable`), how a `StepGraph` is compiled (`compile`) and how a model is run once (`execute`).
Engines over `xp` derive from `ArrayTrainingRep` (`array_training.py`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.build import FLOATS
from sardonyx.collector import paused
from sardonyx.errors import (
    ArgumentError,
    DataError,
    EngineError,
    MissingExtra,
    SardonyxError,
    counted,
    quote,
)
from sardonyx.model import Model, Record
from sardonyx.passes.cse import RANDOM
from sardonyx.record import info
from sardonyx.record.front import separate
from sardonyx.record.step import StepGraph, compile_evaluation, compile_inference, compile_step


class TrainingRep:
    """A model in training: state, and steps that change it.

    An engine defines three methods: `variable(array)`, how a variable is stored; `compile(graph)`,
    how a `StepGraph` is compiled; `execute(model, feeds)`, how a model is run once. The guide "Add
    an engine" has a whole one.
    """

    @paused()
    def __init__(self, model: Model):
        if not model.records:
            raise ArgumentError(
                "the model carries no training record",
                hint="make one with sx.trainable, or the command sardonyx trainable",
            )
        info.check(model)
        self.model = model
        self.front = separate(model)
        self.rest = self.front.rest if self.front is not None else model  # what is compiled
        self.variables = {n: self.variable(a) for n, a in self._loaded()}
        self.steps = [self.compiled_step(r) for r in self.rest.records]
        self.fed = {v.name for m in (model, self.rest) for v in m.graph.inputs if v.name}
        self.fed |= {v.name for r in model.records for v in r.algorithm.inputs if v.name}
        self._inference: Any = None
        self._front: Any = None
        self._evaluations: dict[tuple[Any, ...], Any] = {}

    # -- what an engine provides

    ways: Sequence[str] = ()
    """How each record is executed, and why; engines with one way have nothing to say."""

    requested_device: str | None = None
    """The device that the user named."""

    requested_precision: str | None = None
    """The precision that the user named."""

    steps_ahead: int = 0
    """How many steps a loop may start before it reads the metrics of the first of them."""

    binds: Callable[[ir.Value], bool] | None = None
    """Which weights that no step changes become inputs of the compiled graphs."""

    reported: Callable[[str], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """What surrounds the calls of an engine: errors of a plug-in become those of Sardonyx."""

    def compiled_step(self, record: Record) -> Any:
        """The step of a record, ready to run."""
        return self.compile(compile_step(self.rest, record, self.binds))

    def variable(self, array: np.ndarray) -> Any:
        """A variable that starts at `array`: `dtype`, `shape`, `read()`, `write(array)`."""
        raise NotImplementedError

    def compile(self, graph: StepGraph) -> Any:
        """A step ready to run on the variables: `graph`, `hyper`, `run(feeds)`, `before()`."""
        raise NotImplementedError

    def execute(self, model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs of a model, once."""
        raise NotImplementedError

    # -- what it is

    def _loaded(self) -> Iterator[tuple[str, np.ndarray]]:
        """The state as the model has it, one at a time: an array may be a copy."""
        for record in self.model.records:
            for name in info.state_names(self.model, record):
                tensor = info.state_tensor(self.model, record, name)
                assert tensor is not None
                yield name, tensor.numpy()

    @property
    def step_inputs(self) -> list[ir.Value]:
        """The inputs of a step, with types and shapes."""
        values_by_name: dict[str, ir.Value] = {}
        for step in self.steps:
            values = {v.name: v for v in step.graph.model.graph.inputs}
            values_by_name.update({n: values[n] for n in step.graph.inputs})
        if self.front is None or not values_by_name.keys() & set(self.front.features):
            return list(values_by_name.values())
        raw = {v.name or "": v for v in self.front.model.inputs}
        return list({**raw, **_without(values_by_name, self.front.features)}.values())

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(n for s in self.steps for n in s.graph.metrics))

    # -- the front: what turns raw data into the numbers that a step reads

    def features(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inputs of a step, with those of the front replaced by what it makes of them.

        Features that are fed already are taken as they are.
        """
        if self.front is None or all(name in inputs for name in self.front.features):
            return inputs
        if self._front is None:
            self._front = front_runner(self.front.model)
        names = [v.name or "" for v in self.front.model.inputs]
        missing = [n for n in names if n not in inputs]
        if missing:
            raise ArgumentError(f"the step needs the input {quote(missing[0])}")
        features = self._front({n: as_text(inputs[n], n) for n in names})
        return {**_without(inputs, self.front.inputs), **features}

    def _passed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The features that are outputs of the model as well."""
        names = self.front.passed if self.front is not None else ()
        return {name: inputs[name] for name in names}

    # -- what it does

    def initialize(self, seed: int | None = None, only_bound: bool = False) -> None:
        """Start again: what the records' initializations compute; other state as it was loaded."""
        if not only_bound:
            self.load_state(dict(self._loaded()))
        for index, record in enumerate(self.model.records):
            if record.initialization_binding:
                record_seed = None if seed is None else seed + index
                outputs = self.execute(_initialization(self.model, record, record_seed), {})
                self.load_state({key: outputs[name] for key, name in record.initialization_binding})

    def step(self, inputs: Mapping[str, Any], which: int | None = None) -> dict[str, np.ndarray]:
        """One step of all records in order, or of one; the metrics that are not state."""
        if which is not None and which not in range(len(self.steps)):
            raise ArgumentError(f"there is no record {which}: the model carries {len(self.steps)}")
        _refuse_feeds(inputs, self.variables, self.fed)
        inputs = self.features(inputs)
        metrics: dict[str, np.ndarray] = {}
        for index in range(len(self.steps)) if which is None else [which]:
            with self.reported("take a training step"):
                metrics.update(self.steps[index].run(inputs))
        return metrics

    def start_step(self, inputs: Mapping[str, Any]) -> Callable[[], dict[str, np.ndarray]]:
        """One step of all records, as `step` takes it; its metrics, when they are asked for.

        Where `steps_ahead` is above 0, the device may still be computing when the call returns.
        """
        if not self.steps_ahead:
            metrics = self.step(inputs)
            return lambda: metrics
        _refuse_feeds(inputs, self.variables, self.fed)
        inputs = self.features(inputs)
        readers = []
        for step in self.steps:
            with self.reported("take a training step"):
                readers.append(step.start(inputs))
        return lambda: {name: value for read in readers for name, value in read().items()}

    def staged(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """A batch as a step reads it soonest; a thread that prepares batches calls it."""
        return batch

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Inference on the current state, which it does not change.

        State that is also an input of the graph may be fed: that counts for this call alone.
        """
        if self._inference is None:
            graph = compile_inference(self.rest, self.binds)
            with self.reported("compile the model"):
                self._inference = self.compile(graph)
        inputs = self.features(inputs)
        state_names = [
            v.name for v in self.model.graph.inputs if v.name in inputs and v.name in self.variables
        ]
        if not state_names:
            return self._passed(inputs) | self._inferred(inputs)
        before = {name: self.variables[name].read() for name in state_names}
        try:
            self.load_state({name: np.asarray(inputs[name]) for name in state_names})
            return self._passed(inputs) | self._inferred(inputs)
        finally:
            self.load_state(before)

    def _inferred(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        with self.reported("run the model"):
            outputs: dict[str, np.ndarray] = self._inference.run(inputs)
        return outputs

    def evaluate(
        self,
        inputs: Mapping[str, Any],
        forward: Mapping[str, str] | None = None,
        predictions: Sequence[str] = (),
        which: int = 0,
    ) -> dict[str, np.ndarray]:
        """The metrics of one record and some predictions, as the served graph gives them; no
        update.
        """
        key = (which, *predictions)
        if key not in self._evaluations:
            record = self.rest.records[which]
            graph = compile_evaluation(self.rest, record, forward or {}, predictions, self.binds)
            with self.reported("compile the evaluation"):
                self._evaluations[key] = self.compile(graph)
        inputs = self.features(inputs)
        with self.reported("evaluate the model"):
            metrics: dict[str, np.ndarray] = self._evaluations[key].run(inputs)
        return metrics

    def first_not_finite(self, inputs: Mapping[str, Any]) -> list[list[str]]:
        """Where the last step went wrong: the first tensor that is not finite, as a table row.

        Runs the step once more on the state before it, which is still stored.
        """
        inputs = self.features(inputs)
        for step in self.steps:
            before = step.before()
            bad = [
                [f"state {quote(n)}", "before the step"] for n, a in before.items() if _is_broken(a)
            ]
            if bad:
                return bad
            constants = {n: t.numpy() for n, t in step.graph.constants.items() if _has_bytes(t)}
            feeds = {**constants, **before, **step.hyper, **inputs}
            marked = _marked(step.graph)
            names = {v.name for v in marked.graph.inputs}
            outputs = self.execute(marked, {n: a for n, a in feeds.items() if n in names})
            for node in step.graph.model.graph:
                for value in node.outputs:
                    if value.name in outputs and _is_broken(outputs[value.name]):
                        return [
                            [f"tensor {quote(value.name)}", f"of {node.op_type} {quote(node.name)}"]
                        ]
        return []

    # -- state

    def state(self) -> dict[str, np.ndarray]:
        """A copy of every state variable."""
        return {name: variable.read() for name, variable in self.variables.items()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Set state variables; names that are not given stay as they are."""
        problems = [row for n, a in state.items() if (row := self._unfit(n, a))]
        if problems:
            raise ArgumentError("the state does not fit the model", problems)
        for name, array in state.items():
            self.variables[name].write(array)

    def _unfit(self, name: str, array: np.ndarray) -> list[str] | None:
        if name not in self.variables:
            return [quote(name), "is no state variable"]
        ours = f"{self.variables[name].dtype} {list(self.variables[name].shape)}"
        theirs = f"{array.dtype} {list(np.shape(array))}"
        return None if ours == theirs else [quote(name), f"{ours} ← {theirs}"]

    def to_model(self, state: Mapping[str, np.ndarray] | None = None) -> Model:
        """The model as it is now, ready to serve, to save and to continue."""
        return with_state(self.model, self.state() if state is None else state)


def _without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def front_runner(model: Model) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Text and operators of other libraries run in onnxruntime; where it cannot, in NumPy."""
    from sardonyx.engines import numpy

    try:
        from sardonyx.engines import onnxruntime

        return onnxruntime.Runner(model)
    except (MissingExtra, EngineError) as refusal:  # such as a locale that the system lacks
        try:
            return numpy.Runner(model)
        except SardonyxError:
            raise refusal from None


def as_text(value: Any, name: str) -> Any:
    """An input as it is fed; an error for text that has missing values or something else in it."""
    array = np.asarray(value)
    if array.dtype.kind != "O":
        return value
    wrong = [(i, v) for i, v in enumerate(array.reshape(-1)) if not isinstance(v, (str, bytes))]
    if wrong:
        row, content = wrong[0]
        raise DataError(
            f"input {quote(name)} takes text; {counted(len(wrong), 'value')} of another kind",
            [["first", f"element {row}", repr(content)]],
            hint="replace missing values by a text, such as an empty one, before",
        )
    return value


def train_model(
    rep: TrainingRep,
    batches: Iterable[Mapping[str, np.ndarray]],
    steps: int | None = None,
    initialize: bool = False,
    callback: Callable[[int, dict[str, np.ndarray]], Any] | None = None,
) -> onnx.ModelProto:
    """Train as the model's record describes, one step per batch; the trained model."""
    if initialize:
        rep.initialize()
    for count, batch in enumerate(itertools.islice(batches, steps)):
        metrics = rep.step(batch)
        if callback is not None:
            callback(count, metrics)
    return rep.to_model().proto()


def _is_broken(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and not np.isfinite(array).all()


def _has_bytes(tensor: ir.TensorProtocol) -> bool:
    """Whether a number of the tensor has whole bytes, so that it can be fed."""
    return tensor.dtype.itemsize >= 1


def _marked(graph: StepGraph) -> Model:
    """The graph of a step in which every float tensor is an output."""
    marked = graph.model.copy()
    inputs = {v.name: v for v in marked.graph.inputs}
    for name, tensor in graph.constants.items():
        if name in inputs and not _has_bytes(tensor):
            marked.graph.inputs.remove(inputs[name])
            inputs[name].const_value = tensor
            marked.graph.register_initializer(inputs[name])
    output_names = {v.name for v in marked.graph.outputs}
    for node in marked.graph:
        for value in node.outputs:
            if value.name and value.name not in output_names and value.dtype in FLOATS:
                marked.graph.outputs.append(value)
    return marked


def with_state(model: Model, state: Mapping[str, np.ndarray]) -> Model:
    """A copy of `model` whose state variables have new values."""
    copy = model.copy()
    for name, array in state.items():
        tensor = ir.Tensor(array, name=name, shape=ir.Shape(array.shape))
        if name in copy.graph.initializers:
            copy.graph.initializers[name].const_value = tensor
        for record in copy.records:
            if name in record.state:
                record.state[name] = tensor
    return copy


def _refuse_feeds(
    inputs: Mapping[str, Any], variables: Mapping[str, Any], input_names: set[str]
) -> None:
    state = [n for n in inputs if n in variables]
    unknown = [n for n in inputs if n not in input_names and n not in variables]
    if state or unknown:
        rows = [[quote(n), "is state: a step reads and writes it itself"] for n in state]
        rows += [[quote(n), "is no input of the step"] for n in unknown]
        hint = f"it takes {', '.join(sorted(input_names - set(variables)))}"
        raise ArgumentError("the step does not take these", rows, hint=hint)


def _initialization(model: Model, record: Any, seed: int | None) -> Model:
    """The initialization of one record as a model; with a seed, every random node gets a stream of
    its own.
    """
    start = info.initialization_model(model, record)
    if seed is not None:
        rng = np.random.default_rng(seed)
        free = [n for n in start.graph if n.op_type in RANDOM and "seed" not in n.attributes]
        for node, stream in zip(free, rng.choice(1 << 24, len(free), replace=False), strict=True):
            node.attributes.add(ir.AttrFloat32("seed", float(stream)))
    return start
