"""MiningModel: segments, each a model with a predicate, and how their results become one.

Where all segments are trees, they become one forest. In a chain, the outputs of a segment are
fields of those after it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.importers.trees import alike_rows, leaf_rows, leaf_sums

from .aggregates import MEANS, MEDIANS, SUMS, WEIGHTED, aggregate, treatment_of
from .document import Element
from .fields import has_treatment, local, mining_fields, nested_scope, target_fields
from .graph import Column, Graph, constant, merge, missing
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
    number,
    target_of,
    winner,
)
from .scope import Scope
from .trees import Grower, Leaf, Tests, Tree, classes_of, distribution, label_index, scores

CHAINS = ("modelChain", "multiModelChain", "x-multiModelChain", "x-multiModel", "multiModel")
VOTES = ("majorityVote", "weightedMajorityVote")
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
        return select_first(job, segmentation, segments)
    if method not in (*MEANS, *SUMS, *VOTES, *MEDIANS, "max"):
        raise Refusal(segmentation, f"multipleModelMethod {method} is not supported")
    if _are_plain_trees(segments) and not _asks_segments(job):
        return forest(job, segmentation, segments, method)
    return ensemble(job, segmentation, segments, method)


def _asks_segments(job: Job) -> bool:
    """Whether an output wants the result of one segment."""
    output = job.element.child("Output")
    fields = output.all("OutputField") if output is not None else []
    return any(f.get("segmentId") or f.get("x-segmentId") for f in fields)


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


def check_weights(segmentation: Element, weights: list[float], method: str) -> None:
    if method in WEIGHTED and method not in SUMS and not sum(weights) > 0:
        raise Refusal(segmentation, f"the weights of {method} have no positive sum")


# -- chains ---------------------------------------------------------------------------


def chain(job: Job, segments: list[Element], method: str) -> Result:
    from .driver import build

    scope = Scope(job.document, job.scope)
    result: Result | None = None
    results: dict[str, Result] = {}
    others: dict[str, Result] = {}
    exports: dict[str, Column] = {}
    truths: list[ir.Value | None] = []
    for segment in segments:
        truth = segment_truth(scope, segment)
        truths.append(truth)
        part, outputs = build(job.document, scope, model_of(segment), job.target)
        for name, column in outputs.items():
            if truth is not None:
                column = merge(job.g, truth, column, constant(job.g, None, column.dtype))
            scope.put(name, column)
            exports[name] = column
        _keep(job, results, segment, truth, part)
        _targets(job.g, others, part, truth, method)
        is_alike = result is not None and result.value.is_text == part.value.is_text
        before = result if is_alike and result is not None else void(job.g, part)
        result = part if truth is None else either(job.g, truth, part, before)
    assert result is not None
    result = replace(result, decided=_somewhere(job.g, truths))
    if method == "modelChain":
        if len(target_fields(job.element)) < 2:
            others = {}
        elif job.element.child("Targets") is not None:
            raise job.refuse("Targets of a chain with several targets are not supported")
        # The outputs of the last segment are those of the chain.
        return replace(result, segments=results, others=others, exports=result.exports)
    return replace(result, segments=results, others=others, exports=exports)


def _targets(
    g: Graph, others: dict[str, Result], part: Result, truth: ir.Value | None, method: str
) -> None:
    """Note what a segment says of its targets, where it takes part.

    A plain chain has the targets of the last segment that takes part, and no others.
    """
    parts = {p.target.name: p for p in (part, *part.others.values()) if p.target.name is not None}
    for name, one in parts.items():
        before = others.get(name) or void(g, one)
        others[name] = one if truth is None else either(g, truth, one, before)
    for name in others.keys() - parts.keys() if method == "modelChain" else ():
        nothing = void(g, others[name])
        others[name] = nothing if truth is None else either(g, truth, nothing, others[name])


def segment_truth(scope: Scope, segment: Element) -> ir.Value | None:
    """Where a segment takes part; None: everywhere."""
    test = predicate_of(segment)
    if test.tag == "True":
        return None
    return scope.g.column(predicate(scope, test).yes)


def select_first(job: Job, segmentation: Element, segments: list[Element]) -> Result:
    from .driver import build

    g, out = job.g, None
    results: dict[str, Result] = {}
    skips = treatment_of(segmentation) == "skipSegment"
    parts = []
    before: ir.Value | None = None  # where a segment before this one is taken
    for segment in segments:
        truth = segment_truth(job.scope, segment)
        part, _ = build(job.document, job.scope, model_of(segment), job.target)
        if skips:
            here = g.Not(missing(g, part.value))
            truth = here if truth is None else g.And(truth, here)
        _keep(job, results, segment, _and_not(g, truth, before), part)
        always = truth if truth is not None else g.const(True)
        before = always if before is None else g.Or(before, always)
        parts.append((truth, part))
    for truth, part in reversed(parts):
        if out is None:
            out = part if truth is None else either(g, truth, part, void(g, part))
        else:
            out = part if truth is None else either(g, truth, part, out)
    assert out is not None
    return replace(out, segments=results, decided=_somewhere(g, [t for t, _ in parts]))


def _somewhere(g: Graph, truths: list[ir.Value | None]) -> ir.Value:
    """Where any of the segments takes part; None is everywhere."""
    masks = [truth for truth in truths if truth is not None]
    return g.any(masks) if len(masks) == len(truths) else g.const(True)


def _and_not(g: Graph, mask: ir.Value | None, other: ir.Value | None) -> ir.Value | None:
    if other is None:
        return mask
    return g.Not(other) if mask is None else g.And(mask, g.Not(other))


def _keep(
    job: Job, results: dict[str, Result], segment: Element, mask: ir.Value | None, part: Result
) -> None:
    """Keep the result of a segment for outputs that name it; there is none where it is left out."""
    if segment.get("id") is not None and _asks_segments(job):
        there = None if mask is None else job.g.column(mask)
        whole = part if there is None else either(job.g, there, part, void(job.g, part))
        results[segment.get("id")] = whole


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
    exports = {}
    for name in distinct([*a.exports, *b.exports]):
        columns = [r.exports.get(name) for r in (a, b)]
        kind = next(c for c in columns if c is not None)
        first, second = (c or constant(g, None, kind.dtype) for c in columns)
        exports[name] = merge(g, mask, first, second)
    return Result(
        a.target,
        value,
        classes,
        probabilities,
        entity=entity,
        entities=distinct([*a.entities, *b.entities]),
        exports=exports,
    )


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

    parts, masks, weights = [], [], []
    results: dict[str, Result] = {}
    for segment in segments:
        masks.append(segment_truth(job.scope, segment))
        part, _ = build(job.document, job.scope, model_of(segment), job.target)
        parts.append(part)
        weights.append(weight_of(segment, method))
        _keep(job, results, segment, masks[-1], part)
    check_weights(segmentation, weights, method)
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
    treatment = treatment_of(segmentation)
    abstains = method in VOTES and treatment == "continue"
    stack, counts = [], []
    for part, mask, weight in zip(parts, masks, weights, strict=True):
        shares = _shares(g, job, part, classes, method)
        is_missing = g.IsNaN(g.ReduceSum(shares, [1], keepdims=1))
        takes_part = None if mask is None else g.Unsqueeze(mask, [1])
        if abstains:
            shares = _with_abstention(g, shares, is_missing)
        if treatment == "skipSegment":
            here = g.Not(is_missing)
            takes_part = here if takes_part is None else g.And(takes_part, here)
        scale = g.number(weight)
        if takes_part is not None:
            scale = g.Where(takes_part, scale, g.number(0.0))
            shares = g.Where(takes_part, shares, g.number(0.0))
        stack.append(g.Unsqueeze(g.Mul(shares, scale), [1]))
        counts.append(g.Mul(g.Where(is_missing, g.number(0.0), g.number(1.0)), g.number(0.0)))
        counts[-1] = g.Add(counts[-1], scale)
    wide = stack[0] if len(stack) == 1 else g.Concat(*stack, axis=1)
    count = counts[0]
    for other in counts[1:]:
        count = g.Add(count, other)
    total = g.Gather(g.CumSum(wide, np.array(1, np.int64)), np.array(-1), axis=1)
    first = _first_votes(g, wide) if method in VOTES else None
    if abstains:
        assert first is not None
        return _elected(job, classes, *_without_abstention(g, total, first, len(classes)))
    return _elected(job, classes, g.Div(total, count), first)


def _with_abstention(g: Graph, shares: ir.Value, is_missing: ir.Value) -> ir.Value:
    """The shares and, last, a vote for no result at all where there is none."""
    shares_or_zero = g.Where(is_missing, g.number(0.0), shares)
    return g.Concat(shares_or_zero, g.cast(is_missing, ir.DataType.DOUBLE), axis=1)


def _without_abstention(
    g: Graph, votes: ir.Value, first: ir.Value, classes: int
) -> tuple[ir.Value, ir.Value]:
    """Shares among the votes for classes; none where more segments abstain than agree."""
    places = np.arange(classes)
    columns = g.Gather(votes, places, axis=1)
    without = g.Gather(votes, np.array([classes]), axis=1)
    void = g.Greater(without, g.ReduceMax(columns, [1], keepdims=1))
    shares = g.Div(columns, g.ReduceSum(columns, [1], keepdims=1))
    return g.Where(void, g.number(np.nan), shares), g.Gather(first, places, axis=1)


def _first_votes(g: Graph, shares: ir.Value) -> ir.Value:
    """[N, classes]: the first of the segments [N, segments, classes] with a vote for a class."""
    voted = g.cast(g.Greater(shares, g.number(0.0)), ir.DataType.INT64)
    return g.ArgMax(voted, axis=1, keepdims=0)


def _shares(g: Graph, job: Job, part: Result, classes: list[Literal], method: str) -> ir.Value:
    if method in MEANS:
        if part.probabilities is None:
            raise job.refuse("a segment has no probabilities to be averaged")
        return aligned(g, part, classes)
    codes = g.number(np.array([[number(g, c) for c in classes]]))
    value = g.Unsqueeze(part.value.numbers, [1])
    shares = g.Where(g.Equal(value, codes), g.number(1.0), g.number(0.0))
    return g.Where(g.IsNaN(value), g.number(np.nan), shares)


def _elected(
    job: Job, classes: list[Literal], probabilities: ir.Value, first: ir.Value | None
) -> Result:
    """The category with the largest share; of equals, the one that had a vote first."""
    g, ranking = job.g, probabilities
    if first is not None:
        largest = g.ReduceMax(probabilities, [1], keepdims=1)
        order = g.Neg(g.cast(first, ir.DataType.DOUBLE))
        ranking = g.Where(g.Equal(probabilities, largest), order, g.number(-np.inf))
        ranking = g.Where(g.IsNaN(probabilities), probabilities, ranking)
        index = g.ArgMax(ranking, axis=1, keepdims=0)
        is_missing = g.IsNaN(g.ReduceSum(probabilities, [1], keepdims=0))
        index = g.Where(is_missing, np.array(-1, np.int64), index)
        value = class_column(g, job.target, classes, index)
    else:
        value = winner(g, job.target, classes, probabilities)
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
    tests, trees, weights = Tests(job.g), [], []
    for segment in segments:
        element = model_of(segment)
        scope = job.scope
        if local(element) is not None or any(has_treatment(m) for m in mining_fields(element)):
            scope = nested_scope(job.document, job.scope, element)
        inner = Job(job.document, scope, element, target_of(job.document, element, job.target))
        if job.is_classification:
            inner.target = job.target
        with job.document.refusals.collected():
            trees.append(Grower(inner, tests).grow())
            weights.append(weight_of(segment, method))
    job.document.refusals.check()
    check_weights(segmentation, weights, method)
    if not job.is_classification:
        return _regression_forest(job, segmentation, tests, trees, weights, method)
    return _classification_forest(job, segmentation, tests, trees, weights, method)


def _regression_forest(
    job: Job, segmentation: Element, tests: Tests, trees: list[Tree], weights: list[float],
    method: str,
) -> Result:  # fmt: skip
    g = job.g
    table = np.concatenate([scores(tree) for tree in trees])
    skips = treatment_of(segmentation) == "skipSegment" and bool(np.isnan(table).any())
    # A leaf without a result is NaN, and so is any sum with it.
    if method in (*MEANS, *SUMS) and not job.is_single and not skips:
        scale = [w / (sum(weights) if method in MEANS else 1.0) for w in weights]
        if method == "average":
            scale = [1.0] * len(weights)
        values = [scores(tree) * w for tree, w in zip(trees, scale, strict=True)]
        tests.forest.extend_leaves(np.concatenate(values)[:, None])
        x, back = _sorted_rows(g, tests)
        total = g.Squeeze(leaf_sums(g, tests.forest, x), [1])
        total = total if back is None else g.Gather(total, back, axis=0)
        if method == "average":
            total = g.Div(total, g.number(float(len(trees))))
        return Result(job.target, Column(total, "double"))
    values_matrix = g.Gather(g.number(table), tests.rows(), axis=0)
    numbers = aggregate(job, segmentation, values_matrix, None, weights, method)
    return Result(job.target, Column(numbers, "float" if job.is_single else "double"))


def _classification_forest(
    job: Job, segmentation: Element, tests: Tests, trees: list[Tree], weights: list[float],
    method: str,
) -> Result:  # fmt: skip
    g = job.g
    if method not in (*VOTES, *MEANS):
        raise Refusal(segmentation, f"{method} of a classification is not supported")
    classes = distinct([*job.target.categories, *(c for tree in trees for c in classes_of(tree))])
    treatment = treatment_of(segmentation)
    skips = treatment == "skipSegment"
    if method in VOTES and treatment == "continue":
        return _abstaining_forest(job, tests, trees, weights, classes)
    table = np.array(
        [
            _leaf_shares(leaf, tree.job, classes, method, weight, skips)
            for tree, weight in zip(trees, weights, strict=True)
            for leaf in tree.leaves
        ]
    )
    if (table[:, -1] != 0).all() and len(set(weights)) == 1:
        total, first = vector_sums(g, tests, table[:, :-1], method in VOTES)
        shares = g.Div(total, g.number(float(sum(weights))))
        return _elected(job, classes, shares, first)
    total, first = vector_sums(g, tests, table, method in VOTES)
    places = np.arange(len(classes))
    count = g.Gather(total, np.array([len(classes)]), axis=1)
    shares = g.Div(g.Gather(total, places, axis=1), count)
    return _elected(
        job, classes, shares, None if first is None else g.Gather(first, places, axis=1)
    )


def _abstaining_forest(
    job: Job, tests: Tests, trees: list[Tree], weights: list[float], classes: list[Literal]
) -> Result:
    """Votes in which a tree without a result votes for no result."""
    rows = []
    for tree, weight in zip(trees, weights, strict=True):
        for leaf in tree.leaves:
            shares, _ = distribution(leaf, tree.job, classes)
            place = label_index(leaf, tree.job, classes, shares)
            rows.append(np.eye(len(classes) + 1)[place] * weight)
    total, first = vector_sums(job.g, tests, np.array(rows), True)
    assert first is not None
    return _elected(job, classes, *_without_abstention(job.g, total, first, len(classes)))


def _leaf_shares(
    leaf: Leaf, job: Job, classes: list[Literal], method: str, weight: float, skips: bool
) -> np.ndarray:
    """The shares of the classes in a leaf, and its weight last."""
    shares, _ = distribution(leaf, job, classes)
    if method in VOTES:
        place = label_index(leaf, job, classes, shares)
        shares = np.full(len(classes), np.nan)
        if place < len(classes):
            shares = np.eye(len(classes))[place]
    if skips and np.isnan(shares).any():
        return np.zeros(len(classes) + 1)
    return np.append(shares * weight, weight)


def vector_sums(
    g: Graph, tests: Tests, table: np.ndarray, votes: bool
) -> tuple[ir.Value, ir.Value | None]:
    """The sums of leaf vectors [N, width], tree after tree, as every evaluator adds them.

    With `votes`, also the first tree that has a share in each entry.
    """
    tests.forest.extend_leaves(np.zeros((tests.leaves, 1)))
    x, back = _sorted_rows(g, tests)
    rows = leaf_rows(g, tests.forest, x)
    count = tests.forest.trees
    values = g.const(table)
    total: ir.Value | None = None
    first: ir.Value | None = None
    for start in range(0, count, GATHERED):
        stop = min(start + GATHERED, count)
        part = g.Gather(rows, np.arange(start, stop), axis=1) if stop - start < count else rows
        vectors = g.Gather(values, part, axis=0)
        if votes:
            place = _first_votes(g, vectors)
            here = g.Greater(g.ReduceMax(vectors, [1], keepdims=0), g.number(0.0))
            place = g.Add(place, np.array(start, np.int64))
            place = g.Where(here, place, np.array(count, np.int64))
            first = place if first is None else g.Min(first, place)
        if total is not None:
            vectors = g.Concat(g.Unsqueeze(total, [1]), vectors, axis=1)
        total = g.Gather(g.CumSum(vectors, np.array(1, np.int64)), np.array(-1), axis=1)
    assert total is not None
    if back is not None:
        total = g.Gather(total, back, axis=0)
        first = None if first is None else g.Gather(first, back, axis=0)
    return total, first


def _sorted_rows(g: Graph, tests: Tests) -> tuple[ir.Value, ir.Value | None]:
    """What a forest tests, in the order that is walked fastest, and the place of each row in it."""
    x = tests.inputs()
    sorted_rows = alike_rows(g, tests.forest, x)
    if sorted_rows is None:
        return x, None
    order, back = sorted_rows
    return g.Gather(x, order, axis=0), back
