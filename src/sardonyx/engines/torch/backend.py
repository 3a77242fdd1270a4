"""Models on torch, on any of its devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from sardonyx.engines import training
from sardonyx.engines.native_step import NativeStep
from sardonyx.engines.torch import (  # noqa: F401  (registers the kernels)
    controlflow,
    math,
    native,
    native_step,
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
    differentiates = True
    differentiates_alike = ("Relu", "Abs")

    def arrays(self) -> Torch:
        return arrays_on(self.device)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad()

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return compiled(function)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def jit_native(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function  # each half is compiled by itself

    def forward_function(self, step: NativeStep) -> native_step.Half:
        hyper = {n: torch.as_tensor(v) for n, v in step.hyper.items()}
        state = {**hyper, **{n: v.value for n, v in self.variables.items()}}
        device = self.arrays().device
        return native_step.forward_function(step, state, str(device), self.compiles)

    def update_function(self, step: NativeStep) -> native_step.Half:
        return native_step.update_function(step, self.compiles)

    def gradients(
        self, loss: Callable[[Mapping[str, Any]], tuple[Any, Any]], variables: Mapping[str, Any]
    ) -> tuple[list[Any], Any]:
        leaves = {n: v.detach().requires_grad_(True) for n, v in variables.items()}
        with torch.enable_grad():
            value, outputs = loss(leaves)
            total = value if value.ndim == 0 else value.sum()
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        detached = {n: v.detach() if v.requires_grad else v for n, v in outputs.items()}
        zeros = zip(gradients, leaves.values(), strict=True)
        return [torch.zeros_like(v) if g is None else g for g, v in zeros], detached


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
