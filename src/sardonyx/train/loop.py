"""The loop: `train`, from a model and data to a tuned model."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.engines.prepare import ENGINES, prepare_training
from sardonyx.errors import ArgumentError, SardonyxError, TrainingStopped, quote
from sardonyx.model import Model, load
from sardonyx.record.builder import ROLE
from sardonyx.record.describe import descriptions, settings_of
from sardonyx.record.override import Rows, override, refuse_changes, refuse_other
from sardonyx.record.trainable import trainable
from sardonyx.train import metrics as metric
from sardonyx.train.auto import fastest
from sardonyx.train.batches import Prefetch, batch_count, epoch_blocks
from sardonyx.train.checkpoint import Lock, Position, position_of, write
from sardonyx.train.data import MEMORY, Source, Stream, open_data
from sardonyx.train.display import Display, make_display
from sardonyx.train.evaluation import chosen_metrics, evaluate_rep, image_size, links_for
from sardonyx.train.fields import Link
from sardonyx.train.run import Callback, Run, RunSettings, best_path

EPOCHS = 3
ORIGINS = {MEMORY: "arrays in memory"}


def train(
    model: Model | str | Path,
    data: Any,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    validation: Any = None,
    metrics: Sequence[Any] | None = None,
    engine: str = "onnxruntime",
    seed: int | None = None,
    shuffle: bool | None = None,
    drop_last: bool | None = None,
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
    recompute: bool = False,
    **how: Any,
) -> Run:
    """Train a model on data, as its record describes, or as `trainable` chooses.

    model       -- a model, or a path; with `resume` and an existing `output`, that is continued
    data        -- arrays, a dict, a path (.npz, .npy, .csv, .parquet, a folder of images), batches,
                   …
    epochs, steps -- how long; 3 epochs if neither is given
    batch_size, seed, shuffle, drop_last -- 32, 0, True, False if not given
    validation  -- data of its own, or a share of the rows such as 0.1
    engine      -- "onnxruntime", "torch", "jax", "tensorflow", "numpy", or "auto": the fastest one
                   in a short trial
    metrics     -- names ("accuracy", "top5", "f1", "auc", "mae", "perplexity") or functions
    output      -- where the model is kept: every `every_steps` or `every_minutes`, and at the end;
                   with validation or patience, the best epoch in `<output>.best.onnx` beside it
    patience    -- stop after so many epochs in which `watch` did not improve
    recompute   -- compute most of the forward pass again instead of keeping it: less memory, more
                   time, the same numbers; with the engine "onnxruntime"
    how         -- arguments of `trainable`; for a model that carries a record they change it, and
                   what they override is shown

    >>> import sardonyx as sx
    >>> run = sx.train("model.onnx", "data.npz", epochs=2)
    >>> len(run.history)
    2
    """
    target = Path(output) if output is not None else None
    asked = {
        "epochs": epochs,
        "steps": steps,
        "batch_size": batch_size,
        "seed": seed,
        "shuffle": shuffle,
        "drop_last": drop_last,
        "share": validation if isinstance(validation, float) else None,
    }
    options = _engine_options(engine, engine_options, recompute)
    net, position = _start(model, target, resume, asked, how)
    shown = make_display(display) if isinstance(display, str) else display
    source, held = _opened(net, data, validation, columns, position)
    _same_data(position, source, target)
    settings = settings_of(net)
    rep, links = _prepared(engine, net, source, fields, settings, position, options)
    net = rep.model  # an engine may hold it with less memory than it was given
    if held is not None:
        links_for(net, rep.wanted, held, {item.input: item.field for item in links}, settings)
    settings["choices"] = [*settings.get("choices", []), *_loop_choices(asked, position, engine)]
    chosen = chosen_metrics(metrics, settings)
    watched = watch or ("loss" if held is None else "val_loss")
    run_settings = RunSettings(
        position.epochs,
        position.steps,
        chosen,
        patience,
        watched,
        metric.lower_is_better(watched, chosen),
        every_steps,
        every_minutes,
        target,
        callbacks,
        keep_best=held is not None or patience is not None,
    )
    run = Run(rep, position, links, settings, _facts(source, held, position))
    run.best_file = best_path(target) if target is not None else None
    shown.begin(run, run_settings)
    with Lock(target) if target is not None else contextlib.nullcontext():
        return _Loop(run, run_settings, source, held, shown).run()


# -- before the first step ------------------------------------------------------------------


def _engine_options(
    engine: str, given: Mapping[str, Any] | None, recompute: bool
) -> Mapping[str, Any] | None:
    if not recompute:
        return given
    if engine != "onnxruntime":
        raise ArgumentError(
            f"the engine {engine!r} does not recompute", hint='use engine="onnxruntime"'
        )
    return {**(given or {}), "recompute": True}


def _opened(
    net: Model, data: Any, validation: Any, columns: Sequence[str] | None, position: Position
) -> tuple[Source, Source | None]:
    """What is trained on, and what is held out."""
    source = open_data(data, columns, *image_size(net))
    if position.share is None:
        if validation is None:
            return source, None
        return source, open_data(validation, columns, *image_size(net))
    if isinstance(source, Stream):
        raise ArgumentError("a stream cannot be split", hint="give validation data of its own")
    return source.split(position.share, position.seed)


def _start(
    model: Model | str | Path,
    target: Path | None,
    resume: bool,
    asked: Mapping[str, Any],
    how: Mapping[str, Any],
) -> tuple[Model, Position]:
    """The model to train and where it stands."""
    if resume and target is None:
        raise ArgumentError("`resume` continues an output", hint="name it: output=…")
    if resume and target is not None and target.exists():
        return _continued(load(target), target, asked, how)
    _spare_unfinished(target)
    loaded = load(model)
    given = {k: v for k, v in asked.items() if v is not None}
    rows: Rows = []
    if not loaded.records:
        net = trainable(loaded, **{"seed": given.get("seed", 0), **how})
    else:
        told = descriptions(loaded)[0].get("arguments")
        seed = (told or {}).get("seed", 0)
        own = told is not None and len(loaded.records) == 1
        more = {"seed": given["seed"]} if own and given.get("seed", seed) != seed else {}
        given.setdefault("seed", seed)
        net, rows = override(loaded, {**how, **more}) if how or more else (loaded, [])
    if "epochs" not in given and "steps" not in given:
        given["epochs"] = EPOCHS
    return net, Position(**given, overrides=rows)


def _spare_unfinished(target: Path | None) -> None:
    """Refuse to begin anew over a run that can still be continued: whoever forgot to say so."""
    if target is None or not target.exists():
        return
    try:
        position = position_of(load(target))
    except SardonyxError:  # no model, or not ours: it is replaced, as a file is
        return
    if position is not None and position.step and not position.finished:
        raise ArgumentError(
            f"{quote(target.name)} holds a training that is not finished",
            [["step", str(position.step)], ["epoch", str(position.epoch)]],
            hint="continue it with resume=True (--resume), or choose another output, or remove it",
        )


def _continued(
    kept: Model, target: Path, asked: Mapping[str, Any], how: Mapping[str, Any]
) -> tuple[Model, Position]:
    """A run taken up again: how long may be changed, nothing else."""
    position = position_of(kept)
    if position is None:
        raise ArgumentError(f"{quote(target.name)} is not a training that can be continued")
    rows = [
        [name.replace("_", " "), str(getattr(position, name)), str(value)]
        for name, value in asked.items()
        if name not in ("epochs", "steps") and value not in (None, getattr(position, name))
    ]
    if rows:
        refuse_other(target.name, rows)
    refuse_changes(kept, how, target.name)
    longer = {k: v for k, v in asked.items() if k in ("epochs", "steps") and v is not None}
    if longer:
        position = replace(position, **{"epochs": None, "steps": None, **longer})
    return kept, replace(position, finished=False)


def _same_data(position: Position, source: Source, target: Path | None) -> None:
    """The order of rows follows from their number: a run continues on as many as it began with."""
    length = None if isinstance(source, Stream) else len(source)
    if position.step and position.length != length:
        refuse_other(
            str(target.name if target else "the run"),
            [["rows of the data", str(position.length), str(length)]],
        )
    position.length = length


def _prepared(
    engine: str,
    net: Model,
    source: Source,
    fields: Mapping[str, str] | None,
    settings: dict[str, Any],
    position: Position,
    options: Mapping[str, Any] | None,
) -> tuple[Any, list[Link]]:
    """The model in training on its engine, and what feeds it."""

    def linked(rep: Any) -> list[Link]:
        return links_for(net, rep.wanted, source, fields, settings)

    if engine != "auto":
        rep = prepare_training(net, engine, **(options or {}))
        return rep, linked(rep)
    rep, choice = fastest(net, lambda r: _first(source, linked(r), position), None, options)
    settings["choices"] = [*settings.get("choices", []), choice]
    return rep, linked(rep)


def _first(source: Source, links: list[Link], position: Position) -> dict[str, np.ndarray]:
    return next(epoch_blocks(source, links, position.batch_size, seed=None, epoch=0))[0]


def _loop_choices(asked: Mapping[str, Any], position: Position, engine: str) -> list[list[str]]:
    """The settings of the loop itself, as rows for people."""
    resumed = position.step > 0
    rows = []
    for name, value in asked.items():
        kept = getattr(position, name)
        if kept is None:
            continue
        why = "as asked" if value is not None else "the run that is continued" if resumed else ""
        label = {"share": "validation share"}.get(name, name.replace("_", " "))
        rows.append([label, str(kept), why or "by default"])
    if engine != "auto":
        rows.append(["engine", engine, "by default" if engine == ENGINES[0] else "as asked"])
    return rows


def _facts(source: Source, held: Source | None, position: Position) -> list[tuple[str, str]]:
    """What the data is, in words."""
    facts = [("training data", ORIGINS.get(source.origin, source.origin))]
    if not isinstance(source, Stream):
        count = batch_count(source, position.batch_size, position.drop_last)
        facts.append(("rows", f"{len(source):,}, {count:,} batches of {position.batch_size}"))
    if held is not None:
        rows = "" if isinstance(held, Stream) else f"{len(held):,} rows of "
        facts.append(("validation", f"{rows}{ORIGINS.get(held.origin, held.origin)}"))
    classes = getattr(getattr(source, "table", source), "classes", None)
    if classes:
        facts.append(("classes", ", ".join(classes)))
    return facts


# -- the loop ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Ctrl-C ends the run, also where Python loses its exception: while an object is cleared up."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        run.stopped = "interrupted"
        raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGINT, stop)
    except ValueError:  # not the main thread, where no signal arrives
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Loop:
    """The state of one call of `train`."""

    def __init__(
        self, run: Run, settings: RunSettings, source: Source, held: Source | None, display: Display
    ):
        self.run_, self.settings, self.display = run, settings, display
        self.source, self.held = source, held
        self.saved = time.monotonic()
        self.waited_enough = False
        self.count = batch_count(source, run.position.batch_size, run.position.drop_last)
        self.display.total = settings.total(self.count)
        # The sums of loss terms; a record made elsewhere has no roles, its first metric counts.
        roles = run.rep.model.metadata.items()
        self.totals = [k.removeprefix(ROLE) for k, v in roles if k.startswith(ROLE) and v == "loss"]
        self.times = {"steps": 0.0, "waiting for data": 0.0, "validation": 0.0, "saving": 0.0}

    def run(self) -> Run:
        run, position = self.run_, self.run_.position
        begun = time.perf_counter()
        try:
            with _interruptible(run):
                while not self._is_done():
                    self._epoch()
            position.finished = not run.stopped or self.waited_enough
        except KeyboardInterrupt:
            run.stopped = "interrupted"
        finally:
            run.times = {**self.times, "total": time.perf_counter() - begun}
            for callback in self.settings.callbacks:
                if hasattr(callback, "end"):
                    callback.end(run)
        self._keep(force=True)
        run.times |= {"saving": self.times["saving"], "total": time.perf_counter() - begun}
        self.display.end(run)
        if run.stopped == "interrupted" and self.settings.output is None:
            raise KeyboardInterrupt
        return run

    def _is_done(self) -> bool:
        position, settings = self.run_.position, self.settings
        if self.run_.stopped or (settings.steps is not None and position.step >= settings.steps):
            return True
        if (
            settings.patience is not None
            and position.waited >= settings.patience
            and not position.batch
        ):
            self.run_.stopped = f"{settings.watch} did not improve for {position.waited} epochs"
            self.waited_enough = True
            return True
        return settings.epochs is not None and position.epoch >= settings.epochs

    def _epoch(self) -> None:
        run, position, times = self.run_, self.run_.position, self.times
        blocks = epoch_blocks(
            self.source,
            run.links,
            position.batch_size,
            seed=position.seed if position.shuffle else None,
            epoch=position.epoch,
            start=position.batch,
            drop_last=position.drop_last,
        )
        feeder = Prefetch(blocks)
        whole = False
        try:
            asked = time.perf_counter()
            for batch in chain.from_iterable(feeder):
                times["waiting for data"] += time.perf_counter() - asked
                self._step(batch)
                if self._is_done():
                    whole = self.count is not None and position.batch >= self.count
                    break
                asked = time.perf_counter()
            else:
                whole = True
        finally:
            feeder.close()
        if whole:
            self._end_epoch()

    def _step(self, batch: dict[str, np.ndarray]) -> None:
        run, position = self.run_, self.run_.position
        before = time.perf_counter()
        metrics = run.rep.step(batch)
        self.times["steps"] += time.perf_counter() - before
        rows = len(next(iter(batch.values())))
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            number = float(value) if value.size == 1 else float(np.mean(value))
            if not math.isfinite(number):
                self._not_finite(name, number, batch)
            position.sums[name] = position.sums.get(name, 0.0) + number * rows
            numbers[name] = number
        total = next((n for n in self.totals if n in numbers), next(iter(numbers), ""))
        run.losses.append(numbers.get(total, 0.0))
        position.rows += rows
        position.batch += 1
        position.step += 1
        self.display.step(run, self.count)
        for callback in self.settings.callbacks:
            callback(run)
        if self.settings.output is not None:
            self._keep()

    def _not_finite(self, name: str, number: float, batch: dict[str, np.ndarray]) -> None:
        position = self.run_.position
        rows: list[list[str]] = []
        finder = getattr(self.run_.rep, "first_not_finite", None)
        if finder is not None:
            rows = finder(batch)
        saved = (
            "what was saved before this step is whole"
            if self.settings.output
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
        metrics = {n: s / max(position.rows, 1) for n, s in position.sums.items()}
        if self.held is not None:
            before = time.perf_counter()
            found = evaluate_rep(run, self.held, self.settings.metrics)
            self.times["validation"] += time.perf_counter() - before
            metrics.update({f"val_{n}": v for n, v in found.items()})
        position.history.append({"epoch": position.epoch, "step": position.step, **metrics})
        position.epoch += 1
        position.batch = position.rows = 0
        position.sums = {}
        self._judge(metrics)
        self.display.epoch(run)

    def _judge(self, metrics: Mapping[str, float]) -> None:
        """Is this epoch the best so far? Then its model is kept."""
        run, position, watch = self.run_, self.run_.position, self.settings.watch
        if watch not in metrics:
            raise ArgumentError(
                f"there is no metric {quote(watch)} to watch",
                hint=f"there are {', '.join(metrics)}",
            )
        value = metrics[watch] if self.settings.lower else -metrics[watch]
        if position.best is None or value < position.best:
            position.best, position.best_epoch, position.waited = value, position.epoch - 1, 0
            run.best = run.rep.state(), deepcopy(position)
            if self.settings.output is not None and self.settings.keep_best:
                self._write(best_path(self.settings.output))
        else:
            position.waited += 1

    def _keep(self, force: bool = False) -> None:
        settings, position = self.settings, self.run_.position
        if settings.output is None:
            return
        due = settings.every_steps is not None and position.step % settings.every_steps == 0
        if (
            settings.every_minutes is not None
            and time.monotonic() - self.saved >= settings.every_minutes * 60
        ):
            due = True
        if due or force:
            self._write(settings.output)
            self.saved = time.monotonic()

    def _write(self, path: Path) -> None:
        before = time.perf_counter()
        write(self.run_.model, path)
        self.times["saving"] += time.perf_counter() - before
