"""Configuration files: TOML, YAML or JSON with the arguments of `trainable`.

    train = ["head.*"]                     clip_norm = 1.0
    [loss]                                 [[loss]]      several: `prediction` and `weight` each
    name = "cross_entropy"                 graph = "my_loss.onnx"      instead of a name
    [optimizer]                            [optimizer.schedule]
    name = "adamw"                         name = "linear_warmup"
    lr = 1e-3                              steps = 100
    [groups."*.bias"]                      after = {name = "cosine", steps = 1000}
    weight_decay = 0.0

All unknown keys of a file are reported at once. Paths are relative to the file.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sardonyx.errors import ArgumentError, MissingExtra, did_you_mean, quote
from sardonyx.initializer import Initializer, as_initializer
from sardonyx.record import loss as losses
from sardonyx.record import optim, schedule
from sardonyx.record.settings import LOOP, RECORD

TERM = ("name", "graph", "prediction", "labels", "weight", "class_weight")
RENAMED = {"output": "the tensor that meets the label is called prediction"}


class _Problems:
    """What is wrong with a file, and where."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []

    def unknown(self, where: str, keys: Sequence[str], allowed: Sequence[str]) -> None:
        for key in keys:
            self.rows.append([where, quote(key), RENAMED.get(key) or did_you_mean(key, allowed)])

    def add(self, where: str, key: str, what: str) -> None:
        self.rows.append([where, quote(key), what])


def read(path: str | Path) -> dict[str, Any]:
    """The contents of a TOML, YAML or JSON file, as plain values."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot read {quote(path)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{quote(path)} is no text file: settings are TOML or YAML") from error
    try:
        contents = READERS.get(path.suffix.lower(), tomllib.loads)(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise ArgumentError(f"{quote(path)} cannot be read: {error}") from error
    if not isinstance(contents, dict):
        raise ArgumentError(f"{quote(path)} holds no table of settings")
    return contents


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("PyYAML", "yaml") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


READERS: dict[str, Callable[[str], Any]] = {".yaml": _yaml, ".yml": _yaml, ".json": json.loads}


def with_config(
    path: str | Path, function: Callable[..., Any], passed: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call: those of the file, then those passed that differ from their
    defaults.
    """
    defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()}
    explicit = {k: v for k, v in passed.items() if v is not defaults[k] and v != defaults[k]}
    return {**arguments(read(path), Path(path).parent, path), **explicit}


def loop_settings(path: str | Path) -> dict[str, Any]:
    """The settings of the loop in a file, whose path of validation data is relative to it."""
    settings = read(path)
    arguments(settings, Path(path).parent, path)  # refuses what is wrong, in either part
    loop = {k: v for k, v in settings.items() if k in LOOP or k == "seed"}
    if isinstance(loop.get("validation"), str):
        loop["validation"] = Path(path).parent / loop["validation"]
    return loop


def arguments(
    settings: Mapping[str, Any], folder: Path, source: object = "the settings"
) -> dict[str, Any]:
    """The arguments of `trainable` that `settings` describes."""
    problems = _Problems()
    allowed = {**RECORD, **LOOP}
    problems.unknown("file", [k for k in settings if k not in allowed], list(allowed))
    for key, value in settings.items():
        if key in allowed and not allowed[key].holds(value):
            problems.add("file", key, f"is {allowed[key].what}, not {value!r}")
    if problems.rows:  # a table that is no table cannot be looked into
        _refuse(source, problems)
    tables = ("loss", "optimizer", "initialize")
    result = {k: v for k, v in settings.items() if k in RECORD and k not in tables}
    if "loss" in settings:
        result["loss"] = _losses(settings["loss"], folder, problems)
    if "optimizer" in settings:
        result["optimizer"] = _optimizer(settings["optimizer"], problems)
    if "initialize" in settings:
        result["initialize"] = {
            p: _initializer(p, v, problems) for p, v in settings["initialize"].items()
        }
    _groups(settings, problems)
    _refuse(source, problems)
    return result


def _refuse(source: object, problems: _Problems) -> None:
    if problems.rows:
        count = len(problems.rows)
        raise ArgumentError(
            f"{quote(source)} has {count} setting{'s' * (count > 1)} that cannot be used",
            problems.rows,
            hint="docs/reference/config.md lists the settings",
        )


# -- losses -----------------------------------------------------------------------------


def _losses(entries: Any, folder: Path, problems: _Problems) -> list[losses.Term]:
    several = isinstance(entries, list)
    terms = []
    for index, entry in enumerate(entries if several else [entries]):
        where = f"loss {index}" if several else "loss"
        table = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(table, dict):
            problems.add(where, str(entry), "is not a loss")
            continue
        settings = {k: v for k, v in table.items() if k not in TERM}
        if "class_weight" in table:
            settings["weight"] = table["class_weight"]
        weight = table.get("weight", 1.0)
        if not isinstance(weight, (int, float)):
            problems.add(where, "weight", "is the weight of this loss, a number; see class_weight")
            continue
        loss = _loss(table, settings, where, folder, problems)
        if loss is not None:
            terms.append(
                losses.Term(loss, table.get("prediction"), table.get("labels"), float(weight))
            )
    return terms


def _loss(
    table: Mapping[str, Any],
    settings: dict[str, Any],
    where: str,
    folder: Path,
    problems: _Problems,
) -> losses.Loss | None:
    if ("name" in table) == ("graph" in table):
        problems.add(where, "name", "a loss has either a name or a graph")
        return None
    if "graph" in table:
        problems.unknown(where, list(settings), TERM)
        return losses.graph(folder / str(table["graph"]))
    makers = losses.MAKERS
    name = str(table["name"])
    if name not in makers:
        problems.unknown(where, [name], list(makers))
        return None
    return _make(makers[name], settings, where, TERM, problems, renamed={"weight": "class_weight"})


def _make(
    maker: Callable[..., Any],
    settings: dict[str, Any],
    where: str,
    keys: Sequence[str],
    problems: _Problems,
    renamed: Mapping[str, str] | None = None,
) -> Any:
    parameters = list(inspect.signature(maker).parameters)
    spellings = [(renamed or {}).get(k, k) for k in parameters]
    unknown = [k for k in settings if k not in parameters]
    problems.unknown(where, unknown, [*spellings, *keys])
    try:
        return None if unknown else maker(**settings)
    except (ArgumentError, TypeError) as error:
        problems.add(where, ", ".join(settings), str(error))
        return None


# -- optimizers -------------------------------------------------------------------------


def _optimizer(setting: Any, problems: _Problems) -> optim.Optimizer | None:
    table = {"name": setting} if isinstance(setting, str) else dict(setting)
    name = str(table.pop("name", "adamw"))
    if name not in optim.MAKERS:
        problems.unknown("optimizer", [name], list(optim.MAKERS))
        return None
    _schedules(table, "optimizer", problems)
    return _make(optim.MAKERS[name], table, "optimizer", ("name",), problems)


def _schedules(table: dict[str, Any], where: str, problems: _Problems) -> None:
    """Make the schedules among the settings of an optimizer."""
    for key in ("schedule", "momentum_schedule"):
        if key in table:
            table[key] = _schedule(table[key], f"{where}.{key}", problems)


def _schedule(setting: Any, where: str, problems: _Problems) -> schedule.Schedule | None:
    table = {"name": setting} if isinstance(setting, str) else dict(setting)
    makers = {**schedule.NAMES, "sequence": schedule.sequence}
    name = str(table.pop("name", ""))
    if name not in makers:
        problems.unknown(where, [name], list(makers))
        return None
    if "after" in table:
        table["after"] = _schedule(table["after"], f"{where}.after", problems)
    if "schedules" in table:
        table["schedules"] = [
            _schedule(s, f"{where}.schedules", problems) for s in table["schedules"]
        ]
    return _make(makers[name], table, where, ("name",), problems)


def _groups(settings: Mapping[str, Any], problems: _Problems) -> None:
    """Check the settings of groups; the optimizer applies them."""
    chosen = settings.get("optimizer", "adamw")
    name = chosen if isinstance(chosen, str) else str(chosen.get("name", "adamw"))
    parameters = (
        list(inspect.signature(optim.MAKERS[name]).parameters) if name in optim.MAKERS else None
    )
    for pattern, group in settings.get("groups", {}).items():
        where = f'groups."{pattern}"'
        if not isinstance(group, dict):
            problems.add("groups", pattern, "is not a table")
        elif parameters is not None:
            allowed = [*parameters, "parameters", "offset"]
            problems.unknown(where, [k for k in group if k not in allowed], allowed)
            _schedules(group, where, problems)


def _initializer(pattern: str, setting: Any, problems: _Problems) -> Initializer | None:
    where = f'initialize."{pattern}"'
    table = {"kind": setting} if isinstance(setting, str) else setting
    if not isinstance(table, dict):
        problems.add("initialize", pattern, "is a name or a table")
        return None
    try:
        initializer = as_initializer(str(table.get("kind", "")))
    except ArgumentError as error:
        problems.add(where, str(table.get("kind")), error.hint or str(error))
        return None
    problems.unknown(where, [k for k in table if k not in ("kind", "scale")], ["kind", "scale"])
    return Initializer(initializer.kind, table.get("scale"))
