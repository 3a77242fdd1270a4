"""NaiveBayesModel: counts and distributions of each input, given the category of the target."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from .document import Element
from .expressions import derived_field
from .graph import Column, Graph
from .predicates import threshold
from .refusal import Refusal
from .results import Job, Literal, Result, classified, distinct, literal, model


@model("NaiveBayesModel")
def naive_bayes_model(job: Job) -> Result:
    g, element = job.g, job.element
    output, inputs = element.child("BayesOutput"), element.child("BayesInputs")
    if output is None or inputs is None:
        raise job.refuse("BayesOutput or BayesInputs is missing")
    least = float(element.get("threshold", 0))
    counts = _counts(job, output)
    classes = list(counts)
    with np.errstate(divide="ignore"):
        prior = np.log(np.array([[counts[c] for c in classes]]))
    total = g.number(prior)
    for item in inputs.all("BayesInput"):
        total = g.Add(total, _input(job, item, classes, counts, least))
    if not inputs.all("BayesInput"):
        raise Refusal(inputs, "there are no inputs")
    largest = g.ReduceMax(total, [1], keepdims=1)
    powers = g.Exp(g.Sub(total, largest))
    return classified(job, classes, g.Div(powers, g.ReduceSum(powers, [1], keepdims=1)))


def _counts(job: Job, output: Element) -> dict[Literal, float]:
    holder = output.child("TargetValueCounts")
    items = holder.all("TargetValueCount") if holder is not None else []
    if not items:
        raise Refusal(output, "there are no TargetValueCounts")
    return {literal(job.target, i, i.get("value")): float(i.get("count")) for i in items}


def _input(
    job: Job, item: Element, classes: list[Literal], counts: dict[Literal, float], least: float
) -> ir.Value:
    """The logarithms of the likelihood of an input: [N, classes]; 0 where it is missing."""
    name = item.get("fieldName")
    derived = item.child("DerivedField")
    column = job.scope.column(name, item) if derived is None else derived_field(job.scope, derived)
    stats = item.child("TargetValueStats")
    if stats is not None:
        return _continuous(job, column, stats, classes, least)
    return _discrete(job, item, column, classes, counts, least)


def _discrete(
    job: Job,
    item: Element,
    column: Column,
    classes: list[Literal],
    counts: dict[Literal, float],
    least: float,
) -> ir.Value:
    g = job.g
    rows: dict[float, list[float]] = {}
    totals = [0.0] * len(classes)
    for pair in item.all("PairCounts"):
        row = [0.0] * len(classes)
        holder = pair.child("TargetValueCounts")
        for cell in holder.all("TargetValueCount") if holder is not None else ():
            value = literal(job.target, cell, cell.get("value"))
            if value not in classes:
                raise Refusal(cell, "the category is not one of BayesOutput")
            row[classes.index(value)] += float(cell.get("count"))
        rows[threshold(g, pair, column, pair.get("value"), "equal")] = row
        totals = [t + r for t, r in zip(totals, row, strict=True)]
    if not rows:
        raise Refusal(item, "there are no PairCounts")
    table = []
    for row in rows.values():
        # The threshold stands for a count of zero, and for nothing else.
        shares = [c / t if c else least for c, t in zip(row, totals, strict=True)]
        table.append([math.log(s) if s > 0 else -math.inf for s in shares])
    table.append([0.0] * len(classes))
    places = {code: float(i) for i, code in enumerate(rows)}
    place = g.table(g.column(column.numbers), places, float(len(rows)))
    return g.Gather(g.number(np.array(table)), g.cast(place, ir.DataType.INT64), axis=0)


def _continuous(
    job: Job, column: Column, stats: Element, classes: list[Literal], least: float
) -> ir.Value:
    g: Graph = job.g
    if column.is_text:
        raise Refusal(stats, "a distribution of text")
    columns: dict[Literal, ir.Value] = {}
    for stat in stats.all("TargetValueStat"):
        value = literal(job.target, stat, stat.get("value"))
        columns[value] = _logarithm(g, stat, column.numbers)
    if set(columns) != set(classes) or len(distinct(classes)) != len(classes):
        raise Refusal(stats, "the categories are not those of BayesOutput")
    matrix = g.matrix([columns[c] for c in classes])
    if least > 0:
        floor = g.number(math.log(least))
        matrix = g.Where(g.Less(matrix, floor), floor, matrix)
    return g.Where(g.IsNaN(matrix), g.number(0.0), matrix)


def _logarithm(g: Graph, stat: Element, x: ir.Value) -> ir.Value:
    """The logarithm of a density."""
    kind = stat.child("GaussianDistribution", "PoissonDistribution")
    if kind is None:
        raise Refusal(stat, "the distribution is not supported")
    mean = float(kind.get("mean"))
    if kind.tag == "PoissonDistribution":
        return _poisson(g, x, mean)
    variance = float(kind.get("variance"))
    z = g.Sub(x, g.number(mean))
    square = g.Div(g.Mul(z, z), g.number(2.0 * variance))
    return g.Sub(g.number(-0.5 * math.log(2.0 * math.pi * variance)), square)


def _poisson(g: Graph, x: ir.Value, mean: float) -> ir.Value:
    """The logarithm of the probability of a count; there is none of what is no count."""
    most = 170  # the largest whose factorial is a double
    factorials = [math.lgamma(k + 1.0) for k in range(most + 1)]
    is_count = g.And(g.GreaterOrEqual(x, g.number(0.0)), g.Equal(x, g.Floor(x)))
    is_count = g.And(is_count, g.LessOrEqual(x, g.number(float(most))))
    place = g.cast(g.Where(is_count, x, g.number(0.0)), ir.DataType.INT64)
    logarithm = g.Gather(g.number(factorials), place, axis=0)
    out = g.Sub(g.Sub(g.Mul(x, g.number(math.log(mean))), g.number(mean)), logarithm)
    return g.Where(is_count, out, g.number(float("nan")))
