"""Results: what a model computes for its target, before Targets and Output are applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from .document import Element
from .fields import data_type, target_fields
from .graph import Column, Graph
from .literals import parse
from .refusal import Refusal
from .scope import Document, Scope

Literal = str | float


@dataclass
class Target:
    """The target field of a model: its name, data type and categories."""

    name: str | None
    dtype: str = "double"
    optype: str = "continuous"
    categories: list[Literal] = field(default_factory=list)
    labels: dict[Literal, str] = field(default_factory=dict)
    is_class: bool = False  # of a model that classifies


@dataclass
class Result:
    """The columns that a model gives.

    value          the prediction
    classes        the categories that the matrices below have columns for
    probabilities  [N, classes], confidences alike
    entities       the ids that `entity` can be, such as nodes, clusters or neighbours
    affinities     [N, entities]
    ranked         entity columns by rank, for neighbours and clusters
    reasons        reason codes by rank
    others         results for further targets, by name
    segments       results of the segments of a mining model, by id
    exports        outputs of the segment that gave the result, by name
    decided        where the result is that of a segment, to which Targets do not apply
    """

    target: Target
    value: Column
    classes: list[Literal] = field(default_factory=list)
    probabilities: ir.Value | None = None
    confidences: ir.Value | None = None
    entity: Column | None = None
    entities: list[str] = field(default_factory=list)
    affinities: ir.Value | None = None
    largest_affinity: bool = False
    ranked: list[Column] = field(default_factory=list)
    ranked_affinities: list[Column] = field(default_factory=list)
    reasons: list[Column] = field(default_factory=list)
    display: dict[Literal, str] = field(default_factory=dict)
    others: dict[str, Result] = field(default_factory=dict)
    segments: dict[str, Result] = field(default_factory=dict)
    deviation: ir.Value | None = None
    exports: dict[str, Column] = field(default_factory=dict)
    decided: ir.Value | None = None


@dataclass
class Job:
    """One model element to be built, where it stands."""

    document: Document
    scope: Scope
    element: Element
    target: Target
    actual: dict[str | None, Column] = field(default_factory=dict)  # observed targets

    @property
    def g(self) -> Graph:
        return self.document.g

    @property
    def function(self) -> str:
        return str(self.element.get("functionName"))

    @property
    def is_classification(self) -> bool:
        return self.function == "classification"

    @property
    def is_single(self) -> bool:
        """Whether the document wants arithmetic in floats of 32 bits."""
        context = self.element.get("x-mathContext") or self.element.get("mathContext")
        if context not in (None, "float", "double"):
            raise Refusal(self.element, f"mathContext {context} is not supported")
        return context == "float"

    def refuse(self, reason: str, element: Element | None = None) -> Refusal:
        return Refusal(element or self.element, reason)


Builder = Callable[[Job], Result]
MODELS: dict[str, Builder] = {}


def model(tag: str) -> Callable[[Builder], Builder]:
    """Register the rule of a model element."""

    def register(builder: Builder) -> Builder:
        MODELS[tag] = builder
        return builder

    return register


def target_of(document: Document, element: Element, around: Target | None = None) -> Target:
    """The target that a model element declares, or the one of the model around it."""
    fields = target_fields(element)
    function = element.get("functionName")
    if fields:
        target = named_target(document, element, fields[0], around)
        return replace(target, is_class=function == "classification")
    if function == "classification":
        if around is not None and around.is_class:
            return around
        return Target(None, "string", "categorical", is_class=True)
    return Target(None) if around is None or function == "regression" else around


def named_target(
    document: Document, element: Element, field: Element, around: Target | None = None
) -> Target:
    """The target that a MiningField names."""
    name = field.get("name")
    data = document.data_fields.get(name)
    if data is None:
        optype = "categorical" if element.get("functionName") == "classification" else "continuous"
        dtype = "string" if optype == "categorical" else "double"
        if around is not None and around.name == name:
            return around
        return Target(name, dtype, optype)
    dtype = data_type(data)
    values = [v for v in data.all("Value") if v.get("property", "valid") == "valid"]
    categories = [parse(v, v.get("value"), dtype) for v in values]
    labels = {
        parse(v, v.get("value"), dtype): v.get("displayValue")
        for v in values
        if v.get("displayValue") is not None
    }
    return Target(name, dtype, data.get("optype", "continuous"), categories, labels)


def literal(target: Target, element: Element, text: str) -> Literal:
    """A category of the target that the document writes as text."""
    return parse(element, text, target.dtype)


def number(g: Graph, value: Literal) -> float:
    """How a column holds a literal."""
    return g.code(value) if isinstance(value, str) else float(value)


def class_column(g: Graph, target: Target, classes: Sequence[Literal], index: ir.Value) -> Column:
    """The categories at the indices of a column of int64; -1 is missing."""
    codes = np.array([*(number(g, c) for c in classes), np.nan], np.float64)
    finite = tuple(str(c) for c in classes) if target.dtype == "string" else None
    numbers = g.Gather(g.const(codes), index, axis=0)
    return Column(numbers, target.dtype, finite=finite)


def winner(
    g: Graph, target: Target, classes: Sequence[Literal], matrix: ir.Value, least: bool = False
) -> Column:
    """The category with the largest (or least) entry, the first of equals; NaN has no winner."""
    rule = g.ArgMin if least else g.ArgMax
    index = rule(matrix, axis=1, keepdims=0)
    is_missing = g.IsNaN(g.ReduceSum(matrix, [1], keepdims=0))
    return class_column(g, target, classes, g.Where(is_missing, np.array(-1, np.int64), index))


def classified(
    job: Job, classes: Sequence[Literal], probabilities: ir.Value, value: Column | None = None
) -> Result:
    """The result of a classification by probabilities."""
    g = job.g
    if value is None:
        value = winner(g, job.target, classes, probabilities)
    return Result(job.target, value, list(classes), probabilities)


def regressed(job: Job, numbers: ir.Value) -> Result:
    """The result of a regression."""
    return Result(job.target, Column(numbers, "float" if job.is_single else "double"))


def distinct(items: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(items))
