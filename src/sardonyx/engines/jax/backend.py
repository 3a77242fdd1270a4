"""Models on jax."""

from __future__ import annotations

import contextlib
from typing import Any

from sardonyx.engines.jax import nn  # noqa: F401  (registers the kernels)
from sardonyx.engines.jax.xp import arrays, jax
from sardonyx.lower import runner


class Runner(runner.Runner):
    __doc__ = runner.Runner.__doc__
    xp = arrays()

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return jax.enable_x64(True)


class Backend(runner.Backend):
    """jax as an ONNX backend."""

    runner = Runner


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
