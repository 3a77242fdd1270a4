"""Scorecard: partial scores of characteristics, and the reasons for a score."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .document import Element
from .expressions import EXPRESSIONS, evaluate
from .graph import Column, constant, merge, missing
from .predicates import predicate, predicate_of
from .refusal import Refusal
from .results import Job, Result, distinct, model


@model("Scorecard")
def scorecard(job: Job) -> Result:
    g, element = job.g, job.element
    holder = element.child("Characteristics")
    if holder is None or not holder.all("Characteristic"):
        raise job.refuse("there are no Characteristics")
    total = g.number(float(element.get("initialScore", 0)))
    uses_reasons = element.get("useReasonCodes", "true") != "false" and _asks_reasons(job)
    differences: list[tuple[list[str], ir.Value, ir.Value]] = []
    for characteristic in holder.all("Characteristic"):
        score, reason, names = _characteristic(job, characteristic, uses_reasons)
        total = g.Add(total, score)
        if uses_reasons:
            differences.append((names, reason, _difference(job, characteristic, score)))
    result = Result(job.target, Column(g.column(total), "double"))
    if not uses_reasons:
        return result
    void, reasons = missing(g, result.value), _reasons(job, differences)
    return replace(
        result, reasons=[merge(g, void, constant(g, None, "string"), r) for r in reasons]
    )


def _asks_reasons(job: Job) -> bool:
    output = job.element.child("Output")
    fields = output.all("OutputField") if output is not None else []
    return any(f.get("feature") == "reasonCode" for f in fields)


def _characteristic(
    job: Job, characteristic: Element, uses_reasons: bool
) -> tuple[ir.Value, ir.Value, list[str]]:
    """The partial score, the code of the reason, and the reasons that it can be."""
    g = job.g
    score, reason, names = g.number(float("nan")), g.number(float("nan")), []
    for attribute in reversed(characteristic.all("Attribute")):
        hit = predicate(job.scope, predicate_of(attribute)).yes
        score = g.Where(hit, _partial(job, attribute), score)
        if uses_reasons:
            name = attribute.get("reasonCode") or characteristic.get("reasonCode")
            if name is None:
                raise Refusal(attribute, "there is no reasonCode")
            names.append(name)
            reason = g.Where(hit, g.number(g.code(name)), reason)
    return g.column(score), g.column(reason), names[::-1]


def _partial(job: Job, attribute: Element) -> ir.Value:
    complex_score = attribute.child("ComplexPartialScore")
    if complex_score is not None:
        expression = complex_score.child(*EXPRESSIONS)
        if expression is None:
            raise Refusal(complex_score, "there is no expression in it")
        return evaluate(job.scope, expression, "double").numbers
    if attribute.get("partialScore") is None:
        raise Refusal(attribute, "there is no partialScore")
    return job.g.number(float(attribute.get("partialScore")))


def _difference(job: Job, characteristic: Element, score: ir.Value) -> ir.Value:
    """How far a partial score is from its baseline, in the direction that counts."""
    g = job.g
    baseline = characteristic.get("baselineScore") or job.element.get("baselineScore")
    if baseline is None:
        raise Refusal(characteristic, "there is no baselineScore")
    algorithm = job.element.get("reasonCodeAlgorithm", "pointsBelow")
    if algorithm == "pointsAbove":
        return g.Sub(score, g.number(float(baseline)))
    if algorithm != "pointsBelow":
        raise job.refuse(f"reasonCodeAlgorithm {algorithm} is not one of PMML")
    return g.Sub(g.number(float(baseline)), score)


def _reasons(job: Job, differences: list[tuple[list[str], ir.Value, ir.Value]]) -> list[Column]:
    """The reason codes by rank: those with the largest differences, added up for each code."""
    g = job.g
    names = distinct([n for part in differences for n in part[0]])
    codes = g.number(np.array([[g.code(n) for n in names]]))
    points: ir.Value | None = None
    hits: ir.Value | None = None
    for _, reason, difference in differences:
        hit = g.Equal(g.Unsqueeze(reason, [1]), codes)
        part = g.Where(hit, g.Unsqueeze(difference, [1]), g.number(0.0))
        points = part if points is None else g.Add(points, part)
        hits = hit if hits is None else g.Or(hits, hit)
    assert points is not None and hits is not None
    # A reason that gives points is none.
    points = g.Where(
        g.And(hits, g.GreaterOrEqual(points, g.number(0.0))), points, g.number(-np.inf)
    )
    size = g.const(np.array([len(names)], np.int64))
    values, index = g.call("TopK", [points, size], {"axis": 1, "largest": 1}, outputs=2)
    ordered = g.Gather(g.number([g.code(n) for n in names]), index, axis=0)
    ordered = g.Where(g.IsInf(values), g.number(float("nan")), ordered)
    return [Column(g.pick(ordered, i), "string", finite=tuple(names)) for i in range(len(names))]
