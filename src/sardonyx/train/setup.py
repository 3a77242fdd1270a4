"""Everything about a run that is checked or decided before its first step is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import plugins
from sardonyx.engines.prepare import check_device, check_precision, check_precision_name
from sardonyx.engines.training import TrainingRep
from sardonyx.errors import (
    ArgumentError,
    EngineError,
    SardonyxError,
    counted,
    did_you_mean,
    quote,
)
from sardonyx.lower.devices import device_name
from sardonyx.model import Model, ModelSource, load
from sardonyx.plugins import DEFAULT
from sardonyx.record import info, optim
from sardonyx.record.describe import descriptions
from sardonyx.record.override import Rows, override, refuse_changes, refuse_other
from sardonyx.record.terms import as_loss
from sardonyx.record.trainable import trainable
from sardonyx.train import metrics as metric
from sardonyx.train.batches import batch_count
from sardonyx.train.checkpoint import Position, position_of
from sardonyx.train.evaluation import class_counts, class_names
from sardonyx.train.fields import Link, field_names
from sardonyx.train.images import as_preprocessing, stored_preprocessing
from sardonyx.train.tables import MEMORY, Source, Stream

EPOCHS = 3
ORIGINS = {MEMORY: "arrays in memory"}
INTEGERS = ("epochs", "steps", "batch_size", "patience", "every_steps")
SWITCHES = ("drop_last", "standardize")


# -- arguments -------------------------------------------------------------------------------


def check_numbers(options: Mapping[str, Any]) -> None:
    """Raise one error that lists every setting that is out of range."""
    rows = []
    for name, value in options.items():
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if value is None:
            continue
        if name in INTEGERS and (not is_number or value < 1 or value != int(value)):
            rows.append([name.replace("_", " "), f"an integer of at least 1, not {value!r}"])
        if name == "seed" and not (is_number and 0 <= value < 2**63 and value == int(value)):
            rows.append(["seed", f"an integer of at least 0, not {value!r}"])
        if name == "shuffle" and value not in (True, False, "hash"):
            rows.append(["shuffle", f'True, False or "hash", not {value!r}'])
        if name in SWITCHES and value not in (True, False):
            rows.append([name.replace("_", " "), f"True or False, not {value!r}"])
        if name == "every_minutes" and not (is_number and value > 0):
            rows.append(["every minutes", f"a number above 0, not {value!r}"])
        if name == "share" and not (is_number and 0 < value < 1):
            rows.append(["validation", f"a share above 0 and below 1, or data, not {value!r}"])
    if rows:
        count = counted(len(rows), "setting")
        raise ArgumentError(
            f"{count} of the training {'is' if len(rows) == 1 else 'are'} wrong", rows
        )


def check_engine(
    engine: str,
    device: str | None,
    precision: str | None,
    options: Mapping[str, Any] | None,
    recompute: bool,
) -> dict[str, Any]:
    """The options of the engine; an error if it, the device or the precision is not available."""
    named = {"device": device, "precision": precision}
    options = {**(options or {}), **{n: v for n, v in named.items() if v is not None}}
    device, precision = options.get("device"), options.get("precision")
    if engine != "auto":
        check_device(engine, device)
        check_precision(engine, precision, device)
    elif device is not None or precision is not None:
        _check_any(device, precision)
    if not recompute:
        return options
    if engine != "onnxruntime":
        raise ArgumentError(
            f"the engine {engine!r} does not recompute",
            hint='--engine onnxruntime (engine="onnxruntime") does',
        )
    return {**options, "recompute": True}


def _check_any(device: str | None, precision: str | None) -> None:
    """Refuse a device and a precision that no installed engine has."""
    check_precision_name(precision)
    rows = []
    for engine in plugins.contenders():
        try:
            check_device(engine, device)
            check_precision(engine, precision, device)
        except SardonyxError as error:
            rows.append([engine, f"{error.what}; {error.hint}"])
        else:
            return
    requests = [f"a device {quote(device)}"] * (device is not None)
    requests += [f"the precision {precision}"] * (precision is not None)
    raise EngineError(f"no installed engine has {' and '.join(requests)} on this machine", rows)


# Endings of files that hold data and settings: a model in their place would be an accident.
NO_MODELS = (
    *(".npz", ".npy", ".csv", ".tsv", ".parquet", ".feather", ".json", ".jsonl", ".txt", ".html"),
    *(".toml", ".yaml", ".yml", ".png", ".jpg", ".jpeg", ".zip", ".py"),
)


def check_output(model: Any, output: Path | None, overwrite: bool) -> None:
    """Refuse an output that cannot be written, or that would replace the model without consent."""
    if output is None:
        return
    if output.is_dir():
        raise ArgumentError(
            f"the output {quote(str(output))} is a folder",
            hint=f"name a file in it: {output / 'tuned.onnx'}",
        )
    if output.suffix.lower() in NO_MODELS:
        raise ArgumentError(
            f"a model is written to an .onnx file, not to {quote(output.name)}",
            hint=f"-o {output.with_suffix('.onnx').name}",
        )
    if not output.parent.is_dir():
        raise ArgumentError(f"there is no folder {quote(str(output.parent))} for the output")
    if not overwrite and isinstance(model, (str, Path)):
        refuse_overwriting(Path(model), output)


def refuse_overwriting(path: Path, output: Path, what: str = "the model") -> None:
    """Refuse an output that is the same file as its source."""
    if output.exists() and path.exists() and output.samefile(path):
        replaces = "--in-place (in_place=True) replaces it; or " if what == "the model" else ""
        raise ArgumentError(
            f"the output {quote(output.name)} is {what} itself",
            hint=f"{replaces}choose another output",
        )


def check_record_names(how: Mapping[str, Any]) -> None:
    """Refuse a loss or an optimizer that does not exist, before the model is read."""
    if isinstance(how.get("loss"), str):
        as_loss(how["loss"])
    if isinstance(how.get("optimizer"), str):
        optim.named(how["optimizer"])


def check_metrics(names: Sequence[Any] | None, validated: bool) -> None:
    """Refuse unknown metrics, and metrics without validation data."""
    metric.make(names or [])
    if names and not validated:
        raise ArgumentError(
            "metrics are measured on validation data, and there is none",
            hint="--validation 0.1 (validation=0.1) holds a tenth of the rows back",
        )


def default_watch(model: Model, validated: bool) -> str:
    """The metric to watch by default: the total loss, on the validation data if there is any."""
    losses = [n for record in model.records for n in info.metrics(record)]
    name = "loss" if "loss" in losses or not losses else losses[0]
    return f"val_{name}" if validated else name


def check_watch(watch: str, model: Model, names: Sequence[Any], validated: bool) -> None:
    """Refuse to watch a metric that is not measured."""
    losses = [n for record in model.records for n in info.metrics(record)]
    measured = [*losses]
    if validated:
        measured += [f"val_{n}" for n in (*losses, *(m.name for m in metric.make(names)))]
    if watch not in measured:
        hint = did_you_mean(str(watch), measured)
        listed = f"measured: {', '.join(measured)}"
        raise ArgumentError(
            f"there is no metric {quote(str(watch))} to watch",
            hint=f"{hint} {listed}" if hint.startswith("did") else listed,
        )


# -- the model and its position ------------------------------------------------------------------


def load_start(model: ModelSource, target: Path | None, resume: bool) -> Model:
    """The model to start from: the output, if a run is resumed and has one."""
    if resume and target is None:
        raise ArgumentError(
            "`resume` continues an output, and none is named", hint="name it: output='tuned.onnx'"
        )
    if resume and target is not None and target.exists():
        return load(target)
    _refuse_unfinished(target)
    return load(model)


def start(
    loaded: Model,
    target: Path | None,
    resume: bool,
    options: Mapping[str, Any],
    how: Mapping[str, Any],
) -> tuple[Model, Position]:
    """The model to train, and the position in its run."""
    if resume and target is not None and target.exists():
        return _continued(loaded, target, options, how)
    settings = {k: v for k, v in options.items() if v is not None}
    rows: Rows = []
    if not loaded.records:
        net = trainable(loaded, **{"seed": settings.get("seed", 0), **how})
    else:
        arguments = descriptions(loaded)[0].get("arguments")
        seed = (arguments or {}).get("seed", 0)
        changeable = arguments is not None and len(loaded.records) == 1
        reseeded = changeable and settings.get("seed", seed) != seed
        changes = {**how, **({"seed": settings["seed"]} if reseeded else {})}
        settings.setdefault("seed", seed)
        net, rows = override(loaded, changes) if changes else (loaded, [])
    if "epochs" not in settings and "steps" not in settings:
        settings["epochs"] = EPOCHS
    return net, Position(**settings, overrides=rows)


def _refuse_unfinished(target: Path | None) -> None:
    """Refuse to overwrite a run that is not finished."""
    if target is None or not target.exists():
        return
    try:
        position = position_of(load(target))
    except SardonyxError:  # not a model of a run: it is replaced like any other file
        return
    if position is not None and position.step and not position.finished:
        raise ArgumentError(
            f"{quote(target.name)} holds a training that is not finished",
            [["step", f"{position.step:,}"], ["epoch", f"{position.epoch + 1:,}"]],
            hint="continue it with --resume (resume=True), or choose another output, or remove it",
        )


def _continued(
    stored: Model, target: Path, options: Mapping[str, Any], how: Mapping[str, Any]
) -> tuple[Model, Position]:
    """The model and the position of a run that is resumed; only its length may change."""
    position = position_of(stored)
    if position is None:
        raise ArgumentError(f"{quote(target.name)} is not a training that can be continued")
    rows = [
        [name.replace("_", " "), str(getattr(position, name)), str(value)]
        for name, value in options.items()
        if name not in ("epochs", "steps") and value not in (None, getattr(position, name))
    ]
    if rows:
        refuse_other(target.name, rows)
    refuse_changes(stored, how, target.name)
    length = {k: v for k, v in options.items() if k in ("epochs", "steps") and v is not None}
    for name, value in length.items():
        count = position.epoch if name == "epochs" else position.step
        if value < count:
            more = count + value
            raise ArgumentError(
                f"{quote(target.name)} has had {counted(count, name[:-1])} already",
                hint=f"--{name} counts from the start of the run: --{name} {more} "
                f"({name}={more}) trains {value} more",
            )
    if length:
        position = replace(position, **{"epochs": None, "steps": None, **length})
    return stored, replace(position, finished=False)


def check_preprocessing(net: Model, settings: Any, position: Position, target: Path | None) -> None:
    """Refuse to resume a run with other preprocessing of images than it began with."""
    stored = stored_preprocessing(net)
    if settings is None or stored is None or not position.step:
        return
    chosen = replace(as_preprocessing(settings), size=stored.size)
    if chosen != stored:
        name = target.name if target else "the run"
        refuse_other(name, [["preprocessing", str(stored), str(chosen)]])


# -- the data ------------------------------------------------------------------------------------


def check_same_data(
    position: Position, source: Source, links: Sequence[Link], target: Path | None
) -> None:
    """Refuse to resume a run on other data than it began with."""
    length = None if isinstance(source, Stream) else len(source)
    fingerprint = source.fingerprint(field_names(links))
    rows = []
    if position.step and position.length != length:
        rows.append(["rows of the data", str(position.length), str(length)])
    elif position.step and position.fingerprint and position.fingerprint != fingerprint:
        was, now = (
            f"fingerprint {text or 'unknown'}" for text in (position.fingerprint, fingerprint)
        )
        rows.append(["contents of the data", was, now])
    if rows:
        refuse_other(str(target.name if target else "the run"), rows)
    position.length, position.fingerprint = length, fingerprint


def numbering(model: Model, names: tuple[str, ...], request: Any) -> tuple[str, ...]:
    """The names of the classes, in the order of their numbers.

    A resumed run keeps the numbers that the model holds, and so does a run that starts from a
    trained model, unless the data has classes that the model does not know.
    """
    stored = class_names(model)
    continued = request.resume and request.target is not None and request.target.exists()
    return stored if names and stored and (continued or set(names) <= set(stored)) else names


def names_of_classes(source: Source, links: Sequence[Link]) -> tuple[str, ...]:
    """The names of the classes in the data, where it has them."""
    return next((item.classes for item in links if item.classes), source.classes)


# -- rows to display -----------------------------------------------------------------------------


def loop_choices(
    options: Mapping[str, Any], position: Position, engine: str, rep: TrainingRep
) -> list[list[str]]:
    """The settings of the loop, as rows to display: name, value and origin."""
    default = "the run that is continued" if position.step else "by default"
    rows = []
    for name, value in options.items():
        setting = getattr(position, name)
        if setting is not None:
            label = {"share": "validation share"}.get(name, name.replace("_", " "))
            rows.append([label, _word(setting), "as requested" if value is not None else default])
    if engine != "auto":
        rows.append(["engine", engine, "by default" if engine == DEFAULT else "as requested"])
    return rows + execution_choices(rep)


def execution_choices(rep: TrainingRep) -> list[list[str]]:
    """Where and how an engine executes the steps, as rows to display."""
    rows = []
    if rep.requested_device is not None:
        rows.append(["device", device_name(rep.requested_device), "as requested"])
    placement = getattr(rep, "placement", None)
    if placement is not None:
        rows.append(["devices", str(placement), "as requested"])
    if rep.requested_precision is not None:
        rows.append(["precision", rep.requested_precision, "as requested; the file stays float32"])
    for way in dict.fromkeys(rep.ways):
        what, _, why = way.partition(": ")
        rows.append(["gradient", what, why])
    return rows


def _word(setting: Any) -> str:
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    return f"{setting:,}" if isinstance(setting, int) else str(setting)


def facts(
    net: Model,
    source: Source,
    validation: Source | None,
    links: Sequence[Link],
    settings: dict[str, Any],
    position: Position,
) -> list[tuple[str, str]]:
    """Rows to display that describe the data."""
    rows = [("training data", ORIGINS.get(source.origin, source.origin))]
    if not isinstance(source, Stream):
        count = batch_count(source, position.batch_size, position.drop_last) or 0
        batches = counted(count, "batch").replace("batchs", "batches")
        rows.append(("rows", f"{len(source):,}, {batches} of {position.batch_size:,}"))
    if validation is not None:
        origin = ORIGINS.get(validation.origin, validation.origin)
        length = "" if isinstance(validation, Stream) else f"{len(validation):,} rows of "
        rows.append(("validation", f"{length}{origin}"))
    rows += source.facts
    names = names_of_classes(source, links)
    if names:
        rows.append(("classes", ", ".join(names)))
    rows += _fewer_classes(net, names, source, links, settings)
    return rows


def _fewer_classes(
    net: Model,
    names: Sequence[str],
    source: Source,
    links: Sequence[Link],
    settings: dict[str, Any],
) -> list[tuple[str, str]]:
    """A note to display if the model has more classes than the data."""
    for label, (count, _) in class_counts(net, settings).items():
        item = next((i for i in links if i.input == label and i.constant is None), None)
        if item is None:
            continue
        present = len(names)
        if not present and not isinstance(source, Stream):
            # the highest classes may be absent by chance, but hardly half of them
            labels = source.sample(item.field)  # whose type may be unsigned: no -1 in it
            largest = int(np.max(labels)) + 1 if np.size(labels) else 0
            present = largest if 2 * largest <= count else count
        if 0 < present < count:
            words = f"the model has scores for {count:,} classes, the data has {present:,}"
            return [("note", f"{words}: --replace-head {present} fits the last layer to the data")]
    return []
