"""A model in training on the engine of one's choice: one function for all of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from sardonyx import plugins
from sardonyx.engines.loading import load_engine, reported, supports_device
from sardonyx.engines.mixed import NAMES
from sardonyx.engines.training import TrainingRep
from sardonyx.errors import ArgumentError, EngineError, did_you_mean, quote
from sardonyx.lower.devices import no_device
from sardonyx.model import ModelSource, load


def prepare_training(
    model: ModelSource,
    engine: str = plugins.DEFAULT,
    *,
    device: str | None = None,
    precision: str | None = None,
    **options: Any,
) -> TrainingRep:
    """A model that carries a training record, ready to take steps on an engine.

    model   -- what `trainable` returned, or a file with a record
    engine  -- onnxruntime, torch, jax, tensorflow, numpy, or one that a plug-in adds
    device  -- "cpu", "cuda", "cuda:1", "mps"; the engine's default if not given
    precision -- "bf16", "fp16" or "tf32": products in this type, on torch and jax; parameters and
               state stay as they are in the file
    options -- of the engine: for onnxruntime `threads`, `recompute` and `options` of its session;
               for the others `compile`, `native` and `fallback`

    The result takes steps (`step`), runs and evaluates the model (`run`, `evaluate`), holds the
    state (`state`, `load_state`, `initialize`) and gives the model back (`to_model`).

    >>> import numpy as np, sardonyx as sx
    >>> rep = sx.prepare_training(sx.trainable("model.onnx", "cross_entropy"), threads=1)
    >>> data = np.load("data.npz")
    >>> sorted(rep.step({"x": data["x"], "label": data["label"]}))
    ['loss']
    """
    package = engine_package(engine)
    check_device(engine, device)
    check_precision(engine, precision, device)
    named = {"device": device, "precision": precision}
    options |= {name: value for name, value in named.items() if value is not None}
    loaded = load(model)
    try:
        if not plugins.engine(engine).plugin:
            return package.prepare_training(loaded, **options)
        with reported(engine, "prepare the training"):
            rep = package.prepare_training(loaded, **options)
    except (TypeError, EngineError) as error:
        unknown = [n for n in options if f"unexpected keyword argument '{n}'" in str(error)]
        if not unknown:
            raise
        raise ArgumentError(f"the engine {engine!r} has no option {unknown[0]!r}") from error
    if not isinstance(rep, TrainingRep):
        raise EngineError(
            f"prepare_training of the engine {quote(engine)} returns a {type(rep).__name__}",
            hint="it returns an instance of a class that derives from sardonyx.TrainingRep",
        )
    rep.reported = functools.partial(reported, engine)
    return rep


def engine_package(engine: str) -> Any:
    """The package of an engine that can train; where its framework is missing, an error."""
    if engine not in plugins.engines():
        hint = did_you_mean(engine, (*plugins.names(), "auto"))
        raise ArgumentError(f"no engine called {engine!r} can train", hint=hint)
    package = load_engine(engine)
    if not hasattr(package, "prepare_training"):
        raise ArgumentError(
            f"the engine {engine!r} runs models, but cannot train them",
            hint="it offers no prepare_training",
        )
    return package


def check_device(engine: str, device: str | None) -> None:
    """Refuse a device that this machine does not have, before anything is compiled."""
    package = load_engine(engine)
    if device is not None and not supports_device(engine, device):
        backend = getattr(package, "Backend", None)
        raise no_device(device, backend.devices() if backend else ["cpu"], engine)


# What others call a precision.
SPELLINGS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "tensorfloat32": "tf32"}
FLOAT32 = ("float32", "fp32", "float", "f32", "32")


def check_precision_name(precision: str | None) -> None:
    """Refuse a name that is no precision, whatever the engine."""
    if precision is None or precision in NAMES:
        return
    name = str(precision).lower().removeprefix("torch.")
    hint = did_you_mean(str(precision), NAMES)
    if name in FLOAT32:
        hint = "leave precision out: without it, the types of the file are used"
    elif name in SPELLINGS or name in NAMES:
        hint = f"write {SPELLINGS.get(name, name)}"
    raise ArgumentError(f"no precision is called {str(precision)!r}", hint=hint)


def check_precision(engine: str, precision: str | None, device: str | None) -> None:
    """Refuse a precision in which an engine does not train on a device."""
    check_precision_name(precision)
    if precision is None:
        return
    available = precisions(engine, device)
    if precision not in available:
        where = f" on {device}" if device else ""
        hint = f"it has {', '.join(available)}" if available else "torch and jax do"
        if precision == "tf32" and available:
            hint = "tf32 needs an NVIDIA GPU, see device="
        raise ArgumentError(f"{engine} does not train in {precision}{where}", hint=hint)


def precisions(engine: str, device: str | None) -> Sequence[str]:
    """The precisions, beside the types of the file, in which an engine trains on a device."""
    backend = getattr(engine_package(engine), "Backend", None)
    offer = getattr(backend, "precisions", None)
    return () if offer is None else offer(device)
