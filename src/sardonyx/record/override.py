"""Options for a model that carries its record: what is not named stays as the file says.

The record is made again from its description with the new settings in it, and every setting that
changed is a row for people: its name, what the file says, what counts now.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sardonyx.edit.surgery import FROZEN
from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model, Record
from sardonyx.record import config, optim
from sardonyx.record.builder import ROLE
from sardonyx.record.describe import SETTINGS, describe, descriptions
from sardonyx.record.trainable import trainable

Rows = list[list[str]]
KEPT = ("slot", "step")  # the roles of state that a record made again takes over
DROP = "model.records.clear() drops the record and keeps the weights"


def override(model: Model, given: Mapping[str, Any]) -> tuple[Model, Rows]:
    """The model with its record changed by the arguments `given`, and a row for every change."""
    if len(model.records) > 1:
        raise ArgumentError(
            f"the file carries {len(model.records)} training records; these options describe one",
            [[f"option {quote(k)}"] for k in given],
            hint=f"train it as it is, or make new records: {DROP}",
        )
    (record,), (description,) = model.records, descriptions(model)
    before = description.get("arguments")
    asked = _expanded(given)
    made = trainable(_bare(model), **_merged(before, asked))
    (after,) = descriptions(made)
    if before is None:
        return made, [["record", "made elsewhere", "made anew"]]
    rows = changes(before, after["arguments"])
    for key in after["arguments"].get("own", []):
        if key in asked:  # two functions may have one name
            rows.append([key, *_names(before[key]), f"{_names(after['arguments'][key])[0]}, given"])
    if not rows:
        return model, []
    _keep_reasons(made, description, after)
    return made, [*rows, *_take_state(model, record, made)]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Rows:
    """Every setting in which two descriptions of arguments differ."""
    old, new = _flat(before), _flat(after)
    names = [n for n in dict.fromkeys((*old, *new)) if old.get(n) != new.get(n)]
    return [[n, _shown(old.get(n)), _shown(new.get(n))] for n in names]


def refuse_changes(model: Model, given: Mapping[str, Any], where: str) -> None:
    """A run that is continued keeps its settings: an error that lists those that differ."""
    found = [d["arguments"] for d in descriptions(model) if "arguments" in d]
    if len(found) != 1 or not given:
        return
    try:
        made = trainable(_bare(model), **_merged(found[0], _expanded(given)))
    except ArgumentError:
        rows = [[k, "as the file says", _shown(v)] for k, v in given.items()]
    else:
        rows = changes(found[0], descriptions(made)[0]["arguments"])
    if rows:
        refuse_other(where, rows)


def refuse_other(where: str, rows: Rows) -> None:
    raise ArgumentError(
        f"{quote(where)} was begun with other settings",
        [[name, f"{old} → {new}"] for name, old, new in rows],
        hint="leave these out to continue it as it was begun, or start a new run from it: "
        "train it into another output, without resume",
    )


def _bare(model: Model) -> Model:
    """The model without its record and without what was noted about it."""
    bare = model.copy()
    bare.records = []
    bare.metadata.pop(SETTINGS, None)
    for key in [k for k, v in bare.metadata.items() if k.startswith(ROLE) and v != FROZEN]:
        del bare.metadata[key]
    return bare


def _expanded(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, those of a configuration file among them."""
    if given.get("config") is None:
        return dict(given)
    rest = {k: v for k, v in given.items() if k != "config"}
    return config.with_config(given["config"], trainable, rest)


def _merged(before: Mapping[str, Any] | None, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the file with those given in their place."""
    if before is None:
        if "loss" in given:
            return given
        raise ArgumentError(
            "the record was made elsewhere: it cannot be changed in part",
            [[f"option {quote(k)}"] for k in given],
            hint=f"give the loss too, and a new record takes its place; or {DROP}",
        )
    missing = [k for k in before.get("own", []) if k not in given]
    if missing:
        raise ArgumentError(
            "the record cannot be made again from what the file says",
            [[k, *_names(before[k]), "was given as a function or graph"] for k in missing],
            hint=f"give {' and '.join(missing)} again with the other options",
        )
    known = {k: v for k, v in before.items() if k != "own" and k not in before.get("own", [])}
    given = dict(given)
    if "lr" in given and "optimizer" not in given:
        # The rate of the file's optimizer, not of the default one.
        rate = given.pop("lr")
        given["optimizer"] = {**before["optimizer"], "lr": rate}
    if isinstance(given.get("optimizer"), Mapping):
        known["optimizer"] = given.pop("optimizer")
    return {**config.arguments(known, Path()), **given}


def _names(given: Any) -> list[str]:
    """What a part of one's own is called, where it has a name."""
    parts = given if isinstance(given, list) else [given]
    return [", ".join(quote(p["name"]) for p in parts if "name" in p)]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted names; the only loss is not counted."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
            found |= _flat({key: value[0]}, prefix)
        elif isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return {k.removesuffix(".name"): v for k, v in found.items()}


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "not set"
    if isinstance(value, optim.Optimizer):
        return value.text
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _keep_reasons(made: Model, before: Mapping[str, Any], after: dict[str, Any]) -> None:
    """What the file had decided keeps its reason; what changed was asked for."""
    old = {(what, value): why for what, value, why in before.get("choices", [])}
    after["choices"] = [
        [what, value, old.get((what, value), "as asked, in place of what the file says")]
        for what, value, _ in after["choices"]
    ]
    describe(made, after)


def _take_state(model: Model, record: Record, made: Model) -> Rows:
    """Let the new record go on from the old one's slots and count, if they are the same ones."""
    (new,) = made.records
    ours, theirs = _slots(made, new), _slots(model, record)
    same = ours.keys() == theirs.keys() and all(
        ours[n].shape == theirs[n].shape and ours[n].dtype == theirs[n].dtype for n in ours
    )
    optimizers = [descriptions(m)[0]["arguments"]["optimizer"]["name"] for m in (model, made)]
    kept = same and optimizers[0] == optimizers[1]
    if kept:
        new.state.update(theirs)
    words = "kept" if kept else "starts afresh"
    return [["optimizer's state", f"{len(theirs)} tensors", words]] if theirs else []


def _slots(model: Model, record: Record) -> dict[str, Any]:
    roles = {n: model.metadata.get(f"{ROLE}{n}") for n in record.state}
    return {n: t for n, t in record.state.items() if roles[n] in KEPT}
