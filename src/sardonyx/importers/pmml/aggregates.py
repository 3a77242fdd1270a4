"""Aggregates: the numbers of several segments as one, and what becomes of missing ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .document import Element
from .functions import column_median
from .graph import Graph
from .refusal import Refusal
from .results import Job

WEIGHTED = ("weightedAverage", "weightedMajorityVote", "weightedSum", "x-weightedSum",
            "weightedMedian", "x-weightedMedian")  # fmt: skip
MEANS = ("average", "weightedAverage")
SUMS = ("sum", "weightedSum", "x-weightedSum")
MEDIANS = ("median", "weightedMedian", "x-weightedMedian")


def aggregate(
    job: Job,
    segmentation: Element,
    values: ir.Value,
    active: ir.Value | None,
    weights: list[float],
    method: str,
) -> ir.Value:
    """The values [N, segments] of a regression as one number for each row."""
    g = job.g
    nobody = None if active is None else g.Not(_any_of(g, active))
    active = missing_predictions(g, segmentation, values, active)
    row = g.number(np.array(weights, np.float64)[None, :])
    if method in MEDIANS:
        out = _median(g, values, active, row if method in WEIGHTED else None)
    elif method == "max":
        out = _maximum(g, values, active)
    else:
        zero = g.number(0.0)
        total_weight = g.number(float(sum(weights)))
        if active is not None:
            values = g.Where(active, values, zero)
            total_weight = g.ReduceSum(g.Where(active, row, zero), [1], keepdims=0)
        if any(w != 1.0 for w in weights):
            values = g.Mul(values, row)
        out = running_sum(g, values, job.is_single)
        if method in MEANS:
            out = g.Div(out, total_weight)
    if nobody is not None:
        out = g.Where(nobody, g.number(np.nan), out)
    return g.single(out) if job.is_single else out


def _any_of(g: Graph, masks: ir.Value) -> ir.Value:
    count = g.ReduceSum(g.cast(masks, ir.DataType.INT64), [1], keepdims=0)
    return g.Greater(count, np.array(0, np.int64))


def _maximum(g: Graph, values: ir.Value, active: ir.Value | None) -> ir.Value:
    x = values if active is None else g.Where(active, values, g.number(-np.inf))
    out = g.ReduceMax(x, [1], keepdims=0)
    is_missing = g.Or(g.IsNaN(g.ReduceSum(x, [1], keepdims=0)), g.IsInf(out))
    return g.Where(is_missing, g.number(np.nan), out)


def _median(
    g: Graph, values: ir.Value, active: ir.Value | None, weights: ir.Value | None
) -> ir.Value:
    """The median of the segments that take part; missing where one of them is."""
    zero = g.number(0.0)
    members = values if active is None else g.Where(active, values, zero)
    is_missing = g.IsNaN(g.ReduceSum(members, [1], keepdims=0))
    if weights is None:
        x = values if active is None else g.Where(active, values, g.number(np.nan))
        return g.Where(is_missing, g.number(np.nan), column_median(g, x))
    if active is not None:
        weights = g.Where(active, weights, zero)
        is_missing = g.Or(is_missing, g.Not(_any_of(g, active)))
    weights = g.Add(weights, g.Mul(g.Where(g.IsNaN(members), zero, members), zero))
    count = g.dim(values, 1)
    size = g.const(np.array([count], np.int64)) if isinstance(count, int) else count
    ordered, index = g.call("TopK", [members, size], {"axis": 1, "largest": 0}, outputs=2)
    shares = g.CumSum(g.GatherElements(weights, index, axis=1), np.array(1, np.int64))
    half = g.Mul(g.ReduceSum(weights, [1], keepdims=1), g.number(0.5))
    reached = g.cast(g.GreaterOrEqual(shares, half), ir.DataType.INT64)
    place = g.ArgMax(reached, axis=1, keepdims=1)
    out = g.Squeeze(g.GatherElements(ordered, place, axis=1), [1])
    return g.Where(is_missing, g.number(np.nan), out)


def running_sum(g: Graph, values: ir.Value, single: bool) -> ir.Value:
    """The sum over axis 1, added up from left to right, in floats of 32 bits where `single`."""
    x = g.cast(values, ir.DataType.FLOAT) if single else values
    total = g.CumSum(x, np.array(1, np.int64))
    last = g.Gather(total, np.array(-1, np.int64), axis=1)
    return g.cast(last, ir.DataType.DOUBLE)


def treatment_of(segmentation: Element) -> str:
    """What becomes of a segment without a prediction."""
    treatment = segmentation.get("missingPredictionTreatment") or segmentation.get(
        "x-missingPredictionTreatment", "continue"
    )
    if treatment not in ("continue", "returnMissing", "skipSegment"):
        raise Refusal(segmentation, f"missingPredictionTreatment {treatment} is not one of PMML")
    if float(segmentation.get("missingThreshold", 1.0)) != 1.0 and treatment != "continue":
        raise Refusal(segmentation, "a missingThreshold is not supported")
    return str(treatment)


def missing_predictions(
    g: Graph, segmentation: Element, values: ir.Value, active: ir.Value | None
) -> ir.Value | None:
    """Which segments take part, once those without a prediction are treated."""
    if treatment_of(segmentation) != "skipSegment":
        return active
    here = g.Not(g.IsNaN(values))
    return here if active is None else g.And(active, here)
