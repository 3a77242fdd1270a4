"""A loop that is ahead of its device: metrics are read when somebody looks, and never lost.

No GPU is needed: an engine of the CPU says that its steps may still be under way, and records when
its metrics are read and by which thread its batches are staged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import TrainingStopped
from sardonyx.train.checkpoint import position_of
from sardonyx.train.processes import Part, staged
from sardonyx.train.run import Run

from .networks import mlp

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 6)).astype(np.float32)
DATA = {"x": X, "label": (X[:, 0] > 0).astype(np.int64)}
AHEAD = 3
HOW: dict[str, Any] = {"engine": "numpy", "batch_size": 4, "loss": "cross_entropy", "epochs": 2}
Log = list[tuple[str, int]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """("start" or "read", number of the step), in order; the engine is numpy."""
    from sardonyx.engines.numpy.backend import TrainingRep

    events: Log = []
    later = TrainingRep.read_later
    steps = iter(range(1, 10_000))

    def recorded(
        self: Any, values: Mapping[str, Any], types: Mapping[str, Any]
    ) -> Callable[[], Any]:
        number = next(steps)
        events.append(("start", number))
        read = later(self, values, types)

        def reading() -> Any:
            events.append(("read", number))
            return read()

        return reading

    monkeypatch.setattr(TrainingRep, "steps_ahead", AHEAD)
    monkeypatch.setattr(TrainingRep, "read_later", recorded)
    return events


def lags(events: Log) -> list[int]:
    """For each reading, how many steps had been started after the step that was read."""
    started, result = 0, []
    for kind, number in events:
        started = number if kind == "start" else started
        if kind == "read":
            result.append(started - number)
    return result


def test_nothing_is_read_until_the_loop_is_ahead(log: Log) -> None:
    run = sx.train(mlp(), DATA, **HOW)
    assert [number for kind, number in log if kind == "read"] == list(range(1, 33))
    epoch = [*[AHEAD] * (16 - AHEAD), *range(AHEAD - 1, -1, -1)]
    assert lags(log) == [*epoch, *epoch]  # an epoch's metrics are complete at its end
    assert len(run.losses) == 32


def test_the_numbers_are_those_of_a_loop_that_waits(log: Log) -> None:
    ahead = sx.train(mlp(), DATA, validation=0.25, **HOW)
    waiting = sx.train(mlp(), DATA, validation=0.25, **{**HOW, "engine": "onnxruntime"})
    assert ahead.losses == pytest.approx(waiting.losses, rel=1e-5)
    for ours, theirs in zip(ahead.history, waiting.history, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_callback_that_looks_sees_the_step_that_has_just_been_taken(log: Log) -> None:
    losses: list[float] = []

    def look(run: Run) -> None:
        assert len(run.losses) == run.position.step
        losses.append(run.losses[-1])

    run = sx.train(mlp(), DATA, callbacks=[look], **HOW)
    assert losses == run.losses.tolist() and set(lags(log)) == {0}


def test_a_callback_that_does_not_look_costs_no_wait(log: Log) -> None:
    steps: list[int] = []
    sx.train(mlp(), DATA, callbacks=[lambda run: steps.append(run.position.step)], **HOW)
    assert steps == list(range(1, 33))
    assert lags(log).count(0) == 2  # the ends of the epochs


def test_a_checkpoint_holds_the_metrics_of_every_step(log: Log, tmp_path: Path) -> None:
    whole = sx.train(mlp(), DATA, **HOW)
    output = tmp_path / "o.onnx"
    sx.train(mlp(), DATA, output=output, **{**HOW, "epochs": None, "steps": 21})
    position = position_of(sx.load(output))
    assert position is not None and position.batch == 5 and position.rows == 20
    assert position.sums["loss"] == pytest.approx(4 * sum(whole.losses[16:21]), rel=1e-12)
    length = {"epochs": 2, "steps": None}
    resumed = sx.train(mlp(), DATA, output=output, resume=True, **{**HOW, **length})
    assert resumed.history == whole.history
    expected, state = whole.rep.state(), resumed.rep.state()
    assert all(state[name].tobytes() == array.tobytes() for name, array in expected.items())


def test_a_loss_that_is_not_finite_is_reported_with_its_step_and_not_saved(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sardonyx.engines.numpy.backend import TrainingRep

    numbers = iter(range(1, 10_000))

    def stage(self: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**batch, "x": batch["x"] * (np.float32("nan") if next(numbers) == 10 else 1)}

    monkeypatch.setattr(TrainingRep, "staged", stage)
    output = tmp_path / "o.onnx"
    with pytest.raises(TrainingStopped) as stop:
        sx.train(mlp(), DATA, output=output, every_steps=4, **HOW)
    assert "is nan at step 10, epoch 1, batch 10" in str(stop.value)
    assert "device=cpu names the tensor" in str(stop.value)
    position = position_of(sx.load(output))
    assert position is not None and position.step == 8
    saved = sx.load(output)
    values = [v.const_value.numpy() for v in saved.graph.initializers.values() if v.const_value]
    assert all(np.isfinite(array).all() for array in values)


def test_an_interrupted_wait_loses_no_metrics(log: Log, tmp_path: Path) -> None:
    def interrupt(run: Run) -> None:
        if run.position.step == 7:
            raise KeyboardInterrupt

    output = tmp_path / "o.onnx"
    run = sx.train(mlp(), DATA, callbacks=[interrupt], output=output, **HOW)
    assert run.stopped == "interrupted" and len(run.losses) == 7
    position = position_of(sx.load(output))
    assert position is not None and position.rows == 28
    assert position.sums["loss"] == pytest.approx(4 * sum(run.losses), rel=1e-12)


def test_a_run_that_is_over_keeps_no_loop_alive(log: Log) -> None:
    run = sx.train(mlp(), DATA, **HOW)
    reads = len(log)
    assert run.losses and run.model and len(log) == reads
    assert not hasattr(run.read_metrics, "__self__")


def test_batches_are_staged_once_each_by_the_thread_that_prepares_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sardonyx.engines.onnxruntime import TrainingRep

    calls: list[tuple[str, int]] = []

    def stage(self: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        calls.append((threading.current_thread().name, len(batch["x"])))
        return dict(batch)

    monkeypatch.setattr(TrainingRep, "staged", stage)
    data = {name: array[:30] for name, array in DATA.items()}
    sx.train(mlp(), data, **{**HOW, "engine": "onnxruntime"})
    assert calls == [("sardonyx-data", rows) for _ in range(2) for rows in [*[4] * 7, 2]]


def test_a_part_of_a_batch_stays_one_when_it_is_staged() -> None:
    class Engine:
        def staged(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
            return {n: a + 1 for n, a in batch.items()}

    rows = Part({"x": np.zeros(3)})
    rows.total = 12
    part = staged(Engine(), rows)
    assert isinstance(part, Part) and part.total == 12 and part["x"].tolist() == [1, 1, 1]
    assert not isinstance(staged(Engine(), {"x": np.zeros(3)}), Part)


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_settings_of_a_step_are_converted_once(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy to a GPU in every step would wait for it."""
    pytest.importorskip(engine)
    net = sx.trainable(mlp(), "cross_entropy", sx.optim.adamw(1e-2))
    rep = sx.prepare_training(net, engine)
    batch = {name: array[:4] for name, array in DATA.items()}
    first = rep.step(batch)
    step = rep.steps[0]
    assert step.hyper and step.settings.keys() == step.hyper.keys()
    converted: list[Any] = []
    convert = step.forward.convert
    monkeypatch.setattr(step.forward, "convert", lambda v: converted.append(v) or convert(v))
    rep.step(batch)
    kinds = [v for v in converted if isinstance(v, np.ndarray)]
    # the rows and their labels, which jax reads from the memory of a CPU
    assert len(kinds) == (0 if engine == "jax" else 2)
    before = rep.state()
    rep.step({**batch, **{name: np.zeros_like(value) for name, value in step.hyper.items()}})
    weights = [v.name for v in net.graph.initializers.values() if v.name in before]
    assert weights and all(np.array_equal(before[n], rep.state()[n]) for n in weights)
    assert np.isfinite(first["loss"]).all()


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_framework_engines_ahead_of_a_device(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(engine)
    backend = pytest.importorskip(f"sardonyx.engines.{engine}.backend")
    waiting = sx.train(mlp(), DATA, **{**HOW, "engine": engine})
    created = backend.TrainingRep.__init__

    def ahead(self: Any, *arguments: Any, **options: Any) -> None:
        created(self, *arguments, **options)
        self.steps_ahead = AHEAD

    monkeypatch.setattr(backend.TrainingRep, "__init__", ahead)
    run = sx.train(mlp(), DATA, **{**HOW, "engine": engine})
    assert run.rep.steps_ahead == AHEAD and run.losses == waiting.losses
    assert run.history == waiting.history


def test_a_step_of_jax_may_take_the_memory_of_the_state_before() -> None:
    jax = pytest.importorskip("jax")
    from sardonyx.engines.jax.backend import replacing

    step = replacing(lambda state, feeds: (state["a"].sum(), {"a": state["a"] + feeds["x"]}), ["a"])
    a, b, x = (jax.numpy.arange(4.0) + i for i in range(3))
    _, updates = step({"a": a, "b": b}, {"x": x})
    np.testing.assert_array_equal(updates["a"], [2, 4, 6, 8])
    assert a.is_deleted() and not b.is_deleted() and not x.is_deleted()
    shared = jax.numpy.arange(4.0)
    _, updates = step({"a": shared, "b": shared}, {"x": x})
    np.testing.assert_array_equal(updates["a"], [2, 4, 6, 8])
    assert not shared.is_deleted()
