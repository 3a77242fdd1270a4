"""Changes to the record that a model carries: settings that are not passed stay as they are.

The record is built again from its description with the new settings, and every setting that
changed becomes a row to display: its name, the value in the file, the new value.
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
KEPT = ("slot", "step")  # the roles of state that the new record takes over
DROP = "model.records.clear() drops the record and keeps the weights"


def override(model: Model, arguments: Mapping[str, Any]) -> tuple[Model, Rows]:
    """The model with its record changed by `arguments`, and a row for every change."""
    _refuse_several(model, arguments)
    (record,), (description,) = model.records, descriptions(model)
    before = description.get("arguments")
    expanded = _expanded(arguments)
    changed = trainable(_bare(model), **_merged(before, expanded))
    (after,) = descriptions(changed)
    if before is None:
        return changed, [["record", "made elsewhere", "made anew"]]
    rows = changes(before, after["arguments"])
    for key in after["arguments"].get("own", []):
        if key in expanded:  # two functions may have one name
            rows.append([key, *_names(before[key]), f"{_names(after['arguments'][key])[0]}, given"])
    if not rows:
        return model, []
    _keep_reasons(changed, description, after)
    return changed, [*rows, *_take_state(model, record, changed)]


def of_record(model: Model, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `trainable` for a graph that is edited and needs another record: those of
    the record that the model carries, replaced by those passed.
    """
    if not model.records:
        return dict(arguments)
    _refuse_several(model, arguments)
    (description,) = descriptions(model)
    return _merged(description.get("arguments"), _expanded(arguments))


def _refuse_several(model: Model, arguments: Mapping[str, Any]) -> None:
    if len(model.records) > 1:
        raise ArgumentError(
            f"the file carries {len(model.records)} training records; these options describe one",
            [[f"option {quote(k)}"] for k in arguments],
            hint=f"train it as it is, or make new records: {DROP}",
        )


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Rows:
    """Every setting in which two descriptions of arguments differ."""
    old, new = _flat(before), _flat(after)
    names = [n for n in dict.fromkeys((*old, *new)) if old.get(n) != new.get(n)]
    return [[n, _shown(old.get(n)), _shown(new.get(n))] for n in names]


def refuse_changes(model: Model, arguments: Mapping[str, Any], where: str) -> None:
    """Raise an error that lists settings which differ from those of the run to be continued."""
    described = [d["arguments"] for d in descriptions(model) if "arguments" in d]
    if len(described) != 1 or not arguments:
        return
    try:
        changed = trainable(_bare(model), **_merged(described[0], _expanded(arguments)))
    except ArgumentError:
        rows = [[k, "as in the file", _shown(v)] for k, v in arguments.items()]
    else:
        rows = changes(described[0], descriptions(changed)[0]["arguments"])
    if rows:
        refuse_other(where, rows)


def refuse_other(where: str, rows: Rows) -> None:
    raise ArgumentError(
        f"{quote(where)} was begun with other settings",
        [[name, f"{old} → {new}"] for name, old, new in rows],
        hint="leave these out to continue it, or start a new run from it: "
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


def _expanded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, those of a configuration file among them."""
    if arguments.get("config") is None:
        return dict(arguments)
    rest = {k: v for k, v in arguments.items() if k != "config"}
    return config.with_config(arguments["config"], trainable, rest)


def _merged(before: Mapping[str, Any] | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the file, replaced by those passed."""
    if before is None:
        if "loss" in arguments:
            return arguments
        raise ArgumentError(
            "the record was made elsewhere: it cannot be changed in part",
            [[f"option {quote(k)}"] for k in arguments],
            hint=f"pass the loss too, and a new record replaces it; or {DROP}",
        )
    missing = [k for k in before.get("own", []) if k not in arguments]
    if missing:
        raise ArgumentError(
            "the file does not describe the whole record",
            [[k, *_names(before[k]), "was a function or a graph"] for k in missing],
            hint=f"pass {' and '.join(missing)} again with the other options",
        )
    settings = {k: v for k, v in before.items() if k != "own" and k not in before.get("own", [])}
    arguments = dict(arguments)
    if "lr" in arguments and "optimizer" not in arguments:
        # The rate of the file's optimizer, not of the default one.
        rate = arguments.pop("lr")
        arguments["optimizer"] = {**before["optimizer"], "lr": rate}
    if isinstance(arguments.get("optimizer"), Mapping):
        settings["optimizer"] = arguments.pop("optimizer")
    return {**config.arguments(settings, Path()), **arguments}


def _names(setting: Any) -> list[str]:
    """The names of user-defined parts, where they have one."""
    parts = setting if isinstance(setting, list) else [setting]
    return [", ".join(quote(p["name"]) for p in parts if "name" in p)]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted names; the only loss is not counted."""
    settings: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
            settings |= _flat({key: value[0]}, prefix)
        elif isinstance(value, Mapping) and value:
            settings |= _flat(value, f"{prefix}{key}.")
        else:
            settings[prefix + key] = value
    return {k.removesuffix(".name"): v for k, v in settings.items()}


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


def _keep_reasons(changed: Model, before: Mapping[str, Any], after: dict[str, Any]) -> None:
    """Unchanged choices keep the reason that the file gives."""
    old = {(what, value): why for what, value, why in before.get("choices", [])}
    after["choices"] = [
        [what, value, old.get((what, value), "set by an argument, instead of the file's value")]
        for what, value, _ in after["choices"]
    ]
    describe(changed, after)


def _take_state(model: Model, record: Record, changed: Model) -> Rows:
    """Let the new record continue with the old one's slots and step count, if they match."""
    (new,) = changed.records
    new_slots, old_slots = _slots(changed, new), _slots(model, record)
    same = new_slots.keys() == old_slots.keys() and all(
        new_slots[n].shape == old_slots[n].shape and new_slots[n].dtype == old_slots[n].dtype
        for n in new_slots
    )
    before, after = (descriptions(m)[0]["arguments"] for m in (model, changed))
    # The count of steps is one of updates only as long as as many steps make an update.
    is_continued = same and before["optimizer"]["name"] == after["optimizer"]["name"]
    is_continued &= before.get("accumulate") == after.get("accumulate")
    if is_continued:
        new.state.update(old_slots)
    words = "kept" if is_continued else "starts afresh"
    return [["optimizer's state", f"{len(old_slots)} tensors", words]] if old_slots else []


def _slots(model: Model, record: Record) -> dict[str, Any]:
    roles = {n: model.metadata.get(f"{ROLE}{n}") for n in record.state}
    return {n: t for n, t in record.state.items() if roles[n] in KEPT}
