"""Training on every engine: the same record from the same file gives the same losses.

The oracle is stock onnxruntime, an independent implementation of every operator of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, TrainingStopped
from sardonyx.model import Model
from sardonyx.train.auto import fastest
from sardonyx.train.loop import prepare
from tests.networks import cnn, lstm, mlp, transformer

ENGINES = ["numpy", "torch", "jax", "tensorflow"]
STEPS = 100
NETWORKS = {
    "mlp": (lambda: mlp((6, 8, 3)), (6,), np.float32),
    "cnn": (cnn, (3, 8, 8), np.float32),
    "transformer": (transformer, (5,), np.int64),
    "lstm": (lstm, (4, 3), np.float32),
}


def batches(name: str, steps: int, seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Random rows with a rule to learn; the last batch is shorter, as an epoch's last one is."""
    rng = np.random.default_rng(seed)
    _, shape, kind = NETWORKS[name]
    for step in range(steps):
        rows = 4 if step < steps - 1 else 3
        if kind is np.int64:
            ids = rng.integers(0, 11, (rows, *shape))
            yield {"ids": ids, "label": (ids + 3) % 11}
        else:
            x = rng.normal(size=(rows, *shape)).astype(kind)
            yield {"x": x, "label": (x.reshape(rows, -1)[:, :3]).argmax(1)}


def trained(name: str) -> Model:
    model = NETWORKS[name][0]()
    options = {"axis": 2} if name == "transformer" else {}
    loss = sx.loss.cross_entropy(**options)
    return sx.trainable(model, loss, sx.optim.adamw(3e-3), seed=7)


def losses(rep: object, name: str, steps: int) -> np.ndarray:
    return np.array([float(rep.step(b)["loss"]) for b in batches(name, steps)])  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def wanted() -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """The losses and the final state of each network on onnxruntime."""
    found = {}
    for name in NETWORKS:
        rep = prepare("onnxruntime", trained(name))
        found[name] = losses(rep, name, STEPS), rep.state()
    return found


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("engine", ENGINES)
def test_losses_agree_over_100_steps(engine: str, name: str, wanted: dict) -> None:
    pytest.importorskip(engine)
    rep = prepare(engine, trained(name))
    expected, state = wanted[name]
    np.testing.assert_allclose(losses(rep, name, STEPS), expected, rtol=2e-4, atol=2e-5)
    final = rep.state()
    assert final.keys() == state.keys()
    assert int(final["train/step"]) == STEPS
    assert {n: a.dtype for n, a in final.items()} == {n: a.dtype for n, a in state.items()}


def test_losses_fall(wanted: dict) -> None:
    for name, (found, _) in wanted.items():
        assert found[-20:].mean() < found[:20].mean(), name
