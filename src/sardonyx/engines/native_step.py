"""A step that the framework differentiates itself: forward under its automatic differentiation,
with its fused kernels, then the update of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.engines.idioms import recognize
from sardonyx.errors import SardonyxError
from sardonyx.lower.program import Program, element_type
from sardonyx.model import Model, Record
from sardonyx.record.native_step import NotNative, split_step

if TYPE_CHECKING:
    from sardonyx.engines.array_training import ArrayTrainingRep

Arrays = Mapping[str, Any]


class NativeStep:
    """One record: its forward half differentiated by the framework, then its update half."""

    def __init__(self, model: Model, record: Record, rep: ArrayTrainingRep):
        self.rep = rep
        self.halves = halves = split_step(model, record, rep.differentiates_alike)
        self.graph = halves.whole
        self.hyper = {n: np.array(v) for n, v in self.graph.hyper.items()}
        values = {v.name: v for v in halves.forward.graph.inputs}
        self.types = {n: element_type(values[n]) for n in self.graph.inputs}
        xp = rep.arrays()
        other = [
            n.op_type for n in halves.forward.graph if n.op_type in rep.differentiates_otherwise
        ]
        if other:
            raise NotNative(f"{xp.name} differentiates {other[0]} otherwise")
        try:
            model = rep.in_precision(recognize(halves.forward, halves.variables), self.sized())
            self.forward_model = rep.laid_out(model)
            self.forward = Program(self.forward_model, xp, fallback="error")
            self.update = Program(halves.update, xp, fallback="error")
        except SardonyxError as error:
            raise NotNative(f"{xp.name} lacks an operator of it: {error.what}") from error
        self.compute = rep.forward_function(self)
        self.apply = rep.update_function(self)
        self.compiled = rep.jit_native(self)
        self.settings: dict[str, Any] = {}  # of a step that nothing else is fed for

    def sized(self) -> list[str]:
        """Tensors of the forward half of which the update reads nothing but the sizes."""
        return [
            v.name or ""
            for v in self.halves.update.graph.inputs
            if v.uses() and all(n.op_type in ("Shape", "Size") for n in v.consumers())
        ]

    # -- the two halves as functions of arrays

    def run_forward(self, arrays: Arrays) -> dict[str, Any]:
        """The outputs of the forward half."""
        values = self.forward({n: arrays[n] for n in self.forward.names})
        return {
            name: self.forward.convert(value)
            for name, value in zip(self.forward.outputs, values, strict=True)
        }

    def run_update(self, arrays: Arrays) -> dict[str, Any]:
        """The outputs of the update half."""
        values = self.update({n: arrays[n] for n in self.update.names})
        return {
            name: self.update.convert(value)
            for name, value in zip(self.update.outputs, values, strict=True)
        }

    def function(self, state: Arrays, feeds: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """Metrics and new state."""
        halves = self.halves
        variables = {n: state[n] for n in halves.variables}

        def loss(leaves: Arrays) -> tuple[Any, dict[str, Any]]:
            outputs = self.compute({**state, **feeds, **leaves})
            return outputs[halves.loss], outputs

        gradients, outputs = self.rep.gradients(loss, variables)
        by_name = dict(zip(halves.gradients, gradients, strict=True))
        results = {**outputs, **self.apply({**state, **feeds, **outputs, **by_name})}
        updates = {n: results[output] for n, output in self.graph.updates.items()}
        metrics = {n: results[n] for n in self.graph.metrics}
        return metrics, updates if self.rep.takes_update else {}

    # -- what a step does

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        metrics = self._started(feeds)()
        # The state before is for a search of what went wrong; else it would be in memory twice.
        if self.rep.steps_ahead or all(
            np.isfinite(v).all() for v in metrics.values() if v.dtype.kind == "f"
        ):
            self._forget()
        return metrics

    def start(self, feeds: Mapping[str, Any]) -> Callable[[], dict[str, np.ndarray]]:
        """A step, and how its metrics are read once the device has computed them."""
        read = self._started(feeds)
        self._forget()
        return read

    def _started(self, feeds: Mapping[str, Any]) -> Callable[[], dict[str, np.ndarray]]:
        variables = self.rep.variables
        with self.rep.context():
            arrays = self._arrays(feeds)
            state = {n: variables[n].value for n in self.graph.state}
            metrics, updates = self.compiled(state, arrays)
            for name, value in updates.items():
                variables[name].before = state.get(name, variables[name].value)
                variables[name].value = value
            return self.rep.read_later(metrics, {})

    def _arrays(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a step as the framework's arrays; settings are copied to a device once."""
        arrays = self.rep.fed_arrays(self, feeds)
        for name, default in self.hyper.items():
            if arrays[name] is default:
                if name not in self.settings:
                    self.settings[name] = self.forward.convert(default)
                arrays[name] = self.settings[name]
        return {n: self.rep.argument(self, a) for n, a in arrays.items()}

    def _forget(self) -> None:
        for name in self.graph.updates:
            self.rep.variables[name].forget()

    def before(self) -> dict[str, np.ndarray]:
        """The variables as they were before the last step."""
        updated, read = self.graph.updates, self.rep.arrays().to_numpy
        return {
            n: read(v.before if n in updated else v.value, v.dtype)
            for n, v in self.rep.variables.items()
        }


__all__ = ["NativeStep", "NotNative"]
