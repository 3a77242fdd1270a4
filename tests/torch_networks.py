"""Small torch modules of many kinds with example inputs, for exports that must verify."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Example = tuple[nn.Module, tuple[torch.Tensor, ...]]


def signal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.a, self.b = (nn.Conv2d(12, 12, 3, padding=1) for _ in range(2))
        self.head = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = F.relu(x + self.b(F.relu(self.a(x))))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Hourglass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 8, 4, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.down(x)))
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.up(F.avg_pool2d(y, 2)) + F.pad(x, (0, 0, 0, 0, 0, 2))


class Recurrent(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.cell = kind(6, 9, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(18, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.head(self.cell(x)[0][:, -1]), -1)


class Spectral(nn.Module):
    """Pre-emphasis, frames, a window, energies: what audio front ends are made of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, 1:] - 0.97 * x[:, :-1]
        frames = x.unfold(1, 64, 32) * torch.hann_window(64)
        turn = torch.arange(64.0)[:, None] * torch.arange(33.0) * (2 * torch.pi / 64)
        power = (frames @ turn.cos()) ** 2 + (frames @ turn.sin()) ** 2
        return torch.log(power + 1e-6)


def dense(*activations: nn.Module) -> nn.Module:
    layers: list[nn.Module] = []
    for activation in activations:
        layers += [nn.Linear(16, 16), activation]
    return nn.Sequential(*layers, nn.Linear(16, 3))


def encoder() -> Example:
    layer = nn.TransformerEncoderLayer(24, 3, 48, dropout=0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), (signal(2, 7, 24),)


NETWORKS: dict[str, Callable[[], Example]] = {
    "dense": lambda: (dense(nn.Tanh(), nn.GELU(), nn.Softplus()), (signal(5, 16),)),
    "gates": lambda: (dense(nn.SiLU(), nn.Hardswish(), nn.ELU(), nn.Mish()), (signal(5, 16),)),
    "deep": lambda: (dense(*[nn.ReLU()] * 24), (signal(5, 16),)),
    "residual": lambda: (Residual(), (signal(2, 3, 32, 32),)),
    "attention": lambda: (Attention(), (torch.arange(18).reshape(2, 9) % 50,)),
    "encoder": encoder,
    "hourglass": lambda: (Hourglass(), (signal(1, 2, 12, 16),)),
    "lstm": lambda: (Recurrent(nn.LSTM), (signal(3, 8, 6),)),
    "gru": lambda: (Recurrent(nn.GRU), (signal(3, 8, 6),)),
    "spectral": lambda: (Spectral(), (signal(2, 500),)),
}


def network(name: str) -> Example:
    """A module in evaluation mode, its weights from a fixed seed, and inputs for it."""
    torch.manual_seed(3)
    module, inputs = NETWORKS[name]()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.uniform_(-0.2, 0.2)  # type: ignore[union-attr]
            norm.running_var.uniform_(0.3, 1.5)  # type: ignore[union-attr]
    return module.eval(), inputs


def exported(name: str, path: Any) -> Example:
    """Write the module as ONNX by torch's own exporter; returns it with its inputs."""
    module, inputs = network(name)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, each time
    torch.onnx.export(module, inputs, path, dynamo=True, verbose=False, external_data=False)
    return module, inputs
