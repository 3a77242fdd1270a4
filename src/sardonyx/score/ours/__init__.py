"""Adapters of our own engines, and what they share: running, training, gradients as ONNX models,
and a list of the rules that were looked up, by which results are kept (sources.py).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sardonyx
from sardonyx import plugins
from sardonyx.engines.loading import PluginRunner, load_engine
from sardonyx.grad import GRADIENT_RULES, grad
from sardonyx.lower.driver import KERNELS, LOWERINGS
from sardonyx.model import Model
from sardonyx.registry import Registry, op_name

_looked_up: set[str] = set()


class _Watched(dict[Any, Any]):
    """A registry of rules that records which operators are looked up."""

    def get(self, key: Any, default: Any = None) -> Any:
        _looked_up.add(op_name(key))
        return super().get(key, default)

    def __getitem__(self, key: Any) -> Any:
        _looked_up.add(op_name(key))
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        _looked_up.add(op_name(key))
        return super().__contains__(key)


def _watch(registry: Registry) -> None:
    registry.rules = _Watched(registry.rules)


for _registry in (LOWERINGS, GRADIENT_RULES, *KERNELS.values()):
    _watch(_registry)


def used() -> list[str]:
    """The operators whose rules were looked up since this was last asked."""
    operators = sorted(_looked_up)
    _looked_up.clear()
    return operators


# "error": nodes that the framework itself cannot take are refused, rather than run in numpy.
SETTINGS = {"fallback": os.environ.get("SARDONYX_SCORE_FALLBACK", "allow")}


def functions(
    engine: str, package: str = ""
) -> tuple[Callable[..., str], Callable[..., Any], Callable[..., Any]]:
    """`version`, `run` and `train` of an engine, as an adapter has them."""
    backend = load_engine(engine)
    settings = SETTINGS if engine in plugins.FRAMEWORKS else {}  # others have no other way

    def version() -> str:
        return f"{sardonyx.__version__}, {package or engine} {plugins.engine(engine).version}"

    def run(model: str, inputs: Mapping[str, Any]) -> Any:
        return _rep(engine, sardonyx.load(model), settings).run(inputs)

    def train(model: str, batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        rep = backend.prepare_training(sardonyx.load(model))
        return [{**rep.step(batch), **rep.state()} for batch in batches]

    return version, run, train


def _rep(engine: str, model: Model, settings: Mapping[str, Any]) -> Any:
    """A model prepared on an engine; a plug-in's outputs are checked and put in order."""
    if plugins.engine(engine).plugin:
        return PluginRep(engine, model)
    return load_engine(engine).prepare(model, **settings)


class PluginRep:
    """A model on an engine of a plug-in, with outputs in the order of the model."""

    def __init__(self, engine: str, model: Model):
        self.runner = PluginRunner(engine, model)

    def run(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(self.runner(inputs).values())


def onnx_gradient(engine: str) -> Callable[..., dict[str, Any]]:
    """`gradient` of an engine, as an adapter has it: an ONNX model, which the engine runs."""

    def gradient(
        model: str, inputs: Mapping[str, Any], seeds: Mapping[str, Any], wrt: Sequence[str]
    ) -> dict[str, Any]:
        loaded = sardonyx.load(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some inputs do not count: their gradient is zero
            graph = grad(loaded, of=list(seeds), wrt=list(wrt), seeds="input", outputs=False)
        names = [v.name or "" for v in graph.inputs]
        feeds = {**inputs, **{f"seed/{name}": seed for name, seed in seeds.items()}}
        gradients = _rep(engine, graph, {}).run({n: feeds[n] for n in names if n in feeds})
        outputs = dict(zip([v.name for v in graph.outputs], gradients, strict=True))
        return {name: outputs[f"grad/{name}"] for name in wrt}

    return gradient


def outputs_of(module: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a converted module by name, given its inputs by name."""
    outputs = module(*(tensors[name] for name in module.input_names))
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return dict(zip(module.output_names, outputs, strict=True))
