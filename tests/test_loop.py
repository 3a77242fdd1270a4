"""The training loop: same bits every time, also after a kill; clear words when it cannot go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import TrainingStopped
from sardonyx.train.checkpoint import position_of
from sardonyx.train.run import Run

from .networks import mlp

rng = np.random.default_rng(0)
X = rng.normal(size=(203, 6)).astype(np.float32)
LABEL = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)
DATA = {"x": X, "label": LABEL}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    sx.save(mlp(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **DATA)  # type: ignore[arg-type]
    return tmp_path / "model.onnx", tmp_path / "data.npz"


def state(model: sx.Model) -> dict[str, bytes]:
    arrays = {n: v.const_value for n, v in model.graph.initializers.items()}
    arrays.update(model.records[0].state)
    return {n: t.tobytes() for n, t in arrays.items() if t is not None}


# -- learning ---------------------------------------------------------------------------


def test_learns_and_reports() -> None:
    run = sx.train(mlp((6, 32, 3)), DATA, epochs=40, validation=0.2, optimizer=sx.optim.adam(0.02))
    assert [h["epoch"] for h in run.history] == list(range(1, 41))
    assert run.history[-1]["val_accuracy"] > 0.85 > run.history[0]["val_accuracy"]
    assert run.history[-1]["loss"] < run.history[0]["loss"] / 2


def test_history_is_the_mean_over_rows_also_with_a_partial_batch() -> None:
    losses: list[tuple[float, int]] = []

    def note(run: Run) -> None:
        losses.append((run.losses[-1], 32 if len(losses) < 6 else 203 - 6 * 32))

    run = sx.train(mlp(), DATA, epochs=1, callbacks=[note])
    assert len(losses) == 7
    assert run.history[0]["loss"] == pytest.approx(sum(v * n for v, n in losses) / 203, rel=1e-12)


def test_a_served_model_needs_no_sardonyx(tmp_path: Path) -> None:
    import onnxruntime as ort

    sx.train(mlp(), DATA, epochs=1, output=tmp_path / "tuned.onnx")
    session = ort.InferenceSession(str(tmp_path / "tuned.onnx"))
    (scores,) = session.run(None, {"x": X})
    np.testing.assert_allclose(
        sx.predict(tmp_path / "tuned.onnx", {"x": X})["scores"], scores, rtol=1e-6
    )


def test_evaluate_measures_what_it_says() -> None:
    import onnxruntime as ort

    model = mlp()
    scores = (
        ort.InferenceSession(model.proto().SerializeToString())
        .run(None, {"x": X})[0]
        .astype(np.float64)
    )
    logp = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    result = sx.evaluate(model, DATA, batch_size=50)
    assert result["loss"] == pytest.approx(-logp[np.arange(203), LABEL].mean(), rel=1e-5)
    assert result["accuracy"] == pytest.approx((scores.argmax(1) == LABEL).mean())


def test_early_stopping_keeps_the_best(tmp_path: Path) -> None:
    run = sx.train(
        mlp(),
        DATA,
        epochs=50,
        validation=0.3,
        patience=2,
        optimizer=sx.optim.sgd(20.0),
        output=tmp_path / "o.onnx",
    )
    assert len(run.history) < 50
    assert "did not improve" in run.stopped
    best = position_of(sx.load(tmp_path / "o.best.onnx"))
    assert best is not None and best.epoch == run.position.best_epoch


def test_a_record_is_trained_as_the_file_describes(tmp_path: Path) -> None:
    sx.save(sx.trainable(mlp(), "cross_entropy", sx.optim.sgd(0.5)), tmp_path / "net.onnx")
    told = sx.train(tmp_path / "net.onnx", DATA, steps=5)
    same = sx.train(mlp(), DATA, steps=5, loss="cross_entropy", optimizer=sx.optim.sgd(0.5))
    assert told.losses == same.losses


# -- same bits --------------------------------------------------------------------------


def test_same_seed_same_bits() -> None:
    runs = [sx.train(mlp(), DATA, epochs=2, seed=3) for _ in range(2)]
    assert runs[0].losses == runs[1].losses
    assert state(runs[0].model) == state(runs[1].model)
    assert sx.train(mlp(), DATA, epochs=2, seed=4).losses != runs[0].losses


# -- what is shown -----------------------------------------------------------------------


def test_loss_that_is_not_finite_names_step_and_tensor() -> None:
    data = {"x": X * 1e30, "label": LABEL}
    with pytest.raises(TrainingStopped) as caught:
        sx.train(
            mlp(activation="Relu"), data, epochs=5, optimizer=sx.optim.sgd(1e30), shuffle=False
        )
    assert "at step" in str(caught.value) and "batch" in str(caught.value)
    assert any("fc" in cell for row in caught.value.where for cell in row)


def test_json_lines_are_json(files: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    program = [sys.executable, "-m", "sardonyx.cli.__main__", "train", *map(str, files)]
    result = subprocess.run(
        [*program, "-o", str(output), "--epochs", "2", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["event"] for e in events] == ["begin", "epoch", "epoch", "end"]
