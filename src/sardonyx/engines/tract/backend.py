"""tract as an engine: the runtime, and what runs and trains on it."""

from __future__ import annotations

from sardonyx.engines import backend, runtime
from sardonyx.engines.tract.session import Tract


class Runner(runtime.Runner):
    __doc__ = runtime.Runner.__doc__
    runtime = Tract()


class TrainingRep(runtime.TrainingRep):
    """A model in training on tract."""

    runner = Runner


class Backend(backend.Backend):
    """tract as an ONNX backend."""

    runner = Runner
    training = TrainingRep
