"""Models on tensorflow."""

from __future__ import annotations

from sardonyx.engines.tensorflow import nn  # noqa: F401  (registers the kernels)
from sardonyx.engines.tensorflow.xp import arrays
from sardonyx.lower import runner


class Runner(runner.Runner):
    __doc__ = runner.Runner.__doc__
    xp = arrays()


class Backend(runner.Backend):
    """tensorflow as an ONNX backend."""

    runner = Runner


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
