"""Output: the OutputFields of a model, by their feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .document import Element
from .expressions import EXPRESSIONS, cast, derived_field
from .fields import actual_column
from .graph import Column, Graph, constant
from .literals import java_text
from .refusal import Refusal
from .results import Job, Literal, Result, number
from .scope import Scope


def output_columns(job: Job, result: Result) -> dict[str, Column]:
    """The columns of all OutputFields, by name; the first of two with one name counts."""
    output = job.element.child("Output")
    columns: dict[str, Column] = {}
    if output is None:
        return columns
    scope = Scope(job.document, job.scope)
    for element in output.all("OutputField"):
        name = element.get("name")
        if name in columns:
            continue
        with job.document.refusals.collected():
            columns[name] = output_field(job, scope, element, result)
            scope.put(name, columns[name])
    return columns


def output_field(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    feature = element.get("feature") or "predictedValue"
    if element.get("feature") is None and element.child(*EXPRESSIONS) is not None:
        feature = "transformedValue"
    if feature not in FEATURES:
        raise Refusal(element, f"feature {feature} is not supported")
    segment = element.get("segmentId") or element.get("x-segmentId")
    if segment is not None:
        if segment not in result.segments:
            raise Refusal(element, f"segment {segment!r} has no result here")
        result = result.segments[segment]
    field = element.get("targetField")
    if field is not None and field in result.others:
        result = result.others[field]
    column = FEATURES[feature](job, scope, element, result)
    kind = element.get("dataType")
    if kind == "string" and not column.is_text:
        column = _spelled(job.g, element, column, result)
    elif kind in ("double", "float") and not column.is_text and feature != "predictedValue":
        column = cast(job.g, element, column, kind)
    return column


def _spelled(g: Graph, element: Element, column: Column, result: Result) -> Column:
    if result.classes and all(not isinstance(c, str) for c in result.classes):
        texts = {float(c): java_text(float(c), column.dtype) for c in result.classes}
        entries = {value: g.code(text) for value, text in texts.items()}
        codes = g.table(g.column(column.numbers), entries, float("nan"))
        return Column(codes, "string", finite=tuple(texts.values()))
    return cast(g, element, column, "string")


def predicted_value(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    rank = int(element.get("rank", 1))
    if rank != 1:
        raise Refusal(element, "a predicted value of another rank is not supported")
    return result.value


def predicted_display_value(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    if not result.display or not result.classes:
        return result.value
    g = job.g
    texts = {c: result.display.get(c, str(c)) for c in result.classes}
    entries = {number(g, c): g.code(text) for c, text in texts.items()}
    codes = g.table(g.column(result.value.numbers), entries, float("nan"))
    return Column(codes, "string", finite=tuple(texts.values()))


def transformed_value(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    return derived_field(scope, element)


def probability(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    return _of_class(job, element, result, result.probabilities, "probabilities")


def confidence(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    return _of_class(job, element, result, result.confidences, "confidences")


def _of_class(
    job: Job, element: Element, result: Result, matrix: ir.Value | None, what: str
) -> Column:
    if matrix is None:
        raise Refusal(element, f"the model has no {what}")
    text = element.get("value")
    if text is None:
        return Column(_of_winner(job.g, result, matrix), "double")
    value = _category(result, element, text)
    if value is None:
        # A category that the model never gives.
        zero = job.g.Mul(job.g.pick(matrix, 0), job.g.number(0.0))
        return Column(zero, "double")
    return Column(job.g.pick(matrix, result.classes.index(value)), "double")


def _category(result: Result, element: Element, text: str) -> Literal | None:
    for category in result.classes:
        if category == text:
            return category
        if not isinstance(category, str):
            from .literals import as_number

            if as_number(text, result.target.dtype) == category:
                return category
    return None


def _of_winner(g: Graph, result: Result, matrix: ir.Value) -> ir.Value:
    """The entry of each row that belongs to the predicted category."""
    codes = g.number(np.array([[number(g, c) for c in result.classes]]))
    hit = g.Equal(g.Unsqueeze(result.value.numbers, [1]), codes)
    total = g.ReduceSum(g.Where(hit, matrix, g.number(0.0)), [1], keepdims=0)
    return g.Where(g.IsNaN(result.value.numbers), g.number(float("nan")), total)


def entity_id(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    rank = int(element.get("rank", 1))
    if result.ranked:
        if rank > len(result.ranked):
            return constant(job.g, None, result.ranked[0].dtype)
        return result.ranked[rank - 1]
    if rank != 1 or result.entity is None:
        raise Refusal(element, "the model has no entity of this rank")
    return result.entity


def affinity(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    g, text, matrix = job.g, element.get("value"), result.affinities
    rank = int(element.get("rank", 1))
    if matrix is None and result.probabilities is not None and not result.entities:
        return probability(job, scope, element, result)
    if matrix is None:
        raise Refusal(element, "the model has no affinities")
    if text is None and result.ranked_affinities and rank <= len(result.ranked_affinities):
        return result.ranked_affinities[rank - 1]
    if text is None:
        best = g.ReduceMax if result.largest_affinity else g.ReduceMin
        return Column(best(matrix, [1], keepdims=0), "double")
    if text not in result.entities:
        raise Refusal(element, f"the model has no entity {text!r}")
    return Column(g.pick(matrix, result.entities.index(text)), "double")


def reason_code(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    rank = int(element.get("rank", 1))
    if not result.reasons:
        raise Refusal(element, "the model has no reason codes")
    if rank > len(result.reasons):
        return replace(constant(job.g, None, "string"), finite=())
    return result.reasons[rank - 1]


def standard_deviation(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    if result.deviation is None:
        raise Refusal(element, "the model has no standard deviation")
    return Column(result.deviation, "double")


def residual(job: Job, scope: Scope, element: Element, result: Result) -> Column:
    """What was observed less what was predicted; of a category, less its probability."""
    g, name = job.g, element.get("targetField") or job.target.name
    if job.scope.parent is not None:
        raise Refusal(element, "the residual of a model inside another is not supported")
    if name not in job.actual:
        job.actual[name] = actual_column(job.document, element, name)
    actual = job.actual[name]
    if not job.is_classification:
        return Column(g.Sub(actual.numbers, result.value.numbers), "double")
    chance = probability(job, scope, element, result).numbers
    expected, text = result.value.numbers, element.get("value")
    if text is not None:
        category = _category(result, element, text)
        if category is None:
            raise Refusal(element, f"the model has no category {text!r}")
        expected = g.number(number(g, category))
    is_unknown = g.Or(g.IsNaN(actual.numbers), g.IsNaN(result.value.numbers))
    hit = g.Where(g.Equal(actual.numbers, expected), g.number(1.0), g.number(0.0))
    return Column(g.Where(is_unknown, g.number(float("nan")), g.Sub(hit, chance)), "double")


FEATURES: dict[str, Callable[[Job, Scope, Element, Result], Column]] = {
    "predictedValue": predicted_value,
    "predictedDisplayValue": predicted_display_value,
    "transformedValue": transformed_value,
    "decision": transformed_value,
    "probability": probability,
    "confidence": confidence,
    "affinity": affinity,
    "entityAffinity": affinity,
    "clusterAffinity": affinity,
    "entityId": entity_id,
    "clusterId": entity_id,
    "reasonCode": reason_code,
    "standardDeviation": standard_deviation,
    "residual": residual,
}
