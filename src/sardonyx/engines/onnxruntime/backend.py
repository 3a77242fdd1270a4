"""onnx.backend.base on stock onnxruntime, and an interface for training beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from sardonyx.engines import backend
from sardonyx.engines.onnxruntime.legalize import substitute
from sardonyx.engines.onnxruntime.session import Runner, ort
from sardonyx.engines.onnxruntime.step import TrainingRep
from sardonyx.errors import EngineError, VersionError
from sardonyx.grad.training import lower_training
from sardonyx.lower.devices import device_name, kind_and_index, no_device
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


class Rep(backend.Rep):
    """A model ready to run, also on numbers in place of arrays."""

    def feeds(self, inputs: Any) -> Mapping[str, Any]:
        return {name: _array(value) for name, value in super().feeds(inputs).items()}


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, (np.generic, int, float, bool)) else value


class Backend(backend.Backend):
    """Stock onnxruntime as an ONNX backend; models may contain training operators."""

    runner = Runner
    training = TrainingRep

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
