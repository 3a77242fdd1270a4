"""Models on tensorflow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from sardonyx.engines import array_training, backend
from sardonyx.engines.channels import channels_last
from sardonyx.engines.tensorflow import controlflow, generator, nn  # noqa: F401  (kernels)
from sardonyx.engines.tensorflow.nn import CHANNELS_LAST
from sardonyx.engines.tensorflow.xp import arrays, tf
from sardonyx.lower import runner
from sardonyx.lower.devices import kind_and_index
from sardonyx.lower.xp import Arrays
from sardonyx.normalize import NormalizedModel


def on_device(name: str | None) -> contextlib.AbstractContextManager[Any]:
    """Where tensorflow computes: on the device of a name, or where it chooses."""
    if name is None:
        return contextlib.nullcontext()
    kind, index = kind_and_index(name)
    return tf.device(f"/{'GPU' if kind == 'cuda' else 'CPU'}:{index or 0}")  # type: ignore[no-any-return]


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
    differentiates_otherwise = ("Max", "Min")  # the first of equals gets all

    def context(self) -> contextlib.AbstractContextManager[Any]:
        return on_device(self.device)

    def arrays(self) -> Arrays:
        return arrays(once=True)

    def laid_out(self, model: NormalizedModel) -> NormalizedModel:
        """With channels last, for which alone there are kernels on CPUs."""
        return channels_last(model, CHANNELS_LAST)

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return tf.function(function, autograph=False)

    def gradients(
        self, loss: Callable[[Mapping[str, Any]], tuple[Any, Any]], variables: Mapping[str, Any]
    ) -> tuple[list[Any], Any]:
        leaves = {name: tf.identity(value) for name, value in variables.items()}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(list(leaves.values()))
            value, outputs = loss(leaves)
        none = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(value, list(leaves.values()), unconnected_gradients=none)
        return [tf.convert_to_tensor(g) for g in gradients], outputs


class Backend(backend.Backend):
    """tensorflow as an ONNX backend."""

    runner = Runner
    training = TrainingRep

    @classmethod
    def devices(cls) -> list[str]:
        return ["cpu", *(f"cuda:{i}" for i in range(len(tf.config.list_physical_devices("GPU"))))]
