"""Models on torch, on any of its devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sardonyx.engines import array_training, backend
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
from sardonyx.engines.torch.loss_scale import LossScale
from sardonyx.engines.torch.trace import compiled
from sardonyx.engines.torch.xp import Torch, arrays, torch
from sardonyx.lower import runner
from sardonyx.lower.devices import device_name
from sardonyx.model import Model

AMPERE = (8, 0)  # the first NVIDIA GPUs that compute in bfloat16 and TF32


@contextlib.contextmanager
def tf32() -> Iterator[None]:
    """Products of float32 as NVIDIA's GPUs shorten them, without a record of gradients."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def arrays_on(device: str | None) -> Torch:
    """The array namespace on a device; on the CPU if none is named."""
    name = device_name(device or "cpu")
    return arrays("cpu" if name.startswith("cpu") else name)


class Runner(runner.Runner):
    __doc__ = runner.Runner.__doc__

    @property
    def xp(self) -> Torch:  # type: ignore[override]
        return arrays_on(self.device)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad()


class TrainingRep(array_training.ArrayTrainingRep):
    __doc__ = array_training.ArrayTrainingRep.__doc__
    runner = Runner
    differentiates = True
    differentiates_alike = ("Relu", "Abs")

    def __init__(self, model: Model, *, precision: str | None = None, **options: Any):
        self.scale = LossScale.of(model) if precision == "fp16" else None
        super().__init__(model, precision=precision, **options)

    def to_model(self, state: Mapping[str, Any] | None = None) -> Model:
        model = super().to_model(state)
        if self.scale is not None:
            self.scale.write(model)
        return model

    def arrays(self) -> Torch:
        return arrays_on(self.device)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return tf32() if self.precision == "tf32" else torch.no_grad()

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
            total = total if self.scale is None else self.scale.scaled(total)
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        detached = {n: v.detach() if v.requires_grad else v for n, v in outputs.items()}
        pairs = zip(gradients, leaves.values(), strict=True)
        gradients = [torch.zeros_like(v) if g is None else g for g, v in pairs]
        if self.scale is not None:
            gradients, self.takes_update = self.scale.unscaled(gradients)
        return gradients, detached


class Backend(backend.Backend):
    """torch as an ONNX backend."""

    runner = Runner
    training = TrainingRep

    @classmethod
    def precisions(cls, device: str | None) -> list[str]:
        name = device_name(device or "cpu")
        if not name.startswith("cuda"):
            return ["bf16", "fp16"] if name.startswith("cpu") else ["fp16"]
        newer = torch.cuda.get_device_capability(name) >= AMPERE
        return ["bf16", "fp16", "tf32"] if newer else ["fp16"]

    @classmethod
    def devices(cls) -> list[str]:
        names = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        return [*names, "mps"] if torch.backends.mps.is_available() else names
