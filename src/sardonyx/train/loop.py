"""The loop: `train`, from a model and data to a tuned model."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from sardonyx.engines.prepare import prepare_training
from sardonyx.errors import ArgumentError, TrainingStopped, counted, quote
from sardonyx.model import Model, ModelSource
from sardonyx.record.builder import ROLE
from sardonyx.record.config import loop_settings
from sardonyx.record.describe import settings_of
from sardonyx.record.step import step_inputs
from sardonyx.record.trainable import refuse_unknown
from sardonyx.train import agreement, setup
from sardonyx.train import metrics as metric
from sardonyx.train.auto import fastest
from sardonyx.train.batches import Prefetch, batch_count, epoch_blocks
from sardonyx.train.checkpoint import Lock, Position, write
from sardonyx.train.display import Display, make_display
from sardonyx.train.evaluation import (
    CLASSES,
    chosen_batch_size,
    chosen_metrics,
    evaluate_rep,
    links_for,
    open_for,
    refuse_partial_batch,
)
from sardonyx.train.fields import Feeding, Link, row_count
from sardonyx.train.images import as_metadata
from sardonyx.train.learned_types import with_learned_shapes
from sardonyx.train.prepared import prepared
from sardonyx.train.processes import (
    Part,
    Processes,
    check_mesh,
    device_here,
    join,
    spread,
    staged,
    with_pieces,
)
from sardonyx.train.run import Callback, Run, RunSettings, best_path, everything_is_read
from sardonyx.train.tables import Source, Stream, Subset

BATCH_SIZE = 32
# the options of the loop that a checkpoint holds
OPTIONS = ("epochs", "steps", "batch_size", "seed", "shuffle", "drop_last", "share")


def train(
    model: ModelSource,
    data: Any,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    validation: Any = None,
    metrics: Sequence[Any] | None = None,
    engine: str = "onnxruntime",
    device: str | None = None,
    precision: str | None = None,
    devices: int | None = None,
    mesh: Mapping[str, int] | None = None,
    shard: str = "auto",
    seed: int | None = None,
    shuffle: bool | str | None = None,
    drop_last: bool | None = None,
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    constants: Mapping[str, Any] | None = None,
    batch_axes: Mapping[str, int] | None = None,
    preprocess: str | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    in_place: bool = False,
    resume: bool = False,
    every_steps: int | None = None,
    every_minutes: float | None = 5.0,
    patience: int | None = None,
    watch: str | None = None,
    callbacks: Sequence[Callback] = (),
    display: str | Display | None = None,
    engine_options: Mapping[str, Any] | None = None,
    place: Mapping[str, str] | None = None,
    recompute: bool = False,
    **how: Any,
) -> Run:
    """Train a model on data, as its record describes, or as `trainable` chooses.

    model       -- a model, or a path; with `resume` and an existing `output`, that is continued
    data        -- arrays, a dict, a path (.npz, .npy, .csv, .parquet, a folder of images), a data
                   frame, a torch `Dataset` or `DataLoader`, a Hugging Face data set, batches, …
    epochs, steps -- how long; 3 epochs if neither is given
    batch_size, seed, shuffle, drop_last -- 32, 0, True, False if not given; shuffle="hash" gives
                   an order that every language can compute (docs/guides/whole-training.md)
    validation  -- other data, or a share of the rows such as 0.1
    metrics     -- of the validation data: names ("accuracy", "top5", "f1", "auc", "mae",
                   "perplexity") or functions
    engine      -- "onnxruntime", "torch", "jax", "tensorflow", "numpy", one of a plug-in, or
                   "auto": the fastest one in a short trial
    device      -- "cpu", "cuda", "cuda:1", "mps": where the engine computes; its default if not
                   given
    precision   -- "bf16", "fp16" or "tf32": products are computed in this type, on torch and jax;
                   parameters, optimizer state and the file stay as they are
    devices, mesh, shard -- with the engine "jax": their number, or {"data": 4, "model": 2}, and
                   where the state is: "replicate", "state" (spread over "data"), or "auto",
                   which spreads it over "model". Under torchrun, all devices of all processes;
                   with "torch", each process has one
    fields      -- input → field of the data, where names differ
    columns     -- the columns of a table to use, the label last
    constants   -- input → a value that is the same for all rows; one number fills the whole input
    batch_axes  -- input → the axis of its rows, where that is not the first
    preprocess  -- how images become numbers: "imagenet", a dict with scale, mean, std, crop,
                   order, size, resize and center, or a torchvision `Compose` of Resize,
                   CenterCrop, ToTensor and Normalize; stored in the model, with the class names
    output      -- the file of the trained model, written every `every_steps` or `every_minutes` and
                   at the end; with validation or patience, the best epoch in `<output>.best.onnx`
    in_place    -- the output may be the model's own file
    patience    -- stop after so many epochs in which `watch` did not improve
    display     -- "live", "lines", "json" or "quiet"; by default live in a terminal, lines in a
                   notebook and quiet elsewhere
    place       -- pattern of node names or operators → the engine that runs these nodes, on the
                   engines "torch", "jax", "tensorflow" and "numpy": {"Erf": "onnxruntime"}
    recompute   -- compute most of the forward pass again instead of storing it: less memory, more
                   time, the same numbers; with the engine "onnxruntime"
    how         -- arguments of `trainable` (loss, optimizer, lr, prediction, config, …); for a
                   model that carries a record they change it, and what they override is shown

    >>> import sardonyx as sx
    >>> run = sx.train("model.onnx", "data.npz", epochs=2)
    >>> len(run.history)
    2
    """
    arguments = {k: v for k, v in locals().items() if k not in ("model", "data", "how")}
    refuse_unknown(how, "train")
    from_file = _from_config(arguments, how.get("config"))
    if from_file:
        return train(model, data, **{**arguments, **from_file}, **how)
    request = SimpleNamespace(**arguments)
    request.target = Path(output) if output is not None else None
    request.share = validation if isinstance(validation, (int, float)) else None
    setup.check_numbers(vars(request))
    device = request.device = device_here(engine, device)
    request.processes = join(engine, device)
    request.engine_options = setup.check_engine(
        engine, device, precision, engine_options, recompute
    )
    request.engine_options |= check_mesh(engine, device, devices, mesh, shard)
    if place:
        request.engine_options["place"] = dict(place)
    setup.check_record_names(how)
    setup.check_metrics(metrics, validation is not None or resume)
    setup.check_output(model, request.target, in_place or resume)
    request.display = display if isinstance(display, Display) else make_display(display)
    leads = request.processes.leads
    request.may_stop = bool(callbacks)
    if not leads:
        request.display, request.callbacks = Display(), ()
    with Lock(request.target) if request.target and leads else contextlib.nullcontext():
        return prepared_loop(model, data, request, how).run()


# -- before the first step ------------------------------------------------------------------


def _from_config(arguments: Mapping[str, Any], config: str | Path | None) -> dict[str, Any]:
    """The settings of a configuration file that no argument sets."""
    if config is None:
        return {}
    defaults = {n: p.default for n, p in inspect.signature(train).parameters.items()}
    return {
        name: value
        for name, value in loop_settings(config).items()
        if arguments[name] == defaults[name] and value != arguments[name]
    }


def prepared_loop(
    model: ModelSource, data: Any, request: SimpleNamespace, how: Mapping[str, Any]
) -> TrainingLoop:
    """The loop, ready to run; everything that can be checked is checked before it is compiled.

    Where `request.way` is given, it supplies what runs the training and the loop around it.
    """
    way = getattr(request, "way", None)
    options = {name: getattr(request, name) for name in OPTIONS}
    loaded = setup.load_start(model, request.target, request.resume)
    loaded = loaded if way is None else way.start_model(loaded)
    source, validation = _open(loaded, data, request)
    feeding = Feeding(request.fields or {}, request.constants or {}, request.batch_axes or {})
    loaded = with_learned_shapes(loaded, source, feeding)
    net, position = setup.start(loaded, request.target, request.resume, options, how)
    setup.check_preprocessing(net, request.preprocess, position, request.target)
    if position.share is not None:
        source, validation = _split(source, position)
    settings = settings_of(net)
    links = _links(net, source, validation, request, settings, position)
    setup.check_same_data(position, source, links, request.target)
    validated = validation is not None
    names = chosen_metrics(request.metrics, settings)
    watch = request.watch or setup.default_watch(net, validated)
    if request.watch or request.patience is not None:
        setup.check_watch(watch, net, names, validated)
    facts = setup.facts(net, source, validation, links, settings, position)
    request.display.preparing(f"compiling the training step for {request.engine}")
    try:
        if way is None:
            rep = _compiled(net, source, links, settings, request, position)
        else:
            rep = way.rep(net, source, links, position)
    finally:
        request.display.prepared()
    settings["choices"] = [
        *settings.get("choices", []),
        *setup.loop_choices(options, position, request.engine, rep),
    ]
    metadata = _metadata(source, links)
    (source, validation), links = prepared(rep, [source, validation], links)  # type: ignore[assignment]
    run = Run(rep, position, links, settings, facts)
    run.file, run.metadata = request.target, metadata
    run.processes = with_pieces(getattr(request, "processes", Processes()), rep)
    run.best_file = best_path(request.target) if request.target is not None else None
    loop_options = RunSettings(
        position.epochs,
        position.steps,
        names,
        request.patience,
        watch,
        metric.lower_is_better(watch, names),
        request.every_steps,
        request.every_minutes,
        request.target,
        request.callbacks,
        keep_best=validated or request.patience is not None,
        may_stop=getattr(request, "may_stop", False),
    )
    agreement.refuse_disagreement(run, net, loop_options, source, validation)
    kind = TrainingLoop if way is None else way.loop
    return kind(run, loop_options, source, validation, request.display)


def _open(model: Model, data: Any, request: SimpleNamespace) -> tuple[Source, Source | None]:
    """The data to train on, and the validation data where that is not a share of it."""
    source = open_for(model, data, request.columns, request.preprocess)
    names = setup.numbering(model, source.classes, request)
    if names != source.classes:
        source = open_for(model, data, request.columns, request.preprocess, names)
    if request.validation is None or request.share is not None:
        return source, None
    return source, open_for(
        model, request.validation, request.columns, request.preprocess, source.classes
    )


def _split(source: Source, position: Position) -> tuple[Source, Source]:
    """The rows to train on, and those held back for validation."""
    assert position.share is not None
    if isinstance(source, Stream):
        raise ArgumentError(
            "a stream cannot be split", hint="give other data for validation: validation=data"
        )
    return source.split(position.share, position.seed, position.shuffle == "hash")


def _links(
    net: Model,
    source: Source,
    validation: Source | None,
    request: SimpleNamespace,
    settings: dict[str, Any],
    position: Position,
) -> list[Link]:
    """What feeds the inputs of a step, and that the validation data can feed them too."""
    inputs = step_inputs(net)
    constants, axes = request.constants or {}, request.batch_axes or {}
    feeding = Feeding(request.fields or {}, constants, axes)
    links = links_for(net, inputs, source, feeding, settings, ())
    classes = next((i.classes for i in links if i.classes), ())
    names = setup.numbering(net, classes, request)
    if names != classes:
        links = links_for(net, inputs, source, feeding, settings, names)
    if not position.step:
        position.batch_size = chosen_batch_size(request.batch_size, links, BATCH_SIZE)
    refuse_partial_batch(links, source, position.drop_last)
    if validation is not None:
        fields = {i.input: i.field for i in links if i.constant is None}
        links_for(net, inputs, validation, Feeding(fields, constants, axes), settings, names)
        refuse_partial_batch(links, validation, drop_last=False)
    return links


def _compiled(
    net: Model,
    source: Source,
    links: list[Link],
    settings: dict[str, Any],
    request: SimpleNamespace,
    position: Position,
) -> Any:
    """The model in training on its engine."""
    if request.engine != "auto":
        options = dict(request.engine_options)
        if request.engine == "onnxruntime" and position.shuffle == "hash":
            # The order is that of any language, and so are the numbers: compiled kernels, and
            # convolutions in blocks of channels, would round sums otherwise than a whole training
            # in one file does, or the runtime of a browser.
            options["without"] = [*options.get("without", ()), "kernels", "dense", "depthwise"]
        return prepare_training(net, request.engine, **options)
    blocks = epoch_blocks(source, links, position.batch_size, seed=None, epoch=0)
    rep, choice = fastest(net, next(blocks)[0], None, request.engine_options)
    settings["choices"] = [*settings.get("choices", []), choice]
    return rep


def _metadata(source: Source, links: Sequence[Link]) -> dict[str, str]:
    """What the trained model should hold about its data: class names, how images are prepared."""
    table = source.table if isinstance(source, Subset) else source
    layout = getattr(table, "layout", None) if any(i.field == "image" for i in links) else None
    names = setup.names_of_classes(source, links)
    stored = as_metadata(layout.preprocessing) if layout is not None else {}
    return {**stored, **({CLASSES: json.dumps(names)} if names else {})}


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


@dataclass
class Unread:
    """A step whose metrics are not read yet: its device may still compute them.

    place -- its number, epoch and batch, from 1
    batch -- what it was fed, where the state before it is still there to search
    """

    read: Callable[[], Mapping[str, np.ndarray]]
    rows: int
    place: tuple[int, int, int]
    batch: Any


class TrainingLoop:
    """The state of one call of `train`."""

    def __init__(
        self,
        run: Run,
        settings: RunSettings,
        source: Source,
        validation: Source | None,
        display: Display,
    ):
        self.run_, self.settings, self.display = run, settings, display
        self.source, self.validation = source, validation
        self.unread: deque[Unread] = deque()
        run.read_metrics = self._read
        self.saved = time.monotonic()
        self.out_of_patience = False
        metadata = run.rep.model.metadata
        losses = [n for n in run.rep.metrics if metadata.get(f"{ROLE}{n}") == "loss"]
        self.loss = losses[0] if losses else None  # the total, where a record has several terms
        self.count = batch_count(source, run.position.batch_size, run.position.drop_last)
        self.display.total = settings.total(self.count)
        self.times = {"steps": 0.0, "waiting for data": 0.0, "validation": 0.0, "saving": 0.0}

    def run(self) -> Run:
        run, position = self.run_, self.run_.position
        started = time.perf_counter()
        self.display.begin(run, self.settings)
        try:
            with _interruptible(run):
                while not self._is_done():
                    self._epoch()
                self._partial_epoch()
            position.finished = not run.stopped or self.out_of_patience
        except KeyboardInterrupt:
            run.stopped = "interrupted"
        finally:
            run.times = {**self.times, "total": time.perf_counter() - started}
            for callback in self.settings.callbacks:
                if hasattr(callback, "end"):
                    callback.end(run)
        if run.stopped != "interrupted" or not run.is_spread:
            self._keep(force=True)
            run.gather()
        run.times |= {"saving": self.times["saving"], "total": time.perf_counter() - started}
        self.display.end(run)
        run.read_metrics = everything_is_read
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
            epochs = counted(position.waited, "epoch")
            self.run_.stopped = f"{settings.watch} did not improve for {epochs}"
            self.out_of_patience = True
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
            by_hash=position.shuffle == "hash",
            processes=run.processes,
        )
        if run.rep.steps_ahead:  # one by one, so that few of them are on the device
            blocks = ([batch] for block in blocks for batch in block)
        feeder = Prefetch([staged(run.rep, batch) for batch in block] for block in blocks)
        complete = False
        try:
            waiting_since = time.perf_counter()
            for batch in agreement.same_batches(run, self.source, chain.from_iterable(feeder)):
                times["waiting for data"] += time.perf_counter() - waiting_since
                self._step(batch)
                if self._is_done():
                    complete = self.count is not None and position.batch >= self.count
                    break
                waiting_since = time.perf_counter()
            else:
                complete = True
        finally:
            feeder.close()
        if complete:
            self._end_epoch()

    def _step(self, batch: dict[str, np.ndarray]) -> None:
        run, position = self.run_, self.run_.position
        started = time.perf_counter()
        with spread(run.rep, batch, run.links):
            read = run.rep.start_step(batch)
        rows = batch.total if isinstance(batch, Part) else row_count(batch, run.links)
        place = position.step + 1, position.epoch + 1, position.batch + 1
        self.unread.append(Unread(read, rows, place, None if run.rep.steps_ahead else batch))
        self._read(run.rep.steps_ahead)
        self.times["steps"] += time.perf_counter() - started
        position.rows += rows
        position.batch += 1
        position.step += 1
        self.display.step(run, self.count)
        for callback in self.settings.callbacks:
            callback(run)
        if self.settings.may_stop and agreement.stopped_by_the_first(run):
            run.stopped = run.stopped or "by a callback of the first process"
        if self.settings.output is not None:
            self._keep()

    def _read(self, ahead: int = 0) -> None:
        """Read the metrics of all steps but the last `ahead`, in order."""
        run, sums = self.run_, self.run_.position.sums
        while len(self.unread) > ahead:
            step = self.unread[0]
            first: float | None = None
            metrics = step.read()
            self.unread.popleft()  # now, so that Ctrl-C while it waits loses nothing
            for name, value in metrics.items():
                number = float(value) if value.size == 1 else float(np.mean(value))
                if not math.isfinite(number):
                    self.unread.clear()  # they started from a state that is broken
                    self._not_finite(name, number, step)
                sums[name] = sums.get(name, 0.0) + number * step.rows
                if first is None or name == self.loss:
                    first = number
            run.read_losses.append(first or 0.0)

    def _not_finite(self, name: str, number: float, step: Unread) -> None:
        rows: list[list[str]] = []
        finder = getattr(self.run_.rep, "first_not_finite", None)
        if finder is not None and step.batch is not None and self.run_.processes.count == 1:
            rows = finder(step.batch)
        searched = "" if step.batch is not None else "; device=cpu names the tensor"
        saved = (
            "what was saved before this step is whole"
            if self.settings.output
            else "nothing was being saved"
        )
        raise TrainingStopped(
            f"{quote(name)} is {number} at step {step.place[0]:,}, epoch {step.place[1]}, "
            f"batch {step.place[2]:,}",
            rows,
            hint=f"{saved}; try a lower learning rate (--lr), clip_norm = 1.0 (an argument, or in "
            f"a --config file), or look at that batch{searched}",
        )

    def _end_epoch(self) -> None:
        run, position = self.run_, self.run_.position
        metrics = self._metrics()
        position.epoch += 1
        position.history.append({"epoch": position.epoch, "step": position.step, **metrics})
        position.batch = position.rows = 0
        position.sums = {}
        self._judge(metrics)
        self.display.epoch(run)

    def _partial_epoch(self) -> None:
        """The metrics of an epoch that the run ends in the middle of."""
        if self.run_.position.rows and self.run_.losses:
            self.run_.partial = self._metrics()

    def _metrics(self) -> dict[str, float]:
        """The metrics of the epoch so far, and those of the validation data."""
        run, position = self.run_, self.run_.position
        self._read()
        metrics = {n: s / max(position.rows, 1) for n, s in position.sums.items()}
        if self.validation is None:
            return agreement.of_the_first(run, metrics)
        started = time.perf_counter()
        confusion = metric.Confusion()
        values = evaluate_rep(run, self.validation, self.settings.metrics, None, confusion)
        run.confusion = confusion.counts
        self.times["validation"] += time.perf_counter() - started
        metrics |= {f"val_{n}": v for n, v in values.items()}
        return agreement.of_the_first(run, metrics)

    def _judge(self, metrics: Mapping[str, float]) -> None:
        """Keep the model of this epoch if it is the best so far."""
        run, position, watch = self.run_, self.run_.position, self.settings.watch
        if watch not in metrics:  # a record without a loss among its outputs
            return
        value = metrics[watch] if self.settings.lower else -metrics[watch]
        if position.best is None or value < position.best:
            position.best, position.best_epoch, position.waited = value, position.epoch, 0
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
        # Clocks differ: processes that write together go by steps.
        timed = settings.every_minutes is not None and self.run_.processes.count == 1
        if timed and time.monotonic() - self.saved >= settings.every_minutes * 60:  # type: ignore[operator]
            due = True
        if due or force:
            self._write(settings.output)
            self.saved = time.monotonic()

    def _write(self, path: Path) -> None:
        started = time.perf_counter()
        model = self.run_.model  # in several processes, each has parts of it
        if self.run_.processes.leads:
            write(model, path)
        self.times["saving"] += time.perf_counter() - started
