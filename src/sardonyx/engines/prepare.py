"""A model in training on the engine of one's choice: one function for all of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from sardonyx.engines.training import TrainingRep
from sardonyx.errors import ArgumentError, EngineError, did_you_mean, missing_extra, quote
from sardonyx.lower.partition import ENGINES
from sardonyx.model import ModelSource, load


def prepare_training(
    model: ModelSource,
    engine: str = "onnxruntime",
    **options: Any,
) -> TrainingRep:
    """A model that carries a training record, ready to take steps on an engine.

    model   -- what `trainable` returned, or a file with a record
    engine  -- onnxruntime, torch, jax, tensorflow or numpy
    options -- of the engine: `device`; for onnxruntime `threads`, `recompute` and `options` of its
               session; for the others `compile` and `fallback`

    The result takes steps (`step`), runs and evaluates the model (`run`, `evaluate`), holds the
    state (`state`, `load_state`, `initialize`) and gives the model back (`to_model`).

    >>> import numpy as np, sardonyx as sx
    >>> rep = sx.prepare_training(sx.trainable("model.onnx", "cross_entropy"), threads=1)
    >>> data = np.load("data.npz")
    >>> sorted(rep.step({"x": data["x"], "label": data["label"]}))
    ['loss']
    """
    package = engine_package(engine)
    check_device(engine, options)
    try:
        return package.prepare_training(load(model), **options)
    except TypeError as error:
        unknown = [n for n in options if f"unexpected keyword argument '{n}'" in str(error)]
        if not unknown:
            raise
        raise ArgumentError(f"the engine {engine!r} has no option {unknown[0]!r}") from error


def engine_package(engine: str) -> Any:
    """The package of an engine that can train; where its framework is missing, an error."""
    if not engine.isidentifier() or find_spec(f"sardonyx.engines.{engine}") is None:
        raise _no_engine(engine)
    try:
        package = importlib.import_module(f"sardonyx.engines.{engine}")
    except Exception as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        raise missing from error
    if not hasattr(package, "prepare_training"):
        raise _no_engine(engine)
    return package


def _no_engine(engine: str) -> ArgumentError:
    hint = did_you_mean(engine, (*ENGINES, "auto"))
    return ArgumentError(f"no engine called {engine!r} can train", hint=hint)


def check_device(engine: str, options: Mapping[str, Any] | None) -> None:
    """Refuse a device that this machine does not have, before anything is compiled."""
    device = (options or {}).get("device")
    if device is not None and not engine_package(engine).supports_device(device):
        raise EngineError(
            f"{engine} has no device {quote(device)} on this machine",
            hint="device names are CPU, CUDA and CUDA:1; a GPU needs a build of the engine for it",
        )
