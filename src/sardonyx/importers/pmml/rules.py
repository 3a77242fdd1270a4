"""RuleSetModel: rules that fire, and how one score is chosen among theirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .document import Element
from .graph import Column, Graph, Truth
from .predicates import both, predicate, predicate_of
from .refusal import Refusal
from .results import Job, Literal, Result, class_column, distinct, literal, model


@dataclass
class Rule:
    element: Element
    fires: ir.Value


@model("RuleSetModel")
def rule_set_model(job: Job) -> Result:
    rule_set = job.element.child("RuleSet")
    if rule_set is None:
        raise job.refuse("there is no RuleSet")
    if not job.is_classification:
        raise job.refuse("a rule set that is no classification is not supported")
    methods = rule_set.all("RuleSelectionMethod")
    criterion = methods[0].get("criterion") if methods else "firstHit"
    rules = _rules(job, rule_set, None)
    scores = [literal(job.target, r.element, r.element.get("score")) for r in rules]
    default = rule_set.get("defaultScore")
    fallback = None if default is None else literal(job.target, rule_set, default)
    classes = distinct([*job.target.categories, *scores, *([] if fallback is None else [fallback])])
    if criterion == "firstHit":
        return _first_hit(job, rule_set, rules, scores, classes, fallback)
    if criterion in ("weightedSum", "weightedMax"):
        return _weighted(job, rule_set, rules, scores, classes, fallback, criterion)
    raise Refusal(rule_set, f"criterion {criterion} is not one of PMML")


def _rules(job: Job, holder: Element, around: Truth | None) -> list[Rule]:
    """The simple rules in order, each with all predicates around it."""
    out = []
    for element in holder.all("SimpleRule", "CompoundRule"):
        truth = predicate(job.scope, predicate_of(element))
        if around is not None:
            truth = both(job.g, around, truth)
        if element.tag == "SimpleRule":
            out.append(Rule(element, job.g.column(truth.yes)))
        else:
            out += _rules(job, element, truth)
    return out


def _first_hit(
    job: Job,
    rule_set: Element,
    rules: list[Rule],
    scores: list[Literal],
    classes: list[Literal],
    fallback: Literal | None,
) -> Result:
    g = job.g
    place: ir.Value = g.const(np.array(len(rules), np.int64))
    for i in reversed(range(len(rules))):
        place = g.Where(rules[i].fires, np.array(i, np.int64), place)
    place = g.column(place)
    last = len(classes) if fallback is None else classes.index(fallback)
    labels = [classes.index(s) for s in scores] + [last]
    value = class_column(g, job.target, classes, g.Gather(np.array(labels), place, axis=0))
    default = float(rule_set.get("defaultConfidence", "nan"))
    confidences = _confidences(job, rules, scores, classes)
    if fallback is not None:
        nobody = g.Equal(place, np.array(len(rules), np.int64))
        row = np.zeros((1, len(classes)))
        row[0, last] = default
        confidences = g.Where(g.Unsqueeze(nobody, [1]), g.number(row), confidences)
    ids = [r.element.get("id") or str(i + 1) for i, r in enumerate(rules)]
    codes = [*(g.code(i) for i in ids), np.nan]
    entity = Column(g.Gather(g.number(codes), place, axis=0), "string", finite=tuple(ids))
    return Result(job.target, value, classes, confidences, confidences, entity=entity, entities=ids)


def _confidences(
    job: Job, rules: list[Rule], scores: list[Literal], classes: list[Literal]
) -> ir.Value:
    """For each category, the confidence of the first rule for it that fires."""
    g = job.g
    columns = []
    for category in classes:
        out = g.number(0.0)
        for rule, score in zip(reversed(rules), reversed(scores), strict=True):
            if score == category:
                trust = g.number(float(rule.element.get("confidence", 1)))
                out = g.Where(rule.fires, trust, out)
        columns.append(out)
    return g.matrix(columns)


def _weighted(
    job: Job,
    rule_set: Element,
    rules: list[Rule],
    scores: list[Literal],
    classes: list[Literal],
    fallback: Literal | None,
    criterion: str,
) -> Result:
    """The category with the largest sum of weights, or with the largest weight."""
    g = job.g
    fires = g.matrix([r.fires for r in rules])
    weights = np.zeros((len(rules), len(classes)))
    for i, (rule, score) in enumerate(zip(rules, scores, strict=True)):
        weights[i, classes.index(score)] = float(rule.element.get("weight", 1))
    wide = g.Where(g.Unsqueeze(fires, [2]), g.number(weights[None]), g.number(0.0))
    if criterion == "weightedSum":
        # Rule after rule, because sums that are equal but for their rounding would decide.
        totals = g.Gather(g.CumSum(wide, np.array(1, np.int64)), np.array(-1), axis=1)
        count = g.ReduceSum(g.cast(fires, ir.DataType.DOUBLE), [1], keepdims=1)
        confidences = g.Div(totals, count)
        index = _first_of_largest(g, fires, totals, weights != 0)
    else:
        # The confidence is that of the rule that was taken, which its weight need not equal.
        order = np.argsort(-weights.sum(1), kind="stable")
        confidences = _confidences(
            job, [rules[i] for i in order], [scores[i] for i in order], classes
        )
        ranking = g.Where(fires, g.number(weights.sum(1)[None]), g.number(-np.inf))
        labels = np.array([classes.index(score) for score in scores])
        index = g.Gather(labels, g.ArgMax(ranking, axis=1, keepdims=0), axis=0)
    fired = g.Greater(
        g.ReduceMax(g.cast(fires, ir.DataType.DOUBLE), [1], keepdims=0), g.number(0.0)
    )
    last = -1 if fallback is None else classes.index(fallback)
    value = class_column(g, job.target, classes, g.Where(fired, index, np.array(last, np.int64)))
    default = np.zeros((1, len(classes)))
    if fallback is not None:
        default[0, last] = float(rule_set.get("defaultConfidence", "nan"))
    confidences = g.Where(g.Unsqueeze(fired, [1]), confidences, g.number(default))
    return Result(job.target, value, classes, confidences, confidences)


def _first_of_largest(g: Graph, fires: ir.Value, totals: ir.Value, owners: np.ndarray) -> ir.Value:
    """The category with the largest sum; of equals, the one whose rule fires first."""
    votes = g.And(g.Unsqueeze(fires, [2]), g.const(owners[None]))
    first = g.ArgMax(g.cast(votes, ir.DataType.INT64), axis=1, keepdims=0)
    largest = g.Equal(totals, g.ReduceMax(totals, [1], keepdims=1))
    order = g.Neg(g.cast(first, ir.DataType.DOUBLE))
    return g.ArgMax(g.Where(largest, order, g.number(-np.inf)), axis=1, keepdims=0)
