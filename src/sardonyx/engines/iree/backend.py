"""IREE as an engine: the runtime, and what runs and trains on it."""

from __future__ import annotations

from sardonyx.engines import backend, runtime
from sardonyx.engines.iree.session import IREE


class Runner(runtime.Runner):
    __doc__ = runtime.Runner.__doc__
    runtime = IREE()


class TrainingRep(runtime.TrainingRep):
    """A model in training on IREE."""

    runner = Runner


class Backend(backend.Backend):
    """IREE as an ONNX backend."""

    runner = Runner
    training = TrainingRep
