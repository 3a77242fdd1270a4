"""What every engine over `xp` offers: a Runner from numpy to numpy, and ONNX's Backend."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.helper
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

import sardonyx.lower  # noqa: F401  (registers the shared rules)
from sardonyx import opset
from sardonyx.edit.widen import widen
from sardonyx.errors import DataError, quote
from sardonyx.lower.devices import is_among, no_device
from sardonyx.lower.partition import Placement
from sardonyx.lower.program import Program, to_numpy
from sardonyx.lower.xp import Arrays, is_string
from sardonyx.model import Model, load
from sardonyx.passes.nesting import graphs

# Some exporters write the domain without its last part.
TRAINING = (opset.TRAINING_DOMAIN, "ai.onnx.preview")


class Runner:
    """Runs a model: `Runner(model)({"x": array})` gives its outputs by name, as numpy arrays.

    float64  -- compute in double what the model computes in single precision
    fallback -- what happens to nodes that the framework cannot run: they run in numpy, with a
                warning ("warn") or without ("allow"), or are refused ("error")
    place    -- pattern of node names or operators → the engine that runs these nodes
    device   -- "cpu", "cuda", "cuda:1", …; the framework's default if not given
    """

    xp: Arrays
    # Replaces Gradient nodes, which read the graph around them, by plain ones; set by engines.
    differentiate: ClassVar[Any] = None

    def __init__(
        self,
        model: Model | Any,
        *,
        float64: bool = False,
        fallback: str = "warn",
        place: Mapping[str, str] | None = None,
        device: str | None = None,
    ):
        self.device, self.float64 = device, float64
        loaded = load(model)
        if self.differentiate is not None and has_gradients(loaded):
            loaded = self.differentiate(loaded)
        with self.context():
            source = widen(loaded) if float64 else loaded
            self.program = Program(source, self.xp, fallback=fallback, place=place)
        self.inputs = [n for n in self.program.names if n not in self.program.defaults]
        self.outputs = self.program.outputs

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """What the framework needs around every run."""
        return contextlib.nullcontext()

    @property
    def elsewhere(self) -> list[Placement]:
        """The nodes that do not run in the framework itself, and why."""
        return self.program.elsewhere

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        with self.context():
            values = self.program(self._checked(feeds))
            types = self.program.output_types
            return {
                name: to_numpy(self.xp, value, dtype)
                for name, value, dtype in zip(self.outputs, values, types, strict=True)
            }

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs, widened where the model was; an error that names all of another type."""
        arrays, wrong = dict(feeds), []
        for name, dtype in self.program.input_types.items():
            array = arrays.get(name)
            if not isinstance(array, (np.ndarray, np.generic)) or dtype is None or is_string(dtype):
                continue
            if self.float64 and dtype == np.float64 and array.dtype == np.float32:
                arrays[name] = array.astype(dtype)
            elif array.dtype != dtype:
                wrong.append([quote(name), f"is {array.dtype}", f"the model takes {dtype}"])
        if wrong:
            raise DataError("inputs have other types than the model's", wrong)
        return arrays


def has_gradients(model: Model) -> bool:
    every = [model.graph, *(f.graph for f in model.ir.functions.values())]
    nodes = (node for graph in every for part in graphs(graph) for node in part)
    return any(node.op_type == "Gradient" and node.domain in TRAINING for node in nodes)


class Rep(BackendRep):
    """A model ready to run, as an onnx.backend.base.BackendRep."""

    def __init__(self, runner: Runner):
        self.runner = runner

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        feeds = inputs if isinstance(inputs, Mapping) else dict(zip(self.runner.inputs, inputs))
        return tuple(self.runner(feeds).values())


class Backend(OnnxBackend):
    """An engine over `xp` as an ONNX backend."""

    runner: ClassVar[type[Runner]]

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto | Model, device: str | None = "CPU", **kwargs: Any
    ) -> Rep:
        cls.check_device(device)
        return Rep(cls.runner(model, device=device, **kwargs))

    @classmethod
    def run_model(
        cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[Any],
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node at the opset inside; its inputs in order, the omitted ones left out."""
        return cls.run_model(node_model(node, inputs), list(inputs), device, **kwargs)

    @classmethod
    def devices(cls) -> list[str]:
        """The devices of this machine that the framework can use."""
        return ["cpu"]

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return is_among(device, cls.devices())

    @classmethod
    def check_device(cls, device: str | None) -> None:
        """Refuse a device that this machine does not have."""
        if device is not None and not cls.supports_device(device):
            raise no_device(device, cls.devices())


def node_model(node: onnx.NodeProto, inputs: Sequence[Any]) -> onnx.ModelProto:
    """One node at the opset inside as a model, for inputs of these types."""
    names = [n for n in node.input if n]
    infos = [_value_info(name, array) for name, array in zip(names, inputs)]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    graph = onnx.helper.make_graph([node], node.op_type, infos, outputs)
    domain = opset.domain_name(node.domain)
    imports = {"": opset.OPSET, domain: opset.INSIDE.get(domain, 1)}
    versions = [onnx.helper.make_opsetid(d, v) for d, v in imports.items()]
    return onnx.helper.make_model(graph, opset_imports=versions, ir_version=13)


def _value_info(name: str, array: Any) -> onnx.ValueInfoProto:
    if isinstance(array, list):
        element = onnx.helper.np_dtype_to_tensor_dtype(np.asarray(array[0]).dtype)
        return onnx.helper.make_tensor_sequence_value_info(name, element, None)
    array = np.asarray(array)
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)
