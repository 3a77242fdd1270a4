"""OpenVINO as an engine: the runtime, and what runs and trains on it."""

from __future__ import annotations

from sardonyx.engines import backend, runtime
from sardonyx.engines.openvino.session import OpenVINO


class Runner(runtime.Runner):
    __doc__ = runtime.Runner.__doc__
    runtime = OpenVINO()


class TrainingRep(runtime.TrainingRep):
    """A model in training on OpenVINO."""

    runner = Runner


class Backend(backend.Backend):
    """OpenVINO as an ONNX backend."""

    runner = Runner
    training = TrainingRep
