"""What every engine over `xp` offers: a Runner from numpy to numpy."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

import sardonyx.lower  # noqa: F401  (registers the shared rules)
from sardonyx import opset
from sardonyx.edit.widen import widen
from sardonyx.errors import DataError, quote
from sardonyx.grad.training import lower_training
from sardonyx.lower.partition import Placement
from sardonyx.lower.program import Program, to_numpy
from sardonyx.lower.xp import Arrays, is_string
from sardonyx.model import Model, load
from sardonyx.passes.nesting import graphs

# Some exporters write the domain without its last part.
TRAINING = (opset.TRAINING_DOMAIN, "ai.onnx.preview")


class Runner:
    """Runs a model: `Runner(model)({"x": array})` gives its outputs by name, as numpy arrays.

    float64  -- compute in double what the model computes in single precision
    fallback -- what happens to nodes that the framework cannot run: they run in numpy, with a
                warning ("warn") or without ("allow"), or are refused ("error")
    place    -- pattern of node names or operators → the engine that runs these nodes
    device   -- "cpu", "cuda", "cuda:1", …; the framework's default if not given
    """

    xp: Arrays

    def __init__(
        self,
        model: Model | Any,
        *,
        float64: bool = False,
        fallback: str = "warn",
        place: Mapping[str, str] | None = None,
        device: str | None = None,
    ):
        self.device, self.float64 = device, float64
        loaded = load(model)
        if has_gradients(loaded):
            loaded = lower_training(loaded)
        with self.context():
            source = widen(loaded) if float64 else loaded
            self.program = Program(source, self.xp, fallback=fallback, place=place)
        self.inputs = [n for n in self.program.names if n not in self.program.defaults]
        self.outputs = self.program.outputs

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """What the framework needs around every run."""
        return contextlib.nullcontext()

    @property
    def elsewhere(self) -> list[Placement]:
        """The nodes that do not run in the framework itself, and why."""
        return self.program.elsewhere

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        with self.context():
            values = self.program(self._checked(feeds))
            types = self.program.output_types
            return {
                name: to_numpy(self.xp, value, dtype)
                for name, value, dtype in zip(self.outputs, values, types, strict=True)
            }

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs, widened where the model was; an error that names all of another type."""
        arrays, wrong = dict(feeds), []
        for name, dtype in self.program.input_types.items():
            array = arrays.get(name)
            if not isinstance(array, (np.ndarray, np.generic)) or dtype is None or is_string(dtype):
                continue
            if self.float64 and dtype == np.float64 and array.dtype == np.float32:
                arrays[name] = array.astype(dtype)
            elif array.dtype != dtype:
                wrong.append([quote(name), f"is {array.dtype}", f"the model takes {dtype}"])
        if wrong:
            raise DataError("inputs have other types than the model's", wrong)
        return arrays


def has_gradients(model: Model) -> bool:
    every = [model.graph, *(f.graph for f in model.ir.functions.values())]
    nodes = (node for graph in every for part in graphs(graph) for node in part)
    return any(node.op_type == "Gradient" and node.domain in TRAINING for node in nodes)
