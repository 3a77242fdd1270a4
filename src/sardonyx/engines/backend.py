"""What all engines offer in the form of `onnx.backend.base`: models that run, and that train."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.helper
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

from sardonyx import opset
from sardonyx.engines import training
from sardonyx.lower.devices import is_among, no_device
from sardonyx.model import Model, load


class Rep(BackendRep):
    """A model ready to run: a Runner, and the names of its inputs in order."""

    def __init__(self, runner: Any, names: Sequence[str] | None = None):
        self.runner = runner
        self.names = runner.inputs if names is None else names

    def feeds(self, inputs: Any) -> Mapping[str, Any]:
        """Inputs by name, given so or in order."""
        return inputs if isinstance(inputs, Mapping) else dict(zip(self.names, inputs))

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(self.runner(self.feeds(inputs)).values())


class Backend(OnnxBackend):
    """An engine as an ONNX backend that also trains: it names its Runner and its TrainingRep."""

    runner: ClassVar[Callable[..., Any]]
    training: ClassVar[Callable[..., training.TrainingRep]]

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
        """The devices of this machine that the engine can use."""
        return ["cpu"]

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return is_among(device, cls.devices())

    @classmethod
    def check_device(cls, device: str | None) -> None:
        """Refuse a device that this machine does not have."""
        if device is not None and not cls.supports_device(device):
            raise no_device(device, cls.devices())

    @classmethod
    def precisions(cls, device: str | None) -> Sequence[str]:
        """The precisions, beside the types of the file, in which it trains on a device."""
        return ()

    @classmethod
    def prepare_training(cls, model: Any, device: str | None = None, **kwargs: Any) -> Any:
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
        return training.train_model(rep, batches, steps, initialize, callback)


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
