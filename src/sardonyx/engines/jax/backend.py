"""Models on jax."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from sardonyx.engines import training
from sardonyx.engines.jax import controlflow, nn  # noqa: F401  (registers the kernels)
from sardonyx.engines.jax.xp import arrays, enable_x64, jax
from sardonyx.grad.training import lower_training
from sardonyx.lower import runner


class Runner(runner.Runner):
    __doc__ = runner.Runner.__doc__
    differentiate = staticmethod(lower_training)
    xp = arrays()

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return enable_x64(True)


class TrainingRep(training.ArrayTrainingRep):
    __doc__ = training.ArrayTrainingRep.__doc__
    runner = Runner
    prefers_compiling = True
    differentiates = True

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return enable_x64(True)

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(function)

    def gradients(
        self, loss: Callable[[Mapping[str, Any]], tuple[Any, Any]], variables: Mapping[str, Any]
    ) -> tuple[list[Any], Any]:
        def total(leaves: Mapping[str, Any]) -> tuple[Any, Any]:
            value, outputs = loss(leaves)
            return value.sum(), outputs

        gradients, outputs = jax.grad(total, has_aux=True)(dict(variables))
        return [gradients[name] for name in variables], outputs


class Backend(training.TrainingBackend):
    """jax as an ONNX backend."""

    runner = Runner
    training = TrainingRep


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
prepare_training = Backend.prepare_training
train_model = Backend.train_model
