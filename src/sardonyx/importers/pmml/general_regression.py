"""GeneralRegressionModel: parameters of factors and covariates, link functions, categories."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .cox import cox_regression
from .document import Element, reals
from .graph import Graph
from .predicates import threshold
from .refusal import Refusal
from .regression import CUMULATIVE, Terms, normalized, numeric_column, softmax, total
from .results import Job, Literal, Result, classified, distinct, literal, model, regressed

LINEAR = ("regression", "generalLinear")
TYPES = (*LINEAR, "generalizedLinear", "multinomialLogistic", "logisticRegression",
         "ordinalMultinomial")  # fmt: skip


@dataclass
class Cell:
    """A beta: of one target category, or of all (None)."""

    category: str | None
    parameter: str
    beta: float


@model("GeneralRegressionModel")
def general_regression_model(job: Job) -> Result:
    kind = job.element.get("modelType")
    if kind not in (*TYPES, "CoxRegression"):
        raise job.refuse(f"modelType {kind} is not one of PMML")
    cells = _cells(job)
    if kind == "CoxRegression":
        eta = job.g.pick(_sums(job, cells, [None]), 0)
        return cox_regression(job, eta, _reference_point(job, cells))
    if not job.is_classification:
        eta = job.g.pick(_sums(job, cells, [None]), 0)
        if kind in LINEAR:  # these have neither an offset nor trials
            return regressed(job, eta)
        if kind == "generalizedLinear":
            eta = _offset(job, eta)
        return regressed(job, _trials(job, linked(job, eta, job.element.get("linkFunction"))))
    if kind == "ordinalMultinomial":
        return _ordinal(job, cells)
    return _categories(job, cells, kind)


def _reference_point(job: Job, cells: list[Cell]) -> float:
    """The linear predictor at the reference points of the parameters."""
    holder = job.element.child("ParameterList")
    points = {
        p.get("name"): float(p.get("referencePoint", 0))
        for p in (holder.all("Parameter") if holder is not None else ())
    }
    return sum(cell.beta * points.get(cell.parameter, 0.0) for cell in cells)


def _cells(job: Job) -> list[Cell]:
    matrix = job.element.child("ParamMatrix")
    if matrix is None:
        raise job.refuse("there is no ParamMatrix")
    cells = [
        Cell(c.get("targetCategory"), c.get("parameterName"), float(c.get("beta")))
        for c in matrix.all("PCell")
    ]
    return cells


def _sums(job: Job, cells: list[Cell], categories: list[str | None]) -> ir.Value:
    """The linear predictor of each category: [N, categories]."""
    values = _parameters(job)
    terms = Terms(len(categories), [0.0] * len(categories))
    for cell in cells:
        for i, category in enumerate(categories):
            if cell.category is not None and category is not None and cell.category != category:
                continue
            value = values.get(cell.parameter)
            if value is None:
                terms.intercepts[i] += cell.beta
            else:
                terms.add(value, i, cell.beta)
    return total(job.g, terms)


def _parameters(job: Job) -> dict[str, ir.Value]:
    """The value of each parameter that depends on predictors: a product over its cells."""
    g, element = job.g, job.element
    factors = {p.get("name"): p for p in _predictors(element, "FactorList")}
    covariates = {p.get("name") for p in _predictors(element, "CovariateList")}
    matrix = element.child("PPMatrix")
    parts: dict[tuple[str, str], ir.Value] = {}
    hits: dict[str, ir.Value] = {}
    powers: dict[str, ir.Value] = {}
    for cell in matrix.all("PPCell") if matrix is not None else ():
        name, text = cell.get("predictorName"), cell.get("value")
        key = (name, text)
        is_factor = name in factors
        if key not in parts:
            if is_factor:
                parts[key] = _factor(job, factors[name], cell)
            elif name in covariates or not (factors or covariates):
                parts[key] = _covariate(job, cell)
            else:
                raise Refusal(cell, f"predictor {name!r} is neither a factor nor a covariate")
        products, parameter = hits if is_factor else powers, cell.get("parameterName")
        before = products.get(parameter)
        products[parameter] = parts[key] if before is None else g.Mul(before, parts[key])
    return {name: _product(g, hits.get(name), powers.get(name)) for name in {**hits, **powers}}


def _product(g: Graph, hit: ir.Value | None, power: ir.Value | None) -> ir.Value:
    """Factors times covariates; where the factors give 0, a missing covariate does not matter."""
    if hit is None or power is None:
        value = hit if hit is not None else power
        assert value is not None
        return value
    return g.Where(g.Equal(hit, g.number(0.0)), hit, g.Mul(hit, power))


def _predictors(element: Element, name: str) -> list[Element]:
    holder = element.child(name)
    return holder.all("Predictor") if holder is not None else []


def _factor(job: Job, predictor: Element, cell: Element) -> ir.Value:
    g = job.g
    column = job.scope.column(cell.get("predictorName"), cell)
    if predictor.child("Matrix") is not None:
        return _contrast(job, predictor, cell)
    code = threshold(g, cell, column, cell.get("value"), "equal")
    hit = g.Where(g.Equal(column.numbers, g.number(code)), g.number(1.0), g.number(0.0))
    return g.Where(g.IsNaN(column.numbers), g.number(float("nan")), hit)


def _contrast(job: Job, predictor: Element, cell: Element) -> ir.Value:
    """The entry of the contrast matrix at the row of the category and the column of the cell."""
    g = job.g
    column = job.scope.column(cell.get("predictorName"), cell)
    categories = predictor.child("Categories")
    matrix = predictor.child("Matrix")
    assert matrix is not None
    if categories is None:
        raise Refusal(predictor, "a contrast matrix needs Categories")
    names = [c.get("value") for c in categories.all("Category")]
    rows = [reals(a) for a in matrix.all("Array")]
    if cell.get("value") not in names or len(rows) != len(names):
        raise Refusal(cell, "the contrast matrix does not fit its categories")
    at = names.index(cell.get("value"))
    codes = [threshold(g, cell, column, n, "equal") for n in names]
    entries = {code: row[at] for code, row in zip(codes, rows, strict=True)}
    entries[float("nan")] = float("nan")
    return g.table(g.column(column.numbers), entries, 0.0)


def _covariate(job: Job, cell: Element) -> ir.Value:
    column = numeric_column(job.scope, cell, cell.get("predictorName"))
    exponent = float(cell.get("value"))
    if exponent == 1:
        return column.numbers
    return job.g.Pow(column.numbers, job.g.number(exponent))


def _offset(job: Job, eta: ir.Value) -> ir.Value:
    g, element = job.g, job.element
    if element.get("offsetVariable") is not None:
        name = element.get("offsetVariable")
        return g.Add(eta, numeric_column(job.scope, element, name).numbers)
    if element.get("offsetValue") is not None:
        return g.Add(eta, g.number(float(element.get("offsetValue"))))
    return eta


def _trials(job: Job, out: ir.Value) -> ir.Value:
    g, element = job.g, job.element
    if element.get("trialsVariable") is not None:
        name = element.get("trialsVariable")
        return g.Mul(out, numeric_column(job.scope, element, name).numbers)
    if element.get("trialsValue") is not None:
        return g.Mul(out, g.number(float(element.get("trialsValue"))))
    return out


def linked(job: Job, eta: ir.Value, link: str | None) -> ir.Value:
    """The inverse of a link function."""
    g, one = job.g, job.g.number(1.0)
    if link is None or link == "identity":
        return eta
    if link in CUMULATIVE and link != "cauchit":
        return normalized(job, eta, link)
    parameter = job.element.get("linkParameter")
    if link == "log":
        return g.Exp(eta)
    if link == "logc":
        return g.Sub(one, g.Exp(eta))
    if link == "negbin":
        c = float(job.element.get("distParameter", "nan"))
        return g.Div(one, g.Mul(g.number(c), g.Sub(g.Exp(g.Neg(eta)), one)))
    if parameter is None:
        raise job.refuse(f"linkFunction {link} is not supported without linkParameter")
    d = float(parameter)
    if link == "power":
        return g.Exp(eta) if d == 0 else g.Pow(eta, g.number(1.0 / d))
    if link == "oddspower":
        if d == 0:
            return normalized(job, eta, "logit")
        base = g.Pow(g.Add(one, g.Mul(g.number(d), eta)), g.number(-1.0 / d))
        return g.Div(one, g.Add(one, base))
    raise job.refuse(f"linkFunction {link} is not one of PMML")


# -- categories --------------------------------------------------------------------------


def _literals(job: Job, texts: list[str]) -> list[Literal]:
    return [literal(job.target, job.element, text) for text in texts]


def _reference(job: Job, categories: list[Literal]) -> Literal | None:
    """The category that no beta names: declared, or the one that is left over."""
    text = job.element.get("targetReferenceCategory")
    if text is not None:
        return literal(job.target, job.element, text)
    rest = [c for c in job.target.categories if c not in categories]
    if len(rest) > 1:
        raise job.refuse("the reference category of the target is not clear")
    return rest[0] if rest else None


def _categories(job: Job, cells: list[Cell], kind: str) -> Result:
    g: Graph = job.g
    texts = distinct([c.category for c in cells if c.category is not None])
    reference = _reference(job, _literals(job, texts))
    texts = [t for t in texts if literal(job.target, job.element, t) != reference]
    if not texts:
        rest = [c for c in job.target.categories if c != reference]
        if len(rest) != 1 or reference is None:
            raise job.refuse("the betas name no category of the target")
        stated, keys = [rest[0]], [None]
    else:
        stated, keys = _literals(job, texts), list(texts)  # type: ignore[assignment]
    eta = _sums(job, cells, keys)  # type: ignore[arg-type]
    if kind == "generalizedLinear":
        eta = _offset_all(job, eta)
        if len(stated) != 1 or reference is None:
            raise job.refuse("a generalized linear classification has two categories")
        p = linked(job, g.pick(eta, 0), job.element.get("linkFunction"))
        both = {stated[0]: p, reference: g.Sub(g.number(1.0), p)}
        return _in_order(job, both)
    if any(job.element.get(name) is not None for name in ("offsetVariable", "offsetValue")):
        raise job.refuse("an offset of a multinomial model is not read alike everywhere")
    columns = {c: g.pick(eta, i) for i, c in enumerate(stated)}
    if reference is not None:
        first = columns[stated[0]]
        columns[reference] = g.Mul(first, g.number(0.0))
    classes = _order(job, list(columns))
    return classified(job, classes, softmax(job, g.matrix([columns[c] for c in classes])))


def _order(job: Job, classes: list[Literal]) -> list[Literal]:
    categories = [c for c in job.target.categories if c in classes]
    return categories + [c for c in classes if c not in categories]


def _in_order(job: Job, columns: dict[Literal, ir.Value]) -> Result:
    classes = _order(job, list(columns))
    return classified(job, classes, job.g.matrix([columns[c] for c in classes]))


def _offset_all(job: Job, eta: ir.Value) -> ir.Value:
    g, element = job.g, job.element
    if element.get("offsetVariable") is not None:
        offset = numeric_column(job.scope, element, element.get("offsetVariable")).numbers
        return g.Add(eta, g.Unsqueeze(offset, [1]))
    return _offset(job, eta)


def _ordinal(job: Job, cells: list[Cell]) -> Result:
    """Cumulative probabilities of the categories in their order; the last one has the rest."""
    g = job.g
    texts = distinct([c.category for c in cells if c.category is not None])
    literals = _literals(job, texts)
    categories = list(job.target.categories)
    reference = _reference(job, literals)
    if not categories:
        categories = [*literals, *([reference] if reference is not None else [])]
    ordered = [c for c in categories if c in literals]
    rest = [c for c in categories if c not in literals]
    if len(rest) != 1 or categories[-1] != rest[0]:
        raise job.refuse("the last category of an ordinal target is the one without betas")
    keys = [texts[literals.index(c)] for c in ordered]
    eta = _offset_all(job, _sums(job, cells, keys))  # type: ignore[arg-type]
    link = job.element.get("cumulativeLink") or job.element.get("cumulativeLinkFunction", "logit")
    if link not in CUMULATIVE:
        raise job.refuse(f"cumulativeLink {link} is not one of PMML")
    cumulative = normalized(job, eta, link)
    columns = [g.pick(cumulative, 0)]
    for i in range(1, len(ordered)):
        columns.append(g.Sub(g.pick(cumulative, i), g.pick(cumulative, i - 1)))
    columns.append(g.Sub(g.number(1.0), g.pick(cumulative, len(ordered) - 1)))
    return classified(job, [*ordered, rest[0]], g.matrix(columns))
