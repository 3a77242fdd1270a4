"""`evaluate` and `predict` on any model and data, and what they share with the loop: how data
feeds a model, and which metrics are meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.prepare import prepare_training
from sardonyx.model import Model, load
from sardonyx.record.describe import descriptions, settings_of
from sardonyx.record.override import override
from sardonyx.record.trainable import trainable
from sardonyx.train import metrics as metric
from sardonyx.train.batches import Prefetch, epoch_blocks
from sardonyx.train.checkpoint import Position
from sardonyx.train.data import Source, open_data
from sardonyx.train.fields import Link, check_values, link
from sardonyx.train.run import Run

DEFAULT_METRICS = {
    "cross_entropy": ["accuracy"],
    "binary_cross_entropy": ["accuracy"],
    "mse": ["mae"],
    "l1": ["mae"],
    "huber": ["mae"],
}


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
    elif how:
        net, _ = override(net, how)
    source = open_data(data, columns, *image_size(net))
    settings = settings_of(net)
    rep = prepare_training(net, engine)
    links = links_for(net, rep.wanted, source, fields, settings)
    run = Run(rep, Position(batch_size=batch_size), links, settings)
    return evaluate_rep(run, source, chosen_metrics(metrics, settings), batch_size)


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

    served = load(model).copy()
    served.records = []
    source = open_data(data, columns, *image_size(served))
    links = link(served.inputs, [], source.fields, fields)
    runner = Runner(served)
    parts: dict[str, list[np.ndarray]] = {}
    blocks = Prefetch(epoch_blocks(source, links, batch_size, seed=None, epoch=0))
    for batch in chain.from_iterable(blocks):
        for name, value in runner(batch).items():
            parts.setdefault(name, []).append(value)
    return {name: np.concatenate(found) for name, found in parts.items()}


# -- metrics ----------------------------------------------------------------------------


def evaluate_rep(
    run: Run, source: Source, names: Sequence[Any], batch_size: int | None = None
) -> dict[str, float]:
    """Metrics of all records, and metrics of the first loss_term of prediction and label, over all
    of `source`; the model is as it is now.
    """
    records = descriptions(run.rep.model)
    loss_term = next((m for d in records for m in d.get("loss_terms", []) if m["labels"]), None)
    judges = metric.make(names) if loss_term else []
    sums: dict[str, float] = {}
    rows = 0
    size = batch_size or run.position.batch_size
    blocks = Prefetch(epoch_blocks(source, run.links, size, seed=None, epoch=0))
    for batch in chain.from_iterable(blocks):
        count = len(next(iter(batch.values())))
        rows += count
        for which, described in enumerate(records):
            term = loss_term if loss_term in described.get("loss_terms", []) else None
            predictions = [term["prediction"]] if term and judges else []
            outputs = run.rep.evaluate(batch, described.get("forward"), predictions, which)
            for name, value in outputs.items():
                if name not in predictions and value.size == 1:
                    sums[name] = sums.get(name, 0.0) + float(value) * count
            if term and judges:
                metric.add_all(judges, term, outputs[predictions[0]], batch[term["labels"][0]])
    return {n: s / max(rows, 1) for n, s in sums.items()} | {m.name: m.value() for m in judges}


def chosen_metrics(given: Sequence[Any] | None, settings: dict[str, Any]) -> Sequence[Any]:
    """The metrics asked for, or those that suit the only loss."""
    if given is not None:
        return given
    loss_terms = settings.get("loss_terms", [])
    return DEFAULT_METRICS.get(loss_terms[0]["loss"], []) if len(loss_terms) == 1 else []


# -- data and model -----------------------------------------------------------------------


def image_size(model: Model) -> tuple[tuple[int, int] | None, int]:
    """Height, width and channels that an image model asks for."""
    for value in model.inputs:
        if value.shape is not None and len(value.shape) == 4:
            channels, height, width = value.shape[1:]
            count = channels if isinstance(channels, int) else 3
            if isinstance(height, int) and isinstance(width, int):
                return (height, width), count
            return None, count
    return None, 3


def links_for(
    net: Model,
    wanted: Sequence[ir.Value],
    source: Source,
    fields: Mapping[str, str] | None,
    settings: dict[str, Any],
) -> list[Link]:
    """Which field feeds which input; refuses data that does not fit or cannot be trained on."""
    labels = [n for m in settings.get("loss_terms", []) for n in m["labels"]]
    if not labels:
        served = {v.name for v in net.inputs}
        labels = [v.name or "" for v in wanted if v.name not in served]
    links = link(wanted, labels, source.fields, fields)
    check_values(source, links, _classes(net, settings))
    return links


def _classes(net: Model, settings: dict[str, Any]) -> dict[str, tuple[int, int | None]]:
    class_counts = {}
    values = {v.name: v for node in net.graph for v in node.outputs}
    for loss_term in settings.get("loss_terms", []):
        if loss_term["loss"] != "cross_entropy" or loss_term["settings"].get("probabilities"):
            continue
        value = values.get(loss_term["prediction"])
        axis = loss_term["settings"].get("axis", 1)
        if value is not None and value.shape is not None and isinstance(value.shape[axis], int):
            class_counts[loss_term["labels"][0]] = (
                value.shape[axis],
                loss_term["settings"].get("ignore_index"),
            )
    return class_counts
