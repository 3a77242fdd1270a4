"""Functions: PMML's built-in functions, each by its own name, and those that documents define.

A rule gets the graph and the columns of its arguments. Unless a rule says otherwise, the result is
missing where an argument is. Arithmetic keeps PMML's data types: integers divide as integers, and
floats are rounded to 32 bits after each operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import LimitExceeded

from .document import Element
from .graph import (
    Column,
    Graph,
    Truth,
    boolean,
    constant,
    is_open,
    merge,
    missing,
    promoted,
    strings,
    truth_of,
)
from .literals import as_number, java_text, parse, type_of
from .predicates import both, either, negation, ranks, relation
from .refusal import Refusal
from .scope import Scope
from .special import (
    arcsine,
    arctangent,
    arctangent_of,
    error_function,
    expm1,
    ln1p,
    standard_normal_cdf,
    standard_normal_pdf,
)

Evaluate = Callable[..., Column]
Rule = Callable[..., Column]
DEPTH = 64  # of functions of the document that call each other
CALLS, EXPANSION = 10_000, 64  # evaluations of Apply that any document may have, and for each Apply

FUNCTIONS: dict[str, Rule] = {}


def function(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of built-in functions."""

    def register(rule: Rule) -> Rule:
        for name in names:
            FUNCTIONS[name] = rule
        return rule

    return register


def apply(scope: Scope, element: Element, evaluate: Evaluate) -> Column:
    """The column of an Apply: its arguments, the function, then what replaces missing values."""
    g, name = scope.g, element.get("function")
    _count(scope)
    arguments = [evaluate(scope, c) for c in element.children if c.tag in _ARGUMENTS]
    if name in scope.document.functions:
        out = defined(scope, element, arguments, evaluate)
    elif name in FUNCTIONS:
        try:
            out = FUNCTIONS[name](g, element, *arguments)
        except TypeError as error:
            if "positional argument" not in str(error):
                raise
            raise Refusal(element, f"{name} has {len(arguments)} arguments") from error
    else:
        raise Refusal(element, f"function {name!r} is not one of PMML")
    return _replaced(scope, element, arguments, out)


def _count(scope: Scope) -> None:
    """Bound what functions that call functions twice, and so on, expand to."""
    document = scope.document
    document.evaluations += 1
    if document.evaluations % CALLS == 0:
        written = sum(element.tag == "Apply" for element in document.root.walk())
        if document.evaluations > EXPANSION * written + CALLS:
            raise LimitExceeded(
                f"the functions of the document expand to more than {document.evaluations:,} calls"
            )


_ARGUMENTS = frozenset(
    ["Constant", "FieldRef", "NormContinuous", "NormDiscrete", "Discretize", "MapValues", "Apply",
     "TextIndex", "Aggregate", "Lag"]
)  # fmt: skip


def _replaced(scope: Scope, element: Element, arguments: list[Column], out: Column) -> Column:
    g = scope.g
    default, if_missing = element.get("defaultValue"), element.get("mapMissingTo")
    if scope.document.root.get("version", "").startswith("4.1"):
        # What PMML 4.1 calls mapMissingTo replaces a missing result: the later defaultValue.
        default, if_missing = default or if_missing, None
    if default is not None:
        out = merge(g, missing(g, out), _literal(g, element, default, out), out)
    if if_missing is not None and arguments:
        is_if = element.get("function") == "if" and len(arguments) > 1
        mask = _missing_in_if(g, arguments) if is_if else g.any([missing(g, a) for a in arguments])
        out = merge(g, mask, _literal(g, element, if_missing, out), out)
    return out


def _missing_in_if(g: Graph, arguments: list[Column]) -> ir.Value:
    """Whether the condition of an `if` is missing, or that of its values which it chooses."""
    condition, *values = arguments
    truth = truth_of(g, condition)
    no = g.Not(truth.yes) if truth.no is None else truth.no
    masks = [missing(g, condition), g.And(truth.yes, missing(g, values[0]))]
    masks += [g.And(no, missing(g, value)) for value in values[1:]]
    return g.any(masks)


def _literal(g: Graph, element: Element, text: str, like: Column) -> Column:
    kind = like.dtype
    if kind != "string" and as_number(text) is None:
        raise Refusal(element, f"{text!r} replaces a {kind}")
    if kind == "integer" and type_of(text) == "double":
        kind = "double"
    return constant(g, parse(element, text, kind), kind)


def defined(scope: Scope, element: Element, arguments: list[Column], evaluate: Evaluate) -> Column:
    """A function of the document: its body, with the parameters bound."""
    from .expressions import EXPRESSIONS, cast

    document, name = scope.document, element.get("function")
    definition = document.functions[name]
    parameters = definition.all("ParameterField")
    body = definition.child(*EXPRESSIONS)
    if body is None or len(parameters) != len(arguments):
        raise Refusal(element, f"the call does not fit the definition of {name!r}")
    if name in document.calls or len(document.calls) >= DEPTH:
        raise Refusal(element, f"function {name!r} calls itself, or too many others")
    inner = Scope(document)
    for parameter, argument in zip(parameters, arguments, strict=True):
        if parameter.get("dataType"):
            argument = cast(scope.g, parameter, argument, parameter.get("dataType"))
        inner.put(parameter.get("name"), argument)
    document.calls.append(name)
    try:
        out = evaluate(inner, body, definition.get("dataType"))
    finally:
        document.calls.pop()
    kind = definition.get("dataType")
    return cast(scope.g, definition, out, kind) if kind else out


# -- arithmetic ---------------------------------------------------------------------


def _fitted(g: Graph, x: ir.Value, dtype: str) -> Column:
    return Column(g.single(x) if dtype == "float" else x, dtype)


def _numeric(element: Element, *columns: Column) -> str:
    if any(c.is_text for c in columns):
        raise Refusal(element, f"{element.get('function')} of text")
    kind = promoted(*columns)
    return "integer" if kind == "boolean" or kind not in ("double", "float") else kind


@function("+")
def add(g: Graph, e: Element, a: Column, b: Column) -> Column:
    return _fitted(g, g.Add(a.numbers, b.numbers), _numeric(e, a, b))


@function("-")
def subtract(g: Graph, e: Element, a: Column, b: Column) -> Column:
    return _fitted(g, g.Sub(a.numbers, b.numbers), _numeric(e, a, b))


@function("*")
def multiply(g: Graph, e: Element, a: Column, b: Column) -> Column:
    return _fitted(g, g.Mul(a.numbers, b.numbers), _numeric(e, a, b))


@function("/")
def divide(g: Graph, e: Element, a: Column, b: Column) -> Column:
    kind = _numeric(e, a, b)
    x = g.Div(a.numbers, b.numbers)
    if kind == "integer":
        x = g.Where(g.Equal(b.numbers, g.number(0.0)), g.number(float("nan")), truncated(g, x))
    return _fitted(g, x, kind)


def truncated(g: Graph, x: ir.Value) -> ir.Value:
    return g.Mul(g.Sign(x), g.Floor(g.Abs(x)))


@function("modulo", "x-modulo")
def modulo(g: Graph, e: Element, a: Column, b: Column) -> Column:
    x = g.Sub(a.numbers, g.Mul(b.numbers, g.Floor(g.Div(a.numbers, b.numbers))))
    return _fitted(g, x, _numeric(e, a, b))


@function("pow")
def power(g: Graph, e: Element, a: Column, b: Column) -> Column:
    # 1 to the power of NaN is 1, and so is NaN to the power of 0, but NaN is missing here.
    gap = g.Or(g.IsNaN(a.numbers), g.IsNaN(b.numbers))
    value = g.Where(gap, g.number(float("nan")), g.Pow(a.numbers, b.numbers))
    return _fitted(g, value, _numeric(e, a, b))


@function("threshold")
def threshold(g: Graph, e: Element, a: Column, b: Column) -> Column:
    x = g.Where(g.Greater(a.numbers, b.numbers), g.number(1.0), g.number(0.0))
    is_missing = g.Or(missing(g, a), missing(g, b))
    return Column(g.Where(is_missing, g.number(float("nan")), x), _numeric(e, a, b))


@function("abs")
def absolute(g: Graph, e: Element, a: Column) -> Column:
    return Column(g.Abs(a.numbers), _numeric(e, a))


def _unary(name: str, build: Callable[[Graph, ir.Value], ir.Value], dtype: str = "double") -> None:
    def rule(g: Graph, e: Element, a: Column) -> Column:
        kind = _numeric(e, a)
        return Column(build(g, a.numbers), kind if dtype == "same" else dtype)

    FUNCTIONS[name] = rule


def _node(op_type: str) -> Callable[[Graph, ir.Value], ir.Value]:
    return lambda g, x: g.call(op_type, [x])


for _name, _op in {
    "ln": "Log", "exp": "Exp", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tanh": "Tanh",
}.items():  # fmt: skip
    _unary(_name, _node(_op))
for _name, _op in {"floor": "Floor", "ceil": "Ceil"}.items():
    _unary(_name, _node(_op), "integer")
_unary("log10", lambda g, x: g.Div(g.Log(x), g.number(math.log(10.0))))
_unary("tan", lambda g, x: g.Div(g.Sin(x), g.Cos(x)))
_unary("round", lambda g, x: g.Floor(g.Add(x, g.number(0.5))), "integer")
_unary("rint", _node("Round"), "same")


_unary("expm1", expm1)
_unary("ln1p", ln1p)
_unary("sinh", lambda g, x: g.Div(g.Sub(expm1(g, x), expm1(g, g.Neg(x))), g.number(2.0)))
_unary("cosh", lambda g, x: g.Div(g.Add(g.Exp(x), g.Exp(g.Neg(x))), g.number(2.0)))


for _name in ("erf", "x-erf"):
    _unary(_name, error_function)
_unary("atan", arctangent)
_unary("asin", arcsine)
_unary("acos", lambda g, x: g.Sub(g.number(math.pi / 2), arcsine(g, x)))


@function("x-atan2", "atan2")
def atan2(g: Graph, e: Element, y: Column, x: Column) -> Column:
    _numeric(e, y, x)
    return Column(arctangent_of(g, y.numbers, x.numbers), "double")


@function("hypot", "x-hypot")
def hypot(g: Graph, e: Element, a: Column, b: Column) -> Column:
    _numeric(e, a, b)
    squares = g.Add(g.Mul(a.numbers, a.numbers), g.Mul(b.numbers, b.numbers))
    return Column(g.Sqrt(squares), "double")


def _normal(g: Graph, x: ir.Value, mean: ir.Value, deviation: ir.Value) -> ir.Value:
    return g.Div(g.Sub(x, mean), deviation)


@function("stdNormalCDF")
def std_normal_cdf(g: Graph, e: Element, x: Column) -> Column:
    return Column(standard_normal_cdf(g, x.numbers), "double")


@function("stdNormalPDF")
def std_normal_pdf(g: Graph, e: Element, x: Column) -> Column:
    return Column(standard_normal_pdf(g, x.numbers), "double")


@function("normalCDF")
def normal_cdf(g: Graph, e: Element, x: Column, mean: Column, deviation: Column) -> Column:
    return Column(
        standard_normal_cdf(g, _normal(g, x.numbers, mean.numbers, deviation.numbers)), "double"
    )


@function("normalPDF")
def normal_pdf(g: Graph, e: Element, x: Column, mean: Column, deviation: Column) -> Column:
    z = _normal(g, x.numbers, mean.numbers, deviation.numbers)
    return Column(g.Div(standard_normal_pdf(g, z), deviation.numbers), "double")


@function("normalIDF", "stdNormalIDF")
def normal_idf(g: Graph, e: Element, p: Column, *shape: Column) -> Column:
    values = [c.literal for c in (p, *shape)]
    if any(v is None for v in values):
        raise Refusal(e, "the inverse normal distribution of a field has no counterpart in ONNX")
    mean, deviation = (values[1], values[2]) if shape else (0.0, 1.0)
    return constant(g, NormalDist(mean, deviation).inv_cdf(values[0]), "double")


# -- aggregates, which skip what is missing -------------------------------------------


def _filled(g: Graph, columns: tuple[Column, ...], neutral: float) -> list[ir.Value]:
    return [g.Where(missing(g, c), g.number(neutral), c.numbers) for c in columns]


def _all_missing(g: Graph, columns: tuple[Column, ...], x: ir.Value) -> ir.Value:
    are_missing = [missing(g, c) for c in columns]
    mask = are_missing[0]
    for other in are_missing[1:]:
        mask = g.And(mask, other)
    return g.Where(mask, g.number(float("nan")), x)


def _folded(op_type: str, neutral: float) -> Rule:
    def rule(g: Graph, e: Element, *columns: Column) -> Column:
        kind = _numeric(e, *columns)
        parts = _filled(g, columns, neutral)
        x = parts[0]
        for part in parts[1:]:
            x = g.call(op_type, [x, part])
            x = g.single(x) if kind == "float" else x
        return Column(_all_missing(g, columns, x), kind)

    return rule


FUNCTIONS["min"] = _folded("Min", math.inf)
FUNCTIONS["max"] = _folded("Max", -math.inf)
FUNCTIONS["sum"] = _folded("Add", 0.0)
FUNCTIONS["product"] = _folded("Mul", 1.0)


@function("avg")
def average(g: Graph, e: Element, *columns: Column) -> Column:
    total = FUNCTIONS["sum"](g, e, *columns)
    count = g.number(0.0)
    for column in columns:
        count = g.Add(count, g.Where(missing(g, column), g.number(0.0), g.number(1.0)))
    kind = "float" if total.dtype == "float" else "double"
    return _fitted(g, g.Div(total.numbers, count), kind)


@function("median")
def median(g: Graph, e: Element, *columns: Column) -> Column:
    _numeric(e, *columns)
    out = column_median(g, g.matrix([c.numbers for c in columns]))
    return Column(out, "double")


def column_median(g: Graph, matrix: ir.Value) -> ir.Value:
    """The median of each row, without the missing entries."""
    is_missing = g.IsNaN(matrix)
    here = g.ReduceSum(g.Cast(g.Not(is_missing), to=int(ir.DataType.INT64)), [1], keepdims=1)
    full = g.Where(is_missing, g.number(math.inf), matrix)
    width = g.dim(matrix, 1)
    size = g.const(np.array([width], np.int64)) if isinstance(width, int) else width
    ordered, _ = g.call("TopK", [full, size], {"axis": 1, "largest": 0}, outputs=2)
    one, two = g.const(np.array(1, np.int64)), g.const(np.array(2, np.int64))
    zero = g.const(np.array(0, np.int64))
    low = g.Max(g.Div(g.Sub(here, one), two), zero)
    high = g.Div(here, two)
    high = g.Min(high, g.Sub(size, one))
    middle = g.Add(g.GatherElements(ordered, low, axis=1), g.GatherElements(ordered, high, axis=1))
    out = g.Squeeze(g.Mul(middle, g.number(0.5)), [1])
    return g.Where(g.Equal(g.Squeeze(here, [1]), zero), g.number(float("nan")), out)


# -- comparison and logic -------------------------------------------------------------


def _compared(g: Graph, e: Element, operator: str, a: Column, b: Column) -> Column:
    if a.is_text != b.is_text:
        a, b = _same_kind(g, e, a, b)
    if operator in ("equal", "notEqual"):
        if is_open(a) and is_open(b):
            return boolean(g, _same_text(g, operator, a, b))
        return boolean(g, relation(g, e, operator, a.numbers, b.numbers))
    if a.order is not None:
        other = b.numbers if b.order is None else ranks(g, b)
        if b.order is None and b.literal is not None:
            if b.literal not in a.order:
                raise Refusal(e, "the value is not one of the ordinal field")
            other = g.number(float(a.order.index(b.literal)))
        return boolean(g, relation(g, e, operator, ranks(g, a), other))
    if a.is_text:
        raise Refusal(e, "text has no order to compare by")
    return boolean(g, relation(g, e, operator, a.numbers, b.numbers))


def _same_kind(g: Graph, e: Element, a: Column, b: Column) -> tuple[Column, Column]:
    """A text and a number: a constant takes the type of the other side."""
    if b.literal is not None:
        return a, _converted(g, e, b, a)
    if a.literal is not None:
        return _converted(g, e, a, b), b
    raise Refusal(e, "text is compared with a number")


def _converted(g: Graph, e: Element, value: Column, like: Column) -> Column:
    if like.is_text:
        return constant(g, java_text(value.literal, value.dtype), "string")
    return constant(g, parse(e, value.literal, like.dtype), like.dtype)


def _same_text(g: Graph, operator: str, a: Column, b: Column) -> Truth:
    same = g.Equal(strings(g, a), strings(g, b))
    both_present = g.Not(g.Or(missing(g, a), missing(g, b)))
    truth = Truth(g.And(both_present, same), g.And(both_present, g.Not(same)))
    return truth if operator == "equal" else negation(g, truth)


for _name in (
    "equal", "notEqual", "lessThan", "lessOrEqual", "greaterThan", "greaterOrEqual",
):  # fmt: skip
    FUNCTIONS[_name] = lambda g, e, a, b, _name=_name: _compared(g, e, _name, a, b)


def _logical(combine: Callable[[Graph, Truth, Truth], Truth]) -> Rule:
    def rule(g: Graph, e: Element, *columns: Column) -> Column:
        out = truth_of(g, columns[0])
        for column in columns[1:]:
            out = combine(g, out, truth_of(g, column))
        return boolean(g, out)

    return rule


FUNCTIONS["and"] = _logical(both)
FUNCTIONS["or"] = _logical(either)


@function("not")
def not_rule(g: Graph, e: Element, a: Column) -> Column:
    return boolean(g, negation(g, truth_of(g, a)))


@function("isMissing")
def is_missing(g: Graph, e: Element, a: Column) -> Column:
    return boolean(g, Truth(missing(g, a)))


@function("isNotMissing", "isValid")
def is_not_missing(g: Graph, e: Element, a: Column) -> Column:
    return boolean(g, Truth(g.Not(missing(g, a))))


@function("isNotValid")
def is_not_valid(g: Graph, e: Element, a: Column) -> Column:
    # An invalid value ends the evaluation before a function could see it, or is made valid.
    return boolean(g, Truth(g.And(missing(g, a), g.const(False))))


def _members(g: Graph, e: Element, a: Column, values: tuple[Column, ...]) -> ir.Value:
    literals: list[Any] = []
    for value in values:
        if value.literal is None:
            same = truth_of(g, _compared(g, e, "equal", a, value)).yes
            # A constant can be missing as well: `isIn` then finds what is missing.
            literals.append(g.Or(same, g.And(missing(g, a), missing(g, value))))
            continue
        value = value if value.is_text == a.is_text else _converted(g, e, value, a)
        code = g.code(value.literal) if value.is_text else value.literal
        literals.append(code)
    constants = [v for v in literals if not isinstance(v, ir.Value)]
    masks = [v for v in literals if isinstance(v, ir.Value)]
    if constants or not masks:
        masks.append(g.member(g.column(a.numbers), constants))
    return g.any(masks)


@function("isIn")
def is_in(g: Graph, e: Element, a: Column, *values: Column) -> Column:
    return boolean(g, Truth(_members(g, e, a, values)))


@function("isNotIn")
def is_not_in(g: Graph, e: Element, a: Column, *values: Column) -> Column:
    return boolean(g, Truth(g.Not(_members(g, e, a, values))))


@function("if")
def if_rule(g: Graph, e: Element, condition: Column, a: Column, b: Column | None = None) -> Column:
    truth = truth_of(g, condition)
    if b is None:
        b = constant(g, None, a.dtype)
    if a.is_text != b.is_text and None not in (a.literal, b.literal):
        raise Refusal(e, "one side is text and the other a number")
    if a.is_text != b.is_text:
        a, b = _branches(g, e, a, b)
    out = merge(g, truth.yes, a, b)
    if truth.no is None:
        return out
    unknown = g.Not(g.Or(truth.yes, truth.no))
    kind = out.dtype
    return replace(merge(g, unknown, constant(g, None, kind), out), dtype=kind)


def _branches(g: Graph, e: Element, a: Column, b: Column) -> tuple[Column, Column]:
    """Both branches as one kind; a constant gives way."""
    if b.literal is not None:
        return a, _converted(g, e, b, a)
    if a.literal is not None:
        return _converted(g, e, a, b), b
    if a.finite == ():
        return replace(a, dtype=b.dtype, finite=None), b
    if b.finite == ():
        return a, replace(b, dtype=a.dtype, finite=None)
    raise Refusal(e, "one branch is text and the other a number")
