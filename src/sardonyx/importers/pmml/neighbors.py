"""NearestNeighborModel: the training rows that are nearest, and what they say together.

Training rows that are not transformed go through the document's own transformations on import.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .document import Element
from .fields import mining_fields, target_fields
from .functions import column_median
from .graph import Column
from .literals import as_number, parse
from .measures import axis_of, compare, is_similarity
from .refusal import Refusal
from .results import (
    Job,
    Literal,
    Result,
    distinct,
    literal,
    model,
    named_target,
    number,
    winner,
)
from .training_rows import derive


@model("NearestNeighborModel")
def nearest_neighbor_model(job: Job) -> Result:
    g, element = job.g, job.element
    measure = element.child("ComparisonMeasure")
    inputs = element.child("KNNInputs")
    if measure is None or inputs is None:
        raise job.refuse("the measure or the inputs are missing")
    rows, columns_of = _instances(job)
    items = inputs.all("KNNInput")
    derive(job, rows, columns_of, [i for i in items if i.get("field") not in columns_of])
    axes = []
    for item in items:
        name = item.get("field")
        column = job.scope.column(name, item)
        cells = [row.get(columns_of[name]) for row in rows]
        points = np.array([_point(job, item, column, cell) for cell in cells])
        axes.append(axis_of(measure, item, column, _treated(job, name, points)))
    affinities = compare(g, measure, axes)
    count = min(int(element.get("numberOfNeighbors", 1)), len(rows))
    largest = is_similarity(measure)
    ranks = max(count, min(_ranks(job), len(rows)))  # outputs can ask beyond the neighbours
    size = g.const(np.array([ranks], np.int64))
    values, index = g.call(
        "TopK", [affinities, size], {"axis": 1, "largest": int(largest)}, outputs=2
    )
    is_missing = g.IsNaN(g.ReduceSum(values, [1], keepdims=0))
    ids = _ids(job, rows, columns_of)
    codes = g.Gather(g.number([g.code(i) for i in ids]), index, axis=0)
    codes = g.Where(g.Unsqueeze(is_missing, [1]), g.number(float("nan")), codes)
    ranked = [Column(g.pick(codes, i), "string", finite=tuple(ids)) for i in range(ranks)]
    distances = [Column(g.pick(values, i), "double") for i in range(ranks)]
    if ranks > count:
        values, index = (g.Slice(v, [0], [count], [1]) for v in (values, index))
    out = _result(job, rows, columns_of, values, index, is_missing)
    for part in (out, *out.others.values()):
        part.ranked, part.ranked_affinities, part.entities = ranked, distances, ids
        part.affinities, part.largest_affinity = affinities, largest
    return out


def _ranks(job: Job) -> int:
    """The highest rank that an output asks for."""
    output = job.element.child("Output")
    fields = output.all("OutputField") if output is not None else []
    return max((int(f.get("rank", 1)) for f in fields), default=1)


def _treated(job: Job, name: str, points: np.ndarray) -> np.ndarray:
    """The training values of a field: raw ones are clipped as the rows to be scored are."""
    holder = job.element.child("TrainingInstances")
    raw = holder is not None and holder.get("isTransformed", "false") == "false"
    mining = next((m for m in mining_fields(job.element) if m.get("name") == name), None)
    treatment = mining.get("outliers", "asIs") if mining is not None else "asIs"
    if mining is None or not raw or treatment == "asIs":
        return points
    low, high = float(mining.get("lowValue", "-inf")), float(mining.get("highValue", "inf"))
    if treatment != "asExtremeValues" and ((points < low) | (points > high)).any():
        raise Refusal(mining, "a training row is an outlier, and so has no value")
    return np.clip(points, low, high)


def _point(job: Job, item: Element, column: Column, cell: str | None) -> float:
    if cell is None:
        raise Refusal(item, "a training row lacks this field")
    return number(job.g, parse(item, cell, column.dtype))


def _instances(job: Job) -> tuple[list[dict[str, str]], dict[str | None, str]]:
    """The training rows as cells by column, and the column of each field."""
    holder = job.element.child("TrainingInstances")
    fields = holder.child("InstanceFields") if holder is not None else None
    table = holder.child("InlineTable") if holder is not None else None
    if holder is None or fields is None or table is None:
        raise job.refuse("the training rows are not in the document")
    rows = [{cell.tag: cell.text.strip() for cell in row.children} for row in table.all("row")]
    if not rows:
        raise Refusal(table, "there are no training rows")
    names = {
        f.get("field"): (f.get("column") or f.get("field")).rpartition(":")[2]
        for f in fields.all("InstanceField")
    }
    return rows, names


def _ids(job: Job, rows: list[dict[str, str]], columns_of: dict[str | None, str]) -> list[str]:
    variable = job.element.get("instanceIdVariable")
    if variable is None:
        return [str(i + 1) for i in range(len(rows))]
    column = columns_of.get(variable, variable)
    if any(column not in row for row in rows):
        raise job.refuse(f"a training row has no {variable!r}")
    return [row[column] for row in rows]


def _result(
    job: Job,
    rows: list[dict[str, str]],
    columns_of: dict[str | None, str],
    values: ir.Value,
    index: ir.Value,
    is_missing: ir.Value,
) -> Result:
    names = [f.get("name") for f in target_fields(job.element)]
    if len(names) > 1:
        others: dict[str, Result] = {}
        for field in target_fields(job.element):
            target = named_target(job.document, job.element, field)
            one = replace(job, target=target)
            others[field.get("name")] = _target(one, rows, columns_of, values, index, is_missing)
        return replace(others[names[0]], others=others)
    return _target(job, rows, columns_of, values, index, is_missing)


def _target(
    job: Job,
    rows: list[dict[str, str]],
    columns_of: dict[str | None, str],
    values: ir.Value,
    index: ir.Value,
    is_missing: ir.Value,
) -> Result:
    # A model inside another may leave its target without a name, and the column as well.
    if job.target.name is None and None not in columns_of:
        if job.function in ("regression", "classification"):
            raise job.refuse("the model has no target")
        entity = Column(job.g.number(float("nan")), "string", finite=())
        return Result(job.target, entity)
    if job.target.name not in columns_of:
        raise job.refuse(f"the training rows have no target {job.target.name!r}")
    cells = [row.get(columns_of[job.target.name]) for row in rows]
    if any(c is None for c in cells):
        raise job.refuse("a training row has no target")
    if job.target.optype != "continuous" and job.function != "regression":
        return _vote(job, [c for c in cells if c is not None], values, index, is_missing)
    return _mean(job, [c for c in cells if c is not None], values, index, is_missing)


def _weights(job: Job, values: ir.Value) -> ir.Value:
    """The inverse of distances; where one is zero, such neighbours count alone."""
    g = job.g
    shift = float(job.element.get("threshold", 0.001))
    weights = g.Div(g.number(1.0), g.Add(values, g.number(shift)))
    if shift:
        return weights
    at_zero = g.Equal(values, g.number(0.0))
    alone = g.cast(at_zero, ir.DataType.DOUBLE)
    some = g.Greater(g.ReduceMax(alone, [1], keepdims=1), g.number(0.0))
    return g.Where(some, alone, weights)


def _mean(
    job: Job, cells: list[str], values: ir.Value, index: ir.Value, is_missing: ir.Value
) -> Result:
    g = job.g
    numbers = [as_number(c) for c in cells]
    if any(n is None for n in numbers):
        raise job.refuse("the target of a training row is no number")
    targets = g.Gather(g.number(np.array(numbers, np.float64)), index, axis=0)
    method = job.element.get("continuousScoringMethod", "average")
    if method == "average":
        out = g.ReduceMean(targets, [1], keepdims=0)
    elif method == "median":
        out = column_median(g, targets)
    elif method == "weightedAverage":
        weights = _weights(job, values)
        top = g.ReduceSum(g.Mul(targets, weights), [1], keepdims=0)
        out = g.Div(top, g.ReduceSum(weights, [1], keepdims=0))
    else:
        raise job.refuse(f"continuousScoringMethod {method} is not one of PMML")
    return Result(job.target, Column(g.Where(is_missing, g.number(float("nan")), out), "double"))


def _vote(
    job: Job, cells: list[str], values: ir.Value, index: ir.Value, is_missing: ir.Value
) -> Result:
    g = job.g
    labels = [literal(job.target, job.element, c) for c in cells]
    classes: list[Literal] = distinct([*job.target.categories, *sorted(set(labels), key=str)])
    places = np.array([classes.index(label) for label in labels])
    shares = g.Gather(g.const(np.eye(len(classes))[places]), index, axis=0)
    method = job.element.get("categoricalScoringMethod", "majorityVote")
    if method == "weightedMajorityVote":
        shares = g.Mul(shares, g.Unsqueeze(_weights(job, values), [2]))
    elif method != "majorityVote":
        raise job.refuse(f"categoricalScoringMethod {method} is not one of PMML")
    votes = g.ReduceSum(shares, [1], keepdims=0)
    votes = g.Div(votes, g.ReduceSum(votes, [1], keepdims=1))
    votes = g.Where(g.Unsqueeze(is_missing, [1]), g.number(float("nan")), votes)
    return Result(job.target, _elected(job, classes, places, votes), classes, votes)


def _elected(job: Job, classes: list[Literal], places: np.ndarray, votes: ir.Value) -> Column:
    """The category with most votes; of equals, the one with most training rows, then the least."""
    g = job.g
    rows = np.bincount(places, minlength=len(classes)).tolist()
    order = sorted(range(len(classes)), key=lambda i: (-rows[i], classes[i]))
    rank = np.argsort(order).astype(float)
    largest = g.ReduceMax(votes, [1], keepdims=1)
    ranking = g.Where(g.Equal(votes, largest), g.number(-rank[None]), g.number(-np.inf))
    return winner(g, job.target, classes, g.Where(g.IsNaN(votes), votes, ranking))
