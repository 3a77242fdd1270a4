"""The slow exact reference: any model in numpy, in double precision if asked for."""

from __future__ import annotations

from sardonyx.engines import array_training
from sardonyx.engines.numpy import nn  # noqa: F401  (registers the kernels)
from sardonyx.engines.numpy.xp import arrays
from sardonyx.grad.training import lower_training
from sardonyx.lower import runner


class Runner(runner.Runner):
    __doc__ = runner.Runner.__doc__
    differentiate = staticmethod(lower_training)
    xp = arrays()


class TrainingRep(array_training.ArrayTrainingRep):
    __doc__ = array_training.ArrayTrainingRep.__doc__
    runner = Runner


class Backend(array_training.TrainingBackend):
    """numpy as an ONNX backend."""

    runner = Runner
    training = TrainingRep


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
prepare_training = Backend.prepare_training
train_model = Backend.train_model
