"""Losses of many steps beside torch's: both are judged by torch in float64, from the same start
and data.

A float32 run drifts away from the exact one, torch's own included. Ours may be as far off as
torch's float32 run is, times a factor for the luck of rounding, and no further: no tolerance is
guessed.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training

torch = pytest.importorskip("torch")
nn = torch.nn

# Rounding moves each run in its own direction: equally good runs differ by a few times.
LUCK = 8.0
EPS = float(np.finfo(np.float32).eps)


class Transformer(nn.Module):  # type: ignore[misc]
    """Attention written out: a pre-norm encoder layer, mean over positions, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm1, self.norm2 = nn.Linear(6, 16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 3)
        # The exporter makes one tensor of parameters that are equal, as fresh norms are.
        for norm in (self.norm1, self.norm2):
            nn.init.uniform_(norm.weight, 0.8, 1.2)
            nn.init.uniform_(norm.bias, -0.1, 0.1)

    def forward(self, x: Any) -> Any:
        h = self.embed(x)
        q, k, v = self.qkv(self.norm1(h)).chunk(3, -1)
        q, k, v = (t.reshape(t.shape[0], 7, 2, 8).transpose(1, 2) for t in (q, k, v))
        attention = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
        h = h + self.out((attention @ v).transpose(1, 2).reshape(h.shape))
        h = h + self.down(nn.functional.gelu(self.up(self.norm2(h))))
        return self.head(h.mean(1))


class Recurrent(nn.Module):  # type: ignore[misc]
    """One LSTM layer; the last output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 10, batch_first=True), nn.Linear(10, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


def perceptron() -> Any:
    return nn.Sequential(
        nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)
    )


def convolutional() -> Any:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "MLP": (perceptron, (12,)),
    "CNN": (convolutional, (2, 8, 8)),
    "transformer": (Transformer, (7, 6)),
    "LSTM": (Recurrent, (5, 6)),
}
OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "momentum": (sx.optim.sgd(0.02, 0.9), lambda p: torch.optim.SGD(p, 0.02, 0.9)),
    "AdamW": (sx.optim.adamw(1e-3), lambda p: torch.optim.AdamW(p, 1e-3)),
}


def batches(shape: tuple[int, ...], count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    directions = rng.normal(size=(int(np.prod(shape)), 3))
    for _ in range(count):
        x = rng.normal(size=(16, *shape)).astype(np.float32)
        yield x, (x.reshape(16, -1) @ directions).argmax(1)


def exported(network: Any, shape: tuple[int, ...]) -> Any:
    buffer = io.BytesIO()
    example = torch.zeros((4, *shape))
    torch.onnx.export(
        network,
        (example,),
        buffer,
        dynamo=False,
        input_names=["x"],
        output_names=["scores"],
        dynamic_axes={"x": {0: "N"}, "scores": {0: "N"}},
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
    )
    return sx.load(buffer.getvalue())


def torch_losses(
    network: Any, make: Callable[[Any], Any], shape: tuple[int, ...], count: int, kind: Any
) -> np.ndarray:
    network = copy.deepcopy(network).to(kind).train()
    optimizer = make(network.parameters())
    losses = []
    for x, y in batches(shape, count):
        loss = nn.functional.cross_entropy(network(torch.tensor(x, dtype=kind)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", OPTIMIZERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_losses_are_as_near_to_the_exact_ones_as_torch(name: str, rule: str, count: int) -> None:
    make, shape = NETWORKS[name]
    ours, theirs = OPTIMIZERS[rule]
    torch.manual_seed(0)
    network = make().eval()
    rep = prepare_training(sx.trainable(exported(network, shape), "cross_entropy", ours), threads=1)
    result = np.array(
        [float(rep.step({"x": x, "label": y})["loss"]) for x, y in batches(shape, count)]
    )
    exact = torch_losses(network, theirs, shape, count, torch.float64)
    single = torch_losses(network, theirs, shape, count, torch.float32)
    # The noise of a step grows with the steps before it: compare with the worst so far.
    noise = np.maximum.accumulate(np.abs(single - exact))
    assert np.all(np.abs(result - exact) <= LUCK * (noise + EPS * np.abs(exact)))
    still = torch_losses(network, lambda p: torch.optim.SGD(p, 0.0), shape, count, torch.float64)
    assert np.abs(exact - still).max() > 100 * LUCK * noise.max(), "training moved the losses"
