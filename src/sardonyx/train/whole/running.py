"""`run_training`: the file of a whole training, run one epoch at a time.

Every call of the file trains one epoch from the state that the one before gave, so that there is
progress to show, a place to stop and something to save. What comes out is what `train` gives:
a `Run`, a model, checkpoints that either of them continues.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

from sardonyx.engines.onnxruntime.session import interruptible_run, level_of, open_session
from sardonyx.engines.training import TrainingRep, with_state
from sardonyx.errors import ArgumentError, DataError, TrainingStopped, quote
from sardonyx.model import Model, ModelSource
from sardonyx.record.info import state_tensor
from sardonyx.train import setup
from sardonyx.train.checkpoint import Lock, Position
from sardonyx.train.display import Display, make_display
from sardonyx.train.fields import Link, convert, field_names
from sardonyx.train.loop import TrainingLoop, prepared_loop
from sardonyx.train.run import Callback, Run
from sardonyx.train.tables import Source, Stream, Subset
from sardonyx.train.whole.export import KEY
from sardonyx.train.whole.graph import NOT_FINITE
from sardonyx.train.whole.standardize import with_preparation
from sardonyx.train.whole.stored import stored_model

# Planned memory and planned reuse of buffers cost more memory than a step needs (bench/whole.py).
OPTIONS = {"enable_mem_pattern": False, "enable_mem_reuse": False}


def run_training(
    whole: ModelSource,
    data: Any,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    hyper: Mapping[str, float] | None = None,
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    preprocess: str | Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    display: str | Display | None = None,
    threads: int | None = None,
) -> Run:
    """Train with a file of `export_training`, one epoch at a time; a `Run` as `train` gives it.

    whole     -- the file, or its path
    data      -- anything that `train` takes, except streams: all rows are fed at once
    epochs, batch_size, seed -- 3, 32 and the seed of the record if not given
    hyper     -- hyperparameters of the file, such as {"learning_rate": 1e-4}
    output    -- the file of the trained model, written after every epoch; the best epoch, where
                 the training tells one, in `<output>.best.onnx`
    resume    -- continue what `output` holds, also if `train` with shuffle="hash" wrote it
    callbacks -- called after every epoch
    fields, columns, preprocess, display -- as for `train`

    >>> import sardonyx as sx
    >>> path = sx.export_training("model.onnx", "whole.onnx", validation=0.2)
    >>> run = sx.run_training(path, "data.npz", epochs=2)
    >>> sorted(run.history[0])
    ['epoch', 'loss', 'step', 'val_accuracy', 'val_loss']
    """
    file = WholeFile(whole, hyper or {}, threads)
    fixed = file.settings
    target = Path(output) if output is not None else None
    request = SimpleNamespace(
        epochs=epochs,
        steps=None,
        batch_size=batch_size,
        seed=seed,
        shuffle="hash" if fixed["shuffle"] else False,
        drop_last=fixed["drop_last"],
        share=fixed["share"],
        validation=fixed["share"],
        metrics=list(fixed["metrics"]) or None,
        patience=fixed["patience"],
        watch=fixed["watch"],
        fields=fields,
        columns=columns,
        constants=file.constants(),
        batch_axes=fixed["axes"],
        preprocess=preprocess,
        target=target,
        resume=resume,
        every_steps=None,
        every_minutes=None,
        callbacks=callbacks,
        engine="onnxruntime",
        way=file,
    )
    setup.check_numbers(vars(request))
    setup.check_output(whole, target, resume)
    request.display = display if isinstance(display, Display) else make_display(display)
    with Lock(target) if target is not None else contextlib.nullcontext():
        return prepared_loop(file.model, data, request, {}).run()


class WholeFile:
    """The file of a training, and how the loop uses it in place of an engine."""

    def __init__(self, source: ModelSource, hyper: Mapping[str, float], threads: int | None):
        proto = _read(source)
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        if KEY not in metadata:
            raise ArgumentError(
                "this model is not a whole training",
                hint="sx.export_training (sardonyx export-training) writes one",
            )
        self.description = json.loads(metadata[KEY])
        self.settings = self.description["settings"]
        unknown = [n for n in hyper if n not in self.description["hyper"]]
        if unknown:
            raise ArgumentError(
                "the training has no such hyperparameters",
                [[quote(n)] for n in unknown],
                hint=f"it has {', '.join(self.description['hyper'])}",
            )
        defaults = self.description["hyper"]
        numbers = {n: np.asarray(v) for n, v in hyper.items()}
        wrong = [
            [quote(n), f"is no number: {hyper[n]!r}"]
            for n, array in numbers.items()
            if array.dtype.kind not in "iuf" or array.shape != np.shape(defaults[n])
        ]
        if wrong:
            raise ArgumentError("hyperparameters are numbers", wrong)
        self.hyper = {**defaults, **hyper}
        self.types = {v.name: v.type.tensor_type.elem_type for v in proto.graph.input}
        self.model = stored_model(proto, self.description["starts"])
        options = {
            **OPTIONS,
            "graph_optimization_level": level_of(self.description.get("optimization")),
        }
        self.session = open_session(proto.SerializeToString(), threads=threads, options=options)

    def constants(self) -> dict[str, Any]:
        return dict(self.settings["constants"])

    # -- what the loop asks for

    def start_model(self, model: Model) -> Model:
        """The model to train: that of the file, with the state of a checkpoint."""
        if model is self.model:
            return model
        tensors = {
            n: t
            for r in model.records
            for n in self.description["state"]
            if (t := state_tensor(model, r, n)) is not None
        }
        missing = [n for n in self.description["state"] if n not in tensors]
        if missing:
            raise ArgumentError(
                "the output is not a model of this training",
                [[quote(n), "is not in it"] for n in missing],
            )
        net = with_state(self.model, {n: t.numpy() for n, t in tensors.items()})
        net.metadata.update(model.metadata)
        return net

    def rep(self, net: Model, source: Source, links: list[Link], position: Position) -> WholeRep:
        return WholeRep(self, net, _arrays(source, links), position)

    def loop(self, *arguments: Any) -> EpochLoop:
        return EpochLoop(*arguments)

    # -- running it

    def run(self, feeds: Mapping[str, Any], epochs: int, position: Position) -> dict[str, Any]:
        """Some epochs from a state on; outputs by name."""
        control = {
            "epochs": epochs,
            "batch_size": position.batch_size,
            "seed": position.seed,
            "first_epoch": position.epoch,
            "best_value": np.inf,
            "waited": 0,
        }
        names = self.description["control"]
        fed = {names[n]: v for n, v in control.items() if n in names} | self.hyper
        typed = {n: np.asarray(v, self._dtype(n)) for n, v in fed.items()}
        names = [v.name for v in self.session.get_outputs()]
        outputs = interruptible_run(self.session, {**typed, **feeds})
        return dict(zip(names, outputs, strict=True))

    def _dtype(self, name: str) -> np.dtype[Any]:
        return onnx.helper.tensor_dtype_to_np_dtype(self.types[name])


def _read(source: ModelSource) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, Model):
        return source.proto()
    try:
        if isinstance(source, bytes):
            return onnx.load_from_string(source)
        return onnx.load(source)
    except FileNotFoundError as error:
        raise ArgumentError(f"there is no file {quote(str(source))}") from error
    except Exception as error:  # protobuf's own class for what is no model
        raise ArgumentError(f"{quote(str(source))} cannot be read as a model: {error}") from error


def _arrays(source: Source, links: Sequence[Link]) -> dict[str, np.ndarray]:
    """All rows of the data, by input of the file."""
    if isinstance(source, Stream):
        raise DataError(
            "a whole training takes all rows at once, and a stream has no rows",
            hint="give arrays or a file; or train step by step with sx.train",
        )
    table = source.table if isinstance(source, Subset) else source
    rows = convert(table.take(np.arange(len(table)), field_names(links)), links)
    return {n: np.ascontiguousarray(a) for n, a in rows.items()}


class WholeRep(TrainingRep):
    """The state between two epochs, in the place of a model in training on an engine."""

    def __init__(
        self, file: WholeFile, net: Model, data: dict[str, np.ndarray], position: Position
    ):
        self.file, self.model, self.data, self.front = file, net, data, None
        if not position.step:  # the seed is an input of the file, not another setting
            position.overrides = []
        self.arrays: dict[str, np.ndarray] = {}
        names = file.description["state"]
        for record in net.records:
            for name in names:
                tensor = state_tensor(net, record, name)
                if tensor is not None:
                    self.arrays[name] = tensor.numpy()
        self.measures: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        start = file.run(self._feeds(), 0, position)
        for name, outputs in file.description["standardize"].items():
            mean, deviation = (start[output] for output in outputs)
            self.measures[name] = mean, deviation

    @property
    def metrics(self) -> list[str]:
        return [n for n in self.file.description["history"] if not n.startswith("val_")]

    def _feeds(self) -> dict[str, Any]:
        inputs = self.file.description["state"]
        state = {inputs[n]: np.atleast_1d(a) for n, a in self.arrays.items()}
        return {**{self.file.description["data"][n]: a for n, a in self.data.items()}, **state}

    def epoch(self, position: Position) -> dict[str, Any]:
        """Train one epoch; the outputs of the file."""
        outputs = self.file.run(self._feeds(), 1, position)
        if outputs[self.file.description["results"]["stopped"]] != NOT_FINITE:
            last = self.file.description["last"]
            self.arrays = {n: outputs[last[n]] for n in self.arrays}
        return outputs

    def state(self) -> dict[str, np.ndarray]:
        return dict(self.arrays)

    def to_model(self, state: Mapping[str, np.ndarray] | None = None) -> Model:
        model = with_state(self.model, self.arrays if state is None else state)
        return with_preparation(model, self.measures)


class EpochLoop(TrainingLoop):
    """The loop over epochs, each of which is one run of the file."""

    def _epoch(self) -> None:
        run, position = self.run_, self.run_.position
        description = run.rep.file.description
        outputs = run.rep.epoch(position)
        losses = outputs[description["results"]["losses"]].ravel()
        if outputs[description["results"]["stopped"]] == NOT_FINITE:
            step = position.step + int(np.argmin(np.isfinite(losses))) + 1
            raise TrainingStopped(
                f"a loss is not finite at step {step:,}, epoch {position.epoch + 1}",
                hint="what was saved before this epoch is whole; try a lower learning rate "
                '(hyper={"learning_rate": …}); sx.train tells the tensor that is not finite',
            )
        run.read_losses.extend(losses.tolist())
        position.step += len(losses)
        position.epoch += 1
        metrics = {n: float(outputs[o][0]) for n, o in description["history"].items()}
        position.history.append({"epoch": position.epoch, "step": position.step, **metrics})
        self._judge(metrics)
        self.display.epoch(run)
        for callback in self.settings.callbacks:
            callback(run)
        self._keep(force=True)
