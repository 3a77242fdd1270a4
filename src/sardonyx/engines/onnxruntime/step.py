"""Training steps on stock onnxruntime: state stays in place, a step copies nothing but what was
asked for.

Every state variable has two buffers. A step reads one and writes the other, then they change roles:
a step is one fused graph, and writing over a tensor that another node may still read would be
wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from sardonyx.build import is_static
from sardonyx.engines import training
from sardonyx.engines.onnxruntime.session import Runner, session
from sardonyx.errors import ArgumentError, EngineError, quote
from sardonyx.model import Model
from sardonyx.train.step import StepGraph, distinct_outputs

DEVICES = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


class Variable:
    """One state variable: the buffer that is current, and the one that the next step writes."""

    def __init__(self, array: np.ndarray, device: str):
        self.device = device
        self.dtype, self.shape = array.dtype, array.shape
        self.buffers = [self._buffer(array), self._buffer(array)]
        self.current = 0

    def _buffer(self, array: np.ndarray) -> ort.OrtValue:
        # a copy of our own: onnxruntime would share the caller's memory
        return ort.OrtValue.ortvalue_from_numpy(np.array(array, copy=True), self.device)

    def read(self) -> np.ndarray:
        return np.array(self.buffers[self.current].numpy(), copy=True)

    def write(self, array: np.ndarray) -> None:
        self.buffers[self.current].update_inplace(np.asarray(array, order="C"))


class _Step:
    """One record, compiled, with its bindings kept for each arrangement of buffers."""

    def __init__(self, graph: StepGraph, variables: dict[str, Variable], settings: dict[str, Any]):
        self.graph = graph = distinct_outputs(graph)
        self.variables = variables
        self.session = session(graph.model, **settings)
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        self.bindings: dict[tuple[int, ...], ort.IOBinding] = {}
        self.names = [n for n in dict.fromkeys((*graph.state, *graph.updates)) if n in variables]
        self.hyper = {n: np.array(v) for n, v in graph.hyper.items()}
        sizes = {v.name: is_static(v) for v in graph.model.outputs}
        # A binding keeps the buffer of its last run: right only where the size never changes.
        self.varying = [n for n in graph.figures if not sizes.get(n)]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        key = tuple(self.variables[n].current for n in self.names)
        binding = self.bindings.get(key)
        if binding is None:
            binding = self.bindings[key] = self._bind()
        fed = []
        for name in self.graph.inputs:
            if name not in feeds:
                raise ArgumentError(
                    f"the step needs the input {quote(name)}", hint=f"it takes {self.graph.inputs}"
                )
            fed.append(np.asarray(feeds[name], order="C"))
            binding.bind_cpu_input(name, fed[-1])
        for name, default in self.hyper.items():
            given = feeds.get(name)
            fed.append(default if given is None else np.asarray(given, default.dtype, order="C"))
            binding.bind_cpu_input(name, fed[-1])
        for name in self.varying:
            binding.bind_output(name, "cpu")
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:
            raise EngineError(f"onnxruntime failed in a training step: {error}") from error
        for name in self.graph.updates:
            self.variables[name].current ^= 1
        outputs = binding.get_outputs()[: len(self.graph.figures)]
        # A kept buffer is written again by a later run; what the caller has must not change.
        return {
            n: o.numpy() if n in self.varying else np.array(o.numpy(), copy=True)
            for n, o in zip(self.graph.figures, outputs, strict=True)
        }

    def before(self) -> dict[str, np.ndarray]:
        """The variables as they were before the last step, which are still in the other buffers."""
        return {
            n: v.buffers[v.current ^ (n in self.graph.updates)].numpy()
            for n, v in self.variables.items()
        }

    def _bind(self) -> ort.IOBinding:
        binding = self.session.io_binding()
        for name in self.graph.state:
            variable = self.variables[name]
            binding.bind_ortvalue_input(name, variable.buffers[variable.current])
        for name in self.graph.figures:
            binding.bind_output(name, "cpu")
        for name, output in self.graph.updates.items():
            variable = self.variables[name]
            binding.bind_ortvalue_output(output, variable.buffers[variable.current ^ 1])
        return binding


class TrainingRep(training.TrainingRep):
    """A model in training on stock onnxruntime.

    >>> from sardonyx.engines.onnxruntime import prepare_training
    >>> import numpy as np, sardonyx as sx
    >>> rep = prepare_training(sx.trainable("model.onnx", "cross_entropy"))
    >>> data = np.load("data.npz")
    >>> sorted(rep.step({"x": data["x"], "label": data["label"]}))
    ['loss']
    """

    def __init__(
        self,
        model: Model,
        *,
        providers: Sequence[str] | None = None,
        threads: int | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        self.settings = {"providers": providers, "threads": threads, "options": options}
        self.device = DEVICES.get((providers or ["CPUExecutionProvider"])[0], "cpu")
        super().__init__(model)

    def variable(self, array: np.ndarray) -> Variable:
        return Variable(array, self.device)

    def compile(self, graph: StepGraph) -> _Step:
        return _Step(graph, self.variables, self.settings)

    def execute(self, model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return Runner(model, **self.settings)(feeds)
