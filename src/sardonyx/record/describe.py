"""What `trainable` decided for each record, written into the model's metadata and read back.

A description has the choices with their reasons, the loss terms, and the arguments in the form of
a configuration file: enough to build the record again with one setting changed. A user-defined loss
or optimizer cannot be written in this form; it is listed under `own`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.initializer import Initializer
from sardonyx.model import Model, ModelSource, load
from sardonyx.record import loss, optim
from sardonyx.record.loss import Term
from sardonyx.record.optim import Optimizer
from sardonyx.record.schedule import Schedule

SETTINGS = "sardonyx.training"


@dataclass
class Choice:
    """One decision, for display: what, which value, and why."""

    what: str
    value: str
    why: str


@dataclass
class Choices:
    """Everything that `trainable` decided, in order."""

    rows: list[Choice] = field(default_factory=list)

    def add(self, what: str, value: object, why: str) -> None:
        self.rows.append(Choice(what, str(value), why))


# -- in the file ------------------------------------------------------------------------


def describe(model: Model, description: Mapping[str, Any]) -> None:
    """Keep the description of one more record with the model; its `name` is the algorithm's."""
    others = [d for d in _stored(model) if d.get("name") != description["name"]]
    model.metadata[SETTINGS] = json.dumps([*others, description])


def descriptions(model: Model) -> list[dict[str, Any]]:
    """The description of each record, in order; empty for a record of another tool."""
    stored = {d.get("name"): d for d in _stored(model)}
    return [stored.get(record.algorithm.name, {}) for record in model.records]


def _stored(model: Model) -> list[dict[str, Any]]:
    try:
        entries = json.loads(model.metadata.get(SETTINGS, "[]"))
    except ValueError:  # another tool's entry of this name: the record itself is what counts
        return []
    return [d for d in entries if isinstance(d, dict)] if isinstance(entries, list) else []


def settings_of(model: Model) -> dict[str, Any]:
    """What was written down about all records together: choices, loss terms, the training forward.

    With several records, each choice is prefixed by the name of its record.
    """
    described = descriptions(model)
    several = len(described) > 1
    rows = [
        [f"{d['name']}: {what}" if several else what, value, why]
        for d in described
        for what, value, why in d.get("choices", [])
    ]
    settings: dict[str, Any] = {"choices": rows} if rows else {}
    loss_terms = [m for d in described for m in d.get("loss_terms", [])]
    if loss_terms:
        settings["loss_terms"] = loss_terms
    forward = {k: v for d in described for k, v in d.get("forward", {}).items()}
    return {**settings, "forward": forward} if any(described) else settings


def choices(model: ModelSource) -> list[Choice]:
    """What `trainable` decided for a model that carries its record, with the reasons.

    >>> import sardonyx as sx
    >>> net = sx.trainable("model.onnx", loss="cross_entropy")
    >>> next(choice.value for choice in sx.choices(net) if choice.what == "loss")
    'cross_entropy'
    """
    return [Choice(*row) for row in settings_of(load(model)).get("choices", [])]


# -- arguments as a table -----------------------------------------------------------------


def as_table(
    terms: Sequence[Term], optimizer: Optimizer, rest: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of `trainable` in the form of a configuration file; `own` names the rest."""
    table: dict[str, Any] = {"loss": [_loss_table(term) for term in terms]}
    undescribed = [] if all(_is_known(term) for term in terms) else ["loss"]
    if optimizer.every != 1:
        rest = {**rest, "accumulate": optimizer.every}
    whole = {"name": optimizer.text, **_set(optimizer.settings)}
    for key, value in {"optimizer": whole, **_set(rest)}.items():
        try:
            table[key] = _plain(value)
        except _Undescribed:
            table[key] = {"name": optimizer.text} if key == "optimizer" else {}
            undescribed.append(key)
    if optimizer.text not in optim.MAKERS and "optimizer" not in undescribed:
        undescribed.append("optimizer")
    return {**table, "own": undescribed} if undescribed else table


def _is_known(term: Term) -> bool:
    return term.loss.name in loss.MAKERS and bool(term.loss.settings)


def _loss_table(term: Term) -> dict[str, Any]:
    settings = _plain(_set(term.loss.settings))
    if "weight" in settings:
        settings["class_weight"] = settings.pop("weight")
    placement = {"prediction": term.prediction, "labels": term.labels}
    weight = {} if term.weight == 1.0 else {"weight": term.weight}
    return {"name": term.loss.name, **settings, **_plain(_set(placement)), **weight}


def _set(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if v is not None}


class _Undescribed(Exception):
    """A user-defined function, which a table cannot describe."""


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Schedule):
        if not value.settings:
            raise _Undescribed
        return _plain(_set(value.settings))
    if isinstance(value, Initializer):
        return _plain(_set({"kind": value.kind, "scale": value.scale}))
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
