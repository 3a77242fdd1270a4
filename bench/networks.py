"""The networks of the benchmarks, in torch, and their ONNX files as torch's own exporter writes
them.
"""

from __future__ import annotations

import io
import itertools
import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from torch import nn

F = nn.functional


class MLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )


class CNN(nn.Module):
    """Three convolutions with batch normalization, two pools, on 3×32×32."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 64, 128, 256]
        self.conv = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(widths)
        )
        self.bn = nn.ModuleList(nn.BatchNorm2d(b) for b in widths[1:])
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, (conv, bn) in enumerate(zip(self.conv, self.bn, strict=True)):
            x = F.relu(bn(conv(x)))
            if i < 2:
                x = F.max_pool2d(x, 2)
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.short = None
        if stride != 1 or a != b:
            self.short = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.short is None else self.short(x)))


class ResNet18(nn.Module):
    """The 18-layer residual network, for 64×64 images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        sizes = [
            (64, 64, 1),
            (64, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
            (128, 256, 2),
            (256, 256, 1),
            (256, 512, 2),
            (512, 512, 1),
        ]
        self.blocks = nn.Sequential(*(Block(*s) for s in sizes))
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Layer(nn.Module):
    """A transformer layer, norm first; causal for a decoder."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .reshape(b, t, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)
        if self.causal:
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(
        self,
        width: int = 256,
        layers: int = 2,
        heads: int = 4,
        vocabulary: int = 1000,
        length: int = 64,
    ) -> None:
        super().__init__()
        self.token, self.place = (
            nn.Embedding(vocabulary, width),
            nn.Parameter(torch.randn(length, width) * 0.02),
        )
        self.layers = nn.Sequential(*(Layer(width, heads, False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.token(x) + self.place)).mean(1))


class Decoder(nn.Module):
    def __init__(
        self,
        width: int = 384,
        layers: int = 6,
        heads: int = 6,
        vocabulary: int = 8000,
        length: int = 128,
    ) -> None:
        super().__init__()
        self.token, self.place = (
            nn.Embedding(vocabulary, width),
            nn.Parameter(torch.randn(length, width) * 0.02),
        )
        self.layers = nn.Sequential(*(Layer(width, heads, True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.norm(self.layers(self.token(x) + self.place)))
        return y.reshape(-1, y.shape[-1])


class LSTM(nn.Module):
    def __init__(self, inputs: int = 64, width: int = 256) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(inputs, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Separable(nn.Module):
    """Depthwise-separable convolutions, as mobile networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        layers: list[nn.Module] = []
        for a, b, s in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)):
            layers += [nn.Conv2d(a, a, 3, s, 1, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU()]
            layers += [nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(F.relu(self.bn(self.stem(x)))).mean((2, 3)))


@dataclass
class Network:
    """A network, how to make it, and one batch for it."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[np.random.Generator], np.ndarray]
    labels: Callable[[np.random.Generator], np.ndarray]

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make()

    def batch(self, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        return self.inputs(rng), self.labels(rng)


def _normal(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.normal(size=shape).astype(np.float32)


def _integers(high: int, *shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.integers(0, high, shape)


NETWORKS = [
    Network("mlp", MLP, _normal(64, 784), _integers(10, 64)),
    Network("cnn", CNN, _normal(32, 3, 32, 32), _integers(10, 32)),
    Network("resnet18", ResNet18, _normal(16, 3, 64, 64), _integers(10, 16)),
    Network("transformer", Encoder, _integers(1000, 16, 64), _integers(10, 16)),
    Network("gpt", Decoder, _integers(8000, 8, 128), _integers(8000, 8 * 128)),
    Network("lstm", LSTM, _normal(32, 64, 64), _integers(10, 32)),
    Network("separable", Separable, _normal(32, 3, 64, 64), _integers(10, 32)),
]


def export(network: Network, module: nn.Module) -> onnx.ModelProto:
    """The module as torch's exporter writes it: batch normalization kept, names kept."""
    # The exporter says of each operator of a package that is not installed that it is left out.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    buffer = io.BytesIO()
    x = torch.tensor(network.batch()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module.eval(), (x,), dynamo=True, optimize=False, verbose=False)
    program.save(buffer)
    module.train()
    return onnx.load_from_string(buffer.getvalue())
