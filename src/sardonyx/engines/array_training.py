"""Models in training on engines over `xp`: they differ in how they compile a function of arrays.

`ArrayTrainingRep` holds the state as arrays of the framework.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.engines.mixed import TYPES, mixed
from sardonyx.engines.native_step import NativeStep, NotNative
from sardonyx.engines.training import TrainingRep
from sardonyx.errors import ArgumentError, EngineError, quote
from sardonyx.lower import runner
from sardonyx.lower.program import element_type, to_numpy
from sardonyx.lower.xp import Arrays
from sardonyx.model import Model, Record
from sardonyx.normalize import NormalizedModel
from sardonyx.record.step import StepGraph


class ArrayVariable:
    """One state variable: an array of the framework that is replaced, never written to."""

    def __init__(self, array: np.ndarray, rep: ArrayTrainingRep):
        self.dtype, self.shape, self.rep = array.dtype, array.shape, rep
        self.write(array)
        self.before = self.value

    def forget(self) -> None:
        """Drop the value before the last step, which is for a search of what went wrong."""
        self.before = self.value

    def read(self) -> np.ndarray:
        value = self.rep.whole(self.value, self.shape)
        return np.array(self.rep.arrays().to_numpy(value, self.dtype), copy=True)

    def write(self, array: np.ndarray) -> None:
        with self.rep.context():
            # a copy of our own: a framework may share the caller's memory
            self.value = self.rep.placed(self.rep.arrays().asarray(np.array(array, copy=True)))


class ArrayStep:
    """One `StepGraph` as a function of arrays, compiled by the framework where that is possible."""

    def __init__(self, graph: StepGraph, rep: ArrayTrainingRep):
        self.graph, self.rep = graph, rep
        self.runner = rep.runner(
            graph.model, fallback=rep.fallback, place=rep.place, device=rep.device
        )
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
        return self._started(feeds)()

    def start(self, feeds: Mapping[str, Any]) -> Callable[[], dict[str, np.ndarray]]:
        """A step, and how its metrics are read once the device has computed them."""
        read = self._started(feeds)
        for name in self.graph.updates:
            self.rep.variables[name].forget()
        return read

    def _started(self, feeds: Mapping[str, Any]) -> Callable[[], dict[str, np.ndarray]]:
        variables, convert = self.rep.variables, self.runner.program.convert
        with self.rep.context():
            arrays = {n: convert(a) for n, a in self.rep.fed_arrays(self, feeds).items()}
            state = {n: self.rep.for_graph(variables[n]) for n in self.graph.state}
            metrics, updates = self._call(state, arrays)
            for name, value in updates.items():
                variables[name].before, variables[name].value = variables[name].value, value
            types = dict(zip(self.runner.outputs, self.runner.program.output_types, strict=True))
            return self.rep.read_later(metrics, types)

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
    place    -- pattern of node names or operators → the engine that runs these nodes; the step is
                then the expanded gradient, node by node unless `compile` says otherwise
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
        place: Mapping[str, str] | None = None,
    ):
        self.place = dict(place) if place else None
        if place:
            native, compile = False, bool(compile)
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

    def whole(self, array: Any, shape: Sequence[int]) -> Any:
        """The array of a variable of a shape with all its parts."""
        return array

    def for_graph(self, variable: ArrayVariable) -> Any:
        """The array of a variable as a graph that is executed node by node reads it."""
        return variable.value

    needs_native = False
    """Whether records are trained by the framework's own differentiation or not at all."""

    def arrays(self) -> Arrays:
        """The framework's array namespace, on the device."""
        return self.runner.xp

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """What the framework needs around everything."""
        return contextlib.nullcontext()

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` compiled by the framework."""
        return function

    def jit_native(self, step: NativeStep) -> Callable[..., Any]:
        """A whole native step compiled by the framework.

        It may give up arrays of the state that it is called with, and then writes those before the
        step there anew if a metric is not finite.
        """
        return self.jit(step.function) if self.compiles else step.function

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
        if self.needs_native:
            raise EngineError(
                f"this record cannot be trained in several processes: {reason}",
                hint='train it in one, or with engine="jax"',
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

    def laid_out(self, model: NormalizedModel) -> NormalizedModel:
        """The forward half with the layout of images that the framework's kernels prefer."""
        return model

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

    def read_later(
        self, values: Mapping[str, Any], types: Mapping[str, Any]
    ) -> Callable[[], dict[str, np.ndarray]]:
        """How results of a step are read; the call waits for this step and for no later one.

        types -- by name, the type that the model says; the framework's own if a name is absent
        """
        xp = self.arrays()
        return lambda: {n: np.array(to_numpy(xp, v, types.get(n))) for n, v in values.items()}

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

    def argument(self, step: NativeStep, array: Any) -> Any:
        """An input of a native step as its function takes it."""
        return step.forward.convert(array)

    def variable(self, array: np.ndarray) -> ArrayVariable:
        return ArrayVariable(array, self)

    def compile(self, graph: StepGraph) -> ArrayStep:
        return ArrayStep(graph, self)

    def execute(self, model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return self.runner(model, device=self.device)(feeds)
