"""`evaluate` and `predict` on any model and data, and what they share with the loop: how data
feeds a model, and which metrics are meant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.loading import load_engine, runner
from sardonyx.engines.prepare import check_device, prepare_training
from sardonyx.errors import ArgumentError, DataError, quote
from sardonyx.model import Model, ModelSource, load
from sardonyx.record.describe import descriptions, settings_of
from sardonyx.record.front import separate
from sardonyx.record.override import override
from sardonyx.record.step import step_inputs
from sardonyx.record.trainable import refuse_unknown, trainable
from sardonyx.train import metrics as metric
from sardonyx.train.agreement import same_batches
from sardonyx.train.batches import Prefetch, epoch_blocks
from sardonyx.train.checkpoint import Position
from sardonyx.train.data import open_data
from sardonyx.train.fields import (
    Feeding,
    LabelRange,
    Link,
    check_text,
    check_values,
    fixed_batch,
    link,
    row_count,
)
from sardonyx.train.images import layout_of
from sardonyx.train.means import Means
from sardonyx.train.raw_frames import open_raw, takes_frames
from sardonyx.train.run import Run
from sardonyx.train.tables import Rows, Source, Stream

LARGEST_BATCH = 4 << 30  # bytes of a batch that is filled up: a small file may declare any size

BATCH_SIZE = 256
CLASSES = "sardonyx.classes"  # the metadata key of the names of the classes
DEFAULT_METRICS = {
    "cross_entropy": ["accuracy"],
    "binary_cross_entropy": ["accuracy"],
    "mse": ["mae"],
    "l1": ["mae"],
    "huber": ["mae"],
}


def evaluate(
    model: ModelSource,
    data: Any,
    *,
    metrics: Sequence[Any] | None = None,
    batch_size: int | None = None,
    engine: str = "onnxruntime",
    device: str | None = None,
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    constants: Mapping[str, Any] | None = None,
    batch_axes: Mapping[str, int] | None = None,
    preprocess: str | Mapping[str, Any] | None = None,
    **how: Any,
) -> dict[str, float]:
    """The loss and metrics of a model on data, as the served graph computes them.

    A model without a record gets its loss as `trainable` would choose it, or as `how` says; the
    other arguments are those of `train`.

    >>> import sardonyx as sx
    >>> sorted(sx.evaluate("model.onnx", "data.npz"))
    ['accuracy', 'loss']
    """
    check_batch_size(batch_size)
    refuse_unknown(how, "evaluate")
    metric.make(metrics or [])
    check_device(engine, device)
    net = load(model)
    source = open_for(net, data, columns, preprocess, class_names(net))
    if not net.records:
        net = trainable(net, **how)
    elif how:
        net, _ = override(net, how)
    settings = settings_of(net)
    feeding = Feeding(fields or {}, constants or {}, batch_axes or {})
    links = links_for(net, step_inputs(net), source, feeding, settings)
    _refuse_guessed_classes(net, source, links, settings)
    size = chosen_batch_size(batch_size, links, BATCH_SIZE)
    refuse_partial_batch(links, source, drop_last=False)
    run = Run(
        prepare_training(net, engine, device=device), Position(batch_size=size), links, settings
    )
    return evaluate_rep(run, source, chosen_metrics(metrics, settings), size)


def _refuse_guessed_classes(
    net: Model, source: Source, links: Sequence[Link], settings: dict[str, Any]
) -> None:
    """Refuse names of classes whose numbers nobody knows: some of the model's are not in the data,
    and the model, which was not trained here, holds no names.
    """
    names = next((item.classes for item in links if item.classes), source.classes)
    if not names or class_names(net):
        return
    for count, _ in class_counts(net, settings).values():
        if len(names) < count:
            words = f"{len(names):,} of {count:,} classes: {', '.join(map(quote, names[:5]))}"
            raise DataError(
                f"the data names {words}; the model does not say which of its scores are theirs",
                hint="give the classes as numbers",
            )


# -- prediction ---------------------------------------------------------------------------


def predict(
    model: ModelSource,
    data: Any,
    *,
    batch_size: int | None = None,
    engine: str = "onnxruntime",
    device: str | None = None,
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    constants: Mapping[str, Any] | None = None,
    batch_axes: Mapping[str, int] | None = None,
    preprocess: str | Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs of a model over all rows of data, by name; the arguments are those of `train`.

    >>> import sardonyx as sx
    >>> list(sx.predict("model.onnx", "data.npz"))
    ['scores']
    """
    feeding = Feeding(fields or {}, constants or {}, batch_axes or {})
    place = Place(engine, device)
    return predictions(load(model), data, batch_size, feeding, columns, preprocess, place).outputs


@dataclass(frozen=True)
class Place:
    """Where a model runs: an engine, and one of its devices; an error if it is not there."""

    engine: str = "onnxruntime"
    device: str | None = None

    def __post_init__(self) -> None:
        check_device(self.engine, self.device)

    def runner(self, model: Model) -> Any:
        """A model as a function of arrays by name."""
        package = load_engine(self.engine)
        if not hasattr(package, "Backend"):
            return runner(self.engine)(model)
        return package.prepare(model, self.device).runner


@dataclass
class Predictions:
    """The outputs of a model by name, the axes of their rows, and the data that they are for."""

    outputs: dict[str, np.ndarray]
    axes: dict[str, int]
    source: Source


def predictions(
    model: Model,
    data: Any,
    batch_size: int | None,
    feeding: Feeding,
    columns: Sequence[str] | None,
    preprocess: str | Mapping[str, Any] | None,
    place: Place | None = None,
) -> Predictions:
    """Run a model over all rows of data."""
    place = place or Place()
    check_batch_size(batch_size)
    served = model.copy()
    served.records = []
    source = open_for(served, data, columns, preprocess, labelled=False)
    feeding.refuse_unknown([v.name or "" for v in served.inputs])
    links = link(served.inputs, [], source, feeding)
    check_text(source, links)
    size = chosen_batch_size(batch_size, links, BATCH_SIZE)
    axes, fixed = _output_axes(served, links), fixed_batch(links)
    run = place.runner(served)
    parts: dict[str, list[np.ndarray]] = {}
    blocks = Prefetch(epoch_blocks(source, links, size, seed=None, epoch=0))
    for batch in chain.from_iterable(blocks):
        rows = row_count(batch, links)
        for name, output in run(_padded(batch, links)).items():
            value = _plain(output)
            if name not in axes:
                axes |= _measured_axes(run, batch, links, axes)
            axis = axes[name]
            if fixed is not None and value.shape[axis : axis + 1] == (fixed,):
                value = value.take(range(rows), axis)
            parts.setdefault(name, []).append(value if value.shape else value[None])
    outputs = {n: np.concatenate(values, axes[n]) for n, values in parts.items()}
    return Predictions(outputs, axes, source)


def _plain(output: Any) -> np.ndarray:
    """An output as an array; the maps that ZipMap makes of scores become rows of scores again."""
    if isinstance(output, list) and output and isinstance(output[0], dict):
        return np.array([list(row.values()) for row in output], np.float32)
    return np.asarray(output)


def _measured_axes(
    run: Any, batch: Rows, links: Sequence[Link], known: Mapping[str, int]
) -> dict[str, int]:
    """The axis of the rows in each output of which the shape does not show it: the one that has as
    many elements as there are rows. Where that is true of several, a batch of one row fewer tells.
    """
    rows = fixed_batch(links) or row_count(batch, links)
    shapes = {n: _plain(v).shape for n, v in run(_padded(batch, links)).items() if n not in known}
    places = {n: [i for i, d in enumerate(s) if d == rows] for n, s in shapes.items()}
    axes = {n: candidates[0] if candidates else 0 for n, candidates in places.items()}
    if rows < 2 or fixed_batch(links) is not None or not any(len(p) > 1 for p in places.values()):
        return axes
    inputs = {item.input: item.axis for item in links if item.constant is None}
    less = {n: a.take(range(rows - 1), inputs[n]) if n in inputs else a for n, a in batch.items()}
    for name, value in run(less).items():
        shape = _plain(value).shape
        for axis in places.get(name, ()):
            if shape[axis : axis + 1] == (rows - 1,):
                axes[name] = axis
                break
    return axes


def _output_axes(model: Model, links: Sequence[Link]) -> dict[str, int]:
    """The axis of the rows in each output, where its shape shows it."""
    inputs = {v.name: v.shape for v in model.inputs}
    sizes = [
        str(shape[item.axis])
        for item in links
        if item.constant is None and (shape := inputs[item.input]) is not None
    ]
    axes = {}
    for value in model.outputs:
        dims = [str(d) for d in value.shape] if value.shape is not None else []
        named = [dims.index(s) for s in sizes if s in dims and s not in ("None", "?")]
        if named:
            axes[value.name or ""] = named[0]
    return axes


def _padded(batch: Rows, links: Sequence[Link]) -> Rows:
    """A batch with its last row repeated, where the model takes more rows than there are."""
    size = fixed_batch(links)
    rows = row_count(batch, links)
    if size is None or rows == size:
        return batch
    axes = {item.input: item.axis for item in links if item.constant is None}
    needed = size * (8 + sum(batch[n].nbytes for n in axes if n in batch) // max(rows, 1))
    if needed > LARGEST_BATCH:
        raise ArgumentError(
            f"the model takes batches of exactly {size:,} rows, which need {needed:,} bytes",
            hint="export the model with a free batch size",
        )
    numbers = np.minimum(np.arange(size), rows - 1)
    return {n: a.take(numbers, axes[n]) if n in axes else a for n, a in batch.items()}


# -- metrics ----------------------------------------------------------------------------


def evaluate_rep(
    run: Run,
    source: Source,
    names: Sequence[Any],
    batch_size: int | None = None,
    confusion: metric.Confusion | None = None,
) -> dict[str, float]:
    """The metrics of all records, and those called `names` of the first loss term that has labels,
    over all of `source`; the model is as it is now.
    """
    records = descriptions(run.rep.model)
    loss_term = next((m for d in records for m in d.get("loss_terms", []) if m["labels"]), None)
    judges = metric.make(names) if loss_term else []
    if confusion is not None and loss_term and loss_term["loss"] == "cross_entropy":
        judges.append(confusion)
    means = [Means(described) for described in records]
    size = batch_size or run.position.batch_size
    # Each process has all rows; of a stream, it is compared that they are the same ones.
    processes = replace(run.processes, pieces=0) if isinstance(source, Stream) else None
    blocks = Prefetch(
        epoch_blocks(source, run.links, size, seed=None, epoch=0, processes=processes)
    )
    for batch in same_batches(run, source, chain.from_iterable(blocks)):
        count = row_count(batch, run.links)
        for index, described in enumerate(records):
            term = loss_term if loss_term in described.get("loss_terms", []) else None
            tensors = [term["prediction"]] if term and judges else []
            outputs = run.rep.evaluate(batch, described.get("forward"), tensors, index)
            scalars = {n: v for n, v in outputs.items() if n not in tensors and v.size == 1}
            means[index].add({n: float(v) for n, v in scalars.items()}, batch, count)
            if term and judges:
                metric.add_all(judges, term, outputs[tensors[0]], batch[term["labels"][0]])
    values = {name: value for part in means for name, value in part.values().items()}
    return values | {m.name: m.value() for m in judges if m is not confusion}


def chosen_metrics(names: Sequence[Any] | None, settings: dict[str, Any]) -> Sequence[Any]:
    """The metrics called `names`, or those that suit the only loss."""
    if names is not None:
        return names
    loss_terms = settings.get("loss_terms", [])
    return DEFAULT_METRICS.get(loss_terms[0]["loss"], []) if len(loss_terms) == 1 else []


# -- data and model -----------------------------------------------------------------------


def open_for(
    model: Model,
    data: Any,
    columns: Sequence[str] | None,
    preprocess: str | Mapping[str, Any] | None,
    classes: Sequence[str] = (),
    labelled: bool = True,
) -> Source:
    """Data in the form that a model takes; its classes are numbered as in `classes`, if given."""
    if takes_frames(model, data):
        return open_raw(model, data)
    features = None if labelled else _feature_count(model)
    return open_data(data, columns, layout_of(model, preprocess), classes, features)


def _feature_count(model: Model) -> int | None:
    """The number of columns that a model of tables takes."""
    shapes = [v.shape for v in model.inputs]
    if len(shapes) != 1 or shapes[0] is None or len(shapes[0]) != 2:
        return None
    return shapes[0][1] if isinstance(shapes[0][1], int) else None


def class_names(model: Model) -> tuple[str, ...]:
    """The names of the classes that a model was trained on, where it holds them."""
    try:
        names = json.loads(model.metadata.get(CLASSES, "[]"))
    except ValueError:
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def links_for(
    net: Model,
    inputs: Sequence[ir.Value],
    source: Source,
    feeding: Feeding,
    settings: dict[str, Any],
    classes: Sequence[str] | None = None,
) -> list[Link]:
    """Which field feeds which input; refuses data that does not fit or cannot be trained on.

    classes -- the names of the classes by number; those that the model holds if not given
    """
    feeding.refuse_unknown([v.name or "" for v in (*inputs, *net.inputs)])
    labels = [n for m in settings.get("loss_terms", []) for n in m["labels"]]
    if not labels:
        served = {v.name for v in net.inputs}
        labels = [v.name or "" for v in inputs if v.name not in served]
    links = link(inputs, labels, source, feeding, class_names(net) if classes is None else classes)
    front = separate(net)
    raw = set(front.inputs) if front is not None else set()  # may hold missing values
    check_text(source, links)
    trained_on = [item for item in links if item.input not in raw]
    check_values(source, trained_on, class_counts(net, settings), label_ranges(settings))
    return links


def class_counts(net: Model, settings: dict[str, Any]) -> dict[str, tuple[int, int | None]]:
    """Label input → the number of classes that the model tells apart, and the label ignored."""
    counts = {}
    values = {v.name: v for node in net.graph for v in node.outputs}
    for loss_term in settings.get("loss_terms", []):
        if loss_term["loss"] != "cross_entropy" or loss_term["settings"].get("probabilities"):
            continue
        value = values.get(loss_term["prediction"])
        declared = tuple(value.shape or ()) if value is not None else ()
        sizes = dict(enumerate(declared))  # a file may declare fewer axes than there are
        classes = loss_term.get("classes", sizes.get(loss_term["settings"].get("axis", 1)))
        if isinstance(classes, int):
            ignored = loss_term["settings"].get("ignore_index")
            counts[loss_term["labels"][0]] = (classes, ignored)
    return counts


LABEL_RANGES = {
    "binary_cross_entropy": LabelRange(0, 1),
    "contrastive": LabelRange(0, 1),
    "hinge": LabelRange(-1, 1, ends_only=True),
    "kl_divergence": LabelRange(0, np.inf),
}


def label_ranges(settings: dict[str, Any]) -> dict[str, LabelRange]:
    """Label input → the numbers that its loss takes; others would give a loss without meaning."""
    return {
        term["labels"][0]: LABEL_RANGES[term["loss"]]
        for term in settings.get("loss_terms", [])
        if term["loss"] in LABEL_RANGES and not term["settings"].get("log_target")
    }


# -- batches --------------------------------------------------------------------------------


def check_batch_size(size: Any) -> None:
    if size is not None and (not isinstance(size, (int, np.integer)) or size < 1):
        raise ArgumentError(f"the batch size is an integer of at least 1, not {size!r}")


def chosen_batch_size(size: int | None, links: Sequence[Link], default: int) -> int:
    """The number of rows in a batch: the user's, the model's where it fixes it, or the default."""
    fixed = fixed_batch(links)
    if fixed is not None and size not in (None, fixed):
        raise ArgumentError(
            f"the model takes batches of exactly {fixed}, not of {size}",
            hint=f"--batch-size {fixed} (batch_size={fixed})",
        )
    return size or fixed or default


def refuse_partial_batch(links: Sequence[Link], source: Source, drop_last: bool) -> None:
    fixed = fixed_batch(links)
    if fixed is None or isinstance(source, Stream) or drop_last or len(source) % fixed == 0:
        return
    raise ArgumentError(
        f"the model takes batches of exactly {fixed}, and {len(source):,} rows do not divide into "
        "such batches",
        hint="--drop-last (drop_last=True) leaves the last rows of an epoch out",
    )
