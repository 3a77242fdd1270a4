"""Training steps on stock onnxruntime: state stays in place, a step copies nothing but its metrics.

A large variable has one buffer, and a step is arranged so that every reader comes before the node
that writes it (`step_session.py`). A small variable, or one for which that is impossible, has two
buffers: a step reads one and writes the other, then they change roles.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import mmap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from sardonyx.build import is_static
from sardonyx.edit.lora import adapters
from sardonyx.engines import training
from sardonyx.engines.onnxruntime.in_place import GUARD
from sardonyx.engines.onnxruntime.post_optimize import unfold_constants
from sardonyx.engines.onnxruntime.session import Runner
from sardonyx.engines.onnxruntime.spill import give_back, spilled
from sardonyx.engines.onnxruntime.step_session import REWRITES, arranged_session, plain_session
from sardonyx.errors import ArgumentError, EngineError, quote
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel
from sardonyx.record.step import StepGraph, distinct_outputs

PAGES = 1 << 16  # bytes from which on memory comes in pages of its own
HUGE = 1 << 21  # bytes of a large page
# What may read a weight that is bound: operators that gain nothing from knowing its numbers.
READERS = ("MatMul", "Gemm", "Gather", "DequantizeLinear", "Transpose", "Identity", "Shape")
CONVOLUTIONS = ("Conv", "ConvTranspose")
BOUND_TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT16,
    ir.DataType.INT8,
    ir.DataType.UINT8,
)
FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)
DEVICES = {
    "CUDAExecutionProvider": "cuda",
    "ROCMExecutionProvider": "rocm",
    "DmlExecutionProvider": "dml",
}


def is_bound(value: ir.Value, kernels: Collection[str] = ()) -> bool:
    """Whether a weight that is not trained is bound once as an input, over its own memory.

    A session would copy a constant several times. Kernels of convolutions stay constants, because
    their layout is chosen once and what follows is put into them; but not those in `kernels`.
    """
    tensor = value.const_value
    if tensor is None or not _can_be_bound(tensor.dtype) or tensor.nbytes < PAGES:
        return False
    if value.is_graph_output() or value.is_graph_input():
        return False
    readers = value.consumers()
    if not readers or any(n.domain != "" for n in readers):
        return False
    allowed = (*READERS, *CONVOLUTIONS) if value.name in kernels else READERS
    return any(n.op_type != "Shape" for n in readers) and all(n.op_type in allowed for n in readers)


def _can_be_bound(dtype: ir.DataType) -> bool:
    if dtype in FOUR_BITS:  # onnxruntime 1.21 has no way to hand them over
        return hasattr(ort.OrtValue, "ortvalue_from_numpy_with_onnx_type")
    return dtype in BOUND_TYPES


def _bound(tensor: ir.TensorProtocol, device: tuple[str, int]) -> ort.OrtValue:
    """A weight as an input of a session, over its own memory where its numbers have whole bytes."""
    if tensor.dtype not in FOUR_BITS:
        array = np.ascontiguousarray(tensor.numpy())
        return ort.OrtValue.ortvalue_from_numpy(array, *device)
    # NumPy has a byte for each of them and onnxruntime reads two from a byte: of these pages only
    # the first half is written, read, and takes memory.
    content = np.frombuffer(tensor.tobytes(), np.uint8)
    pages = _pages(tuple(tensor.shape.numpy()), np.dtype(np.uint8))
    pages.reshape(-1)[: content.size] = content
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(pages, int(tensor.dtype))


class Variable:
    """One state variable: its current buffer, and a second one where a step needs it."""

    def __init__(self, array: np.ndarray, device: tuple[str, int]):
        self.device = device
        self.dtype, self.shape = array.dtype, array.shape
        self.memory: list[np.ndarray] = []
        self.buffers = [self._buffer(array)]
        self.current = 0

    def now(self) -> ort.OrtValue:
        return self.buffers[self.current]

    def other(self) -> ort.OrtValue:
        """The buffer that is not current, allocated on first use."""
        if len(self.buffers) == 1:
            self.buffers.append(self._buffer(np.zeros(self.shape, self.dtype)))
        return self.buffers[self.current ^ 1]

    def _buffer(self, array: np.ndarray) -> ort.OrtValue:
        # a copy of our own: onnxruntime would share the caller's memory
        pages = _pages(array.shape, array.dtype)
        if not _is_zero(array):
            pages[...] = array
        self.memory.append(pages)
        return ort.OrtValue.ortvalue_from_numpy(pages, *self.device)

    def view(self, other: bool, shape: tuple[int, ...]) -> ort.OrtValue:
        """The memory of a buffer, the current one or the other, under another shape."""
        if other:
            self.other()
        pages = self.memory[self.current ^ 1 if other else self.current]
        return ort.OrtValue.ortvalue_from_numpy(pages.reshape(shape), *self.device)

    def read(self) -> np.ndarray:
        return np.array(self.now().numpy(), copy=True)

    def write(self, array: np.ndarray) -> None:
        self.now().update_inplace(np.asarray(array, order="C"))


def _pages(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros in pages of their own: they take no memory until they are written, and all of it goes
    back to the system with them.
    """
    count = math.prod(shape)
    if count * dtype.itemsize < PAGES:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE") and len(memory) >= HUGE:
        with contextlib.suppress(OSError):  # a kernel may have been built without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, count).reshape(shape)


def _is_zero(array: np.ndarray) -> bool:
    """Whether it is what slots start from."""
    if array.dtype not in (np.float32, np.float64):
        return False
    return not array.any() and not np.signbit(array).any()


class _Step:
    """One record, compiled, with its bindings kept for each arrangement of buffers."""

    def __init__(
        self,
        graph: StepGraph,
        variables: dict[str, Variable],
        settings: dict[str, Any],
        recompute: bool = False,
        constants: Mapping[str, ort.OrtValue] | None = None,
        without: Collection[str] = (),
    ):
        self.graph = graph = _unfolded(distinct_outputs(graph))
        self.variables = variables
        self.constants = constants or {}
        self.settings = settings
        self.session = arranged_session(graph, settings, recompute, without)
        self.gives_back = recompute
        self.bindings: dict[tuple[int, ...], ort.IOBinding] = {}
        self.names = [n for n in dict.fromkeys((*graph.state, *graph.updates)) if n in variables]
        self.hyper = {n: np.array(v) for n, v in graph.hyper.items()}
        sizes = {v.name: is_static(v) for v in graph.model.outputs}
        # A binding keeps the buffer of its last run: right only where the size never changes.
        self.varying = [n for n in graph.metrics if not sizes.get(n)]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        if self.gives_back:  # once: by now the caller may have dropped the model
            give_back()
            self.gives_back = False
        try:
            return self._run(feeds)
        except EngineError as error:
            if GUARD not in str(error):
                raise
        # A metric is not finite and nothing was written yet: from here on every variable has two
        # buffers, so that the state before this step can be inspected.
        self.session = plain_session(self.graph, self.settings)
        self.bindings.clear()
        return self._run(feeds)

    def _run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        binding, fed = self._binding(), []
        for name in self.graph.inputs:
            if name not in feeds:
                raise ArgumentError(
                    f"the step needs the input {quote(name)}", hint=f"it takes {self.graph.inputs}"
                )
            fed.append(np.asarray(feeds[name], order="C"))
            binding.bind_cpu_input(name, fed[-1])
        for name, default in self.hyper.items():
            value = feeds.get(name)
            fed.append(default if value is None else np.asarray(value, default.dtype, order="C"))
            binding.bind_cpu_input(name, fed[-1])
        for name in self.varying:
            binding.bind_output(name, "cpu")
        try:
            self.session.session.run_with_iobinding(binding)
        except Exception as error:
            raise EngineError(f"onnxruntime failed in a training step: {error}") from error
        for name in self.graph.updates:
            if name not in self.session.in_place:
                self.variables[name].current ^= 1
        outputs = binding.get_outputs()[: len(self.graph.metrics)]
        # A kept buffer is written again by a later run; what the caller has must not change.
        return {
            n: o.numpy() if n in self.varying else np.array(o.numpy(), copy=True)
            for n, o in zip(self.graph.metrics, outputs, strict=True)
        }

    def before(self) -> dict[str, np.ndarray]:
        """The variables as they were before the last step: those with two buffers still hold it."""
        double_buffered = self.graph.updates.keys() - self.session.in_place
        return {
            n: (v.other() if n in double_buffered else v.now()).numpy()
            for n, v in self.variables.items()
        }

    def _binding(self) -> ort.IOBinding:
        """The binding for the buffers that are current now; a binding is made once for each."""
        key = tuple(self.variables[n].current for n in self.names)
        if key not in self.bindings:
            self.bindings[key] = self._bind()
        return self.bindings[key]

    def _bind(self) -> ort.IOBinding:
        binding = self.session.session.io_binding()
        for name in self.graph.state:
            variable = self.variables[name]
            binding.bind_ortvalue_input(name, variable.now())
        for name in self.graph.constants:
            binding.bind_ortvalue_input(name, self.constants[name])
        for name in self.graph.metrics:
            binding.bind_output(name, "cpu")
        for name, output in self.graph.updates.items():
            variable, other = self.variables[name], name not in self.session.in_place
            shape = self.session.blocks.get(name)
            if shape is not None:
                target = variable.view(other, shape)
            else:
                target = variable.other() if other else variable.now()
            binding.bind_ortvalue_output(output, target)
        return binding


def _unfolded(graph: StepGraph) -> StepGraph:
    """The step without large constants of one value; nothing keeps what they were made as."""
    unfold_constants(graph.model.graph)
    return dataclasses.replace(graph, model=NormalizedModel.of(graph.model))


def _memory(providers: Sequence[Any] | None) -> tuple[str, int]:
    """Where the state is stored: the memory of the first provider's device, and its number."""
    first = providers[0] if providers else ""
    name, options = first if isinstance(first, tuple) else (first, {})
    return DEVICES.get(name, "cpu"), options.get("device_id", 0)


class TrainingRep(training.TrainingRep):
    """A model in training on stock onnxruntime.

    recompute -- compute most of the forward pass again in the backward pass instead of keeping it:
                 less memory, more time, the same numbers. The weights as they were loaded wait in
                 a temporary file
    without   -- rewrites of the step that are left out, to find an error: "blocks", "dense",
                 "depthwise", "kernels" (step_session.py)

    >>> import numpy as np, sardonyx as sx
    >>> rep = sx.prepare_training(sx.trainable("model.onnx", "cross_entropy"))
    >>> data = np.load("data.npz")
    >>> sorted(rep.step({"x": data["x"], "label": data["label"]}))
    ['loss']
    """

    def __init__(
        self,
        model: Model,
        *,
        providers: Sequence[Any] | None = None,
        threads: int | None = None,
        options: Mapping[str, Any] | None = None,
        recompute: bool = False,
        without: Collection[str] = (),
    ):
        unknown = [n for n in without if n not in REWRITES]
        if unknown:
            raise ArgumentError(
                f"there is no rewrite {quote(unknown[0])} of a step",
                hint=f"there are {[*REWRITES]}",
            )
        self.without = without
        _refuse_types(model)
        # Planned memory costs a third more of it on a training step, and saves no time
        # (bench/train.py).
        session_options = {"enable_mem_pattern": False, **(options or {})}
        self.settings = {"providers": providers, "threads": threads, "options": session_options}
        self.recompute = recompute
        self.constants: dict[str, ort.OrtValue] = {}
        self.device = _memory(providers)
        # Beside an adapter, nothing can be put into a kernel, and its layout saves no time: the
        # adapter reads the images as well, and so does the gradient of the images.
        adapted = {adapter.weight for adapter in adapters(model).values()}
        self.binds = functools.partial(is_bound, kernels=adapted)
        super().__init__(spilled(model) if recompute else model)

    def variable(self, array: np.ndarray) -> Variable:
        return Variable(array, self.device)

    def compile(self, graph: StepGraph) -> _Step:
        for name in graph.constants.keys() - self.constants.keys():
            self.constants[name] = _bound(graph.constants[name], self.device)
        return _Step(
            graph, self.variables, self.settings, self.recompute, self.constants, self.without
        )

    def execute(self, model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return Runner(model, **self.settings)(feeds)


def _refuse_types(model: Model) -> None:
    """Refuse weights of types that NumPy has not, which onnxruntime cannot bind or train."""
    updated = {name for record in model.records for name, _ in record.update_binding}
    rows = [
        [quote(name), value.dtype.name.lower()]
        for name, value in model.graph.initializers.items()
        if name in updated and value.dtype is not None
        if value.dtype.is_floating_point() and value.dtype.numpy().type.__module__ != "numpy"
    ]
    if rows:
        raise EngineError(
            "onnxruntime does not train weights of these types",
            rows[:12],
            hint="the engines torch, jax, tensorflow and numpy do: --engine torch (engine='torch')",
        )
