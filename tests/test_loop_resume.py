"""Runs that are stopped, killed, interrupted or refused: nothing that was saved is lost, and what
is continued ends in the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, TrainingStopped
from sardonyx.train import tables
from sardonyx.train.checkpoint import Lock, position_of
from sardonyx.train.run import Run

from .networks import mlp, parse

X = np.random.default_rng(0).normal(size=(203, 6)).astype(np.float32)
LABEL = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)
DATA = {"x": X, "label": LABEL}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    sx.save(mlp(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **DATA)  # type: ignore[arg-type]
    return tmp_path / "model.onnx", tmp_path / "data.npz"


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

    def stop(run: Run) -> None:
        if run.position.step == stop_at:
            run.stop("test")

    first = sx.train(
        parse(DROPOUT), DATA, epochs=2, validation=0.1, output=broken, callbacks=[stop]
    )
    assert first.position.step == stop_at
    sx.train(parse(DROPOUT), DATA, epochs=2, validation=0.1, output=broken, resume=True)
    assert broken.read_bytes() == straight.read_bytes()


def command(model: Path, data: Path, output: Path, *more: str) -> list[str]:
    base = [sys.executable, "-m", "sardonyx.cli.__main__", "train", str(model), str(data)]
    length = ["--epochs", "14", "--batch-size", "4", "--every-steps", "5", "--quiet"]
    return [*base, "-o", str(output), *length, *more]


def killed(files: tuple[Path, Path], output: Path, chance: random.Random) -> bool:
    """Start or continue a run and kill it: while it starts, or at a random moment of training."""
    before = output.stat().st_mtime_ns if output.exists() else None
    process = subprocess.Popen(command(*files, output, "--resume"))
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0.0, 1.0))
    else:
        while process.poll() is None and _moved(output) == before:
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.1))
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def _moved(output: Path) -> int | None:
    return output.stat().st_mtime_ns if output.exists() else None


def killed_and_resumed(files: tuple[Path, Path], folder: Path, seed: int, kills: int) -> None:
    straight, output = folder / "straight" / "o.onnx", folder / "killed" / "o.onnx"
    for path in (straight, output):
        path.parent.mkdir()
    subprocess.run(command(*files, straight), check=True)
    chance = random.Random(seed)
    for count in range(kills):
        assert killed(files, output, chance), f"the run ended before kill {count}"
        assert not output.exists() or sx.load(output).records  # whole at any moment
    subprocess.run(command(*files, output, "--resume"), check=True)
    assert output.read_bytes() == straight.read_bytes()


def test_killed_at_three_random_moments_ends_in_the_same_bytes(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    killed_and_resumed(files, tmp_path, 0, 3)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_four_times(files: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    killed_and_resumed(files, tmp_path, seed, 4)


def test_a_run_is_continued_as_it_was_begun_or_refused(tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    settings = {"loss": "cross_entropy", "lr": 0.01, "batch_size": 16, "seed": 3}
    sx.train(mlp(), DATA, steps=2, output=output, validation=0.1, **settings)
    whole = sx.train(mlp(), DATA, steps=4, validation=0.1, **settings)
    run = sx.train(mlp(), DATA, steps=4, output=output, resume=True)  # all from the file
    assert list(run.losses) == list(whole.losses)[2:]
    sx.train(mlp(), DATA, steps=5, output=output, resume=True, **settings)  # or said again
    before = output.read_bytes()
    for other, words in (
        ({"batch_size": 8}, "batch size  16 → 8"),
        ({"seed": 4}, "seed  3 → 4"),
        ({"validation": 0.2}, "share  0.1 → 0.2"),
        ({"lr": 0.1}, "optimizer.lr  0.01 → 0.1"),
        ({"loss": "mse"}, "cross_entropy → mse"),
        ({"train": "fc1*"}, "not set → fc1*"),
    ):
        with pytest.raises(ArgumentError, match="begun with other settings") as caught:
            sx.train(mlp(), DATA, steps=9, output=output, resume=True, **other)
        assert words in str(caught.value)
    fewer = {"x": X[:50], "label": LABEL[:50]}
    with pytest.raises(ArgumentError, match="begun with other settings"):
        sx.train(mlp(), fewer, steps=9, output=output, resume=True)
    assert output.read_bytes() == before


def test_how_long_is_kept_too(tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"

    def stop(run: Run) -> None:
        run.stop("test")

    sx.train(mlp(), DATA, epochs=5, output=output, callbacks=[stop])
    assert len(sx.train(mlp(), DATA, output=output, resume=True).history) == 5
    assert len(sx.train(mlp(), DATA, output=output, resume=True, epochs=6).history) == 6


def test_the_best_epoch_is_still_known_after_a_resume(tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    settings = {"validation": 0.3, "optimizer": sx.optim.sgd(5.0)}
    first = sx.train(mlp(), DATA, epochs=4, output=output, **settings)
    again = sx.train(mlp(), DATA, epochs=4, output=output, resume=True)
    assert first.best_model is not None and again.best_model is not None
    assert position_of(again.best_model) == position_of(first.best_model)
    for name, value in first.best_model.graph.initializers.items():
        result = again.best_model.initializer(name)
        assert value.const_value is not None and result.tobytes() == value.const_value.tobytes()


# -- what can go wrong ----------------------------------------------------------------------


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


def test_an_interrupt_whose_exception_is_lost_ends_the_run_too(tmp_path: Path) -> None:
    def lose(run: Run) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    run = sx.train(mlp(), DATA, steps=6, output=tmp_path / "o.onnx", callbacks=[lose])
    assert (run.stopped, run.position.step) == ("interrupted", 1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_run_on_the_same_output_is_refused(tmp_path: Path) -> None:
    with Lock(tmp_path / "o.onnx"), pytest.raises(TrainingStopped, match="another run is training"):
        sx.train(mlp(), DATA, steps=1, output=tmp_path / "o.onnx")


def test_a_run_that_is_not_finished_is_not_begun_anew_by_mistake(tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"

    def stop(run: Run) -> None:
        if run.position.step == 2:
            run.stop("enough")

    sx.train(mlp(), DATA, steps=6, output=output, callbacks=[stop])
    kept = output.read_bytes()
    with pytest.raises(ArgumentError, match="not finished"):
        sx.train(mlp(), DATA, steps=6, output=output)
    assert output.read_bytes() == kept
    assert sx.train(mlp(), DATA, steps=6, output=output, resume=True).position.step == 6
    # What is finished is replaced, also where patience ended it.
    patient = sx.train(mlp(), DATA, epochs=9, lr=0.0, patience=1, output=output)
    assert patient.stopped and patient.position.finished
    assert sx.train(mlp(), DATA, steps=3, output=output).position.step == 3


def test_read_only_folder(tmp_path: Path) -> None:
    # root may write anywhere, but not into the kernel's own tree
    folder = Path("/sys/kernel") if os.geteuid() == 0 else tmp_path
    if folder is tmp_path:
        tmp_path.chmod(0o555)
    with pytest.raises(TrainingStopped, match="cannot write into"):
        sx.train(mlp(), DATA, steps=1, output=folder / "o.onnx")


def test_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    sx.train(mlp(), DATA, steps=3, output=output)
    before = output.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill_the_disk(run: Run) -> None:
        # a limit on the size of files stands in for a full disk: writing fails half-way
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))

    try:
        with pytest.raises(TrainingStopped, match="cannot write") as caught:
            sx.train(mlp(), DATA, steps=9, output=output, resume=True, callbacks=[fill_the_disk])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "what was saved before is whole" in str(caught.value)
    assert output.read_bytes() == before
    assert sx.train(mlp(), DATA, steps=9, output=output, resume=True).position.finished


def test_resume_without_output_is_refused() -> None:
    with pytest.raises(ArgumentError, match="continues an output"):
        sx.train(mlp(), DATA, resume=True)


def test_a_run_continues_only_on_the_data_that_it_began_with(tmp_path: Path) -> None:
    other = {"x": X[::-1].copy(), "label": LABEL[::-1].copy()}
    for name, data in (("a", DATA), ("b", other)):
        np.savez(tmp_path / f"{name}.npz", **data)  # type: ignore[arg-type]
        np.save(tmp_path / f"{name}.npy", data["x"])
        rows = np.concatenate([data["x"], data["label"][:, None]], 1)
        np.savetxt(tmp_path / f"{name}.csv", rows, delimiter=",", fmt=["%.9g"] * 6 + ["%d"])
    np.save(tmp_path / "label.npy", LABEL)
    kinds = {"memory": (DATA, other)}
    kinds |= {k: (tmp_path / f"a.{k}", tmp_path / f"b.{k}") for k in ("npz", "npy", "csv")}
    for kind, (first, second) in kinds.items():
        output = tmp_path / f"{kind}.onnx"
        sx.train(mlp(), first, steps=2, output=output)
        before = output.read_bytes()
        with pytest.raises(ArgumentError, match="contents of the data"):
            sx.train(mlp(), second, steps=4, output=output, resume=True)
        assert output.read_bytes() == before, kind
        assert sx.train(mlp(), first, steps=4, output=output, resume=True).position.step == 4


def test_a_fingerprint_looks_at_large_arrays_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "HASHED_BYTES", 1024)
    monkeypatch.setattr(tables, "HASHED_ROWS", 50)
    first = tables.Table(DATA, "memory").fingerprint(["x", "label"])
    assert first == tables.Table(DATA, "memory").fingerprint(["label", "x"])
    assert first != tables.Table({**DATA, "x": X + 1}, "memory").fingerprint(["x", "label"])


def test_a_lock_that_is_given_back_cannot_be_held_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run starts at the very moment at which the first one closes its file."""
    output, second = tmp_path / "o.onnx", Lock(tmp_path / "o.onnx")
    close = os.close

    def close_and_let_the_second_in(file: int) -> None:
        close(file)
        monkeypatch.setattr(os, "close", close)
        second.__enter__()

    with Lock(output):
        monkeypatch.setattr(os, "close", close_and_let_the_second_in)
    with pytest.raises(TrainingStopped, match="another run is training"), Lock(output):
        pass
    second.__exit__(None, None, None)
    with Lock(output):
        assert list(tmp_path.iterdir()) == [tmp_path / ".o.onnx.lock"]
    assert not list(tmp_path.iterdir())
