"""Every rewrite of a step on onnxruntime, against the step without it: the judge of trainings.

Each network is one that the rewrite changes, which the test sees by the graphs that are run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.engines.c_library import find_compiler
from sardonyx.engines.onnxruntime import blocks, dense, prepare_training, step_session
from sardonyx.engines.onnxruntime.kernels import fusion
from sardonyx.engines.onnxruntime.session import open_session
from sardonyx.engines.onnxruntime.step_session import REWRITES

torch = pytest.importorskip("torch")
STEPS = 6


class Separable(torch.nn.Module):
    """Depthwise and dense convolutions with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 16, 3, padding=1, groups=16),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(32, 4),
        )

    def forward(self, x: Any) -> Any:
        return self.body(x)


def network(kind: str) -> tuple[sx.Model, tuple[int, ...]]:
    torch.manual_seed(0)
    shape = (3, 12, 12) if kind == "images" else (24,)
    module = Separable()
    if kind == "layers":
        module = torch.nn.Sequential(
            torch.nn.Linear(24, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)
        )
    program = torch.onnx.export(
        module.eval(), (torch.randn(4, *shape),), dynamo=True, verbose=False, optimize=False,
        input_names=["x"],
    )  # fmt: skip
    return sx.load(program.model_proto), shape


NETWORKS = {"blocks": "layers", "dense": "images", "depthwise": "images", "kernels": "images"}
OPTIMIZERS = {
    "adamw": sx.optim.adamw(1e-2),
    "sgd": sx.optim.sgd(1e-2, momentum=0.9),
}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The graphs of steps that onnxruntime runs, without their names."""
    seen: list[bytes] = []

    def spied(data: bytes, **settings: Any) -> Any:
        model = onnx.load_from_string(data)
        seen.append(" ".join(f"{n.domain}:{n.op_type}" for n in model.graph.node).encode())
        return open_session(data, **settings)

    monkeypatch.setattr(step_session, "open_session", spied)
    # so that a small network is large enough for every rewrite
    for name, value in {"LARGE": 256, "SMALLEST": 64, "LARGEST": 512, "PER_THREAD": 64}.items():
        monkeypatch.setattr(blocks, name, value)
    monkeypatch.setattr(dense, "PIXELS", 1)
    monkeypatch.setattr(fusion, "LEAST_SAVED", 0)
    return seen


def test_every_rewrite_has_a_network() -> None:
    assert set(NETWORKS) == set(REWRITES)


@pytest.mark.parametrize(
    ("rewrite", "optimizer"),
    # updates of SGD have too few operators for blocks
    [(r, o) for r in NETWORKS for o in OPTIMIZERS if (r, o) != ("blocks", "sgd")],
)
def test_a_rewrite_keeps_the_training(rewrite: str, optimizer: str, graphs: list[bytes]) -> None:
    """Losses and state within the noise of float32, as `verify_training` judges them."""
    if rewrite == "kernels" and find_compiler() is None:
        pytest.skip("no C compiler")
    model, shape = network(NETWORKS[rewrite])
    net = sx.trainable(model, "cross_entropy", OPTIMIZERS[optimizer])
    rng = np.random.default_rng(0)
    batches = [
        {"x": rng.normal(size=(4, *shape)).astype(np.float32), "label": rng.integers(0, 4, 4)}
        for _ in range(STEPS)
    ]
    others = [name for name in REWRITES if name != rewrite]
    ours = prepare_training(net, threads=1, without=others)
    plain = prepare_training(net, threads=1, without=list(REWRITES))
    assert graphs[0] != graphs[1], "the rewrite changes nothing here"
    assert sx.verify_training(net, ours, plain, data=batches, steps=STEPS).verdict == "same"
