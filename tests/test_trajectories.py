"""The losses of 10 and 100 steps are torch's, as far as float32 allows.

The truth is torch in float64. What float32 allows is measured, not guessed: torch in float32, and
again from initial weights that are moved by less than a unit in the last place. Training amplifies
such differences; ours may be as far from the truth as the farthest of these, times `SLACK`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training

torch = pytest.importorskip("torch")
nn = torch.nn

SLACK = 4.0  # three runs are a small sample of the noise
SAMPLES = 3
STEPS = 100
ROWS = 8


class Encoder(nn.Module):
    """One transformer layer over vectors, norm first."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        split = self.qkv(self.norm1(x)).reshape(b, t, 3, self.heads, c // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / (c // self.heads) ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, t, c))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 12, batch_first=True), nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


def convolutional() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip


def perceptron() -> Any:
    return nn.Sequential(
        nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 5)
    )


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "mlp": (perceptron, (10,)),
    "cnn": (convolutional, (3, 8, 8)),
    "transformer": (Encoder, (7, 16)),
    "lstm": (Recurrent, (9, 6)),
}
OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "sgd": (sx.optim.sgd(0.05, 0.9), lambda p: torch.optim.SGD(p, 0.05, 0.9)),
    "adamw": (sx.optim.adamw(1e-3), lambda p: torch.optim.AdamW(p, 1e-3)),
}


def made(name: str) -> Any:
    torch.manual_seed(0)
    return NETWORKS[name][0]()


def batch(name: str, step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(step)
    x = rng.normal(size=(ROWS, *NETWORKS[name][1])).astype(np.float32)
    return x, rng.integers(0, 5, ROWS)


@functools.cache
def exported(name: str) -> Any:
    x = torch.tensor(batch(name, 0)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            made(name).eval(), (x,), dynamo=True, optimize=False, verbose=False
        )
    return program.model_proto


def torch_losses(name: str, optimizer: str, dtype: Any, nudge: int | None = None) -> np.ndarray:
    module = made(name).to(dtype).train()
    if nudge is not None:
        generator = torch.Generator().manual_seed(nudge)
        with torch.no_grad():
            for p in module.parameters():
                p *= 1 + (torch.rand(p.shape, generator=generator) - 0.5) * 2**-23
    update = OPTIMIZERS[optimizer][1](module.parameters())
    losses = []
    for step in range(STEPS):
        x, y = batch(name, step)
        update.zero_grad()
        loss = nn.functional.cross_entropy(module(torch.tensor(x, dtype=dtype)), torch.tensor(y))
        loss.backward()
        update.step()
        losses.append(loss.item())
    return np.array(losses)


def our_losses(name: str, optimizer: str) -> np.ndarray:
    net = sx.trainable(exported(name), "cross_entropy", OPTIMIZERS[optimizer][0])
    rep = prepare_training(net, threads=1)
    losses = []
    for step in range(STEPS):
        x, y = batch(name, step)
        losses.append(float(rep.step({net.inputs[0].name: x, "label": y})["loss"]))
    return np.array(losses)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_losses_are_as_near_to_the_truth_as_those_of_torch(name: str, optimizer: str) -> None:
    truth = torch_losses(name, optimizer, torch.float64)
    nudges = [None, *range(SAMPLES - 1)]
    theirs = [torch_losses(name, optimizer, torch.float32, n) for n in nudges]
    ours = our_losses(name, optimizer)
    assert np.ptp(truth) > 0.05, "something is learnt"
    for steps in (1, 10, STEPS):
        # A loss of float32 is itself rounded: half a unit in its last place is no error.
        rounding = float(np.spacing(np.float32(np.abs(truth[:steps]).max())))
        noise = max(np.abs(t[:steps] - truth[:steps]).max() for t in theirs)
        error = np.abs(ours[:steps] - truth[:steps]).max()
        assert error <= SLACK * max(noise, rounding), (steps, error, noise)
