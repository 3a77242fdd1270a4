"""Models on jax."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.engines import array_training, backend
from sardonyx.engines.channels import channels_last
from sardonyx.engines.jax import (  # registers the kernels
    controlflow,  # noqa: F401
    in_place,
    math,  # noqa: F401
    nn,  # noqa: F401
)
from sardonyx.engines.jax.mesh import mesh_of
from sardonyx.engines.jax.nn import CHANNELS_LAST
from sardonyx.engines.jax.xp import arrays, enable_x64, has_cudnn_attention, jax
from sardonyx.engines.native_step import NativeStep
from sardonyx.lower import runner
from sardonyx.lower.devices import kind_and_index
from sardonyx.lower.xp import Arrays
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel

STEPS_AHEAD = 4  # of the device: its queue is never empty, and little memory is held
PLATFORMS = ("cpu", "cuda", "rocm", "tpu", "METAL")


def devices_by_name() -> dict[str, Any]:
    """The devices of this machine that jax can use: "cpu:0", "cuda:1", …"""
    names = {}
    for platform in PLATFORMS:
        with contextlib.suppress(RuntimeError):  # jax has no such platform
            for number, device in enumerate(jax.local_devices(backend=platform)):
                names[f"{platform.lower()}:{number}"] = device
    return names


def device_called(name: str | None) -> Any:
    """The device of a name; None for jax's own default."""
    if name is None:
        return None
    kind, index = kind_and_index(name)
    return devices_by_name()[f"{kind}:{index or 0}"]


@contextlib.contextmanager
def on_device(name: str | None, precision: str | None = None) -> Iterator[None]:
    """What jax needs around everything: 64 bits, the device, and how it computes products."""
    products = "tensorfloat32" if precision == "tf32" else jax.config.jax_default_matmul_precision
    device = jax.default_device(device_called(name))
    with enable_x64(True), device, jax.default_matmul_precision(products):
        yield


def platform_of(device: str | None) -> str:
    """What jax computes on: "cpu", "gpu", …"""
    with on_device(device):
        return str((jax.config.jax_default_device or jax.devices()[0]).platform)


def replacing(function: Callable[..., Any], updated: Collection[str]) -> Callable[..., Any]:
    """A step, compiled, whose new state takes the memory of the old one, which is gone after it."""

    def step(old: Mapping[str, Any], others: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
        return function({**old, **others}, feeds)

    compiled = jax.jit(step, donate_argnums=0)

    def call(state: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
        old = in_place.given_up(state, updated)
        return compiled(old, {n: v for n, v in state.items() if n not in old}, feeds)

    return call


class Runner(runner.Runner):
    __doc__ = runner.Runner.__doc__
    xp = arrays()

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return on_device(self.device)


class TrainingRep(array_training.ArrayTrainingRep):
    __doc__ = array_training.ArrayTrainingRep.__doc__
    runner = Runner
    prefers_compiling = True
    differentiates = True

    def __init__(
        self,
        model: Model,
        *,
        device: str | None = None,
        devices: int | None = None,
        mesh: Mapping[str, int] | None = None,
        shard: str = "auto",
        **options: Any,
    ):
        self.placement = mesh_of(devices, mesh, shard, device)
        waits = platform_of(device) == "cpu" or jax.process_count() > 1
        self.steps_ahead = 0 if waits else STEPS_AHEAD
        super().__init__(model, device=device, **options)

    def staged(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.steps_ahead or self.placement is not None:
            return batch
        read = {name for step in self.steps for name in step.graph.inputs}
        with self.context():  # which a thread does not inherit
            copies = {n: self.arrays().asarray(a) for n, a in batch.items() if n in read}
        return {**batch, **copies}

    def read_later(
        self, values: Mapping[str, Any], types: Mapping[str, Any]
    ) -> Callable[[], dict[str, np.ndarray]]:
        if self.steps_ahead:
            for value in values.values():
                if isinstance(value, jax.Array):
                    value.copy_to_host_async()
        return super().read_later(values, types)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return on_device(self.device, self.precision)

    def arrays(self) -> Arrays:
        # Nobody differentiates a step any further, which cuDNN's kernel would not allow.
        fused = self.precision == "bf16" and self.placement is None
        fused = fused and platform_of(self.device) == "gpu" and has_cudnn_attention()
        return arrays(fused, once=True)

    def laid_out(self, model: NormalizedModel) -> NormalizedModel:
        """With channels last on CPUs; compilers for other devices choose a layout by themselves."""
        return channels_last(model, CHANNELS_LAST) if platform_of(self.device) == "cpu" else model

    def is_array(self, value: Any) -> bool:
        return isinstance(value, jax.Array) and self.placement is None

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(function) if self.placement is None else self.placement.jit(function)

    def update_function(self, step: NativeStep) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        if self.reads_arguments() and in_place.can_choose(step.halves):
            return in_place.Update(step, self.arrays())
        return super().update_function(step)

    def jit_native(self, step: NativeStep) -> Callable[..., Any]:
        if isinstance(step.apply, in_place.Update):
            return in_place.replacing(step.function, step.graph.updates)
        compiled = super().jit_native(step)
        if self.reads_arguments():
            # outputs that are inputs, as they are, could still be read from the caller's memory
            return lambda *arguments: jax.block_until_ready(compiled(*arguments))
        if not self.compiles or self.placement is not None:
            return compiled
        return replacing(step.function, step.graph.updates)

    def argument(self, step: NativeStep, array: Any) -> Any:
        # On a CPU, a compiled function reads the memory of NumPy's arrays, which takes less time
        # than a copy of each; they stay the caller's, who may write to them after the step.
        if self.reads_arguments() and isinstance(array, np.ndarray):
            return array
        return super().argument(step, array)

    def reads_arguments(self) -> bool:
        return self.compiles and self.placement is None and not self.steps_ahead

    def placed(self, array: Any) -> Any:
        return array if self.placement is None else self.placement.state(array)

    def whole(self, array: Any, shape: Sequence[int]) -> Any:
        return array if self.placement is None else self.placement.read(array)

    def gradients(
        self, loss: Callable[[Mapping[str, Any]], tuple[Any, Any]], variables: Mapping[str, Any]
    ) -> tuple[list[Any], Any]:
        def total(leaves: Mapping[str, Any]) -> tuple[Any, Any]:
            value, outputs = loss(leaves)
            return value.sum(), outputs

        gradients, outputs = jax.grad(total, has_aux=True)(dict(variables))
        return [gradients[name] for name in variables], outputs


class Backend(backend.Backend):
    """jax as an ONNX backend."""

    runner = Runner
    training = TrainingRep

    @classmethod
    def precisions(cls, device: str | None) -> list[str]:
        return ["bf16", "tf32"] if platform_of(device) == "gpu" else ["bf16"]

    @classmethod
    def devices(cls) -> list[str]:
        return list(devices_by_name())
