"""Engines, loaded when they are used: what a plug-in does wrong becomes one error that names it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sardonyx import plugins
from sardonyx.errors import (
    EngineError,
    MissingExtra,
    SardonyxError,
    missing_extra,
    quote,
)
from sardonyx.model import Model
from sardonyx.plugins import Engine

OFFERS = ("prepare", "prepare_training")


def load_engine(name: str) -> Any:
    """The module of an engine, or the object that its package names; an error where it cannot be
    loaded, or offers nothing.
    """
    engine = plugins.engine(name)
    if engine.rivals:
        rows = [[package] for package in (*engine.rivals, engine.plugin)]
        raise EngineError(
            f"{len(rows)} packages add an engine called {quote(name)}",
            rows,
            hint="uninstall all but one of them",
        )
    try:
        loaded = engine.entry().load()
    except (Exception, SystemExit) as error:
        raise _not_loaded(engine, error) from error
    if not any(callable(getattr(loaded, offer, None)) for offer in OFFERS):
        raise EngineError(
            f"the engine {quote(name)} of {engine.plugin} offers neither prepare nor "
            "prepare_training",
            [["declared as", engine.target]],
        )
    return loaded


def _not_loaded(engine: Engine, error: BaseException) -> SardonyxError:
    if isinstance(error, SardonyxError) and not engine.plugin:
        return error
    missing = missing_extra(error)
    if missing is not None and not engine.plugin:
        return missing
    if not engine.plugin:
        return MissingExtra(engine.requires, engine.name)
    return EngineError(
        f"the engine {quote(engine.name)} of {engine.plugin} cannot be loaded",
        [[type(error).__name__, _first_line(error)], ["declared as", engine.target]],
        hint="this is a defect of that package; the other engines are not concerned",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


@contextlib.contextmanager
def reported(name: str, action: str) -> Iterator[None]:
    """Turn what a plug-in raises while it works into one error; those of Sardonyx stay."""
    try:
        yield
    except SardonyxError:
        raise
    except Exception as error:
        raise EngineError(
            f"the engine {quote(name)} failed to {action}: "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error


def supports_device(name: str, device: str) -> bool:
    """Whether an engine has a device here; one that does not say so has the CPU alone."""
    supports = getattr(load_engine(name), "supports_device", None)
    return bool(supports(device)) if supports else device.upper() == "CPU"


class PluginRunner:
    """A model on an engine that offers `prepare`: feeds by name in, outputs by name out."""

    def __init__(self, name: str, model: Model, **options: Any):
        loaded = load_engine(name)
        if not hasattr(loaded, "prepare"):
            raise EngineError(f"the engine {quote(name)} trains, but offers no prepare(model)")
        self.name = name
        self.outputs = [v.name or "" for v in model.outputs]
        with reported(name, "prepare the model"):
            self.rep = loaded.prepare(model, **options)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        with reported(self.name, "run the model"):
            outputs = self.rep.run(dict(feeds))
        if isinstance(outputs, np.ndarray) or not isinstance(outputs, (Mapping, list, tuple)):
            outputs = [outputs]
        if isinstance(outputs, Mapping):
            missing = [n for n in self.outputs if n not in outputs]
            if not missing:
                return {n: outputs[n] for n in self.outputs}
            raise EngineError(
                f"the engine {quote(self.name)} gives no output {quote(missing[0])}",
                [["it gives", ", ".join(map(str, outputs))]],
            )
        if len(outputs) != len(self.outputs):
            raise EngineError(
                f"the engine {quote(self.name)} gives {len(outputs)} outputs, "
                f"and the model has {len(self.outputs)}"
            )
        return dict(zip(self.outputs, outputs, strict=True))


def runner(name: str, **options: Any) -> Callable[..., Any]:
    """A function from a model to a function of its feeds, on an engine."""
    make = getattr(load_engine(name), "Runner", None)
    if make is not None:
        return lambda model, **more: make(model, **{**options, **more})
    return lambda model, **more: PluginRunner(name, model, **more)
