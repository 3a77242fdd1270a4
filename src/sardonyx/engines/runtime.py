"""Engines that compile whole graphs, such as OpenVINO: what they all share.

Sizes are pinned: a model is compiled anew for each set of shapes that it is fed, because such
runtimes refuse free sizes in many graphs, and run fixed ones faster. A runtime supplies `compile`
and `lacks` (`segments.py`); running and training follow from them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sardonyx.engines import training
from sardonyx.engines.segments import Runtime, Segments
from sardonyx.errors import ArgumentError, DataError, quote
from sardonyx.grad.training import lower_training
from sardonyx.lower.partition import Placement, element_type
from sardonyx.lower.xp import is_string
from sardonyx.model import Model, load
from sardonyx.normalize import normalize, regular_copy
from sardonyx.passes.pinning import pinned
from sardonyx.record.info import uses_training_ops
from sardonyx.record.step import StepGraph

KEPT = 8  # sets of shapes whose compiled graphs are kept


class Runner:
    """Runs a model: `Runner(model)({"x": array})` gives its outputs by name, as numpy arrays."""

    runtime: ClassVar[Runtime]

    def __init__(self, model: Model | Any, *, device: str | None = "CPU"):
        loaded = load(model)
        if uses_training_ops(loaded.skeleton().graph.node):
            loaded = lower_training(regular_copy(loaded))
        self.model = normalize(loaded)
        self.inputs = [v.name or "" for v in self.model.inputs]
        self.outputs = [v.name or "" for v in self.model.outputs]
        self.types = {v.name or "": element_type(v) for v in self.model.graph.inputs}
        self.compiled: OrderedDict[Any, Segments] = OrderedDict()

    @classmethod
    def divide(cls, model: Model, sizes: Mapping[str, int]) -> Segments:
        """A model divided between the runtime and other engines, for some choice of free sizes."""
        normal = cls(model).model
        shapes = {
            v.name or "": [sizes.get(getattr(d, "value", ""), d) for d in v.shape]
            for v in normal.graph.inputs
            if v.shape is not None
        }
        return Segments(pinned(normal, shapes), cls.runtime)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        arrays = self._checked(feeds)
        shapes = {n: a.shape for n, a in arrays.items() if isinstance(a, np.ndarray)}
        key = tuple(sorted(shapes.items()))
        if key not in self.compiled:
            self.compiled[key] = Segments(pinned(self.model, shapes), self.runtime)
            while len(self.compiled) > KEPT:
                self.compiled.popitem(last=False)
        self.compiled.move_to_end(key)
        return self.compiled[key](arrays)

    @property
    def elsewhere(self) -> list[Placement]:
        """The nodes that run on other engines, and why; known after the first run."""
        return [p for segments in self.compiled.values() for p in segments.placements]

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        arrays: dict[str, Any] = {}
        wrong = []
        for name, value in feeds.items():
            dtype = self.types.get(name)
            if name not in self.types:
                continue
            if isinstance(value, (list, tuple, Mapping)) or value is None:
                arrays[name] = value
                continue
            array = np.asarray(value)
            if dtype is None or is_string(dtype):
                arrays[name] = array
            elif array.dtype != dtype:
                wrong.append([quote(name), f"is {array.dtype}", f"the model takes {dtype}"])
            else:
                arrays[name] = np.require(array, dtype, "C")
        if wrong:
            raise DataError("inputs have other types than the model's", wrong)
        missing = [n for n in self.inputs if n not in arrays]
        if missing:
            raise ArgumentError(f"the model needs the input {quote(missing[0])}")
        return arrays


# -- training ------------------------------------------------------------------------------------


class Variable:
    """One state variable: an array that is replaced, never written to."""

    def __init__(self, array: np.ndarray):
        self.dtype, self.shape = array.dtype, array.shape
        self.write(array)

    def read(self) -> np.ndarray:
        return np.array(self.value, copy=True)

    def write(self, array: np.ndarray) -> None:
        self.value = self.before = np.array(array, copy=True, order="C")


class Step:
    """One `StepGraph` on the runtime, compiled when the sizes of a batch are known."""

    def __init__(self, graph: StepGraph, rep: TrainingRep):
        self.graph, self.variables = graph, rep.variables
        self.hyper = {n: np.array(v) for n, v in graph.hyper.items()}
        self.constants = {n: t.numpy() for n, t in graph.constants.items()}
        self.runner = rep.runner(graph.model, device=rep.device)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        missing = [n for n in self.graph.inputs if n not in feeds]
        if missing:
            raise ArgumentError(
                f"the step needs the input {quote(missing[0])}",
                hint=f"it takes {self.graph.inputs}",
            )
        arrays = {n: np.asarray(feeds[n]) for n in self.graph.inputs}
        for name, default in self.hyper.items():
            fed = feeds.get(name)
            arrays[name] = default if fed is None else np.asarray(fed, default.dtype)
        state = {n: self.variables[n].value for n in self.graph.state}
        outputs = self.runner({**self.constants, **state, **arrays})
        for name, output in self.graph.updates.items():
            variable = self.variables[name]
            variable.before, variable.value = variable.value, outputs[output]
        return {n: np.array(outputs[n]) for n in self.graph.metrics}

    def before(self) -> dict[str, np.ndarray]:
        """The variables as they were before the last step."""
        return {n: v.before for n, v in self.variables.items()}


class TrainingRep(training.TrainingRep):
    """A model in training on a compiled runtime."""

    runner: ClassVar[type[Runner]]

    def __init__(self, model: Model, *, device: str | None = "CPU"):
        self.device = device
        super().__init__(model)

    def variable(self, array: np.ndarray) -> Variable:
        return Variable(array)

    def compile(self, graph: StepGraph) -> Step:
        return Step(graph, self)

    def execute(self, model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return self.runner(model, device=self.device)(feeds)
