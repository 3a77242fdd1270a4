"""What a record says of its training, read back: for conversions to a framework's own objects.

The description that `trainable` wrote names the loss, the optimizer with its groups and schedules;
the record holds how many updates were made, and the slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.edit.lora import adapters
from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model, Record
from sardonyx.normalize import NormalizedModel, normalize
from sardonyx.opset import OPSET
from sardonyx.passes.dead import remove_dead
from sardonyx.record.builder import ROLE, STEP
from sardonyx.record.config import arguments
from sardonyx.record.describe import descriptions
from sardonyx.record.loss import Term
from sardonyx.record.loss_graph import LossGraph, as_model, loss_graph
from sardonyx.record.schedule import Schedule


@dataclass
class Group:
    """Parameters that are updated alike.

    settings -- of the optimizer, without its schedule
    updates  -- how many updates they have had
    """

    names: list[str]
    settings: dict[str, Any]
    schedule: Schedule | None
    updates: int


@dataclass
class Reading:
    """One record in words: its optimizer, groups of parameters, loss terms and state."""

    model: Model
    record: Record
    optimizer: str
    groups: list[Group]
    terms: list[Term]
    predictions: list[str]
    labels: list[str]
    settings: dict[str, Any]  # further arguments of `trainable`
    state: dict[str, np.ndarray] = field(default_factory=dict)
    own: LossGraph | None = None  # a loss that is a graph of the user's, in place of `terms`

    @property
    def parameters(self) -> list[str]:
        return [name for group in self.groups for name in group.names]


def read_record(model: Model) -> Reading:
    """The only record of a model; an error where its description is missing or says too little."""
    if len(model.records) != 1:
        raise ArgumentError(f"the model has {len(model.records)} training records, not one")
    (record,), (description,) = model.records, descriptions(model)
    table = dict(description.get("arguments") or {})
    unwritten = table.pop("own", [])
    own = None
    if table and unwritten == ["loss"]:
        unwritten, own = [], loss_graph(model, record, description)
        del table["loss"]
    if not table or unwritten:
        what = " and ".join(unwritten) or "record"
        raise ArgumentError(
            f"the {what} of this model cannot be converted: it is not described by name",
            hint="sx.prepare_training trains it on every engine",
        )
    read = arguments(table, Path("."))
    optimizer = read["optimizer"]
    names = [n for n, _ in record.update_binding if model.metadata.get(f"{ROLE}{n}") == "parameter"]
    updates = _updates(record, names, int(read.get("accumulate", 1)))
    groups = list(_groups(names, dict(optimizer.settings), read.get("groups") or {}, updates))
    described = description["loss_terms"]
    return Reading(
        model,
        record,
        optimizer.text,
        groups,
        read.get("loss", []),
        list(dict.fromkeys(t["prediction"] for t in described) if own is None else own.predictions),
        [label for t in described for label in t["labels"]] if own is None else list(own.labels),
        {k: v for k, v in read.items() if k not in ("loss", "optimizer", "groups")},
        {n: t.numpy() for n, t in record.state.items()},
        own,
    )


def _updates(record: Record, names: Sequence[str], every: int) -> int:
    """How many updates were made; of a record that does not count them, whether any was."""
    step = record.state.get(STEP)
    if step is not None:
        return int(step.numpy()) // every
    slots = (t for n, t in record.state.items() if any(n.startswith(f"{p}/") for p in names))
    return int(any(tensor.numpy().any() for tensor in slots))


def _groups(
    names: Sequence[str],
    base: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]],
    updates: int,
) -> Iterator[Group]:
    """The parameters by group; the first pattern that matches counts, as in `trainable`."""
    rest = list(names)
    for pattern, overrides in groups.items():
        settings = {**base, **overrides}
        members, offset = settings.pop("parameters", None), settings.pop("offset", 0)
        chosen = [n for n in rest if (fnmatchcase(n, pattern) if members is None else n in members)]
        rest = [n for n in rest if n not in chosen]
        yield Group(chosen, settings, settings.pop("schedule", None), updates + offset)
    if rest:
        settings = dict(base)
        yield Group(rest, settings, settings.pop("schedule", None), updates)


def refuse(reading: Reading, framework: str, names: Sequence[str]) -> None:
    """One error for all arguments of `trainable` that a framework's objects cannot hold."""
    rows = [
        [quote(name), repr(reading.settings[name])] for name in names if reading.settings.get(name)
    ]
    rows += [
        [quote(name), "in the optimizer"]
        for name in names
        if any(group.settings.get(name) for group in reading.groups)
    ]
    if rows:
        raise ArgumentError(
            f"settings of this record have no counterpart in {framework}'s objects",
            rows,
            hint=f"sx.train(…, engine={framework!r}) trains it; or make another record",
        )


# -- the graphs of a record -----------------------------------------------------------------


def mode_of_layers(reading: Reading) -> dict[str, Any]:
    """`batch_norm` and `dropout` of the record: "train", "frozen", or by pattern."""
    default = "frozen" if adapters(reading.model) else "train"
    return {
        "BatchNormalization": reading.settings.get("batch_norm") or default,
        "Dropout": reading.settings.get("dropout") or "train",
    }


def predicting(reading: Reading) -> Model:
    """The served model, with the tensors that the loss judges as its outputs."""
    copy = reading.model.copy()
    copy.records = []
    if [v.name for v in copy.outputs] == reading.predictions:
        return copy
    values = {v.name: v for v in copy.inputs}
    values |= {v.name: v for node in copy.graph for v in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(values[name] for name in reading.predictions)
    remove_dead(copy.graph)
    return copy


def loss_model(reading: Reading) -> NormalizedModel:
    """The loss as a model of its own: predictions and labels in, one number out."""
    refuse(reading, "the loss", ["l1", "l2"])
    if reading.own is not None:
        return normalize(as_model(reading.own, reading.model))
    served = normalize(predicting(reading))
    op = Builder("loss")
    op.reserve({*reading.predictions, *reading.labels, "loss"})
    inputs = {
        v.name or "": ir.Value(name=v.name, type=v.type, shape=v.shape) for v in served.outputs
    }
    described = descriptions(reading.model)[0]["loss_terms"]
    parts = []
    with op:
        for term, words in zip(reading.terms, described, strict=True):
            prediction = inputs[words["prediction"]]
            if term.loss.reads:
                raise ArgumentError(f"the loss {term.loss.name} reads other tensors of the model")
            labels = []
            for name, label in zip(words["labels"], term.loss.labels, strict=True):
                dtype, shape = label.of(prediction)
                kind = ir.TensorType(dtype)
                labels.append(
                    inputs.setdefault(name, ir.Value(name=name, type=kind, shape=ir.Shape(shape)))
                )
            part = term.loss.compute(op, prediction, *labels)
            parts.append(part if term.weight == 1.0 else part * term.weight)
        total = parts[0] if len(parts) == 1 else op.Sum(*parts)
    total.name = "loss"
    graph = ir.Graph(
        list(inputs.values()),
        [total],
        nodes=op.nodes,
        initializers=list(op.constants.values()),
        opset_imports={"": OPSET},
        name="loss",
    )
    return normalize(Model(ir.Model(graph, ir_version=10)))
