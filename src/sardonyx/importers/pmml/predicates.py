"""Predicates: in PMML's three-valued logic, so that a missing value gives unknown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir

from .document import Element, array
from .graph import Column, Graph, Truth, missing
from .literals import parse
from .refusal import Refusal

if TYPE_CHECKING:
    from .scope import Scope

PREDICATES = ("SimplePredicate", "SimpleSetPredicate", "CompoundPredicate", "True", "False")


def predicate_of(element: Element) -> Element:
    """The predicate among the children of an element; none at all is always true."""
    return element.child(*PREDICATES) or Element("True", {}, element.line)


def predicate(scope: Scope, element: Element) -> Truth:
    """The truth of a predicate for each row."""
    return RULES[element.tag](scope, element)


def _true(scope: Scope, element: Element) -> Truth:
    return Truth(scope.g.const(True))


def _false(scope: Scope, element: Element) -> Truth:
    return Truth(scope.g.const(False))


def simple_predicate(scope: Scope, element: Element) -> Truth:
    column = scope.column(element.get("field"), element)
    operator = element.get("operator")
    if operator in ("isMissing", "isNotMissing"):
        is_missing = missing(scope.g, column)
        return Truth(is_missing if operator == "isMissing" else scope.g.Not(is_missing))
    return compare(scope.g, element, operator, column, element.get("value"))


def compare(g: Graph, element: Element, operator: str, column: Column, value: str) -> Truth:
    """A column against a constant of the document."""
    x = column.numbers
    other = g.number(threshold(g, element, column, value, operator))
    if column.order is not None and operator not in ("equal", "notEqual"):
        x = ranks(g, column)
        other = g.number(rank(g, element, column, value))
    elif column.is_text and operator not in ("equal", "notEqual"):
        raise Refusal(element, "text has no order to compare by")
    return relation(g, element, operator, x, other)


def relation(g: Graph, element: Element, operator: str, x: ir.Value, y: ir.Value) -> Truth:
    """Two columns of numbers or codes; unknown where one is missing."""
    if operator == "equal" or operator == "notEqual":
        same, both_present = g.Equal(x, y), g.Not(g.Or(g.IsNaN(x), g.IsNaN(y)))
        other = g.And(both_present, g.Not(same))
        return Truth(same, other) if operator == "equal" else Truth(other, same)
    pairs = {
        "lessThan": ("Less", "GreaterOrEqual"),
        "lessOrEqual": ("LessOrEqual", "Greater"),
        "greaterThan": ("Greater", "LessOrEqual"),
        "greaterOrEqual": ("GreaterOrEqual", "Less"),
    }
    if operator not in pairs:
        raise Refusal(element, f"operator {operator} is not one of PMML")
    yes, no = pairs[operator]
    return Truth(g.call(yes, [x, y]), g.call(no, [x, y]))


def threshold(g: Graph, element: Element, column: Column, value: str, operator: str) -> float:
    """The constant of a predicate, as the column holds it."""
    if value is None:
        raise Refusal(element, "the predicate has no value")
    literal = parse(element, value, column.dtype)
    return g.code(literal) if isinstance(literal, str) else float(literal)


def ranks(g: Graph, column: Column) -> ir.Value:
    """The places of an ordinal column's values in their order."""
    assert column.order is not None
    codes = [g.code(v) if isinstance(v, str) else float(v) for v in column.order]
    entries = {code: float(i) for i, code in enumerate(codes)}
    return g.table(g.column(column.numbers), entries, float("nan"))


def rank(g: Graph, element: Element, column: Column, value: str) -> float:
    assert column.order is not None
    literal = parse(element, value, column.dtype)
    if literal not in column.order:
        raise Refusal(element, "the value is not one of the ordinal field")
    return float(column.order.index(literal))


def simple_set_predicate(scope: Scope, element: Element) -> Truth:
    g = scope.g
    column = scope.column(element.get("field"), element)
    inside = g.member(g.column(column.numbers), members(g, element, column))
    is_missing = missing(g, column)
    outside = g.And(g.Not(is_missing), g.Not(inside))
    operator = element.get("booleanOperator")
    if operator not in ("isIn", "isNotIn"):
        raise Refusal(element, f"booleanOperator {operator} is not one of PMML")
    return Truth(inside, outside) if operator == "isIn" else Truth(outside, inside)


def members(g: Graph, element: Element, column: Column) -> list[float]:
    """The entries of a set predicate's Array, as the column holds them."""
    entries = element.child("Array")
    if entries is None:
        raise Refusal(element, "the set has no Array")
    return [threshold(g, entries, column, value, "equal") for value in array(entries)]


# In a compound predicate: the operator of its parts on one field that together are one set.
_SETS = {"or": ("equal", "isIn"), "and": ("notEqual", "isNotIn")}


def alternatives_as_sets(element: Element) -> Element:
    """A compound predicate whose comparisons of one field with many values are tests of a set."""
    if element.tag != "CompoundPredicate":
        return element
    operator, simple = element.get("booleanOperator"), "SimplePredicate"
    single, several = _SETS.get(operator, (None, ""))
    values: dict[str, list[str]] = {}
    for part in element.children:
        if part.tag == simple and single and part.get("operator") == single:
            values.setdefault(part.get("field"), []).append(part.get("value"))
    out = Element(element.tag, element.attributes, element.line)
    for part in element.children:
        name = part.get("field")
        is_joined = part.tag == simple and part.get("operator") == single and name in values
        if not is_joined or len(values[name]) == 1 or None in values[name]:
            out.children.append(alternatives_as_sets(part))
        elif values[name]:
            out.children.append(_set_of(part, several, values[name]))
            values[name] = []
    return out


def _set_of(part: Element, operator: str, values: list[str]) -> Element:
    """A SimpleSetPredicate in place of `part`, a comparison with one of the values."""
    attributes = {"field": part.get("field"), "booleanOperator": operator}
    out = Element("SimpleSetPredicate", attributes, part.line)
    entries = Element("Array", {}, part.line)
    entries.text = " ".join('"' + re.sub(r'(["\\])', r"\\\1", v) + '"' for v in values)
    out.children.append(entries)
    return out


def size(element: Element) -> int:
    """How many simple predicates a predicate has."""
    return sum(e.tag in ("SimplePredicate", "SimpleSetPredicate") for e in element.walk())


def compound_predicate(scope: Scope, element: Element) -> Truth:
    operator = element.get("booleanOperator")
    parts = [predicate(scope, child) for child in element.all(*PREDICATES)]
    if operator not in COMPOUND or not parts:
        raise Refusal(element, f"booleanOperator {operator} is not one of PMML")
    out = parts[0]
    for part in parts[1:]:
        out = COMPOUND[operator](scope.g, out, part)
    return out


def both(g: Graph, a: Truth, b: Truth) -> Truth:
    yes = g.And(a.yes, b.yes)
    if a.no is None and b.no is None:
        return Truth(yes)
    return Truth(yes, g.Or(a.known_no(g), b.known_no(g)))


def either(g: Graph, a: Truth, b: Truth) -> Truth:
    yes = g.Or(a.yes, b.yes)
    if a.no is None and b.no is None:
        return Truth(yes)
    return Truth(yes, g.And(a.known_no(g), b.known_no(g)))


def exclusive(g: Graph, a: Truth, b: Truth) -> Truth:
    if a.no is None and b.no is None:
        return Truth(g.Xor(a.yes, b.yes))
    not_a, not_b = a.known_no(g), b.known_no(g)
    yes = g.Or(g.And(a.yes, not_b), g.And(not_a, b.yes))
    return Truth(yes, g.Or(g.And(a.yes, b.yes), g.And(not_a, not_b)))


def surrogate(g: Graph, a: Truth, b: Truth) -> Truth:
    """The first that is known."""
    if a.no is None:
        return a
    unknown = g.Not(g.Or(a.yes, a.no))
    yes = g.Or(a.yes, g.And(unknown, b.yes))
    return Truth(yes, g.Or(a.no, g.And(unknown, b.known_no(g))))


def negation(g: Graph, a: Truth) -> Truth:
    return Truth(g.Not(a.yes)) if a.no is None else Truth(a.no, a.yes)


COMPOUND: dict[str, Callable[[Graph, Truth, Truth], Truth]] = {
    "and": both,
    "or": either,
    "xor": exclusive,
    "surrogate": surrogate,
}
RULES: dict[str, Callable[[Scope, Element], Truth]] = {
    "True": _true,
    "False": _false,
    "SimplePredicate": simple_predicate,
    "SimpleSetPredicate": simple_set_predicate,
    "CompoundPredicate": compound_predicate,
}
