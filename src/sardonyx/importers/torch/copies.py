"""Independent copies of modules and optimizers that belong together."""

from __future__ import annotations

import copy
from typing import Any

import torch


def copied(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies of `parts` that refer to each other as the originals do.

    torch's own way of copying an optimizer leaves out the attributes that a subclass has added.
    """
    memo: dict[int, Any] = {}
    copies = copy.deepcopy(parts, memo)
    for part, twin in zip(parts, copies, strict=True):
        if isinstance(part, torch.optim.Optimizer):
            for name, value in vars(part).items():
                if name not in vars(twin) and not name.startswith("_") and name != "step":
                    setattr(twin, name, copy.deepcopy(value, memo))
    return copies
