"""Adapters against PEFT: 50 steps from the same factors give the same losses."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sardonyx as sx

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
STEPS, ROWS, RANK, ALPHA = 50, 16, 4, 8


class Block(nn.Module):
    """A transformer's layer over embedded tokens, and a head on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(1, 2) / 4, -1) @ v)
        x = x + self.down(nn.functional.gelu(self.up(x)))
        return self.head(x.mean(1))


class Pictures(nn.Module):
    """Two convolutions, of which one has a stride, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 12, 3, stride=2)
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.silu(self.second(nn.functional.silu(self.first(x))))
        return self.head(y.mean((2, 3)))


def tokens(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 50, (ROWS, 9))


def pictures(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(ROWS, 3, 8, 8)).astype(np.float32)


# network, its inputs, the modules that get adapters
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[..., np.ndarray], list[str]]] = {
    "every product of a transformer": (Block, tokens, ["qkv", "out", "up", "down", "head"]),
    "attention alone": (Block, tokens, ["qkv", "out"]),
    "convolutions": (Pictures, pictures, ["first", "second", "head"]),
}


def peft_module() -> Any:
    if importlib.util.find_spec("peft") is None:
        pytest.skip("peft is not installed")
    try:
        import torchvision  # noqa: F401
    except Exception:  # of another version than torch: transformers does without it
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    import peft

    return peft


@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_are_those_of_peft(name: str) -> None:
    peft = peft_module()
    make, inputs, names = CASES[name]
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    module = make().train()
    batches = [(inputs(rng), rng.integers(0, 5, ROWS)) for _ in range(5)]
    model = sx.from_torch(module.eval(), (torch.tensor(batches[0][0]),))
    targets = [f"{n}.weight" for n in names]
    adapted = sx.lora(model, rank=RANK, alpha=ALPHA, targets=targets)
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=names, lora_dropout=0.0)
    theirs = peft.get_peft_model(module.train(), config)
    copy_factors(adapted, theirs, names)
    trained = [p for p in theirs.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-2, weight_decay=0.01)
    rep = sx.prepare_training(sx.trainable(adapted, "cross_entropy", sx.optim.adamw(1e-2)))
    x_name = model.inputs[0].name or ""
    ours, expected = [], []
    for step in range(STEPS):
        x, label = batches[step % len(batches)]
        ours.append(float(rep.step({x_name: x, "label": label})["loss"]))
        loss = nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(label))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
    assert all(rep.state()[f"{n}.weight.lora_B"].any() for n in names)


def copy_factors(adapted: sx.Model, theirs: Any, names: list[str]) -> None:
    """Give PEFT's module the factors that `sx.lora` drew, as it stores them."""
    modules = dict(theirs.base_model.model.named_modules())
    for name in names:
        layer = modules[name]
        for factor, part in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B)):
            array = adapted.initializer(f"{name}.weight.{factor}").numpy()
            target = part["default"].weight
            if array.ndim == 2 and target.ndim == 2:
                array = array.T
            with torch.no_grad():
                target.copy_(torch.tensor(array.reshape(target.shape).copy()))
