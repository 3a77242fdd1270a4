"""What a whole training consists of, before it is written as a graph: the compiled steps, the
compiled evaluation, their inputs, and where the state starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.onnxruntime.fold import fold_batches
from sardonyx.engines.onnxruntime.post_optimize import remove_copies, unfold_constants
from sardonyx.engines.onnxruntime.statistics import own_statistics
from sardonyx.engines.onnxruntime.step_session import level
from sardonyx.engines.onnxruntime.updates import keep_apart
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel
from sardonyx.record import info
from sardonyx.record.builder import ROLE
from sardonyx.record.describe import descriptions, settings_of
from sardonyx.record.front import Front, separate
from sardonyx.record.step import (
    StepGraph,
    all_state,
    compile_evaluation,
    compile_step,
    distinct_outputs,
)
from sardonyx.train.evaluation import class_counts


@dataclass(frozen=True)
class Settings:
    """What is decided when the file is written.

    share     -- of the rows that are held back for validation; None: none are
    metrics   -- of the validation data, beside the losses
    watch     -- the metric that decides which epoch is the best
    lower     -- whether a lower value of it is better
    patience  -- epochs without improvement after which the training ends; None: it does not
    standardize -- the inputs that are brought to mean 0 and deviation 1
    constants -- input → a value that is the same for all rows
    axes      -- input → the axis of its rows in a batch, where that is not the first
    """

    share: float | None = None
    metrics: tuple[str, ...] = ()
    watch: str = "loss"
    lower: bool = True
    patience: int | None = None
    shuffle: bool = True
    drop_last: bool = False
    standardize: tuple[str, ...] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)

    @property
    def keeps_best(self) -> bool:
        return self.share is not None or self.patience is not None


@dataclass
class Parts:
    """The steps and evaluations of a model, and what they read.

    inputs  -- what a step or an evaluation reads of a batch, by name
    state   -- where each variable starts
    hyper   -- scalars that a caller may feed, with their defaults
    metrics -- what steps report, the total loss among them
    classes -- label input → the number of classes, and the label that is ignored
    term    -- the loss term that the metrics of validation judge
    """

    model: Model
    front: Front | None
    steps: list[StepGraph]
    evaluations: list[StepGraph]
    inputs: dict[str, ir.Value]
    state: dict[str, np.ndarray]
    hyper: dict[str, np.ndarray]
    metrics: list[str]
    loss: str | None
    classes: dict[str, tuple[int, int | None]]
    term: dict[str, Any] | None

    @property
    def served(self) -> list[str]:
        """The state that the served model reads: its weights and statistics."""
        return [n for n in self.state if n in self.model.graph.initializers]

    def fixed(self, settings: Settings) -> int | None:
        """The number of rows that the model takes at once, where it takes no other."""
        labels = {n for t in settings_of(self.model).get("loss_terms", []) for n in t["labels"]}
        for name, value in self.inputs.items():
            if name in labels or name in settings.constants or not value.shape:
                continue
            size = value.shape[settings.axes.get(name, 0)]
            if isinstance(size, int):
                return size
        return None


def take_apart(model: Model, settings: Settings) -> Parts:
    """Compile the steps of a model that carries records, and its evaluation if rows are held
    back.
    """
    info.check(model)
    front = separate(model)
    rest = front.rest if front is not None else model
    steps = [_rewritten(compile_step(rest, record)) for record in rest.records]
    described = descriptions(model)
    terms = [m for d in described for m in d.get("loss_terms", []) if m["labels"]]
    term = terms[0] if terms else None
    evaluations = []
    for record, text in zip(rest.records, described, strict=True) if settings.share else ():
        judged = term in text.get("loss_terms", []) and settings.metrics
        tensors = [term["prediction"]] if judged and term else []
        graph = compile_evaluation(rest, record, text.get("forward", {}), tensors)
        part = own_statistics(graph.model).copy()
        _keep_sums(part.graph)
        evaluations.append(replace(graph, model=NormalizedModel.of(part)))
    reported = list(dict.fromkeys(n for step in steps for n in step.metrics))
    losses = [n for n in reported if model.metadata.get(f"{ROLE}{n}") == "loss"]
    everything = [*steps, *evaluations]
    inputs = {n: v for g in everything for n, v in _inputs(g).items()}
    hyper = {n: a for g in everything for n, a in g.hyper.items()}
    return Parts(
        model,
        front,
        steps,
        evaluations,
        inputs,
        {n: _start(model, n) for n in all_state(model)},
        hyper,
        reported,
        losses[0] if losses else next(iter(reported), None),
        class_counts(model, settings_of(model)),
        term,
    )


def _inputs(graph: StepGraph) -> dict[str, ir.Value]:
    values = {v.name: v for v in graph.model.graph.inputs}
    return {n: values[n] for n in graph.inputs}


def _start(model: Model, name: str) -> np.ndarray:
    tensors: Sequence[Any] = [info.state_tensor(model, r, name) for r in model.records]
    return next(t for t in tensors if t is not None).numpy()


def _rewritten(graph: StepGraph) -> StepGraph:
    """A step in the form that the training engine gives it, as far as that is standard ONNX."""
    graph = distinct_outputs(graph)
    model = own_statistics(graph.model).copy()
    unfold_constants(model.graph)
    remove_copies(model.graph)
    fold_batches(model.graph)
    keep_apart(model.graph, graph.updates.values())
    _keep_sums(model.graph)
    return replace(graph, model=NormalizedModel.of(model))


def _keep_sums(graph: ir.Graph) -> None:
    """Let onnxruntime's default level, too, add what stands beside a convolution after it: fused
    with the Add, the convolution rounds otherwise than the step does at the level it runs at.
    """
    if level(graph).name == "ORT_ENABLE_ALL":
        return
    for node in graph:
        makers = [v.producer() for v in node.inputs if v is not None]
        if node.op_type == "Add" and any(m is not None and m.op_type == "Conv" for m in makers):
            node.op_type = "Sum"
