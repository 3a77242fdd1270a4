"""TreeModel with the strategies weightedConfidence and aggregateNodes.

With these, a row whose predicate is unknown goes down several branches at once. Each leaf gets a
weight for each row, and the result is a sum over leaves.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .document import Element
from .graph import Truth
from .predicates import predicate, predicate_of
from .refusal import Refusal
from .results import Job, Result, class_column, distinct, literal
from .trees import Leaf, distribution, has_score, label_index

STRATEGIES = ("weightedConfidence", "aggregateNodes")
MOST_NODES = 2_000  # each takes some nodes of the graph


class Spread:
    """The leaves of a tree, each with its weight for each row."""

    def __init__(self, job: Job):
        self.job, self.g = job, job.g
        self.aggregates = job.element.get("missingValueStrategy") == "aggregateNodes"
        self.returns_last = job.element.get("noTrueChildStrategy") == "returnLastPrediction"
        self.leaves: list[tuple[Element | None, ir.Value]] = []

    def visit(self, node: Element, weight: ir.Value, last: Element | None) -> None:
        """Hand the weight of a node on to its children."""
        g = self.g
        last = node if has_score(node) else last
        children = node.all("Node")
        if not children:
            self.leaves.append((node if has_score(node) else None, weight))
            return
        truths = [predicate(self.job.scope, predicate_of(c)) for c in children]
        shares, rest = (
            self._aggregated(truths) if self.aggregates else self._weighted(children, truths)
        )
        for child, share in zip(children, shares, strict=True):
            self.visit(child, g.Mul(weight, share), last)
        self.leaves.append((last if self.returns_last else None, g.Mul(weight, self._one(rest))))

    def _one(self, mask: ir.Value) -> ir.Value:
        return self.g.cast(self.g.column(mask), ir.DataType.DOUBLE)

    def _aggregated(self, truths: list[Truth]) -> tuple[list[ir.Value], ir.Value]:
        """Every child up to the first that is known to hold, unless it is known not to."""
        g = self.g
        shares, open_, rest = [], g.const(True), g.const(True)
        for truth in truths:
            possible = g.Not(truth.known_no(g))
            shares.append(self._one(g.And(open_, possible)))
            rest = g.And(rest, g.Not(possible))
            open_ = g.And(open_, g.Not(truth.yes))
        return shares, rest

    def _weighted(
        self, children: list[Element], truths: list[Truth]
    ) -> tuple[list[ir.Value], ir.Value]:
        """The first that holds; if an unknown comes before it, all possible ones by their size."""
        g = self.g
        sizes = [_size(child) for child in children]
        undecided, several = g.const(True), g.const(False)
        alone, possible = [], []
        total = g.number(0.0)
        for truth, size in zip(truths, sizes, strict=True):
            no = truth.known_no(g)
            unknown = g.Not(g.Or(truth.yes, no))
            alone.append(g.And(undecided, truth.yes))
            several = g.Or(several, g.And(undecided, unknown))
            undecided = g.And(undecided, no)
            possible.append(g.Not(no))
            total = g.Add(total, g.Mul(self._one(possible[-1]), g.number(size)))
        shares = []
        for one, other, size in zip(alone, possible, sizes, strict=True):
            part = g.Mul(self._one(g.And(several, other)), g.Div(g.number(size), total))
            part = g.Where(g.IsNaN(part), g.number(0.0), part)
            shares.append(g.Where(one, g.number(1.0), part))
        return shares, undecided


def _size(node: Element) -> float:
    count = node.get("recordCount")
    if count is not None:
        return float(count)
    counts = [i.get("recordCount") for i in node.all("ScoreDistribution")]
    if not counts or any(c is None for c in counts):
        raise Refusal(node, "the strategy for missing values needs a recordCount")
    return sum(float(c) for c in counts)


def weighted_tree(job: Job) -> Result:
    """The result of a classification tree with one of these strategies."""
    g = job.g
    if not job.is_classification:
        raise job.refuse("this missingValueStrategy is one of classifications")
    root = job.element.child("Node")
    if root is None:
        raise job.refuse("the tree has no Node")
    if sum(1 for e in root.walk() if e.tag == "Node") > MOST_NODES:
        raise job.refuse(f"a tree of this missingValueStrategy has at most {MOST_NODES} nodes")
    spread = Spread(job)
    start = predicate(job.scope, predicate_of(root)).yes
    spread.visit(root, g.cast(g.column(start), ir.DataType.DOUBLE), None)
    leaves = [Leaf(node) for node, _ in spread.leaves]
    weights = g.matrix([weight for _, weight in spread.leaves])
    classes = distinct(
        [
            *job.target.categories,
            *(
                literal(job.target, item, item.get("value"))
                for leaf in leaves
                if leaf.node is not None
                for item in leaf.node.all("ScoreDistribution")
            ),
        ]
    )
    return _result(job, spread, leaves, weights, classes)


def _result(job: Job, spread: Spread, leaves, weights, classes) -> Result:  # type: ignore[no-untyped-def]
    g = job.g
    pairs = [distribution(leaf, job, classes) for leaf in leaves]
    probabilities = np.array([p[0] for p in pairs])
    confidences = np.array([p[1] for p in pairs])
    confidences = np.where(np.isnan(confidences), probabilities, confidences)
    labels = [label_index(leaf, job, classes, p[0]) for leaf, p in zip(leaves, pairs, strict=True)]
    if spread.aggregates:
        scale = np.array([0.0 if leaf.node is None else _size_of(leaf.node) for leaf in leaves])
        probabilities = probabilities * scale[:, None]
    void = np.isnan(probabilities).all(axis=1)
    reached_void = g.Greater(g.MatMul(weights, g.const(void.astype(float)[:, None])), g.number(0.0))
    nowhere = g.Equal(g.ReduceSum(weights, [1], keepdims=1), g.number(0.0))
    is_missing = g.Or(reached_void, nowhere)
    shares = g.MatMul(weights, g.const(np.nan_to_num(probabilities)))
    trust = g.MatMul(weights, g.const(np.nan_to_num(confidences)))
    if spread.aggregates:
        shares = g.Div(shares, g.ReduceSum(shares, [1], keepdims=1))
    single = g.Equal(g.ReduceMax(weights, [1], keepdims=0), g.number(1.0))
    only = g.Equal(
        g.ReduceSum(g.cast(g.Greater(weights, g.number(0.0)), ir.DataType.INT64), [1], keepdims=0),
        np.array(1, np.int64),
    )
    alone = g.And(single, only)
    if spread.aggregates:  # counts of several leaves have no confidence of their own
        trust = g.Where(g.Unsqueeze(alone, [1]), trust, shares)
    by_leaf = g.Gather(np.array(labels), g.ArgMax(weights, axis=1, keepdims=0), axis=0)
    index = g.Where(alone, by_leaf, g.ArgMax(trust, axis=1, keepdims=0))
    index = g.Where(g.Squeeze(is_missing, [1]), np.array(-1, np.int64), index)
    nan = g.number(float("nan"))
    return Result(
        job.target,
        class_column(g, job.target, classes, index),
        classes,
        g.Where(is_missing, nan, shares),
        g.Where(is_missing, nan, trust),
    )


def _size_of(node: Element) -> float:
    return sum(float(i.get("recordCount", 0)) for i in node.all("ScoreDistribution"))
