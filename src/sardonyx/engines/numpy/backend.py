"""The slow exact reference: any model in numpy, in double precision if asked for."""

from __future__ import annotations

from sardonyx.engines import array_training, backend
from sardonyx.engines.numpy import nn  # noqa: F401  (registers the kernels)
from sardonyx.engines.numpy.xp import arrays
from sardonyx.lower import runner


class Runner(runner.Runner):
    __doc__ = runner.Runner.__doc__
    xp = arrays()


class TrainingRep(array_training.ArrayTrainingRep):
    __doc__ = array_training.ArrayTrainingRep.__doc__
    runner = Runner


class Backend(backend.Backend):
    """numpy as an ONNX backend."""

    runner = Runner
    training = TrainingRep
