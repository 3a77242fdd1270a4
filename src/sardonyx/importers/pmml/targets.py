"""Targets: limits, rescaling and rounding of a prediction, and what stands for a missing one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .document import Element
from .graph import Column, Graph, merge, missing
from .refusal import Refusal
from .results import Job, Result, literal, number

ROUNDING = ("round", "ceiling", "floor")


def apply_targets(job: Job, result: Result) -> Result:
    """The result after the Target element of its field."""
    element = target_element(job)
    if job.is_classification:
        result = replace(result, display=dict(job.target.labels))
        return result if element is None else _categorical(job, element, result)
    if job.function != "regression":
        return result
    value = result.value
    if element is not None:
        value = _continuous(job.g, element, value)
    if result.decided is not None:
        value = merge(job.g, result.decided, result.value, value)
    if job.target.dtype == "float" and not value.is_text:
        value = replace(value, numbers=job.g.single(value.numbers), dtype="float")
    return replace(result, value=value)


def target_element(job: Job) -> Element | None:
    targets = job.element.child("Targets")
    if targets is None:
        return None
    for element in targets.all("Target"):
        if element.get("field") in (None, job.target.name):
            return element
    if job.target.name is None and targets.all("Target"):
        return targets.all("Target")[0]
    return None


def _continuous(g: Graph, element: Element, value: Column) -> Column:
    x = value.numbers
    default = next(
        (v.get("defaultValue") for v in element.all("TargetValue") if v.get("defaultValue")), None
    )
    if default is not None:
        x = g.Where(g.IsNaN(x), g.number(float(default)), x)
    low, high = element.get("min"), element.get("max")
    if low is not None:
        x = g.Where(g.Less(x, g.number(float(low))), g.number(float(low)), x)
    if high is not None:
        x = g.Where(g.Greater(x, g.number(float(high))), g.number(float(high)), x)
    factor, shift = element.get("rescaleFactor"), element.get("rescaleConstant")
    single = value.dtype == "float"
    if factor is not None and float(factor) != 1.0:
        x = g.Mul(x, g.number(float(factor)))
        x = g.single(x) if single else x
    if shift is not None and float(shift) != 0.0:
        constant = float(np.float32(shift)) if single else float(shift)
        x = g.Add(x, g.number(constant))
        x = g.single(x) if single else x
    return Column(rounded(g, element, x), value.dtype)


def rounded(g: Graph, element: Element, x):  # type: ignore[no-untyped-def]
    rounding = element.get("castInteger")
    if rounding is None:
        return x
    if rounding not in ROUNDING:
        raise Refusal(element, f"castInteger {rounding} is not one of PMML")
    if rounding == "round":
        return g.Floor(g.Add(x, g.number(0.5)))
    return g.Ceil(x) if rounding == "ceiling" else g.Floor(x)


def _categorical(job: Job, element: Element, result: Result) -> Result:
    g, values = job.g, element.all("TargetValue")
    display = {
        literal(job.target, v, v.get("value")): v.get("displayValue")
        for v in values
        if v.get("value") is not None and v.get("displayValue") is not None
    }
    result = replace(result, display={**job.target.labels, **display})
    priors = {
        literal(job.target, v, v.get("value")): float(v.get("priorProbability"))
        for v in values
        if v.get("priorProbability") is not None
    }
    if not priors:
        return result
    best = max(priors, key=lambda c: priors[c])
    is_missing = missing(g, result.value)
    if result.decided is not None:
        is_missing = g.And(is_missing, g.Not(result.decided))
    prediction = g.Where(is_missing, g.number(number(g, best)), result.value.numbers)
    probabilities = result.probabilities
    if probabilities is not None:
        row = g.number(np.array([[priors.get(c, 0.0) for c in result.classes]]))
        probabilities = g.Where(g.Unsqueeze(is_missing, [1]), row, probabilities)
    return replace(
        result, value=replace(result.value, numbers=prediction), probabilities=probabilities
    )
