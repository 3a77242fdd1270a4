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
import onnx
import onnx_ir as ir
import onnxruntime as ort

from sardonyx.build import FLOATS, is_static
from sardonyx.engines.onnxruntime.session import Runner, session
from sardonyx.errors import ArgumentError, EngineError, quote
from sardonyx.model import Model, from_proto
from sardonyx.train import info
from sardonyx.train.step import (
    StepGraph,
    compile_evaluation,
    compile_inference,
    compile_step,
    distinct_outputs,
)

RANDOM = (
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)
DEVICES = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


class Variable:
    """One state variable: the buffer that is current, and the one that the next step writes."""

    def __init__(self, array: np.ndarray, device: str):
        self.device = device
        self.dtype = array.dtype
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


class TrainingRep:
    """A model in training: state, and steps that change it.

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
        if not model.records:
            raise ArgumentError(
                "the model carries no training record", hint="make one with sardonyx.trainable"
            )
        info.check(model)
        self.model = model
        self.settings = {"providers": providers, "threads": threads, "options": options}
        device = DEVICES.get((providers or ["CPUExecutionProvider"])[0], "cpu")
        self.variables = {n: Variable(a, device) for n, a in self._loaded().items()}
        self.steps = [
            _Step(compile_step(model, r), self.variables, self.settings) for r in model.records
        ]
        self.fed = {v.name for v in model.graph.inputs if v.name}
        self.fed |= {i.name for r in model.records for i in r.algorithm.input}
        self._inference: _Step | None = None
        self._evaluations: dict[tuple[Any, ...], _Step] = {}

    def _loaded(self) -> dict[str, np.ndarray]:
        found = {}
        for record in self.model.records:
            for name in info.state_names(self.model, record):
                tensor = info.state_tensor(self.model, record, name)
                assert tensor is not None
                found[name] = tensor.numpy()
        return found

    @property
    def wanted(self) -> list[ir.Value]:
        """What a step must be fed, with types and shapes."""
        found: dict[str, ir.Value] = {}
        for step in self.steps:
            values = {v.name: v for v in step.graph.model.graph.inputs}
            found.update({n: values[n] for n in step.graph.inputs})
        return list(found.values())

    @property
    def figures(self) -> list[str]:
        return list(dict.fromkeys(n for s in self.steps for n in s.graph.figures))

    def initialize(self, seed: int | None = None, only_bound: bool = False) -> None:
        """Start again: what the records' initializations compute; other state as it was loaded."""
        if not only_bound:
            self.load_state(self._loaded())
        for index, record in enumerate(self.model.records):
            if record.initialization_binding:
                self.load_state(
                    _initial(self.model, record, None if seed is None else seed + index)
                )

    def step(self, inputs: Mapping[str, Any], which: int | None = None) -> dict[str, np.ndarray]:
        """One step of all records in order, or of one; the figures that are not state."""
        if which is not None and which not in range(len(self.steps)):
            raise ArgumentError(f"there is no record {which}: the model carries {len(self.steps)}")
        _refuse_feeds(inputs, self.variables, self.fed)
        figures: dict[str, np.ndarray] = {}
        for index in range(len(self.steps)) if which is None else [which]:
            figures.update(self.steps[index].run(inputs))
        return figures

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Inference on the current state, which it does not change.

        State that is also an input of the graph may be fed: that counts for this call alone.
        """
        if self._inference is None:
            self._inference = _Step(compile_inference(self.model), self.variables, self.settings)
        given = [
            v.name for v in self.model.graph.inputs if v.name in inputs and v.name in self.variables
        ]
        if not given:
            return self._inference.run(inputs)
        kept = {name: self.variables[name].read() for name in given}
        try:
            self.load_state({name: np.asarray(inputs[name]) for name in given})
            return self._inference.run(inputs)
        finally:
            self.load_state(kept)

    def evaluate(
        self,
        inputs: Mapping[str, Any],
        forward: Mapping[str, str] | None = None,
        predictions: Sequence[str] = (),
        which: int = 0,
    ) -> dict[str, np.ndarray]:
        """The figures of one record and some predictions, as the served graph gives them; no
        update.
        """
        key = (which, *predictions)
        if key not in self._evaluations:
            graph = compile_evaluation(
                self.model, self.model.records[which], forward or {}, predictions
            )
            self._evaluations[key] = _Step(graph, self.variables, self.settings)
        return self._evaluations[key].run(inputs)

    def first_not_finite(self, inputs: Mapping[str, Any]) -> list[list[str]]:
        """Where the last step went wrong: the first tensor that is not finite, as a row for people.

        Runs the step once more on the state before it, which is still in the other buffers.
        """
        for step in self.steps:
            before = {
                n: v.buffers[v.current ^ (n in step.graph.updates)].numpy()
                for n, v in self.variables.items()
            }
            bad = [
                [f"state {quote(n)}", "before the step"] for n, a in before.items() if _is_broken(a)
            ]
            if bad:
                return bad
            found = _all_tensors(step.graph, {**before, **step.hyper, **inputs}, self.settings)
            for node in step.graph.model.graph:
                for value in node.outputs:
                    if value.name in found and _is_broken(found[value.name]):
                        return [
                            [f"tensor {quote(value.name)}", f"of {node.op_type} {quote(node.name)}"]
                        ]
        return []

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
        buffer = self.variables[name].buffers[0]
        ours = f"{self.variables[name].dtype} {list(buffer.shape())}"
        theirs = f"{array.dtype} {list(np.shape(array))}"
        return None if ours == theirs else [quote(name), f"{ours} ← {theirs}"]

    def to_model(self) -> Model:
        """The model as it is now, ready to serve, to save and to continue."""
        return with_state(self.model, self.state())


def _is_broken(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and not np.isfinite(array).all()


def _all_tensors(
    graph: StepGraph, feeds: Mapping[str, Any], settings: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Every float tensor that one step computes."""
    marked = graph.model.copy()
    seen = {v.name for v in marked.graph.outputs}
    for node in marked.graph:
        for value in node.outputs:
            if value.name and value.name not in seen and value.dtype in FLOATS:
                marked.graph.outputs.append(value)
    return Runner(marked, **settings)(feeds)


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


def _refuse_feeds(inputs: Mapping[str, Any], variables: Mapping[str, Any], known: set[str]) -> None:
    state = [n for n in inputs if n in variables]
    unknown = [n for n in inputs if n not in known and n not in variables]
    if state or unknown:
        rows = [[quote(n), "is state: a step reads and writes it itself"] for n in state]
        rows += [[quote(n), "is no input of the step"] for n in unknown]
        hint = f"it takes {', '.join(sorted(known - set(variables)))}"
        raise ArgumentError("the step does not take these", rows, hint=hint)


def _initial(model: Model, record: Any, seed: int | None) -> dict[str, np.ndarray]:
    """Run the initialization of one record; with a seed, every random node gets a stream of its
    own.
    """
    proto = onnx.ModelProto(ir_version=10)
    proto.graph.CopyFrom(record.initialization)
    proto.functions.extend(model.skeleton().functions)
    for domain, version in model.ir.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    if seed is not None:
        rng = np.random.default_rng(seed)
        free = [
            n
            for n in proto.graph.node
            if n.op_type in RANDOM and not any(a.name == "seed" for a in n.attribute)
        ]
        for node, own in zip(free, rng.choice(1 << 24, len(free), replace=False), strict=True):
            node.attribute.append(onnx.helper.make_attribute("seed", float(own)))
    found = Runner(from_proto(proto))({})
    return {key: found[value] for key, value in record.initialization_binding}
