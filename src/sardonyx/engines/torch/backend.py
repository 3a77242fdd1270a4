"""Models on torch, on any of its devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.engines import array_training, backend
from sardonyx.engines.native_step import NativeStep
from sardonyx.engines.torch import (  # noqa: F401  (registers the kernels)
    controlflow,
    math,
    native,
    native_step,
    nn,
    processes,
    rnn,
    tensor,
)
from sardonyx.engines.torch.loss_scale import LossScale
from sardonyx.engines.torch.parted_step import PartedStep
from sardonyx.engines.torch.staging import STEPS_AHEAD, Staged, Staging, read_later
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


def laid_out_like(variable: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """A gradient in the layout of its variable, as torch's optimizers see it; zeros for None.

    Compilers and convolutions turn some. The new value of a variable would follow, and a step that
    was compiled for its old layout would be compiled again.
    """
    if gradient is None:
        return torch.zeros_like(variable)
    if gradient.stride() == variable.stride():
        return gradient
    if gradient.is_contiguous() and variable.is_contiguous():
        return gradient
    return torch.empty_like(variable).copy_(gradient)


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

    def __init__(
        self,
        model: Model,
        *,
        precision: str | None = None,
        devices: int | None = None,
        mesh: Mapping[str, int] | None = None,
        shard: str = "auto",
        **options: Any,
    ):
        self.scale = LossScale.of(model) if precision == "fp16" else None
        self.placement = processes.placement_of(devices, mesh, shard)
        self.parted: dict[NativeStep, PartedStep] = {}
        self.needs_native = self.placement is not None
        super().__init__(model, precision=precision, **options)
        place = torch.device(self.arrays().device)
        self.staging = Staging(place) if place.type == "cuda" else None
        self.steps_ahead = 0 if self.staging is None else STEPS_AHEAD

    # -- several processes

    def axis(self, name: str) -> int | None:
        """Along which axis a variable is spread over the processes."""
        if self.placement is None:
            return None
        axis: int | None = self.placement.axis(self.variables[name].shape)
        return axis

    def placed(self, array: Any) -> Any:
        axis = None if self.placement is None else self.placement.axis(array.shape)
        return array if axis is None else self.placement.own(array, axis).clone()

    def whole(self, array: Any, shape: Sequence[int]) -> Any:
        axis = None if self.placement is None else self.placement.axis(shape)
        if axis is None:
            return array
        return processes.all_rows(array, axis, self.placement.world.size)

    def for_graph(self, variable: array_training.ArrayVariable) -> Any:
        return self.whole(variable.value, variable.shape)

    # -- steps

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

    def jit_native(self, step: NativeStep) -> Callable[..., Any]:
        return step.function  # each half is compiled by itself

    def start_step(self, inputs: Mapping[str, Any]) -> Callable[[], dict[str, np.ndarray]]:
        return super().start_step(
            {n: v.arrived() if isinstance(v, Staged) else v for n, v in inputs.items()}
        )

    def staged(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.staging is None:
            return batch
        read = {name for step in self.steps for name in step.graph.inputs}
        return {**batch, **self.staging({n: a for n, a in batch.items() if n in read})}

    def read_later(
        self, values: Mapping[str, Any], types: Mapping[str, Any]
    ) -> Callable[[], dict[str, np.ndarray]]:
        if self.staging is None:
            return super().read_later(values, types)
        return read_later(self.arrays(), values, types)

    def forward_function(self, step: NativeStep) -> native_step.Half:
        if self.placement is not None:
            self.parted[step] = PartedStep(step, self)
            return self.parted[step].forward
        hyper = {n: torch.as_tensor(v) for n, v in step.hyper.items()}
        state = {**hyper, **{n: v.value for n, v in self.variables.items()}}
        device = str(self.arrays().device)
        model = step.forward_model
        return native_step.forward_function(step, model, state, device, self.compiles)

    def update_function(self, step: NativeStep) -> native_step.Half:
        if self.placement is not None:
            return self.parted[step].update
        return native_step.update_function(step, step.halves.update, self.arrays())

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
        gradients = [laid_out_like(v, g) for g, v in pairs]
        agree = None
        if self.placement is not None:
            spread = [self.axis(name) is not None for name in variables]
            gradients, agree = processes.averaged(gradients, spread), processes.any_of
        if self.scale is not None:
            gradients, self.takes_update = self.scale.unscaled(gradients, agree)
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
