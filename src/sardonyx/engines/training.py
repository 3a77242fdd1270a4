"""A model in training on any engine: its state, the steps that change it, the trained model.

`TrainingRep` is the interface that the loop uses. An engine defines how a variable is stored
(`variable`), how a `StepGraph` is compiled (`compile`) and how a model is run once (`execute`).
Engines over `xp` only differ in how they compile a function of arrays: they derive from
`ArrayTrainingRep`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.build import FLOATS
from sardonyx.engines.mixed import TYPES, mixed
from sardonyx.engines.native_step import NativeStep, NotNative
from sardonyx.errors import (
    ArgumentError,
    DataError,
    EngineError,
    MissingExtra,
    SardonyxError,
    counted,
    quote,
)
from sardonyx.lower import runner
from sardonyx.lower.program import element_type, to_numpy
from sardonyx.lower.xp import Arrays
from sardonyx.model import Model, Record, load
from sardonyx.normalize import NormalizedModel
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
    def wanted(self) -> list[ir.Value]:
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
            constants = {n: t.numpy() for n, t in step.graph.constants.items()}
            feeds = {**constants, **before, **step.hyper, **inputs}
            names = {v.name for v in step.graph.model.graph.inputs}
            marked = _marked(step.graph)
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


def _marked(graph: StepGraph) -> Model:
    """The graph of a step in which every float tensor is an output."""
    marked = graph.model.copy()
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


# -- engines over xp --------------------------------------------------------------


class ArrayVariable:
    """One state variable: an array of the framework that is replaced, never written to."""

    def __init__(self, array: np.ndarray, rep: ArrayTrainingRep):
        self.dtype, self.shape, self.rep = array.dtype, array.shape, rep
        self.write(array)
        self.before = self.value

    def read(self) -> np.ndarray:
        value = self.rep.whole(self.value)
        return np.array(self.rep.arrays().to_numpy(value, self.dtype), copy=True)

    def write(self, array: np.ndarray) -> None:
        with self.rep.context():
            # a copy of our own: a framework may share the caller's memory
            self.value = self.rep.placed(self.rep.arrays().asarray(np.array(array, copy=True)))


class ArrayStep:
    """One `StepGraph` as a function of arrays, compiled by the framework where that is possible."""

    def __init__(self, graph: StepGraph, rep: ArrayTrainingRep):
        self.graph, self.rep = graph, rep
        self.runner = rep.runner(graph.model, fallback=rep.fallback, device=rep.device)
        self.hyper = {n: np.array(v) for n, v in graph.hyper.items()}
        values = {v.name: v for v in graph.model.graph.inputs}
        self.types = {n: element_type(values[n]) for n in graph.inputs}
        self.compiled = rep.jit(self._function) if rep.compiles else None

    def _function(self, state: Mapping[str, Any], feeds: Mapping[str, Any]) -> tuple[Any, Any]:
        program = self.runner.program
        outputs = [program.convert(v) for v in program({**state, **feeds})]
        by_name = dict(zip(program.outputs, outputs, strict=True))
        updates = {n: by_name[output] for n, output in self.graph.updates.items()}
        return {n: by_name[n] for n in self.graph.metrics}, updates

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        variables, convert = self.rep.variables, self.runner.program.convert
        with self.rep.context():
            arrays = {n: convert(a) for n, a in self.rep.fed_arrays(self, feeds).items()}
            state = {n: variables[n].value for n in self.graph.state}
            metrics, updates = self._call(state, arrays)
            for name, value in updates.items():
                variables[name].before, variables[name].value = variables[name].value, value
            types = dict(zip(self.runner.outputs, self.runner.program.output_types, strict=True))
            return {
                n: np.array(to_numpy(self.rep.arrays(), v, types[n])) for n, v in metrics.items()
            }

    def _call(self, state: Mapping[str, Any], feeds: Mapping[str, Any]) -> tuple[Any, Any]:
        if self.compiled is None:
            return self._function(state, feeds)
        try:
            return self.compiled(state, feeds)
        except EngineError as error:
            if self.rep.must_compile:
                raise
            # What depends on data may run, but not compile; what is wrong fails again, uncompiled.
            results = self._function(state, feeds)
            self.compiled, self.rep.uncompiled = None, str(error)
            return results

    def before(self) -> dict[str, np.ndarray]:
        """The variables as they were before the last step."""
        updated, read = self.graph.updates, self.rep.arrays().to_numpy
        return {
            n: read(v.before if n in updated else v.value, v.dtype)
            for n, v in self.rep.variables.items()
        }


class ArrayTrainingRep(TrainingRep):
    """A model in training on a framework's arrays.

    device   -- "cpu", "cuda", "cuda:1", …; the framework's default if not given
    compile  -- True: steps are compiled or fail; False: never; None: as the engine prefers, and
                what cannot be compiled runs node by node (`uncompiled` then says why)
    native   -- the framework differentiates the forward part of a record itself (None: where it
                can); False: it executes the expanded gradient. `ways` says which way each record
                is executed, and why
    precision -- "bf16" or "fp16": products are computed in this type, with parameters and state in
                float32 (`engines/mixed.py`); "tf32": products of float32 as GPUs shorten them
    fallback -- nodes that the framework cannot take run in numpy, with ("warn") or without a word
                ("allow"), or are refused ("error")
    """

    runner: ClassVar[type[runner.Runner]]
    prefers_compiling: ClassVar[bool] = False
    differentiates: ClassVar[bool] = False  # whether the framework can
    # operators with kinks or ties that it decides as the gradient rules do, and others
    differentiates_alike: ClassVar[Collection[str]] = ()
    differentiates_otherwise: ClassVar[Collection[str]] = ()

    def __init__(
        self,
        model: Model,
        *,
        device: str | None = None,
        compile: bool | None = None,
        fallback: str = "warn",
        native: bool | None = None,
        precision: str | None = None,
    ):
        self.precision = self.requested_precision = precision
        self.device = self.requested_device = device
        self.fallback = fallback
        self.native = self.differentiates if native is None else native
        self.ways: list[str] = []
        self.compiles = self.prefers_compiling if compile is None else compile
        self.must_compile = compile is True
        self.uncompiled = ""
        super().__init__(model)

    placement: Any = None
    """How state and batches are spread over several devices, where they are."""

    def placed(self, array: Any) -> Any:
        """The array of a variable where it belongs, if there are several devices."""
        return array

    def whole(self, array: Any) -> Any:
        """The array of a variable with all its parts."""
        return array

    def arrays(self) -> Arrays:
        """The framework's array namespace, on the device."""
        return self.runner.xp

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """What the framework needs around everything."""
        return contextlib.nullcontext()

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` compiled by the framework."""
        return function

    def jit_native(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A whole native step compiled by the framework."""
        return self.jit(function) if self.compiles else function

    def compiled_step(self, record: Record) -> Any:
        reason = "as requested"
        if self.native:
            try:
                with self.context():
                    step = NativeStep(self.rest, record, self)
                self.ways.append("the framework differentiates the forward part")
                return step
            except NotNative as error:
                reason = str(error)
        if self.precision in TYPES:
            raise EngineError(
                f"this record cannot be trained in {self.precision}: {reason}",
                hint="leave precision out: it trains in the types of the file",
            )
        self.ways.append(f"the expanded gradient is executed: {reason}")
        return super().compiled_step(record)

    takes_update = True
    """Whether the last gradients are finite; with a scaled loss they may not be."""

    def in_precision(self, model: NormalizedModel, sized: Collection[str]) -> NormalizedModel:
        """The forward half, computed in the requested precision.

        sized -- outputs of which nothing but the sizes is read
        """
        return mixed(model, self.precision, sized) if self.precision in TYPES else model

    def gradients(
        self, loss: Callable[[Mapping[str, Any]], tuple[Any, Any]], variables: Mapping[str, Any]
    ) -> tuple[list[Any], Any]:
        """The gradients of the sum of the loss by `variables`, and what it returns beside it."""
        raise NotImplementedError

    def forward_function(self, step: NativeStep) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The forward half of a step as the framework runs it best."""
        return step.run_forward

    def update_function(self, step: NativeStep) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The update half of a step as the framework runs it best."""
        return step.run_update

    def is_array(self, value: Any) -> bool:
        """Whether a value is an array of the framework already, perhaps on its device."""
        return False

    def fed_arrays(
        self, step: ArrayStep | NativeStep, feeds: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """The inputs of a step, with defaults; an error names all of another type."""
        missing = [n for n in step.graph.inputs if n not in feeds]
        if missing:
            raise ArgumentError(
                f"the step needs the input {quote(missing[0])}",
                hint=f"it takes {step.graph.inputs}",
            )
        arrays = {
            n: feeds[n] if self.is_array(feeds[n]) else np.asarray(feeds[n])
            for n in step.graph.inputs
        }
        wrong = [
            [quote(n), f"is {a.dtype}, not {step.types[n]}"]
            for n, a in arrays.items()
            if self.arrays().dtype(a) != step.types[n]
        ]
        if wrong:
            raise ArgumentError("inputs of the step are of another type", wrong)
        for name, default in step.hyper.items():
            fed = feeds.get(name)
            arrays[name] = default if fed is None else np.asarray(fed, default.dtype)
        return arrays

    def variable(self, array: np.ndarray) -> ArrayVariable:
        return ArrayVariable(array, self)

    def compile(self, graph: StepGraph) -> ArrayStep:
        return ArrayStep(graph, self)

    def execute(self, model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return self.runner(model, device=self.device)(feeds)


class TrainingBackend(runner.Backend):
    """An engine over `xp` as an ONNX backend that also trains."""

    training: ClassVar[type[ArrayTrainingRep]]

    @classmethod
    def precisions(cls, device: str | None) -> Sequence[str]:
        """The precisions, beside the types of the file, in which it trains on a device."""
        return ()

    @classmethod
    def prepare_training(
        cls, model: Any, device: str | None = None, **kwargs: Any
    ) -> ArrayTrainingRep:
        """A model that carries a record, ready to train."""
        cls.check_device(device)
        return cls.training(load(model), device=device, **kwargs)

    @classmethod
    def train_model(
        cls,
        model: Any,
        batches: Iterable[Mapping[str, np.ndarray]],
        steps: int | None = None,
        device: str | None = None,
        initialize: bool = False,
        callback: Callable[[int, dict[str, np.ndarray]], Any] | None = None,
        **kwargs: Any,
    ) -> onnx.ModelProto:
        """Train as the model's record describes, one step per batch; the trained model."""
        rep = cls.prepare_training(model, device, **kwargs)
        return train_model(rep, batches, steps, initialize, callback)
