"""Models on torch, on any of its devices."""

from __future__ import annotations

import contextlib
from typing import Any

from sardonyx.engines.torch import nn, rnn  # noqa: F401  (registers the kernels)
from sardonyx.engines.torch.xp import Torch, arrays, torch
from sardonyx.lower import runner

DEVICES = {"CPU": "cpu", "CUDA": "cuda"}


class Runner(runner.Runner):
    __doc__ = runner.Runner.__doc__

    @property
    def xp(self) -> Torch:  # type: ignore[override]
        kind, _, index = self.device.partition(":")
        name = DEVICES[kind.upper()]
        return arrays(f"{name}:{index}" if index else name)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad()


class Backend(runner.Backend):
    """torch as an ONNX backend."""

    runner = Runner
    devices = ("CPU", "CUDA")

    @classmethod
    def supports_device(cls, device: str) -> bool:
        kind = device.split(":")[0].upper()
        return kind == "CPU" or (kind == "CUDA" and torch.cuda.is_available())


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
