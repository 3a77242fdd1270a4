"""MiningModel: segments, each a model with a predicate, and how their results become one.

Where all segments are trees, they become one forest. In a chain, the outputs of a segment are
fields of those after it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.importers.trees import leaf_sums

from .document import Element
from .fields import has_treatment, local, mining_fields, nested_scope
from .functions import column_median
from .graph import Column, Graph, Truth, constant, merge
from .predicates import PREDICATES, predicate, predicate_of
from .refusal import Refusal
from .results import (
    MODELS,
    Job,
    Literal,
    Result,
    class_column,
    distinct,
    model,
    target_of,
    winner,
)
from .scope import Scope
from .trees import Grower, Grown, Tests, classes_of, distribution, label_index, scores

CHAINS = ("modelChain", "multiModelChain", "x-multiModelChain", "x-multiModel", "multiModel")
WEIGHTED = ("weightedAverage", "weightedMajorityVote", "weightedSum", "x-weightedSum",
            "weightedMedian", "x-weightedMedian")  # fmt: skip
MEANS = ("average", "weightedAverage")
SUMS = ("sum", "weightedSum", "x-weightedSum")
VOTES = ("majorityVote", "weightedMajorityVote")
MEDIANS = ("median",)
GATHERED = 128


@model("MiningModel")
def mining_model(job: Job) -> Result:
    segmentation = job.element.child("Segmentation")
    if segmentation is None:
        raise job.refuse("a MiningModel without Segmentation is not supported")
    method = segmentation.get("multipleModelMethod")
    segments = segmentation.all("Segment")
    if not segments:
        raise Refusal(segmentation, "there are no segments")
    if method in CHAINS:
        return chain(job, segments, method)
    if method == "selectFirst":
        return select_first(job, segments)
    if method not in (*MEANS, *SUMS, *VOTES, *MEDIANS, "max"):
        raise Refusal(segmentation, f"multipleModelMethod {method} is not supported")
    if _are_plain_trees(segments) and method != "max":
        return forest(job, segmentation, segments, method)
    return ensemble(job, segmentation, segments, method)


def model_of(segment: Element) -> Element:
    for child in segment.children:
        if child.tag in MODELS or child.tag.endswith("Model"):
            return child
    raise Refusal(segment, "the segment has no model")


def weight_of(segment: Element, method: str) -> float:
    if method not in WEIGHTED:
        return 1.0
    if segment.child("VariableWeight") is not None:
        raise Refusal(segment, "a VariableWeight is not supported")
    return float(segment.get("weight", 1.0))


# -- chains ---------------------------------------------------------------------------


def chain(job: Job, segments: list[Element], method: str) -> Result:
    from .driver import build

    scope = Scope(job.document, job.scope)
    result: Result | None = None
    results: dict[str, Result] = {}
    others: dict[str, Result] = {}
    for segment in segments:
        truth = segment_truth(scope, segment)
        part, outputs = build(job.document, scope, model_of(segment), job.target)
        for name, column in outputs.items():
            if truth is not None:
                column = merge(job.g, truth, column, constant(job.g, None, column.dtype))
            scope.put(name, column)
        if segment.get("id") is not None:
            results[segment.get("id")] = part
        for other in (part, *part.others.values()):
            if other.target.name is not None:
                others[other.target.name] = other
        result = part if truth is None or result is None else either(job.g, truth, part, result)
    assert result is not None
    if method == "modelChain":
        return replace(result, segments=results, others={})
    return replace(result, segments=results, others=others)


def segment_truth(scope: Scope, segment: Element) -> ir.Value | None:
    """Where a segment takes part; None: everywhere."""
    test = predicate_of(segment)
    if test.tag == "True":
        return None
    return scope.g.column(predicate(scope, test).yes)


def select_first(job: Job, segments: list[Element]) -> Result:
    from .driver import build

    g, out, results = job.g, None, {}
    for segment in reversed(segments):
        truth = segment_truth(job.scope, segment)
        part, _ = build(job.document, job.scope, model_of(segment), job.target)
        if segment.get("id") is not None:
            results[segment.get("id")] = part
        if out is None:
            out = part if truth is None else either(g, truth, part, void(g, part))
        else:
            out = part if truth is None else either(g, truth, part, out)
    assert out is not None
    return replace(out, segments=results)


def void(g: Graph, like: Result) -> Result:
    """A result that is missing everywhere."""
    value = constant(g, None, like.value.dtype)
    matrix = None
    if like.probabilities is not None:
        matrix = g.number(np.full((1, len(like.classes)), np.nan))
    return Result(like.target, value, like.classes, matrix)


def either(g: Graph, mask: ir.Value, a: Result, b: Result) -> Result:
    """The result `a` where the mask holds, else `b`."""
    value = merge(g, mask, a.value, b.value)
    classes = distinct([*a.classes, *b.classes])
    probabilities = None
    if a.probabilities is not None and b.probabilities is not None:
        wide = g.Unsqueeze(mask, [1])
        probabilities = g.Where(wide, aligned(g, a, classes), aligned(g, b, classes))
    entity = None
    if a.entity is not None and b.entity is not None:
        entity = merge(g, mask, a.entity, b.entity)
    return Result(a.target, value, classes, probabilities, entity=entity,
                  entities=distinct([*a.entities, *b.entities]))  # fmt: skip


def aligned(g: Graph, result: Result, classes: list[Literal]) -> ir.Value:
    """The probabilities with one column for each of `classes`; 0 where the result has none."""
    matrix = result.probabilities
    assert matrix is not None
    if result.classes == classes:
        return matrix
    places = [result.classes.index(c) if c in result.classes else -1 for c in classes]
    columns = [
        g.pick(matrix, p) if p >= 0 else g.Mul(g.pick(matrix, 0), g.number(0.0)) for p in places
    ]
    return g.matrix(columns)


# -- ensembles of any models --------------------------------------------------------------


def ensemble(job: Job, segmentation: Element, segments: list[Element], method: str) -> Result:
    from .driver import build

    parts, masks, weights, results = [], [], [], {}
    for segment in segments:
        masks.append(segment_truth(job.scope, segment))
        part, _ = build(job.document, job.scope, model_of(segment), job.target)
        parts.append(part)
        weights.append(weight_of(segment, method))
        if segment.get("id") is not None:
            results[segment.get("id")] = part
    if job.is_classification:
        out = _vote(job, segmentation, parts, masks, weights, method)
    elif job.function == "regression":
        values = job.g.matrix([p.value.numbers for p in parts])
        numbers = aggregate(job, segmentation, values, _active(job.g, masks), weights, method)
        out = Result(job.target, Column(numbers, "float" if job.is_single else "double"))
    else:
        raise job.refuse(f"{method} of a {job.function} model is not supported")
    return replace(out, segments=results)


def _active(g: Graph, masks: list[ir.Value | None]) -> ir.Value | None:
    """[N, segments]: which take part; None: all."""
    if all(mask is None for mask in masks):
        return None
    true = g.const(True)
    return g.matrix([true if mask is None else mask for mask in masks])


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
    active = missing_predictions(g, segmentation, values, active)
    if method in MEDIANS:
        if active is not None:
            values = g.Where(active, values, g.number(np.nan))
        return column_median(g, values)
    row = g.number(np.array(weights, np.float64)[None, :])
    if method == "max":
        x = values if active is None else g.Where(active, values, g.number(-np.inf))
        out = g.ReduceMax(x, [1], keepdims=0)
        gone = g.IsNaN(g.ReduceSum(x, [1], keepdims=0))
        out = g.Where(g.Or(gone, g.IsInf(out)), g.number(np.nan), out)
        return out
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
    elif active is not None:
        out = g.Where(g.Equal(total_weight, zero), g.number(np.nan), out)
    return g.single(out) if job.is_single else out


def running_sum(g: Graph, values: ir.Value, single: bool) -> ir.Value:
    """The sum over axis 1, added up from left to right, in floats of 32 bits where `single`."""
    x = g.cast(values, ir.DataType.FLOAT) if single else values
    total = g.CumSum(x, np.array(1, np.int64))
    last = g.Gather(total, np.array(-1, np.int64), axis=1)
    return g.cast(last, ir.DataType.DOUBLE)


def missing_predictions(
    g: Graph, segmentation: Element, values: ir.Value, active: ir.Value | None
) -> ir.Value | None:
    """Which segments take part, once those without a prediction are treated."""
    treatment = segmentation.get("missingPredictionTreatment") or segmentation.get(
        "x-missingPredictionTreatment", "continue"
    )
    if treatment in ("continue", "returnMissing"):
        if segmentation.get("missingThreshold") is not None and treatment == "returnMissing":
            raise Refusal(segmentation, "a missingThreshold is not supported")
        return active
    if treatment != "skipSegment":
        raise Refusal(segmentation, f"missingPredictionTreatment {treatment} is not one of PMML")
    if float(segmentation.get("missingThreshold", 1.0)) != 1.0:
        raise Refusal(segmentation, "a missingThreshold is not supported")
    here = g.Not(g.IsNaN(values))
    return here if active is None else g.And(active, here)


def _vote(
    job: Job,
    segmentation: Element,
    parts: list[Result],
    masks: list[ir.Value | None],
    weights: list[float],
    method: str,
) -> Result:
    g = job.g
    classes = distinct([*job.target.categories, *(c for p in parts for c in p.classes)])
    if method not in (*VOTES, *MEANS):
        raise Refusal(segmentation, f"{method} of a classification is not supported")
    total: ir.Value | None = None
    count: ir.Value | None = None
    for part, mask, weight in zip(parts, masks, weights, strict=True):
        shares = _shares(g, job, part, classes, method)
        scale = g.number(weight)
        if mask is not None:
            scale = g.Where(g.Unsqueeze(mask, [1]), scale, g.number(0.0))
            shares = g.Where(g.Unsqueeze(mask, [1]), shares, g.number(0.0))
        shares = g.Mul(shares, scale)
        total = shares if total is None else g.Add(total, shares)
        count = scale if count is None else g.Add(count, scale)
    assert total is not None and count is not None
    return _elected(job, classes, g.Div(total, count))


def _shares(g: Graph, job: Job, part: Result, classes: list[Literal], method: str) -> ir.Value:
    if method in MEANS:
        if part.probabilities is None:
            raise job.refuse("a segment has no probabilities to be averaged")
        return aligned(g, part, classes)
    from .results import number

    codes = g.number(np.array([[number(g, c) for c in classes]]))
    value = g.Unsqueeze(part.value.numbers, [1])
    shares = g.Where(g.Equal(value, codes), g.number(1.0), g.number(0.0))
    return g.Where(g.IsNaN(value), g.number(np.nan), shares)


def _elected(job: Job, classes: list[Literal], probabilities: ir.Value) -> Result:
    value = winner(job.g, job.target, classes, probabilities)
    return Result(job.target, value, classes, probabilities)


# -- forests ---------------------------------------------------------------------------


def _are_plain_trees(segments: list[Element]) -> bool:
    """Whether every segment is a tree that always takes part and changes no field or result."""
    for segment in segments:
        if predicate_of(segment).tag != "True" or not segment.all(*PREDICATES):
            return False
        trees = segment.all("TreeModel")
        if len(trees) != 1 or not _is_plain(trees[0]):
            return False
    return True


def _is_plain(tree: Element) -> bool:
    if any(tree.child(tag) is not None for tag in ("Targets", "ModelVerification")):
        return False
    return tree.get("missingValueStrategy", "none") not in ("weightedConfidence", "aggregateNodes")


def forest(job: Job, segmentation: Element, segments: list[Element], method: str) -> Result:
    tests, grown, weights = Tests(job.g), [], []
    for segment in segments:
        element = model_of(segment)
        scope = job.scope
        if local(element) is not None or any(has_treatment(m) for m in mining_fields(element)):
            scope = nested_scope(job.document, job.scope, element)
        inner = Job(job.document, scope, element, target_of(job.document, element, job.target))
        if job.is_classification:
            inner.target = job.target
        with job.document.refusals.collected():
            grown.append(Grower(inner, tests).grow())
            weights.append(weight_of(segment, method))
    job.document.refusals.check()
    if not job.is_classification:
        return _regression_forest(job, segmentation, tests, grown, weights, method)
    return _classification_forest(job, segmentation, tests, grown, weights, method)


def _regression_forest(
    job: Job, segmentation: Element, tests: Tests, grown: list[Grown], weights: list[float],
    method: str,
) -> Result:  # fmt: skip
    g = job.g
    table = np.concatenate([scores(tree) for tree in grown])
    simple = method in (*MEANS, *SUMS) and not job.is_single and not np.isnan(table).any()
    if simple:
        scale = [w / (sum(weights) if method in MEANS else 1.0) for w in weights]
        if method == "average":
            scale = [1.0] * len(weights)
        values = [scores(tree) * w for tree, w in zip(grown, scale, strict=True)]
        tests.forest.set_leaves(np.concatenate(values)[:, None])
        total = g.Squeeze(leaf_sums(g, tests.forest, tests.inputs()), [1])
        if method == "average":
            total = g.Div(total, g.number(float(len(grown))))
        return Result(job.target, Column(total, "double"))
    values_matrix = g.Gather(g.number(table), tests.rows(), axis=0)
    numbers = aggregate(job, segmentation, values_matrix, None, weights, method)
    return Result(job.target, Column(numbers, "float" if job.is_single else "double"))


def _classification_forest(
    job: Job, segmentation: Element, tests: Tests, grown: list[Grown], weights: list[float],
    method: str,
) -> Result:  # fmt: skip
    g = job.g
    if method not in (*VOTES, *MEANS):
        raise Refusal(segmentation, f"{method} of a classification is not supported")
    classes = distinct([*job.target.categories, *(c for tree in grown for c in classes_of(tree))])
    tables = []
    for tree, weight in zip(grown, weights, strict=True):
        for leaf in tree.leaves:
            probability, _ = distribution(leaf, tree.job, classes)
            if method in VOTES:
                place = label_index(leaf, tree.job, classes, probability)
                probability = np.eye(len(classes) + 1)[place][:-1]
                if place == len(classes):
                    probability = np.full(len(classes), np.nan)
            tables.append(probability * weight)
    table = np.array(tables)
    total = vector_sums(g, tests, table)
    probabilities = g.Div(total, g.number(float(sum(weights))))
    return _elected(job, classes, probabilities)


def vector_sums(g: Graph, tests: Tests, table: np.ndarray) -> ir.Value:
    """The sums of leaf vectors [N, width], tree after tree, as every evaluator adds them."""
    rows = tests.rows()
    count = tests.forest.trees
    values = g.const(table)
    total: ir.Value | None = None
    for start in range(0, count, GATHERED):
        stop = min(start + GATHERED, count)
        part = g.Gather(rows, np.arange(start, stop), axis=1) if stop - start < count else rows
        vectors = g.Gather(values, part, axis=0)
        if total is not None:
            vectors = g.Concat(g.Unsqueeze(total, [1]), vectors, axis=1)
        total = g.Gather(g.CumSum(vectors, np.array(1, np.int64)), np.array(-1), axis=1)
    assert total is not None
    return total


__all__ = ["Truth", "class_column", "mining_model"]
