"""A whole training in one file gives the numbers of `sx.train(shuffle="hash")`, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import sardonyx as sx
from sardonyx.train.run import Run
from tests.networks import mlp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(83, 6)).astype(np.float32)
DATA = {"x": X, "label": (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.5)}


def session(path: Path) -> ort.InferenceSession:
    onnx.checker.check_model(path, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return ort.InferenceSession(path, options)


def feeds(data: Any, epochs: int = 3, batch_size: int = 16, seed: int = 5) -> dict[str, Any]:
    numbers = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
    return {**data, **{n: np.array(v, np.int64) for n, v in numbers.items()}}


def trained(path: Path, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    opened = session(path)
    return dict(zip([v.name for v in opened.get_outputs()], opened.run(None, inputs), strict=True))


def assert_same(outputs: dict[str, np.ndarray], run: Run) -> None:
    """Losses, curves, the last state and the best weights, to the bit."""
    assert outputs["losses"].ravel().tolist() == list(run.losses)
    for name in (n for n in run.history[0] if n not in ("epoch", "step")):
        assert outputs[f"history/{name}"].tolist() == [h[name] for h in run.history], name
    for name, array in run.rep.state().items():
        np.testing.assert_array_equal(outputs[f"last/{name}"], array, strict=True)
    best = {n: a for n, a in outputs.items() if n.startswith("best/")}
    if best:
        assert run.best is not None
        for name, array in best.items():
            np.testing.assert_array_equal(array, run.best[0][name.removeprefix("best/")])
        assert outputs["best_epoch"] == run.position.best_epoch


def compared(folder: Path, model: Any, data: Any, exported: Any = None, **settings: Any) -> None:
    """Train in both ways and compare; `exported` has the settings that are in the file."""
    exported = exported or {}
    how = {k: v for k, v in settings.items() if k not in ("epochs", "batch_size", "seed")}
    path = sx.export_training(model, folder / "whole.onnx", **how, **exported)
    loop = {k: settings.get(k, d) for k, d in (("epochs", 3), ("batch_size", 16), ("seed", 5))}
    outputs = trained(path, feeds(data, **loop))
    shuffle = "hash" if exported.get("shuffle", True) else False
    rest = {k: v for k, v in exported.items() if k != "shuffle"}
    options = {"engine_options": {"threads": 1}, "shuffle": shuffle}
    assert_same(outputs, sx.train(model, data, **how, **loop, **rest, **options))


@pytest.mark.parametrize(
    "exported",
    [
        {},
        {"validation": 0.2},
        {
            "validation": 0.3,
            "patience": 1,
            "watch": "val_accuracy",
            "metrics": ["accuracy", "top2"],
        },
        {"patience": 2},
        {"drop_last": True, "validation": 0.1},
        {"shuffle": False},
    ],
    ids=str,
)
def test_settings_of_the_loop(tmp_path: Path, exported: Any) -> None:
    compared(tmp_path, mlp(), DATA, exported, optimizer=sx.optim.adam(0.02), epochs=6)


@pytest.mark.parametrize("batch_size", [1, 7, 83, 200])
def test_batches_of_any_size(tmp_path: Path, batch_size: int) -> None:
    compared(tmp_path, mlp(), DATA, {"validation": 0.2}, batch_size=batch_size)
    compared(tmp_path, mlp(), DATA, {"drop_last": True}, batch_size=batch_size, epochs=1)
