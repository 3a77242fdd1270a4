"""Cox regression: the cumulative hazard at a time, from a baseline and the linear predictor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .document import Element
from .predicates import threshold
from .refusal import Refusal
from .regression import numeric_column
from .results import Job, Result, regressed


def cox_regression(job: Job, eta: ir.Value, reference: float) -> Result:
    """Baseline hazard times exp(eta - reference)."""
    g = job.g
    tables = job.element.child("BaseCumHazardTables")
    time = job.element.get("endTimeVariable")
    if tables is None or time is None:
        raise job.refuse("BaseCumHazardTables or endTimeVariable is missing")
    times = numeric_column(job.scope, job.element, time).numbers
    strata = tables.all("BaselineStratum")
    variable = job.element.get("baselineStrataVariable")
    if bool(strata) != (variable is not None):
        raise Refusal(tables, "strata of the baseline go with a baselineStrataVariable")
    if not strata:
        baseline = _baseline(job, tables, times)
    else:
        column = job.scope.column(variable, job.element)
        baseline = g.number(float("nan"))
        for stratum in strata:
            code = threshold(g, stratum, column, stratum.get("value"), "equal")
            hit = g.Equal(column.numbers, g.number(code))
            baseline = g.Where(hit, _baseline(job, stratum, times), baseline)
    hazard = g.Mul(baseline, g.Exp(g.Sub(eta, g.number(reference))))
    # Before the first time there is no hazard, whatever the predictors are.
    return regressed(job, g.Where(g.Equal(baseline, g.number(0.0)), baseline, hazard))


def _baseline(job: Job, holder: Element, times: ir.Value) -> ir.Value:
    """The hazard of the last cell at or before a time; none after the last time."""
    g = job.g
    cells = sorted(
        (float(c.get("time")), float(c.get("cumHazard"))) for c in holder.all("BaselineCell")
    )
    if not cells or holder.get("maxTime") is None:
        raise Refusal(holder, "there are no BaselineCells, or there is no maxTime")
    steps = g.number(np.array([[time for time, _ in cells]]))
    passed = g.GreaterOrEqual(g.Unsqueeze(g.column(times), [1]), steps)
    count = g.ReduceSum(g.cast(passed, ir.DataType.INT64), [1], keepdims=0)
    hazards = g.number([0.0, *(hazard for _, hazard in cells)])
    late = g.Greater(times, g.number(float(holder.get("maxTime"))))
    is_missing = g.Or(late, g.IsNaN(times))
    return g.Where(is_missing, g.number(float("nan")), g.Gather(hazards, count, axis=0))
