"""The scale of the loss, without which small gradients are zero in float16; as torch's GradScaler.

A step whose gradients overflow changes nothing but the scale, which is halved; after a number of
good steps it is doubled. It is stored with the model, so that a run continues where it stood.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sardonyx.engines.torch.xp import torch
from sardonyx.model import Model

KEY = "sardonyx.loss_scale"
GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000


@dataclass
class LossScale:
    """The factor of the loss, and for how many steps it has been right."""

    factor: float = 65536.0
    steps: int = 0

    @classmethod
    def of(cls, model: Model) -> LossScale:
        """The scale that a model was trained with last, or the first one."""
        try:
            stored = json.loads(model.metadata.get(KEY, "{}"))
            return cls(float(stored["factor"]), int(stored["steps"]))
        except (KeyError, TypeError, ValueError):
            return cls()

    def write(self, model: Model) -> None:
        model.metadata[KEY] = json.dumps(asdict(self))

    def scaled(self, loss: Any) -> Any:
        return loss * self.factor

    def unscaled(
        self, gradients: list[Any], agree: Callable[[bool], bool] | None = None
    ) -> tuple[list[Any], bool]:
        """The gradients of the loss itself, and whether all of them are finite.

        agree -- whether something is so in one of several processes
        """
        inverse = torch.full((), 1.0 / self.factor, device=gradients[0].device)
        overflow = torch.zeros((), device=gradients[0].device)
        gradients = [g.contiguous() for g in gradients]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, inverse)
        overflows = bool(overflow.item())
        is_finite = not (overflows if agree is None else agree(overflows))
        self.steps = self.steps + 1 if is_finite else 0
        if not is_finite:
            self.factor *= BACKOFF
        elif self.steps == INTERVAL:
            self.factor, self.steps = self.factor * GROWTH, 0
        return gradients, is_finite
