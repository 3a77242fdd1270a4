"""Expressions: the elements that compute a derived field, and the casts between data types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from .document import Element
from .functions import apply
from .graph import Column, Graph, constant, merge, missing
from .literals import TYPES, as_number, java_text, number_of, parse, type_of
from .refusal import Refusal
from .scope import Scope
from .text_index import Lowered, text_index

EXPRESSIONS = (
    "Constant", "FieldRef", "NormContinuous", "NormDiscrete", "Discretize", "MapValues", "Apply",
    "TextIndex", "Aggregate", "Lag",
)  # fmt: skip


def derived_field(scope: Scope, element: Element) -> Column:
    """The column of a DerivedField, or of another element that holds one expression."""
    child = element.child(*EXPRESSIONS)
    if child is None:
        raise Refusal(element, "there is no expression in it")
    dtype = element.get("dataType")
    column = evaluate(scope, child, dtype)
    if isinstance(column, Lowered) and dtype in (None, "string"):
        return column
    if dtype is not None:
        column = cast(scope.g, element, column, dtype)
    optype = element.get("optype") or column.optype
    order = column.order if optype == "ordinal" else None
    if optype == "ordinal" and element.all("Value"):
        order = tuple(parse(v, v.get("value"), column.dtype) for v in element.all("Value"))
    return replace(column, optype=optype, order=order)


def evaluate(scope: Scope, element: Element, dtype: str | None = None) -> Column:
    """The column of an expression; `dtype` is what the field around it declares."""
    if element.tag not in RULES:
        raise Refusal(element, "this expression has no counterpart in ONNX")
    return RULES[element.tag](scope, element, dtype)


def constant_rule(scope: Scope, element: Element, dtype: str | None) -> Column:
    kind = element.get("dataType")
    text = element.text
    if element.get("missing") == "true":
        return constant(scope.g, None, kind or dtype or "double")
    if kind is None:
        kind = type_of(text)
    if kind not in TYPES:
        raise Refusal(element, f"a constant of dataType {kind} is not supported")
    if kind != "string" and text.strip() == "NaN":
        return constant(scope.g, None, kind)
    return constant(scope.g, parse(element, text, kind), kind)


def field_ref(scope: Scope, element: Element, dtype: str | None) -> Column:
    return mapped(scope.g, element, scope.column(element.get("field"), element))


def mapped(g: Graph, element: Element, column: Column) -> Column:
    """The column after `mapMissingTo`."""
    text = element.get("mapMissingTo")
    if text is None:
        return column
    kind = column.dtype
    value = constant(g, parse(element, text, kind), kind)
    return merge(g, missing(g, column), value, column)


def norm_continuous(scope: Scope, element: Element, dtype: str | None) -> Column:
    column = scope.column(element.get("field"), element)
    points = [(float(p.get("orig")), float(p.get("norm"))) for p in element.all("LinearNorm")]
    if len(set(points)) < 2:
        raise Refusal(element, "a NormContinuous needs two LinearNorm")
    if any(a == b and fa != fb for (a, fa), (b, fb) in pairwise(sorted(points))):
        raise Refusal(element, "two LinearNorm have the same orig: what it maps to is not settled")
    outliers = element.get("outliers", "asIs")
    if outliers not in ("asIs", "asMissingValues", "asExtremeValues"):
        raise Refusal(element, f"outliers {outliers} is not one of PMML")
    g = scope.g
    y = interpolated(g, column.numbers, points, outliers)
    text = element.get("mapMissingTo")
    if text is not None:
        y = g.Where(missing(g, column), g.number(float(text)), y)
    return Column(y, "double")


def interpolated(
    g: Graph, x: ir.Value, points: list[tuple[float, float]], outliers: str
) -> ir.Value:
    """Linear between the points; beyond them as `outliers` says."""
    points = sorted(set(points))
    y: ir.Value | None = None
    for (a, fa), (b, fb) in pairwise(points):
        slope = (fb - fa) / (b - a)
        # The formula of the specification, in its order: a difference of one rounding shows.
        piece = g.Add(g.number(fa), g.Mul(g.Sub(x, g.number(a)), g.number(slope)))
        y = piece if y is None else g.Where(g.Less(x, g.number(a)), y, piece)
    assert y is not None
    low, high = g.Less(x, g.number(points[0][0])), g.Greater(x, g.number(points[-1][0]))
    if outliers == "asMissingValues":
        y = g.Where(g.Or(low, high), g.number(float("nan")), y)
    elif outliers == "asExtremeValues":
        y = g.Where(low, g.number(points[0][1]), g.Where(high, g.number(points[-1][1]), y))
    return y


def norm_discrete(scope: Scope, element: Element, dtype: str | None) -> Column:
    g, column = scope.g, scope.column(element.get("field"), element)
    if element.get("method", "indicator") != "indicator":
        raise Refusal(element, "only the method indicator is one of PMML")
    value = parse(element, element.get("value"), column.dtype)
    other = g.number(g.code(value) if isinstance(value, str) else value)
    hit = g.Where(g.Equal(column.numbers, other), g.number(1.0), g.number(0.0))
    text = element.get("mapMissingTo")
    if_missing = g.number(float("nan") if text is None else float(text))
    return Column(g.Where(missing(g, column), if_missing, hit), "double")


def discretize(scope: Scope, element: Element, dtype: str | None) -> Column:
    from .fields import inside

    g, column = scope.g, scope.column(element.get("field"), element)
    values = [bin_element.get("binValue") for bin_element in element.all("DiscretizeBin")]
    kind = _kind(element, dtype, values)
    default = element.get("defaultValue")
    out = _output(g, element, default, kind)
    for bin_element in element.all("DiscretizeBin"):  # where two overlap, the later one counts
        interval = bin_element.child("Interval")
        if interval is None:
            raise Refusal(bin_element, "the bin has no Interval")
        value = _output(g, bin_element, bin_element.get("binValue"), kind)
        out = merge(g, inside(g, interval, column.numbers), value, out)
    if_missing = _output(g, element, element.get("mapMissingTo"), kind)
    return replace(merge(g, missing(g, column), if_missing, out), dtype=kind)


def _kind(element: Element, dtype: str | None, values: list[str]) -> str:
    """The data type of a table's values: the declared one, or the one that they all can have."""
    kind = element.get("dataType") or dtype
    if kind is not None:
        return str(kind)
    others = [element.get("defaultValue"), element.get("mapMissingTo")]
    kinds = {type_of(text) for text in (*values, *others) if text is not None}
    if "string" in kinds or not kinds:
        return "string"
    return "double" if "double" in kinds else "integer"


def _output(g: Graph, element: Element, text: str | None, kind: str) -> Column:
    return constant(g, None if text is None else parse(element, text, kind), kind)


def map_values(scope: Scope, element: Element, dtype: str | None) -> Column:
    g = scope.g
    table = element.child("InlineTable")
    pairs = element.all("FieldColumnPair")
    if table is None:
        raise Refusal(element, "the table is not in the document")
    columns = [scope.column(pair.get("field"), pair) for pair in pairs]
    names = [pair.get("column").rpartition(":")[2] for pair in pairs]
    rows = _rows(table, [*names, element.get("outputColumn").rpartition(":")[2]])
    if not rows or not columns:
        raise Refusal(element, "the table is empty")
    kind = _kind(element, dtype, [row[-1] for row in rows])
    default = _output(g, element, element.get("defaultValue"), kind)
    key, entries = _keys(g, element, columns, rows)
    finite = list(default.finite or ())
    results: dict[float, float] = {}
    for entry, row in zip(entries, rows, strict=True):
        if entry is None:
            continue
        value = _output(g, table, row[-1], kind)
        if entry not in results:
            results[entry] = float(value.literal if kind != "string" else g.code(value.literal))
            finite += value.finite or ()
    fallback = default.literal if kind != "string" else None
    if kind == "string" and default.literal is not None:
        fallback = g.code(default.literal)
    out = g.table(key, results, float("nan") if fallback is None else fallback)
    is_missing = g.any([missing(g, c) for c in columns])
    void = _output(g, element, element.get("mapMissingTo"), kind)
    text = tuple(finite) if kind == "string" else None
    return replace(merge(g, is_missing, void, Column(out, kind, finite=text)), dtype=kind)


def _rows(table: Element, names: list[str]) -> list[list[str]]:
    rows = []
    for row in table.all("row"):
        cells = {cell.tag: cell.text.strip() for cell in row.children}
        if all(name in cells for name in names):
            rows.append([cells[name] for name in names])
    return rows


def _keys(
    g: Graph, element: Element, columns: list[Column], rows: list[list[str]]
) -> tuple[ir.Value, list[float | None]]:
    """One number for each combination of entries, in the data and in the rows of the table."""
    key: ir.Value | None = None
    codes: list[float | None] = [0.0] * len(rows)
    width = 1
    for i, column in enumerate(columns):
        places: dict[float, float] = {}
        for r, row in enumerate(rows):
            entry = g.code(row[i]) if column.is_text else as_number(row[i], column.dtype)
            before = codes[r]
            if entry is None or before is None:
                codes[r] = None
                continue
            place = places.setdefault(entry, float(len(places)))
            codes[r] = before + place * width
        # An entry that the column of the table lacks gives NaN, and so no combination at all.
        column_places = g.table(g.column(column.numbers), places, float("nan"))
        part = g.Mul(column_places, g.number(float(width)))
        key = part if key is None else g.Add(key, part)
        width *= max(len(places), 1)
        if width > 2**52:
            raise Refusal(element, "the table has too many combinations")
    assert key is not None
    return key, codes


RULES: dict[str, Callable[[Scope, Element, str | None], Column]] = {
    "Constant": constant_rule,
    "FieldRef": field_ref,
    "NormContinuous": norm_continuous,
    "NormDiscrete": norm_discrete,
    "Discretize": discretize,
    "MapValues": map_values,
    "Apply": lambda scope, element, dtype: apply(scope, element, evaluate),
    "TextIndex": text_index,
}


# -- data types ---------------------------------------------------------------------


def cast(g: Graph, element: Element, column: Column, dtype: str) -> Column:
    """The column as another data type."""
    if column.dtype == dtype:
        return column
    if dtype == "string":
        return _as_text(g, element, column)
    if column.is_text:
        column = _as_number(g, element, column)
    if dtype not in TYPES:
        if column.dtype.startswith(("date", "time")) or column.dtype == "integer":
            return replace(column, dtype=dtype)
        raise Refusal(element, f"dataType {dtype} has no counterpart in ONNX")
    x = column.numbers
    if dtype == "float" and column.dtype not in ("boolean", "float"):
        x = g.single(x)
    if dtype == "integer" and column.dtype in ("double", "float"):
        # A number that is no integer cannot be cast; there is no result then.
        x = g.Where(g.Equal(x, g.Floor(x)), x, g.number(float("nan")))
    literal = column.literal
    if literal is not None and dtype == "float":
        literal = float(np.float32(literal))
    return replace(column, numbers=x, dtype=dtype, literal=literal)


def _as_text(g: Graph, element: Element, column: Column) -> Column:
    kind = column.dtype
    if kind not in TYPES:
        raise Refusal(element, f"a {kind} as text has no counterpart in ONNX")
    if column.literal is not None:
        return constant(g, java_text(column.literal, kind), "string")
    if kind == "boolean":
        entries = {1.0: g.code("true"), 0.0: g.code("false")}
        codes = g.table(g.column(column.numbers), entries, float("nan"))
        return Column(codes, "string", finite=("true", "false"))
    codes = g.spell(g.column(column.numbers), lambda text: number_of(text, kind))
    return Column(codes, "string")


def _as_number(g: Graph, element: Element, column: Column) -> Column:
    if column.finite is not None:
        entries = {}
        for text in column.finite:
            number = as_number(text)
            if number is None:
                raise Refusal(element, f"text that can be {text!r} is cast to a number")
            entries[g.code(text)] = number
        return Column(g.table(g.column(column.numbers), entries, float("nan")), "double")
    if column.text is None:
        raise Refusal(element, "text without a list of its values is cast to a number")
    is_missing = missing(g, column)
    from .dates import text_constant

    digits = g.Where(is_missing, text_constant(g, "0"), column.text)
    numbers = g.Cast(digits, to=int(ir.DataType.DOUBLE))
    return Column(g.Where(is_missing, g.number(float("nan")), numbers), "double")
