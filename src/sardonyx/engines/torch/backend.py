"""Models on torch, on any of its devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from sardonyx.engines import training
from sardonyx.engines.torch import (  # noqa: F401  (registers the kernels)
    controlflow,
    math,
    native,
    nn,
    rnn,
    tensor,
)
from sardonyx.engines.torch.trace import compiled
from sardonyx.engines.torch.xp import Torch, arrays, torch
from sardonyx.grad.training import lower_training
from sardonyx.lower import runner

DEVICES = {"CPU": "cpu", "CUDA": "cuda"}


def arrays_on(device: str) -> Torch:
    """The array namespace on a device as ONNX names it: "CPU", "CUDA:1"."""
    kind, _, index = device.partition(":")
    name = DEVICES[kind.upper()]
    return arrays(f"{name}:{index}" if index else name)


class Runner(runner.Runner):
    __doc__ = runner.Runner.__doc__
    differentiate = staticmethod(lower_training)

    @property
    def xp(self) -> Torch:  # type: ignore[override]
        return arrays_on(self.device)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad()


class TrainingRep(training.ArrayTrainingRep):
    __doc__ = training.ArrayTrainingRep.__doc__
    runner = Runner

    def arrays(self) -> Torch:
        return arrays_on(self.device)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad()

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return compiled(function)


class Backend(training.TrainingBackend):
    """torch as an ONNX backend."""

    runner = Runner
    training = TrainingRep
    devices = ("CPU", "CUDA")

    @classmethod
    def supports_device(cls, device: str) -> bool:
        kind = device.split(":")[0].upper()
        return kind == "CPU" or (kind == "CUDA" and torch.cuda.is_available())


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
prepare_training = Backend.prepare_training
train_model = Backend.train_model
