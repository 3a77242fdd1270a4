"""TreeModel: nodes as tests of a forest, predicates of several fields as small trees before it.

The children of a node become a chain of tests: the first whose predicate holds is taken. Where a
predicate is unknown, the missing value strategy decides. A compound predicate is evaluated once, by
a tree of its own, whose outcome (1, 0 or missing) is a column that the main trees test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.trees import Forest, leaf_rows

from .document import Element
from .graph import Column, Graph
from .predicates import (
    PREDICATES,
    alternatives_as_sets,
    members,
    predicate,
    predicate_of,
    rank,
    ranks,
    size,
    threshold,
)
from .refusal import Refusal
from .results import (
    Job,
    Literal,
    Result,
    class_column,
    distinct,
    literal,
    model,
)
from .scope import Scope

COMPARISONS = ("lessThan", "lessOrEqual", "greaterThan", "greaterOrEqual", "equal")
OPPOSITES = {
    "lessThan": "greaterOrEqual",
    "lessOrEqual": "greaterThan",
    "greaterThan": "lessOrEqual",
    "greaterOrEqual": "lessThan",
    "equal": "notEqual",
    "notEqual": "equal",
    "isMissing": "isNotMissing",
    "isNotMissing": "isMissing",
    "isIn": "isNotIn",
    "isNotIn": "isIn",
}
STRATEGIES = (
    "none", "lastPrediction", "nullPrediction", "defaultChild",
)  # fmt: skip


class Columns:
    """The columns that a forest tests, each once."""

    def __init__(self, g: Graph):
        self.g = g
        self.values: list[ir.Value] = []
        self.places: dict[int, int] = {}

    def place(self, value: ir.Value) -> int:
        if id(value) not in self.places:
            self.places[id(value)] = len(self.values)
            self.values.append(value)
        return self.places[id(value)]

    def matrix(self) -> ir.Value:
        if not self.values:
            assert self.g.rows is not None
            shape = self.g.Shape(self.g.rows)
            self.values.append(self.g.ConstantOfShape(shape, value=ir.tensor(np.zeros(1))))
        return self.g.matrix(self.values)


class Tests:
    """Predicates as tests in a forest over shared columns."""

    def __init__(self, g: Graph):
        self.g = g
        self.columns = Columns(g)
        self.forest = Forest()
        self.conditions = Forest()  # one tree for each compound predicate: 1, 0 or missing
        self.outcomes = [self.conditions.leaf(v) for v in (1.0, 0.0, np.nan)]
        self.condition_places: dict[Any, int] = {}
        self.order: dict[int, ir.Value] = {}
        self.leaves = 0

    def test(
        self, scope: Scope, element: Element, yes: int, no: int, unknown: int, forest: Forest
    ) -> int:
        """The node that leads to `yes`, `no` or `unknown` as a predicate turns out."""
        if element.tag == "True":
            return yes
        if element.tag == "False":
            return no
        if element.tag == "CompoundPredicate":
            if forest is self.conditions:
                return self._compound(scope, element, yes, no, unknown)
            place = self._condition(scope, element)
            return self._three(
                forest,
                place,
                unknown,
                no,
                lambda y, n, m: forest.test(place, "==", 1.0, y, n, m),
                yes,
            )
        if yes == no == unknown:
            return yes
        column = scope.column(element.get("field"), element)
        return self._simple(element, column, yes, no, unknown, forest)

    def _simple(
        self, element: Element, column: Column, yes: int, no: int, unknown: int, forest: Forest
    ) -> int:
        operator = element.get("operator") or element.get("booleanOperator")
        x = self.g.column(column.numbers)
        if element.tag == "SimpleSetPredicate":
            place = self._whole(column, x, forest)
            values = members(self.g, element, column)
            if operator == "isNotIn":
                yes, no = no, yes
            elif operator != "isIn":
                raise Refusal(element, f"booleanOperator {operator} is not one of PMML")
            return self._three(
                forest, place, unknown, no,
                lambda y, n, m: forest.member(place, values, y, n, m), yes,
            )  # fmt: skip
        if operator in ("isMissing", "isNotMissing"):
            place = self.columns.place(x)
            present, missing = (no, yes) if operator == "isMissing" else (yes, no)
            return present if present == missing else forest.present(place, present, missing)
        if operator == "notEqual":
            operator, yes, no = "equal", no, yes
        if operator not in COMPARISONS:
            raise Refusal(element, f"operator {operator} is not one of PMML")
        place, value = self._threshold(element, column, x, operator)
        mode = "==" if operator == "equal" else "<="
        # onnxruntime is quickest where all comparisons are of one kind.
        if operator in ("greaterThan", "greaterOrEqual"):
            yes, no = no, yes
        if operator in ("lessThan", "greaterOrEqual"):
            value = float(np.nextafter(value, -np.inf))
        return self._three(
            forest, place, unknown, no,
            lambda y, n, m: forest.test(place, mode, value, y, n, m), yes,
        )  # fmt: skip

    def _threshold(
        self, element: Element, column: Column, x: ir.Value, operator: str
    ) -> tuple[int, float]:
        text = element.get("value")
        if operator == "equal" or (column.order is None and not column.is_text):
            value = threshold(self.g, element, column, text, operator)
            return self.columns.place(x), value
        if column.order is None:
            raise Refusal(element, "text has no order to compare by")
        if id(x) not in self.order:
            self.order[id(x)] = ranks(self.g, column)
        place = self.columns.place(self.order[id(x)])
        return place, rank(self.g, element, column, text)

    def _whole(self, column: Column, x: ir.Value, forest: Forest) -> int:
        place = self.columns.place(x)
        if column.is_text or column.dtype in ("integer", "boolean"):
            forest.whole.add(place)
        return place

    def _three(
        self,
        forest: Forest,
        place: int,
        unknown: int,
        no: int,
        build: Callable[[int, int, bool], int],
        yes: int,
    ) -> int:
        """A test with three outcomes: of two, or with a test behind it whether a value is there."""
        if yes == no:
            return yes if unknown == yes else forest.present(place, yes, unknown)
        if unknown == yes:
            return build(yes, no, True)
        if unknown == no:
            return build(yes, no, False)
        # Who passes the test has a value: only the others are asked.
        return build(yes, forest.present(place, no, unknown), False)

    # -- compound predicates ---------------------------------------------------------

    def _condition(self, scope: Scope, element: Element) -> int:
        """The column of a compound predicate's outcome, a high number until columns are known."""
        key = self._key(scope, element)
        if key in self.condition_places:
            return self.condition_places[key]
        element = alternatives_as_sets(element)
        if size(element) > SMALL:
            truth, g = predicate(scope, element), self.g
            no_or_unknown = g.Where(truth.known_no(g), g.number(0.0), g.number(np.nan))
            outcome = g.column(g.Where(truth.yes, g.number(1.0), no_or_unknown))
            self.condition_places[key] = self.columns.place(outcome)
        else:
            yes, no, unknown = self.outcomes
            root = self._compound(scope, element, yes, no, unknown)
            self.condition_places[key] = CONDITIONS + self.conditions.trees
            self.conditions.tree(root)
        return self.condition_places[key]

    def _key(self, scope: Scope, element: Element) -> Any:
        if element.tag == "CompoundPredicate":
            parts = tuple(self._key(scope, c) for c in element.all(*PREDICATES))
            return (element.get("booleanOperator"), parts)
        column = scope.find(element.get("field"))
        entries = element.child("Array")
        return (
            element.tag,
            id(column.numbers) if column is not None else None,
            element.get("operator") or element.get("booleanOperator"),
            element.get("value") if entries is None else entries.text,
        )

    def _compound(self, scope: Scope, element: Element, yes: int, no: int, unknown: int) -> int:
        parts = element.all(*PREDICATES)
        operator = element.get("booleanOperator")
        if operator not in ("and", "or", "xor", "surrogate") or not parts:
            raise Refusal(element, f"booleanOperator {operator} is not one of PMML")
        return self._chain(scope, operator, parts, yes, no, unknown)

    def _chain(
        self, scope: Scope, operator: str, parts: list[Element], yes: int, no: int, unknown: int
    ) -> int:
        first, rest = parts[0], parts[1:]
        if not rest:
            return self.test(scope, first, yes, no, unknown, self.conditions)

        def more(y: int, n: int, u: int) -> int:
            return self._chain(scope, operator, rest, y, n, u)

        if operator == "and":
            outcomes = more(yes, no, unknown), no, more(unknown, no, unknown)
        elif operator == "or":
            outcomes = yes, more(yes, no, unknown), more(yes, unknown, unknown)
        elif operator == "xor":
            outcomes = more(no, yes, unknown), more(yes, no, unknown), unknown
        else:
            outcomes = yes, no, more(yes, no, unknown)
        return self.test(scope, first, *outcomes, self.conditions)

    # -- the end ---------------------------------------------------------------------

    def leaf(self) -> int:
        """A new leaf of the main forest; leaves get their values when the forest is complete."""
        self.leaves += 1
        return ~(self.leaves - 1)

    def rows(self) -> ir.Value:
        """The row of the leaf table that each tree reaches: int64 [N, trees]."""
        self.forest.extend_leaves(np.zeros((self.leaves, 1)))
        x = self.inputs()
        return leaf_rows(self.g, self.forest, x)

    def inputs(self) -> ir.Value:
        """The matrix that the forest tests: columns, then outcomes of compound predicates."""
        x = self.columns.matrix()
        if not self.conditions.trees:
            return x
        width = len(self.columns.values)
        table = self.g.number(self.conditions.leaves[:, 0])
        outcomes = self.g.Gather(table, leaf_rows(self.g, self.conditions, x), axis=0)
        self.forest.move_columns(CONDITIONS, width)
        return self.g.Concat(x, outcomes, axis=1)


CONDITIONS = 2**40  # columns from here on are outcomes of compound predicates
SMALL = 8  # predicates; a tree of more of them would have copies of each in all outcomes before it


@dataclass
class Leaf:
    """What a row of the leaf table stands for: a node that gives a result, or none."""

    node: Element | None
    penalty: float = 1.0


@dataclass
class Tree:
    """One TreeModel in the forest: its leaves, as rows of the leaf table."""

    job: Job
    first: int
    leaves: list[Leaf] = field(default_factory=list)


class Grower:
    """Turns the nodes of one TreeModel into tests."""

    def __init__(self, job: Job, tests: Tests):
        self.job, self.scope, self.tests = job, job.scope, tests
        self.forest = tests.forest
        element = job.element
        self.strategy = element.get("missingValueStrategy", "none")
        self.no_true = element.get("noTrueChildStrategy", "returnNullPrediction")
        self.penalty = float(element.get("missingValuePenalty", 1.0))
        if self.strategy not in STRATEGIES:
            raise Refusal(element, f"missingValueStrategy {self.strategy} is not supported")
        if self.no_true not in ("returnNullPrediction", "returnLastPrediction"):
            raise Refusal(element, f"noTrueChildStrategy {self.no_true} is not one of PMML")
        self.tree = Tree(job, 0)
        self.rows: dict[tuple[int, float], int] = {}
        self.grown: dict[tuple[int, float, frozenset[str]], int] = {}

    def grow(self) -> Tree:
        root = self.job.element.child("Node")
        if root is None:
            raise Refusal(self.job.element, "the tree has no Node")
        null = self.leaf(None, 1.0)
        top = self.node(root, None, 1.0, frozenset())
        top = self.tests.test(self.scope, predicate_of(root), top, null, null, self.forest)
        self.forest.tree(top)
        return self.tree

    def leaf(self, node: Element | None, penalty: float) -> int:
        key = (id(node), penalty)
        if key not in self.rows:
            self.rows[key] = self.tests.leaf()
            self.tree.leaves.append(Leaf(node, penalty))
            if len(self.tree.leaves) == 1:
                self.tree.first = ~self.rows[key]
        return self.rows[key]

    def node(
        self, node: Element, last: Element | None, penalty: float, present: frozenset[str]
    ) -> int:
        """The tests below a node.

        last     -- the nearest node around it that has a score
        present  -- fields that are known not to be missing
        """
        key = (id(node), penalty, present)
        if key not in self.grown:
            self.grown[key] = self._grown(node, last, penalty, present)
        return self.grown[key]

    def _grown(
        self, node: Element, last: Element | None, penalty: float, present: frozenset[str]
    ) -> int:
        if node.child("Regression", "DecisionTree") is not None:
            raise Refusal(node, "a model in a node of a tree is not supported")
        children = node.all("Node")
        last = node if has_score(node) else last
        if not children:
            return self.leaf(node if has_score(node) else None, penalty)
        default = self._default(node, children)
        predicates = [predicate_of(c) for c in children]
        below = {}
        for child, test in zip(children, predicates, strict=True):
            below[id(child)] = self.node(child, last, penalty, self._known(test, present))
        fall = self.leaf(last if self.no_true == "returnLastPrediction" else None, penalty)
        unknown = self._unknown(default, last, below, penalty, present)
        if all(p.get("field") in present for p in predicates):
            return self._present_tests(children, predicates, below, fall)
        return self._tests(children, predicates, below, fall, unknown, default)

    def _known(self, predicate: Element, present: frozenset[str]) -> frozenset[str]:
        """The fields that are not missing in a child; the default child may be reached without."""
        field = predicate.get("field")
        if self.strategy == "defaultChild" or field is None or field in present:
            return present
        return present if predicate.get("operator") == "isMissing" else present | {field}

    def _present_tests(
        self,
        children: list[Element],
        predicates: list[Element],
        below: dict[int, int],
        fall: int,
    ) -> int:
        """A chain of tests of fields that are not missing."""
        if len(children) == 2 and _is_opposite(*predicates):
            first, second = (below[id(c)] for c in children)
            return self._put(predicates[0], first, second, None)
        following = fall
        for child, test in zip(reversed(children), reversed(predicates), strict=True):
            following = self._put(test, below[id(child)], following, None)
        return following

    def _default(self, node: Element, children: list[Element]) -> Element | None:
        if self.strategy != "defaultChild":
            return None
        name = node.get("defaultChild")
        return next((c for c in children if name is not None and c.get("id") == name), None)

    def _unknown(
        self,
        default: Element | None,
        last: Element | None,
        below: dict[int, int],
        penalty: float,
        present: frozenset[str],
    ) -> int | None:
        """Where an unknown predicate leads; None: to the next child."""
        if self.strategy == "none":
            return None
        if self.strategy == "lastPrediction":
            return self.leaf(last, penalty)
        if default is None:
            return self.leaf(None, penalty)
        if self.penalty != 1.0:
            return self.node(default, last, penalty * self.penalty, present)
        return below[id(default)]

    def _tests(
        self,
        children: list[Element],
        predicates: list[Element],
        below: dict[int, int],
        fall: int,
        unknown: int | None,
        default: Element | None,
    ) -> int:
        """A chain of tests; `unknown` is where a missing value leads, None: to the next test."""
        if len(children) == 2 and _is_opposite(*predicates):
            first, second = (below[id(c)] for c in children)
            return self._put(predicates[0], first, second, fall if unknown is None else unknown)
        alike = _same_field(predicates)
        passes = alike and default is not None and self.penalty == 1.0
        following = fall
        for i in reversed(range(len(children))):
            there = below[id(children[i])]
            missing = unknown
            if passes:
                # A missing value passes every test but that of the default child.
                missing = there if children[i] is default else None
            elif alike and i:
                missing = None  # the first test has seen it
            following = self._put(predicates[i], there, following, missing)
        return following

    def _put(self, test: Element, yes: int, no: int, unknown: int | None) -> int:
        unknown = no if unknown is None else unknown
        return self.tests.test(self.scope, test, yes, no, unknown, self.forest)


def _same_field(predicates: list[Element]) -> bool:
    """Whether all of them are unknown together: simple, on one field, and none asks if missing."""
    fields = {p.get("field") for p in predicates}
    asks = any(p.get("operator") in ("isMissing", "isNotMissing") for p in predicates)
    return len(fields) == 1 and None not in fields and not asks


def _is_opposite(a: Element, b: Element) -> bool:
    """Whether one predicate holds exactly where the other one is known not to hold."""
    if a.tag == b.tag == "CompoundPredicate":
        pairs = [e.all(*PREDICATES) for e in (a, b)]
        if any(e.get("booleanOperator") != "surrogate" for e in (a, b)):
            return False
        return len(pairs[0]) == len(pairs[1]) and all(map(_is_opposite, *pairs))
    if a.tag != b.tag or a.get("field") is None or a.get("field") != b.get("field"):
        return False
    operators = [p.get("operator") or p.get("booleanOperator") for p in (a, b)]
    if OPPOSITES.get(operators[0]) != operators[1]:
        return False
    arrays = [p.child("Array") for p in (a, b)]
    if arrays[0] is not None and arrays[1] is not None:
        return arrays[0].text.split() == arrays[1].text.split()
    return a.get("value") == b.get("value")


def has_score(node: Element) -> bool:
    return node.get("score") is not None or node.child("ScoreDistribution") is not None


# -- what the leaves hold -------------------------------------------------------------


def scores(tree: Tree) -> np.ndarray:
    """The numbers that the leaves of a regression tree give."""
    values = []
    for leaf in tree.leaves:
        text = leaf.node.get("score") if leaf.node is not None else None
        values.append(np.nan if text is None else float(text))
    array = np.array(values, np.float64)
    return array.astype(np.float32).astype(np.float64) if tree.job.is_single else array


def classes_of(tree: Tree) -> list[Literal]:
    """The categories that a tree can give, in the order of the target or of the document."""
    target = tree.job.target
    names: list[Literal] = list(target.categories)
    for leaf in tree.leaves:
        if leaf.node is None:
            continue
        for item in leaf.node.all("ScoreDistribution"):
            names.append(literal(target, item, item.get("value")))
        if leaf.node.get("score") is not None:
            names.append(literal(target, leaf.node, leaf.node.get("score")))
    return distinct(names)


def distribution(leaf: Leaf, job: Job, classes: list[Literal]) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities and confidences of a node; NaN where it has none."""
    probability = np.full(len(classes), np.nan)
    confidence = np.full(len(classes), np.nan)
    items = leaf.node.all("ScoreDistribution") if leaf.node is not None else []
    if not items:
        return probability, confidence
    places = {c: i for i, c in enumerate(classes)}
    probability[:] = 0.0
    counts = np.array([float(i.get("recordCount", 0)) for i in items])
    total = counts.sum()
    probabilities = [i.get("probability") for i in items]
    for item, count, text in zip(items, counts, probabilities, strict=True):
        place = places[literal(job.target, item, item.get("value"))]
        if any(t is not None for t in probabilities):
            probability[place] = float(text or 0)
        else:
            probability[place] = count / total if total else np.nan
        if any(i.get("confidence") is not None for i in items):
            confidence[place] = float(item.get("confidence", 0)) * leaf.penalty
    return probability, confidence


def label_index(leaf: Leaf, job: Job, classes: list[Literal], probability: np.ndarray) -> int:
    """The place of a node's category; the last place but one is none."""
    if leaf.node is None:
        return len(classes)
    text = leaf.node.get("score")
    if text is not None:
        return classes.index(literal(job.target, leaf.node, text))
    if np.isnan(probability).all():
        return len(classes)
    return int(np.nanargmax(probability))


@model("TreeModel")
def tree_model(job: Job) -> Result:
    """The result of one tree."""
    from .weighted_trees import STRATEGIES as WEIGHTED
    from .weighted_trees import weighted_tree

    if job.element.get("missingValueStrategy") in WEIGHTED:
        return weighted_tree(job)
    g, tests = job.g, Tests(job.g)
    tree = Grower(job, tests).grow()
    row = g.Sub(g.pick(tests.rows(), 0), np.array(tree.first, np.int64))
    ids = [_entity(leaf) for leaf in tree.leaves]
    codes = np.array([np.nan if i is None else g.code(i) for i in ids], np.float64)
    names = tuple(i for i in ids if i is not None)
    entity = Column(g.Gather(g.const(codes), row, axis=0), "string", finite=names)
    if not job.is_classification:
        value = g.Gather(g.const(scores(tree)), row, axis=0)
        kind = "float" if job.is_single else "double"
        return Result(job.target, Column(value, kind), entity=entity, entities=list(names))
    classes = classes_of(tree)
    pairs = [distribution(leaf, job, classes) for leaf in tree.leaves]
    labels = [
        label_index(leaf, job, classes, pair[0])
        for leaf, pair in zip(tree.leaves, pairs, strict=True)
    ]
    index = g.Gather(g.const(np.array(labels, np.int64)), row, axis=0)
    value_column = class_column(g, job.target, classes, index)
    confidences = np.array([p[1] for p in pairs])
    has_confidences = not np.isnan(confidences).all()
    return Result(
        job.target,
        value_column,
        classes,
        g.Gather(g.const(np.array([p[0] for p in pairs])), row, axis=0),
        g.Gather(g.const(confidences), row, axis=0) if has_confidences else None,
        entity=entity,
        entities=list(names),
    )


def _entity(leaf: Leaf) -> str | None:
    return leaf.node.get("id") if leaf.node is not None else None
