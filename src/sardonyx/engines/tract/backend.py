"""tract as an engine: the runtime, and what runs and trains on it."""

from __future__ import annotations

from sardonyx.engines import runtime
from sardonyx.engines.tract.session import Tract


class Runner(runtime.Runner):
    __doc__ = runtime.Runner.__doc__
    runtime = Tract()


class TrainingRep(runtime.TrainingRep):
    """A model in training on tract."""

    runner = Runner


class Backend(runtime.Backend):
    """tract as an ONNX backend."""

    runner = Runner
    training = TrainingRep


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
prepare_training = Backend.prepare_training
