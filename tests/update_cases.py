"""Records whose updates differ: optimizers with clipping, averages, groups and accumulation."""

from __future__ import annotations

from typing import Any

import torch

import sardonyx as sx


class Net(torch.nn.Module):
    """Sizes that no width divides, one above a chunk, a row and a single number."""

    def __init__(self, dtype: Any = torch.float32):
        super().__init__()
        self.first = torch.nn.Linear(7, 2500, dtype=dtype)
        self.second = torch.nn.Linear(2500, 3, bias=False, dtype=dtype)
        self.scale = torch.nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, x: Any) -> Any:
        return self.second(torch.tanh(self.first(x))) * self.scale


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (sx.optim.adamw(1e-2), {}),
    "adamw, two rates": (
        sx.optim.adamw(1e-2, weight_decay=0.1),
        {"groups": {"*bias": {"weight_decay": 0.0, "lr": 1e-3}}},
    ),
    "amsgrad, clipped values": (sx.optim.adam(1e-2, amsgrad=True), {"clip_value": 0.01}),
    "nesterov, average": (sx.optim.sgd(1e-2, 0.9, nesterov=True), {"ema": 0.9}),
    "accumulated, clipped norm": (
        sx.optim.adamw(1e-2),
        {"accumulate": 2, "clip_norm": 0.1},
    ),
    "lion": (sx.optim.lion(1e-3), {}),
    "lamb": (sx.optim.lamb(1e-2), {}),
    "rmsprop": (sx.optim.rmsprop(1e-3, momentum=0.9), {}),
    "adagrad": (sx.optim.adagrad(1e-2), {}),
}
