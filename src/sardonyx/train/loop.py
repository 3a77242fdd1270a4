"""The loop: `train` from a model and data to a tuned model, `evaluate` and `predict` on any model
and data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError, TrainingStopped, quote
from sardonyx.model import Model, load
from sardonyx.train import metrics as metric
from sardonyx.train.auto import fastest
from sardonyx.train.batches import Prefetch, batch_count, epoch_batches
from sardonyx.train.checkpoint import Lock, Position, position_of, with_position, write
from sardonyx.train.data import Source, Stream, open_data
from sardonyx.train.display import Display, make_display
from sardonyx.train.fields import Link, check_values, link
from sardonyx.train.trainable import settings_of, trainable

ENGINES = ("onnxruntime", "torch", "jax", "tensorflow", "numpy")
DEFAULT_METRICS = {
    "cross_entropy": ["accuracy"],
    "binary_cross_entropy": ["accuracy"],
    "mse": ["mae"],
    "l1": ["mae"],
    "huber": ["mae"],
}


@dataclass
class Run:
    """A training: `run.model` is the model as it is now, `run.history` the figures of each
    epoch.
    """

    rep: Any
    position: Position
    links: list[Link]
    settings: dict[str, Any]
    best: tuple[dict[str, np.ndarray], Position] | None = None
    times: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    stopped: str = ""

    @property
    def model(self) -> Model:
        """A whole ONNX model: it serves, saves, and continues."""
        return with_position(self.rep.to_model(), self.position)

    @property
    def best_model(self) -> Model | None:
        """The model of the best epoch so far."""
        if self.best is None:
            return None
        state, position = self.best
        return with_position(self.rep.to_model(state), position)

    @property
    def history(self) -> list[dict[str, float]]:
        return self.position.history

    def stop(self, why: str) -> None:
        """Ask the loop to end after this step (for callbacks)."""
        self.stopped = why


Callback = Callable[[Run], Any]


@dataclass
class Plan:
    """The settings of one training, as asked for."""

    epochs: int | None
    steps: int | None
    metrics: Sequence[Any]
    patience: int | None
    watch: str
    every_steps: int | None
    every_minutes: float | None
    output: Path | None
    callbacks: Sequence[Callback]
    drop_last: bool


def train(
    model: Model | str | Path,
    data: Any,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = 32,
    validation: Any = None,
    metrics: Sequence[Any] | None = None,
    engine: str = "onnxruntime",
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    every_steps: int | None = None,
    every_minutes: float | None = 5.0,
    patience: int | None = None,
    watch: str | None = None,
    callbacks: Sequence[Callback] = (),
    display: str | Display = "quiet",
    engine_options: Mapping[str, Any] | None = None,
    **how: Any,
) -> Run:
    """Train a model on data, as its record describes, or as `trainable` chooses.

    model       -- a model, or a path; with `resume` and an existing `output`, that is continued
    data        -- arrays, a dict, a path (.npz, .npy, .csv, .parquet, a folder of images), batches,
                   …
    epochs, steps -- how long; 3 epochs if neither is given
    validation  -- data of its own, or a share of the rows such as 0.1
    engine      -- "onnxruntime", "torch", "jax", "tensorflow", "numpy", or "auto": the fastest one
                   in a short trial
    metrics     -- names ("accuracy", "top5", "f1", "auc", "mae", "perplexity") or functions
    output      -- where the model is kept: every `every_steps` or `every_minutes`, and at the end
    patience    -- stop after so many epochs in which `watch` did not improve
    how         -- arguments of `trainable`, for a model without a record (or to replace its record)

    >>> import sardonyx as sx
    >>> run = sx.train("model.onnx", "data.npz", epochs=2)
    >>> len(run.history)
    2
    """
    target = Path(output) if output is not None else None
    net, position = _start(model, target, resume, seed, batch_size, shuffle, how)
    shown = make_display(display) if isinstance(display, str) else display
    source = open_data(data, columns, *_image_size(net))
    held: Source | None = None
    if isinstance(validation, float):
        if isinstance(source, Stream):
            raise ArgumentError("a stream cannot be split", hint="give validation data of its own")
        source, held = source.split(validation, position.seed)
    elif validation is not None:
        held = open_data(validation, columns, *_image_size(net))
    settings = settings_of(net)

    def linked(rep: Any) -> list[Link]:
        return _links(net, rep.wanted, source, fields, settings)

    if engine == "auto":
        rep, choice = fastest(
            net, lambda r: _first(source, linked(r), position), None, engine_options
        )
        settings["choices"] = [*settings.get("choices", []), choice]
    else:
        rep = prepare(engine, net, engine_options)
    links = linked(rep)
    plan = Plan(
        epochs if epochs is not None or steps is not None else 3,
        steps,
        _metrics(metrics, settings),
        patience,
        watch or ("loss" if held is None else "val_loss"),
        every_steps,
        every_minutes,
        target,
        callbacks,
        drop_last,
    )
    run = Run(rep, position, links, settings)
    shown.begin(run, net, source, held, plan)
    if target is None:
        return _Loop(run, plan, source, held, shown).run()
    with Lock(target):
        return _Loop(run, plan, source, held, shown).run()


def _first(source: Source, links: list[Link], position: Position) -> dict[str, np.ndarray]:
    return next(epoch_batches(source, links, position.batch_size, seed=None, epoch=0))


def prepare(engine: str, model: Model, options: Mapping[str, Any] | None = None) -> Any:
    """A model in training on the engine called `engine`."""
    import importlib

    try:
        room = importlib.import_module(f"sardonyx.engines.{engine}")
        make = room.prepare_training
    except (ModuleNotFoundError, AttributeError) as error:
        raise ArgumentError(
            f"no engine called {engine!r} can train", hint=f"one of {', '.join(ENGINES)}, auto"
        ) from error
    return make(model, **(options or {}))


def _start(
    model: Model | str | Path,
    target: Path | None,
    resume: bool,
    seed: int,
    batch_size: int,
    shuffle: bool,
    how: Mapping[str, Any],
) -> tuple[Model, Position]:
    """The model to train and where it stands."""
    if resume:
        if target is None:
            raise ArgumentError("`resume` continues an output", hint="name it: output=…")
        if target.exists():
            kept = load(target)
            position = position_of(kept)
            if position is None:
                raise ArgumentError(f"{quote(target.name)} is not a training that can be continued")
            return kept, position
    loaded = load(model)
    fresh = Position(seed=seed, batch_size=batch_size, shuffle=shuffle)
    if loaded.records and not how:
        return loaded, fresh
    bare = loaded.copy()
    bare.records = []
    return trainable(bare, seed=seed, **how), fresh


def _image_size(model: Model) -> tuple[tuple[int, int] | None, int]:
    """Height, width and channels that an image model asks for."""
    for value in model.inputs:
        if value.shape is not None and len(value.shape) == 4:
            channels, height, width = value.shape[1:]
            count = channels if isinstance(channels, int) else 3
            if isinstance(height, int) and isinstance(width, int):
                return (height, width), count
            return None, count
    return None, 3


def _links(
    net: Model,
    wanted: Sequence[ir.Value],
    source: Source,
    fields: Mapping[str, str] | None,
    settings: dict[str, Any],
) -> list[Link]:
    labels = [n for m in settings.get("meetings", []) for n in m["labels"]]
    if not labels:
        served = {v.name for v in net.inputs}
        labels = [v.name or "" for v in wanted if v.name not in served]
    links = link(wanted, labels, source.fields, fields)
    check_values(source, links, _classes(net, settings))
    return links


def _classes(net: Model, settings: dict[str, Any]) -> dict[str, tuple[int, int | None]]:
    found = {}
    values = {v.name: v for node in net.graph for v in node.outputs}
    for meeting in settings.get("meetings", []):
        if meeting["loss"] != "cross_entropy" or meeting["settings"].get("probabilities"):
            continue
        value = values.get(meeting["prediction"])
        axis = meeting["settings"].get("axis", 1)
        if value is not None and value.shape is not None and isinstance(value.shape[axis], int):
            found[meeting["labels"][0]] = (
                value.shape[axis],
                meeting["settings"].get("ignore_index"),
            )
    return found


def _metrics(given: Sequence[Any] | None, settings: dict[str, Any]) -> Sequence[Any]:
    if given is not None:
        return given
    meetings = settings.get("meetings", [])
    return DEFAULT_METRICS.get(meetings[0]["loss"], []) if len(meetings) == 1 else []


class _Loop:
    """The state of one call of `train`."""

    def __init__(self, run: Run, plan: Plan, source: Source, held: Source | None, display: Display):
        self.run_, self.plan, self.source, self.held, self.display = (
            run,
            plan,
            source,
            held,
            display,
        )
        self.saved = time.monotonic()
        self.count = batch_count(source, run.position.batch_size, plan.drop_last)

    def run(self) -> Run:
        run, position = self.run_, self.run_.position
        begun = time.monotonic()
        try:
            while not self._is_done():
                self._epoch()
            position.finished = not run.stopped
        except KeyboardInterrupt:
            run.stopped = "interrupted"
        finally:
            run.times["total"] = time.monotonic() - begun
        self._keep(force=True)
        self.display.end(run)
        if run.stopped == "interrupted" and self.plan.output is None:
            raise KeyboardInterrupt
        return run

    def _is_done(self) -> bool:
        position, plan = self.run_.position, self.plan
        if self.run_.stopped or (plan.steps is not None and position.step >= plan.steps):
            return True
        if plan.patience is not None and position.waited >= plan.patience and not position.batch:
            self.run_.stopped = f"{plan.watch} did not improve for {position.waited} epochs"
            return True
        return plan.epochs is not None and position.epoch >= plan.epochs

    def _epoch(self) -> None:
        run, position = self.run_, self.run_.position
        items = epoch_batches(
            self.source,
            run.links,
            position.batch_size,
            seed=position.seed if position.shuffle else None,
            epoch=position.epoch,
            start=position.batch,
            drop_last=self.plan.drop_last,
        )
        feeder = Prefetch(items)
        whole = False
        try:
            for batch in feeder:
                self._step(batch)
                if self._is_done():
                    whole = self.count is not None and position.batch >= self.count
                    break
            else:
                whole = True
        finally:
            feeder.close()
        if whole:
            self._end_epoch()

    def _step(self, batch: dict[str, np.ndarray]) -> None:
        run, position = self.run_, self.run_.position
        figures = run.rep.step(batch)
        rows = len(next(iter(batch.values())))
        for name, value in figures.items():
            number = float(value) if value.size == 1 else float(np.mean(value))
            if number != number or number in (float("inf"), float("-inf")):
                self._not_finite(name, number, batch)
            position.sums[name] = position.sums.get(name, 0.0) + number * rows
        run.losses.append(float(next(iter(figures.values()))) if figures else 0.0)
        position.rows += rows
        position.batch += 1
        position.step += 1
        self.display.step(run, self.count)
        for callback in self.plan.callbacks:
            callback(run)
        self._keep()

    def _not_finite(self, name: str, number: float, batch: dict[str, np.ndarray]) -> None:
        position = self.run_.position
        rows: list[list[str]] = []
        finder = getattr(self.run_.rep, "first_not_finite", None)
        if finder is not None:
            rows = finder(batch)
        saved = (
            "what was saved before this step is whole"
            if self.plan.output
            else "nothing was being saved"
        )
        raise TrainingStopped(
            f"{quote(name)} is {number} at step {position.step}, epoch {position.epoch}, batch "
            f"{position.batch}",
            rows,
            hint=f"{saved}; try a lower learning rate, clip_norm=1.0, or look at that batch",
        )

    def _end_epoch(self) -> None:
        run, position = self.run_, self.run_.position
        figures = {n: s / max(position.rows, 1) for n, s in position.sums.items()}
        if self.held is not None:
            found = evaluate_rep(run, self.held, self.plan.metrics)
            figures.update({f"val_{n}": v for n, v in found.items()})
        position.history.append({"epoch": position.epoch, "step": position.step, **figures})
        position.epoch += 1
        position.batch = position.rows = 0
        position.sums = {}
        self._judge(figures)
        self.display.epoch(run)

    def _judge(self, figures: Mapping[str, float]) -> None:
        """Is this epoch the best so far? Then its model is kept."""
        run, position, watch = self.run_, self.run_.position, self.plan.watch
        if watch not in figures:
            raise ArgumentError(
                f"there is no figure {quote(watch)} to watch",
                hint=f"there are {', '.join(figures)}",
            )
        value = figures[watch] if _lower_is_better(watch) else -figures[watch]
        if position.best is None or value < position.best:
            position.best, position.best_epoch, position.waited = value, position.epoch - 1, 0
            run.best = run.rep.state(), deepcopy(position)
            if self.plan.output is not None and self.plan.patience is not None:
                write(run.model, best_path(self.plan.output))
        else:
            position.waited += 1

    def _keep(self, force: bool = False) -> None:
        plan, position = self.plan, self.run_.position
        if plan.output is None:
            return
        due = plan.every_steps is not None and position.step % plan.every_steps == 0
        if (
            plan.every_minutes is not None
            and time.monotonic() - self.saved >= plan.every_minutes * 60
        ):
            due = True
        if due or force:
            before = time.monotonic()
            write(self.run_.model, plan.output)
            self.saved = time.monotonic()
            self.run_.times["saving"] = self.run_.times.get("saving", 0.0) + self.saved - before


def best_path(output: Path) -> Path:
    """`tuned.onnx` keeps its best epoch in `tuned.best.onnx`."""
    return output.with_name(f"{output.stem}.best{output.suffix}")


def _lower_is_better(name: str) -> bool:
    plain = name.removeprefix("val_")
    return "loss" in plain or plain in ("mae", "perplexity") or plain not in (
        "accuracy", "f1", "auc", *(f"top{k}" for k in range(1, 101))
    )  # fmt: skip


def evaluate_rep(
    run: Run, source: Source, names: Sequence[Any], batch_size: int | None = None
) -> dict[str, float]:
    """Figures and metrics of the model as it is now, over all of `source`."""
    meetings = run.settings.get("meetings", [])
    predictions = [m["prediction"] for m in meetings[:1]]
    label = meetings[0]["labels"][0] if meetings and meetings[0]["labels"] else None
    made = metric.make(names) if predictions and label else []
    sums: dict[str, float] = {}
    rows = 0
    size = batch_size or run.position.batch_size
    for batch in Prefetch(epoch_batches(source, run.links, size, seed=None, epoch=0)):
        found = run.rep.evaluate(batch, run.settings.get("forward"), predictions)
        count = len(next(iter(batch.values())))
        rows += count
        for name, value in found.items():
            if name not in predictions and value.size == 1:
                sums[name] = sums.get(name, 0.0) + float(value) * count
        for item in made:
            item.add(found[predictions[0]], batch[label])  # type: ignore[index]
    return {n: s / max(rows, 1) for n, s in sums.items()} | {m.name: m.value() for m in made}


def evaluate(
    model: Model | str | Path,
    data: Any,
    *,
    metrics: Sequence[Any] | None = None,
    batch_size: int = 256,
    engine: str = "onnxruntime",
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    **how: Any,
) -> dict[str, float]:
    """The loss and metrics of a model on data, as the served graph computes them.

    A model without a record gets its loss as `trainable` would choose it; `how` says otherwise.

    >>> import sardonyx as sx
    >>> sorted(sx.evaluate("model.onnx", "data.npz"))
    ['accuracy', 'loss']
    """
    net = load(model)
    if not net.records:
        net = trainable(net, **how)
    source = open_data(data, columns, *_image_size(net))
    settings = settings_of(net)
    rep = prepare(engine, net)
    links = _links(net, rep.wanted, source, fields, settings)
    run = Run(rep, Position(batch_size=batch_size), links, settings)
    return evaluate_rep(run, source, _metrics(metrics, settings), batch_size)


def predict(
    model: Model | str | Path,
    data: Any,
    *,
    batch_size: int = 256,
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs of a model over all rows of data, by name.

    >>> import sardonyx as sx
    >>> list(sx.predict("model.onnx", "data.npz"))
    ['scores']
    """
    from sardonyx.engines.onnxruntime import Runner

    served = replace_records(load(model))
    source = open_data(data, columns, *_image_size(served))
    links = link(served.inputs, [], source.fields, fields)
    runner = Runner(served)
    parts: dict[str, list[np.ndarray]] = {}
    for batch in Prefetch(epoch_batches(source, links, batch_size, seed=None, epoch=0)):
        for name, value in runner(batch).items():
            parts.setdefault(name, []).append(value)
    return {name: np.concatenate(found) for name, found in parts.items()}


def replace_records(model: Model) -> Model:
    """The model without its training records."""
    served = model.copy()
    served.records = []
    return served
