"""Comparison measures: how far, or how alike, a row and some points are, field by field."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .document import Element
from .graph import Column, Graph
from .refusal import Refusal

DISTANCES = ("euclidean", "squaredEuclidean", "chebychev", "cityBlock", "minkowski")
SIMILARITIES = ("simpleMatching", "jaccard", "tanimoto", "binarySimilarity")


@dataclass
class Axis:
    """One field of a comparison."""

    element: Element
    column: Column
    weight: float
    function: str
    scale: float | None
    points: np.ndarray
    missing_weight: float = 1.0


def axis_of(
    measure: Element, element: Element, column: Column, points: np.ndarray, missing: float = 1.0
) -> Axis:
    """A ClusteringField or KNNInput, with the coordinate of each point."""
    function = element.get("compareFunction") or measure.get("compareFunction", "absDiff")
    if column.is_text and function == "absDiff":
        function = "delta"
    if function not in ("absDiff", "gaussSim", "delta", "equal"):
        raise Refusal(element, f"compareFunction {function} is not supported")
    scale = element.get("similarityScale")
    if function == "gaussSim" and scale is None:
        raise Refusal(element, "gaussSim needs a similarityScale")
    weight = float(element.get("fieldWeight", 1))
    return Axis(element, column, weight, function, float(scale) if scale else None, points, missing)


def is_similarity(measure: Element) -> bool:
    return measure.get("kind") == "similarity"


def compare(g: Graph, measure: Element, axes: list[Axis]) -> ir.Value:
    """[N, points]: distances, or similarities."""
    rule = measure.child(*DISTANCES, *SIMILARITIES)
    if rule is None:
        raise Refusal(measure, "the measure is not one of PMML")
    if rule.tag in SIMILARITIES:
        return _similarity(g, rule, axes)
    return _distance(g, rule, axes)


def _distance(g: Graph, rule: Element, axes: list[Axis]) -> ir.Value:
    power = float(rule.get("p-parameter", 2)) if rule.tag == "minkowski" else 2.0
    total: ir.Value | None = None
    present: ir.Value | None = None
    adjusts = any(_can_be_missing(a) for a in axes)
    for axis in axes:
        x = g.Unsqueeze(g.column(axis.column.numbers), [1])
        is_missing = g.IsNaN(x)
        part = _part(g, axis, x)
        part = _powered(g, rule.tag, part, power)
        if axis.weight != 1.0:
            part = g.Mul(part, g.number(axis.weight))
        part = g.Where(is_missing, g.number(0.0), part)
        if total is None:
            total = part
        elif rule.tag == "chebychev":
            total = g.Max(total, part)
        else:
            total = g.Add(total, part)
        here = g.Where(is_missing, g.number(0.0), g.number(axis.missing_weight))
        present = here if present is None else g.Add(present, here)
    assert total is not None and present is not None
    if adjusts:
        total = g.Mul(total, g.Div(g.number(sum(a.missing_weight for a in axes)), present))
    if rule.tag == "euclidean":
        return g.Sqrt(total)
    return g.Pow(total, g.number(1.0 / power)) if rule.tag == "minkowski" else total


def _can_be_missing(axis: Axis) -> bool:
    return axis.column.literal is None


def _powered(g: Graph, tag: str, part: ir.Value, power: float) -> ir.Value:
    if tag in ("euclidean", "squaredEuclidean"):
        return g.Mul(part, part)
    return g.Pow(part, g.number(power)) if tag == "minkowski" else part


def _part(g: Graph, axis: Axis, x: ir.Value) -> ir.Value:
    """The comparison of one field: [N, points]."""
    points = g.number(axis.points[None, :])
    if axis.function == "absDiff":
        return g.Abs(g.Sub(x, points))
    if axis.function == "gaussSim":
        assert axis.scale is not None
        z = g.Sub(x, points)
        factor = -math.log(2.0) / axis.scale**2
        return g.Exp(g.Mul(g.number(factor), g.Mul(z, z)))
    same, other = (0.0, 1.0) if axis.function == "delta" else (1.0, 0.0)
    return g.Where(g.Equal(x, points), g.number(same), g.number(other))


def _similarity(g: Graph, rule: Element, axes: list[Axis]) -> ir.Value:
    """By how many fields are 1 in both, in one of them, or in none."""
    counts: dict[str, ir.Value] = {}
    for axis in axes:
        x = g.Unsqueeze(g.column(axis.column.numbers), [1])
        a, b = g.Equal(x, g.number(1.0)), axis.points[None, :] == 1.0
        both = g.const(b)
        parts = {
            "11": g.And(a, both),
            "10": g.And(a, g.Not(both)),
            "01": g.And(g.Not(a), both),
            "00": g.And(g.Not(a), g.Not(both)),
        }
        for key, mask in parts.items():
            value = g.cast(mask, ir.DataType.DOUBLE)
            counts[key] = value if key not in counts else g.Add(counts[key], value)
    weights = _parameters(rule)
    top, bottom = (_combined(g, counts, {k: w[i] for k, w in weights.items()}) for i in (0, 1))
    return g.Div(top, bottom)


def _combined(g: Graph, counts: dict[str, ir.Value], weights: dict[str, float]) -> ir.Value:
    out: ir.Value | None = None
    for key, weight in weights.items():
        term = g.Mul(counts[key], g.number(weight))
        out = term if out is None else g.Add(out, term)
    assert out is not None
    return out


def _parameters(rule: Element) -> dict[str, tuple[float, float]]:
    """The weights of the four counts, above and below the line."""
    if rule.tag == "simpleMatching":
        return {"11": (1, 1), "10": (0, 1), "01": (0, 1), "00": (1, 1)}
    if rule.tag == "jaccard":
        return {"11": (1, 1), "10": (0, 1), "01": (0, 1), "00": (0, 0)}
    if rule.tag == "tanimoto":
        return {"11": (1, 1), "10": (0, 2), "01": (0, 2), "00": (1, 1)}
    keys = ("11", "10", "01", "00")
    return {
        k: (float(rule.get(f"c{k}-parameter", 0)), float(rule.get(f"d{k}-parameter", 0)))
        for k in keys
    }
