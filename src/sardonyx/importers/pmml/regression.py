"""RegressionModel: sums of products of fields and coefficients, and their normalization."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from .document import Element
from .graph import Column, Graph
from .predicates import threshold
from .refusal import Refusal
from .results import Job, Literal, Result, classified, literal, model, regressed
from .scope import Scope
from .special import arctangent, standard_normal_cdf

CUMULATIVE = ("logit", "probit", "cloglog", "loglog", "cauchit")


@dataclass
class Terms:
    """The terms of all tables: for each column, the coefficients of the tables.

    A coefficient is None where a table does not name the column: then a missing value of it does
    not matter there, as it does with a coefficient of 0.
    """

    tables: int
    intercepts: list[float]
    numeric: dict[int, tuple[ir.Value, list[float | None]]] = field(default_factory=dict)
    categorical: dict[int, tuple[ir.Value, dict[float, list[float]]]] = field(default_factory=dict)

    def add(self, value: ir.Value, table: int, coefficient: float) -> None:
        _, row = self.numeric.setdefault(id(value), (value, [None] * self.tables))
        row[table] = (row[table] or 0.0) + coefficient

    def add_category(self, value: ir.Value, code: float, table: int, coefficient: float) -> None:
        _, rows = self.categorical.setdefault(id(value), (value, {}))
        rows.setdefault(code, [0.0] * self.tables)[table] += coefficient


@model("RegressionModel")
def regression_model(job: Job) -> Result:
    tables = job.element.all("RegressionTable")
    if not tables:
        raise job.refuse("there is no RegressionTable")
    scores = linear(job, tables)
    method = job.element.get("normalizationMethod", "none")
    if not job.is_classification:
        if len(tables) != 1:
            raise job.refuse("a regression has one RegressionTable")
        y = job.g.pick(scores, 0)
        return regressed(job, normalized(job, y, method, regression=True))
    classes = [_category(job, t) for t in tables]
    return classified(job, *probabilities(job, classes, scores, method))


def _category(job: Job, table: Element) -> Literal:
    text = table.get("targetCategory")
    if text is None:
        raise job.refuse("the table has no targetCategory", table)
    return literal(job.target, table, text)


def linear(job: Job, tables: list[Element]) -> ir.Value:
    """The sums of all tables: [N, tables]."""
    g, scope = job.g, job.scope
    terms = Terms(len(tables), [float(t.get("intercept", 0)) for t in tables])
    powers: dict[tuple[int, float], ir.Value] = {}
    for i, table in enumerate(tables):
        for child in table.children:
            if child.tag == "NumericPredictor":
                value = _power(g, scope, child, powers)
                terms.add(value, i, float(child.get("coefficient")))
            elif child.tag == "CategoricalPredictor":
                column = scope.column(child.get("name"), child)
                code = threshold(g, child, column, child.get("value"), "equal")
                value = column.numbers
                terms.add_category(value, code, i, float(child.get("coefficient")))
            elif child.tag == "PredictorTerm":
                terms.add(_product(g, scope, child), i, float(child.get("coefficient")))
            else:
                raise Refusal(child, "this is not an element of a RegressionTable")
    return total(g, terms, job.is_single)


def _power(
    g: Graph, scope: Scope, element: Element, powers: dict[tuple[int, float], ir.Value]
) -> ir.Value:
    column = numeric_column(scope, element, element.get("name"))
    exponent = float(element.get("exponent", 1))
    if exponent == 1:
        return column.numbers
    key = (id(column.numbers), exponent)
    if key not in powers:
        powers[key] = g.Pow(column.numbers, g.number(exponent))
    return powers[key]


def numeric_column(scope: Scope, element: Element, name: str) -> Column:
    column = scope.column(name, element)
    if column.is_text:
        raise Refusal(element, f"field {name!r} is text, where a number is needed")
    return column


def _product(g: Graph, scope: Scope, element: Element) -> ir.Value:
    out: ir.Value | None = None
    for ref in element.all("FieldRef"):
        value = numeric_column(scope, ref, ref.get("field")).numbers
        out = value if out is None else g.Mul(out, value)
    if out is None:
        raise Refusal(element, "the term has no fields")
    return out


def total(g: Graph, terms: Terms, single: bool = False) -> ir.Value:
    """Intercepts and all terms, [N, tables]; a missing number gives a missing sum."""
    if single:
        return _total_single(g, terms)
    out = g.number(np.array([terms.intercepts]))
    if terms.numeric:
        columns = [value for value, _ in terms.numeric.values()]
        coefficients = [row for _, row in terms.numeric.values()]
        weights = np.array([[c or 0.0 for c in row] for row in coefficients], np.float64)
        named = np.array([[c is not None for c in row] for row in coefficients])
        out = g.Add(_product_of(g, g.matrix(columns), weights, named), out)
    for value, rows in terms.categorical.values():
        out = g.Add(out, _looked_up(g, value, rows, terms.tables))
    if not terms.numeric and not terms.categorical:
        assert g.rows is not None
        shape = g.Concat(g.Shape(g.rows), np.array([terms.tables]), axis=0)
        out = g.Expand(out, shape)
    return out


def _product_of(g: Graph, x: ir.Value, weights: np.ndarray, named: np.ndarray) -> ir.Value:
    """Matrix product in which a column that a table does not name may be missing."""
    if named.all():
        return g.MatMul(x, g.const(weights))
    # A field that a table does not name must not make that table's sum missing.
    is_missing = g.IsNaN(x)
    filled = g.Where(is_missing, g.number(0.0), x)
    missing = g.MatMul(g.cast(is_missing, ir.DataType.DOUBLE), g.const(named.astype(float)))
    sums = g.MatMul(filled, g.const(weights))
    return g.Where(g.Greater(missing, g.number(0.0)), g.number(float("nan")), sums)


def _looked_up(g: Graph, value: ir.Value, rows: dict[float, list[float]], tables: int) -> ir.Value:
    """The coefficients of a field's category in each table; none for others and for missing."""
    places = {code: float(i) for i, code in enumerate(rows)}
    place = g.table(g.column(value), places, float(len(rows)))
    table = np.array([*rows.values(), [0.0] * tables], np.float64)
    return g.Gather(g.const(table), g.cast(place, ir.DataType.INT64), axis=0)


def _total_single(g: Graph, terms: Terms) -> ir.Value:
    """The same in floats of 32 bits, term after term."""
    sums = []
    for i in range(terms.tables):
        out = g.number(float(np.float32(terms.intercepts[i])))
        started = terms.intercepts[i] != 0
        for value, row in terms.numeric.values():
            coefficient = row[i]
            if coefficient is not None:
                term = g.single(g.Mul(g.single(value), g.number(float(np.float32(coefficient)))))
                out = g.single(g.Add(out, term)) if started else term
                started = True
        for value, rows in terms.categorical.values():
            picked = {code: [float(np.float32(r[i]))] for code, r in rows.items()}
            term = g.Squeeze(_looked_up(g, value, picked, 1), [1])
            out = g.single(g.Add(out, term))
        sums.append(out)
    return g.matrix(sums)


# -- normalization ----------------------------------------------------------------------


def rounder(job: Job):  # type: ignore[no-untyped-def]
    return job.g.single if job.is_single else (lambda x: x)


def normalized(job: Job, y: ir.Value, method: str, regression: bool = False) -> ir.Value:
    """A normalization that looks at one sum at a time."""
    g, fit = job.g, rounder(job)
    one = g.number(1.0)
    if method in ("none", None):
        return y
    if method == "logit" or (method == "softmax" and regression):
        return fit(g.Div(one, fit(g.Add(one, fit(g.Exp(g.Neg(y)))))))
    if method == "exp" and regression:
        return fit(g.Exp(y))
    if method == "probit":
        return fit(standard_normal_cdf(g, y))
    if method == "cloglog":
        return fit(g.Sub(one, fit(g.Exp(g.Neg(fit(g.Exp(y)))))))
    if method == "loglog":
        return fit(g.Exp(g.Neg(fit(g.Exp(g.Neg(y))))))
    if method == "cauchit":
        angle = g.Mul(arctangent(g, y), g.number(1.0 / math.pi))
        return fit(g.Add(g.number(0.5), angle))
    raise job.refuse(f"normalizationMethod {method} is not supported here")


def softmax(job: Job, y: ir.Value) -> ir.Value:
    g, fit = job.g, rounder(job)
    largest = g.ReduceMax(y, [1], keepdims=1)
    powers = fit(g.Exp(fit(g.Sub(y, largest))))
    return fit(g.Div(powers, _sum_of(job, powers)))


def _sum_of(job: Job, matrix: ir.Value) -> ir.Value:
    g = job.g
    if not job.is_single:
        return g.ReduceSum(matrix, [1], keepdims=1)
    total = g.CumSum(g.cast(matrix, ir.DataType.FLOAT), np.array(1, np.int64))
    last = g.Gather(total, np.array([-1], np.int64), axis=1)
    return g.cast(last, ir.DataType.DOUBLE)


def probabilities(
    job: Job, classes: list[Literal], scores: ir.Value, method: str
) -> tuple[list[Literal], ir.Value]:
    """The probabilities of the classes, [N, classes]."""
    g, fit = job.g, rounder(job)
    count = len(classes)
    if count == 1:
        # One table for two categories: the other one has the rest.
        rest = [c for c in job.target.categories if c != classes[0]]
        if len(rest) != 1:
            raise job.refuse("one RegressionTable needs a target of two categories")
        p = normalized(job, g.pick(scores, 0), method)
        return [classes[0], rest[0]], g.matrix([p, fit(g.Sub(g.number(1.0), p))])
    if method == "softmax":
        if count == 2 and job.element.get("x-binarySoftmax"):
            raise job.refuse("x-binarySoftmax is not supported")
        return classes, softmax(job, scores)
    if method == "simplemax":
        return classes, fit(g.Div(scores, _sum_of(job, scores)))
    if count > 2:
        scores = _all_or_none(g, scores)
    if job.target.optype == "ordinal" and count > 2 and method == "none":
        raise job.refuse("an ordinal target needs a normalizationMethod")
    if job.target.optype == "ordinal" and count > 2:
        return classes, _ordinal(job, normalized(job, scores, method), count)
    if method == "none" and count > 2:
        # The last category has what the others leave.
        first = [g.pick(scores, i) for i in range(count - 1)]
        rest_of = g.number(1.0)
        for column in first:
            rest_of = fit(g.Sub(rest_of, column))
        return classes, g.matrix([*first, rest_of])
    if count == 2:
        p = normalized(job, g.pick(scores, 0), method)
        if method == "none":
            p = g.Where(g.Less(p, g.number(0.0)), g.number(0.0), p)
            p = g.Where(g.Greater(p, g.number(1.0)), g.number(1.0), p)
        return classes, g.matrix([p, fit(g.Sub(g.number(1.0), p))])
    if method != "logit":
        raise job.refuse(f"normalizationMethod {method} needs two categories, or an order")
    shares = normalized(job, scores, method)
    return classes, fit(g.Div(shares, _sum_of(job, shares)))


def _all_or_none(g: Graph, scores: ir.Value) -> ir.Value:
    """The scores, where none of them is missing: without one of them, there is no result."""
    gaps = g.ReduceMax(g.cast(g.IsNaN(scores), ir.DataType.DOUBLE), [1], keepdims=1)
    return g.Where(g.Greater(gaps, g.number(0.0)), g.number(np.nan), scores)


def _ordinal(job: Job, cumulative: ir.Value, count: int) -> ir.Value:
    """Differences of cumulative probabilities; the last category has what is left."""
    g, fit = job.g, rounder(job)
    columns = [g.pick(cumulative, 0)]
    for i in range(1, count - 1):
        columns.append(fit(g.Sub(g.pick(cumulative, i), g.pick(cumulative, i - 1))))
    columns.append(fit(g.Sub(g.number(1.0), g.pick(cumulative, count - 2))))
    return g.matrix(columns)
