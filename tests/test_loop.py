"""The training loop: same bits every time, also after a kill; clear words when it cannot go on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, DataError, TrainingStopped
from sardonyx.train.checkpoint import Lock, position_of

from .networks import mlp, parse

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
    assert [h["epoch"] for h in run.history] == list(range(40))
    assert run.history[-1]["val_accuracy"] > 0.85 > run.history[0]["val_accuracy"]
    assert run.history[-1]["loss"] < run.history[0]["loss"] / 2


def test_history_is_the_mean_over_rows_also_with_a_partial_batch() -> None:
    losses: list[tuple[float, int]] = []

    def note(run: object) -> None:
        losses.append((run.losses[-1], 32 if len(losses) < 6 else 203 - 6 * 32))  # type: ignore[attr-defined]

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
    found = sx.evaluate(model, DATA, batch_size=50)
    assert found["loss"] == pytest.approx(-logp[np.arange(203), LABEL].mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((scores.argmax(1) == LABEL).mean())


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
    assert best is not None and best.epoch - 1 == run.position.best_epoch


def test_a_record_is_trained_as_the_file_describes(tmp_path: Path) -> None:
    sx.save(sx.trainable(mlp(), "cross_entropy", sx.optim.sgd(0.5)), tmp_path / "net.onnx")
    told = sx.train(tmp_path / "net.onnx", DATA, steps=5)
    same = sx.train(mlp(), DATA, steps=5, loss="cross_entropy", optimizer=sx.optim.sgd(0.5))
    assert told.losses == same.losses


# -- same bits ----------------------------------------------------------------------------


def test_same_seed_same_bits() -> None:
    runs = [sx.train(mlp(), DATA, epochs=2, seed=3) for _ in range(2)]
    assert runs[0].losses == runs[1].losses
    assert state(runs[0].model) == state(runs[1].model)
    assert sx.train(mlp(), DATA, epochs=2, seed=4).losses != runs[0].losses


DROPOUT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 6] x) => (float[N, 3] scores)
<float[6, 3] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9,
  1.0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.6, -0.7, -0.8},
 float ratio = {0.5}>
{
  d = Dropout(x, ratio)
  scores = MatMul(d, w)
}
"""


@pytest.mark.parametrize("stop_at", [1, 6, 7, 10])
def test_stopped_and_resumed_ends_in_the_same_bytes(tmp_path: Path, stop_at: int) -> None:
    straight, broken = tmp_path / "a" / "o.onnx", tmp_path / "b" / "o.onnx"
    for path in (straight, broken):
        path.parent.mkdir()
    sx.train(parse(DROPOUT), DATA, epochs=2, validation=0.1, output=straight)

    def stop(run: object) -> None:
        if run.position.step == stop_at:  # type: ignore[attr-defined]
            run.stop("test")  # type: ignore[attr-defined]

    first = sx.train(
        parse(DROPOUT), DATA, epochs=2, validation=0.1, output=broken, callbacks=[stop]
    )
    assert first.position.step == stop_at
    sx.train(parse(DROPOUT), DATA, epochs=2, validation=0.1, output=broken, resume=True)
    assert broken.read_bytes() == straight.read_bytes()


def command(model: Path, data: Path, output: Path, *more: str) -> list[str]:
    base = [
        sys.executable,
        "-m",
        "sardonyx.cli.__main__",
        "train",
        str(model),
        str(data),
        "-o",
        str(output),
    ]
    return [*base, "--epochs", "60", "--batch-size", "4", "--every-steps", "3", "--quiet", *more]


def killed_and_resumed(files: tuple[Path, Path], folder: Path, seed: int) -> None:
    straight = folder / "straight.onnx"
    if not straight.exists():
        subprocess.run(command(*files, straight), check=True)
    expected = straight.read_bytes()
    output = folder / f"killed{seed}" / "straight.onnx"
    output.parent.mkdir()
    chance = random.Random(seed)
    kills = 0
    for _ in range(50):
        process = subprocess.Popen(command(*files, output, "--resume"))
        while process.poll() is None and not output.exists():
            time.sleep(0.01)
        try:
            process.wait(chance.uniform(0.0, 1.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
            assert not output.exists() or sx.load(output).records  # whole at any moment
            if kills < 3:
                continue
            subprocess.run(command(*files, output, "--resume"), check=True)
        break
    assert output.read_bytes() == expected


def test_killed_at_random_moments_ends_in_the_same_bytes(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    killed_and_resumed(files, tmp_path, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 8))
def test_killed_more_often(files: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    killed_and_resumed(files, tmp_path, seed)


# -- what can go wrong -----------------------------------------------------------------------


def test_interrupt_saves_and_says_how_to_go_on(files: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    process = subprocess.Popen(
        [*command(*files, output)[:-1], "--epochs", "100000"], stderr=subprocess.PIPE, text=True
    )
    while not output.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "--resume" in words
    position = position_of(sx.load(output))
    assert position is not None and position.step > 0 and not position.finished


def test_second_run_on_the_same_output_is_refused(tmp_path: Path) -> None:
    with Lock(tmp_path / "o.onnx"), pytest.raises(TrainingStopped, match="another run is training"):
        sx.train(mlp(), DATA, steps=1, output=tmp_path / "o.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(TrainingStopped, match="cannot write into"):
        sx.train(mlp(), DATA, steps=1, output=tmp_path / "o.onnx")


def test_full_disk_leaves_the_last_checkpoint(files: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    sx.train(files[0], files[1], steps=3, output=output)
    before = output.read_bytes()
    # a limit on the size of files stands in for a full disk: writing fails half-way
    small_disk = ["bash", "-c", 'ulimit -f 1; exec "$@"', "--"]
    result = subprocess.run(
        [*small_disk, *command(*files, output, "--resume")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "cannot write" in result.stderr and "Traceback" not in result.stderr
    assert output.read_bytes() == before


def test_loss_that_is_not_finite_names_step_and_tensor() -> None:
    data = {"x": X * 1e30, "label": LABEL}
    with pytest.raises(TrainingStopped) as caught:
        sx.train(
            mlp(activation="Relu"), data, epochs=5, optimizer=sx.optim.sgd(1e30), shuffle=False
        )
    assert "at step" in str(caught.value) and "batch" in str(caught.value)
    assert any("fc" in cell for row in caught.value.where for cell in row)


BAD = {
    "shape": ({"x": X[:, :5], "label": LABEL}, "rows of"),
    "type": ({"x": X.astype(str), "label": LABEL}, "field"),
    "missing": ({"x": X}, "no field of the data fits"),
    "nan": ({"x": np.where(X > 2, np.nan, X), "label": LABEL}, "nan"),
    "range": ({"x": X, "label": LABEL + 1}, "label 3, not from 0 to 2"),
    "empty": ({"x": X[:0], "label": LABEL[:0]}, "no rows"),
    "lengths": ({"x": X, "label": LABEL[:5]}, "different lengths"),
}


@pytest.mark.parametrize("kind", BAD)
def test_data_that_does_not_fit_is_refused_before_training(kind: str) -> None:
    data, words = BAD[kind]
    with pytest.raises(DataError) as caught:
        sx.train(mlp(), data, steps=1)
    assert words in str(caught.value)


def test_resume_without_output_is_refused() -> None:
    with pytest.raises(ArgumentError, match="continues an output"):
        sx.train(mlp(), DATA, resume=True)


# -- data ----------------------------------------------------------------------------------------


def losses(data: object, **settings: object) -> list[float]:
    return sx.train(mlp(), data, steps=7, shuffle=False, **settings).losses  # type: ignore[arg-type]


def test_every_kind_of_data_gives_the_same_losses(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    expected = losses(DATA)
    np.savez(tmp_path / "d.npz", **DATA)  # type: ignore[arg-type]
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "label.npy", LABEL)
    header = ",".join([*(f"c{i}" for i in range(6)), "label"])
    rows = [",".join([*(repr(float(v)) for v in x), str(y)]) for x, y in zip(X, LABEL, strict=True)]
    (tmp_path / "d.csv").write_text("\n".join([header, *rows]))
    batches = [{"x": X[i : i + 32], "label": LABEL[i : i + 32]} for i in range(0, 203, 32)]
    tensors = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABEL))
    sources = {
        "pair": (X, LABEL),
        "other names": {"pixels": X, "target": LABEL},
        "npz": tmp_path / "d.npz",
        "npy": tmp_path / "x.npy",
        "csv": tmp_path / "d.csv",
        "list of batches": batches,
        "generator": lambda: iter(batches),
        "torch": torch.utils.data.DataLoader(tensors, batch_size=32),
    }
    for name, source in sources.items():
        assert losses(source) == expected, name


def test_parquet_with_columns(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = {f"c{i}": X[:, i] for i in range(6)} | {"noise": X[:, 0], "kind": LABEL}
    parquet.write_table(pyarrow.table(columns), tmp_path / "d.parquet")
    chosen = [*(f"c{i}" for i in range(6)), "kind"]
    assert losses(tmp_path / "d.parquet", columns=chosen) == losses(DATA)
    with pytest.raises(DataError, match="lacks the columns"):
        losses(tmp_path / "d.parquet", columns=["c0", "no such"])


def test_folder_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(3):
            pixels = np.full((4, 5, 3), 40 * i + 100 * label, np.uint8)
            image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    table = sx.train.__globals__["open_data"](tmp_path, None, (2, 2), 3)
    rows = table.take(np.arange(6))
    assert rows["label"].tolist() == [0, 0, 0, 1, 1, 1]
    assert rows["image"].shape == (6, 3, 2, 2)
    np.testing.assert_allclose(rows["image"][5], 180 / 255)


def test_json_lines_are_json(files: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    result = subprocess.run(
        [*command(*files, output)[:-1], "--epochs", "2", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["event"] for e in events] == ["begin", "epoch", "epoch", "end"]
