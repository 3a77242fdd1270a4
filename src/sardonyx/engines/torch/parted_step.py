"""A native step in one of several processes: both halves over this process's parts.

A batch whose rows do not divide is fed whole to every process; for it, and for every set of parts,
the halves are rewritten (`engines/rows`) when they first run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sardonyx.engines.native_step import NativeStep
from sardonyx.engines.rows.spread import spread
from sardonyx.engines.torch import native_step
from sardonyx.engines.torch.xp import torch

if TYPE_CHECKING:
    from sardonyx.engines.torch.backend import TrainingRep


@dataclass
class Halves:
    """Both halves for batches that are parted in one way."""

    forward: native_step.Half
    update: native_step.Half


class PartedStep:
    """The halves of a step as functions of this process's tensors."""

    def __init__(self, step: NativeStep, rep: TrainingRep):
        self.step, self.rep = step, rep
        self.halves: dict[Any, Halves] = {}

    def forward(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return self._halves().forward(tensors)

    def update(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return self._halves().update(tensors)

    def _halves(self) -> Halves:
        parts = self.rep.placement.parts or {}
        key = tuple(sorted(parts.items()))
        if key not in self.halves:
            self.halves[key] = self._made(parts)
        return self.halves[key]

    def _made(self, parts: Mapping[str, int]) -> Halves:
        step, rep, world = self.step, self.rep, self.rep.placement.world
        split, names = step.halves, step.graph.state
        of_state = {n: axis for n in names if (axis := rep.axis(n)) is not None}
        output_axes = {
            step.graph.updates[n]: a for n, a in of_state.items() if n in step.graph.updates
        }
        data = {n: parts[n] for n in step.graph.inputs if n in parts}
        sized = step.sized()
        forward = spread(
            step.forward_model,
            {**of_state, **data},
            world,
            output_axes=output_axes,
            sized=sized,
            gathered=of_state,
        )
        pairs = zip(split.variables, split.gradients, strict=True)
        gradients = {g: of_state[v] for v, g in pairs if v in of_state}
        inputs = {**of_state, **data, **gradients, **forward.axes}
        update = spread(split.update, inputs, world, output_axes=output_axes)
        hyper = {n: torch.as_tensor(v) for n, v in step.hyper.items()}
        state = {**hyper, **{n: v.value for n, v in rep.variables.items()}}
        device = str(rep.arrays().device)
        return Halves(
            native_step.forward_function(step, forward.model, state, device, rep.compiles),
            native_step.update_function(step, update.model, rep.arrays()),
        )
