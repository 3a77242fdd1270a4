"""onnx.backend.base on stock onnxruntime, and an interface for training beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

from sardonyx.engines import training
from sardonyx.engines.onnxruntime.legalize import substitute
from sardonyx.engines.onnxruntime.session import Runner, ort
from sardonyx.engines.onnxruntime.step import TrainingRep
from sardonyx.errors import EngineError, VersionError
from sardonyx.grad.training import lower_training
from sardonyx.lower.devices import device_name, kind_and_index, no_device
from sardonyx.lower.runner import node_model
from sardonyx.model import Model, load
from sardonyx.normalize import normalize, regular_copy
from sardonyx.record.info import uses_training_ops

PROVIDERS = {  # of devices
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "dml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
}
ALLOCATES = ("cuda", "rocm", "dml")  # devices with memory of their own


class Rep(BackendRep):
    """A model ready to run, as onnx.backend.base defines it."""

    def __init__(self, runner: Runner, names: list[str]):
        self.runner = runner
        self.names = names

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        feeds = (
            inputs if isinstance(inputs, Mapping) else dict(zip(self.names, inputs, strict=False))
        )
        return tuple(self.runner({k: _array(v) for k, v in feeds.items()}).values())


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, (np.generic, int, float, bool)) else value


class Backend(OnnxBackend):
    """Stock onnxruntime as an ONNX backend; models may contain training operators."""

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto | Model, device: str | None = "CPU", **kwargs: Any
    ) -> Rep:
        loaded = load(model)
        if uses_training_ops(loaded.skeleton().graph.node):
            loaded = lower_training(regular_copy(loaded))
        names = [v.name or "" for v in loaded.inputs]
        settings = {"providers": _providers(device), **kwargs}
        return Rep(_runner(loaded, settings), names)

    @classmethod
    def run_model(
        cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node at the opset inside; its inputs in order, the omitted ones left out."""
        return cls.run_model(node_model(node, inputs), list(inputs), device, **kwargs)

    @classmethod
    def devices(cls) -> list[str]:
        """The devices of this machine that this build of onnxruntime can use."""
        return [kind for kind in PROVIDERS if _is_present(kind)]

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return _is_present(device)

    @classmethod
    def prepare_training(cls, model: Any, device: str | None = None, **kwargs: Any) -> TrainingRep:
        """A model that carries a record, ready to train."""
        rep = TrainingRep(load(model), providers=_providers(device), **kwargs)
        rep.requested_device = device
        return rep

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


def _runner(model: Model, settings: Mapping[str, Any]) -> Runner:
    """A model as it is, else in the normalized form, else with substitutes for missing kernels."""
    try:
        return Runner(model, **settings)
    except (EngineError, VersionError):
        regular = normalize(model)
    try:
        return Runner(regular, **settings)
    except (EngineError, VersionError) as refusal:
        try:
            return Runner(substitute(regular), **settings)
        except (EngineError, VersionError):
            raise refusal from None


def _is_present(device: str) -> bool:
    """Whether a device is here: a build for GPUs lists their provider on every machine."""
    kind, index = kind_and_index(device)
    names = (kind, f"{kind}:{index}")
    if PROVIDERS.get(kind) not in ort.get_available_providers() or device_name(device) not in names:
        return False
    if kind not in ALLOCATES:
        return not index
    try:
        ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), kind, index or 0)
    except Exception:  # onnxruntime raises a class per status code
        return False
    return True


def _providers(device: str | None) -> list[Any]:
    """The providers of a device, in the order in which they take nodes."""
    kind, index = kind_and_index(device or "cpu")
    if not _is_present(device or "cpu"):
        raise no_device(str(device), Backend.devices())
    cpu = PROVIDERS["cpu"]
    if kind in ALLOCATES:
        return [(PROVIDERS[kind], {"device_id": index or 0}), cpu]
    return list(dict.fromkeys((PROVIDERS[kind], cpu)))


prepare = Backend.prepare
run_model = Backend.run_model
supports_device = Backend.supports_device
prepare_training = Backend.prepare_training
train_model = Backend.train_model
