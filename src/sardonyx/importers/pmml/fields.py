"""DataDictionary and MiningSchema: the inputs, and what happens to odd values of them.

In the order of the specification: a value that is declared missing is missing; one that is not
declared valid gets the invalid value treatment; an outlier gets its treatment; what is missing then
gets its replacement. A row whose result the document wants invalid has no result at all.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from .dates import DATES, date_column
from .document import Element
from .expressions import derived_field
from .graph import Column, Graph, constant, merge, missing
from .literals import TYPES, as_number, parse
from .refusal import Refusal
from .scope import Document, Scope

ACTIVE = ("active", None)
TARGETS = ("target", "predicted")


def data_type(element: Element) -> str:
    """The data type that a field declares, or the usual one of its optype."""
    dtype = element.get("dataType") or element.get("x-dataType")
    if dtype is None:
        return "double" if element.get("optype") == "continuous" else "string"
    return str(dtype)


def input_column(document: Document, element: Element) -> tuple[Column, ir.Value]:
    """The graph input of a DataField, and its column before any treatment."""
    g, name, dtype = document.g, element.get("name"), data_type(element)
    is_number = dtype in TYPES and dtype != "string"
    if not is_number and dtype != "string" and not dtype.startswith(DATES):
        raise Refusal(element, f"dataType {dtype} has no counterpart in ONNX")
    kind = ir.DataType.DOUBLE if is_number else ir.DataType.STRING
    value = ir.Value(name=name, shape=ir.Shape(["N"]), type=ir.TensorType(kind))
    if g.rows is None:
        g.rows = value
    if not is_number and dtype != "string":
        return date_column(g, element, value, dtype), value
    if is_number:
        numbers = g.single(value) if dtype == "float" else value
        return Column(numbers, dtype, optype=element.get("optype")), value
    valid = [v.get("value") for v in element.all("Value") if v.get("property", "valid") == "valid"]
    codes = g.encode(value, empty_is_missing="" not in valid)
    return Column(codes, dtype, text=value, optype=element.get("optype")), value


def actual_column(document: Document, element: Element, name: str | None) -> Column:
    """What was observed of a target: an input beside the prediction, which has the field's name."""
    data = document.data_fields.get(name or "")
    if data is None:
        raise Refusal(element, f"field {name!r} is not in the DataDictionary")
    key = f"actual_{name}"
    while key in document.data_fields:
        key = f"actual_{key}"
    renamed = Element(data.tag, {**data.attributes, "name": key}, data.line)
    renamed.children = data.children
    document.g.reserve({key})
    column, value = input_column(document, renamed)
    document.inputs.append(value)
    document.columns[key] = str(name)
    return column


def declared(g: Graph, element: Element, column: Column, kind: str) -> list[float]:
    """The Values of a field with one property, as the column holds them."""
    out = []
    for value in element.all("Value"):
        if value.get("property", "valid") != kind:
            continue
        text = value.get("value")
        number = g.code(text) if column.is_text else as_number(text, column.dtype)
        if number is not None:
            out.append(number)
    return out


def inside(g: Graph, element: Element, x: ir.Value) -> ir.Value:
    """Where a column lies in an Interval."""
    closure = element.get("closure", "openClosed")
    left, right = element.get("leftMargin"), element.get("rightMargin")
    masks = []
    if left is not None:
        op_type = "GreaterOrEqual" if closure.startswith("closed") else "Greater"
        masks.append(g.call(op_type, [x, g.number(parse_real(element, left))]))
    if right is not None:
        op_type = "LessOrEqual" if closure.endswith("Closed") else "Less"
        masks.append(g.call(op_type, [x, g.number(parse_real(element, right))]))
    if not masks:
        return g.Not(g.IsNaN(x))
    return masks[0] if len(masks) == 1 else g.And(*masks)


def parse_real(element: Element, text: str) -> float:
    return float(parse(element, text, "double"))


def validity(g: Graph, element: Element, column: Column) -> ir.Value | None:
    """Where a value that is there is not declared valid; None if anything is valid."""
    x = g.column(column.numbers)
    masks = []
    valid = declared(g, element, column, "valid")
    intervals = element.all("Interval")
    if valid:
        masks.append(g.member(x, valid))
    masks += [inside(g, interval, x) for interval in intervals]
    invalid = declared(g, element, column, "invalid")
    outside = g.And(g.Not(g.IsNaN(x)), g.Not(g.any(masks))) if masks else None
    if invalid:
        mask = g.member(x, invalid)
        outside = mask if outside is None else g.Or(outside, mask)
    return outside


def treated(scope: Scope, data: Element | None, mining: Element, column: Column) -> Column:
    """A field after the treatments of its MiningField."""
    g = scope.g
    data_field = data or Element("DataField", {}, mining.line)
    column = _declared_missing(g, data_field, column)
    column = _fractions(g, mining, data_field, column)
    outside = validity(g, data_field, column)
    column, column_is_finite = _invalid_values(g, mining, column, outside)
    if outside is not None and column_is_finite and column.is_text:
        values = [v.get("value") for v in data_field.all("Value")]
        column = replace(column, finite=tuple(values))
    is_kept = outside is not None and _invalid_treatment(mining) == ("asIs", None)
    column = _outliers(g, mining, column, outside if is_kept else None)
    column = _missing_values(g, mining, column)
    optype = mining.get("optype") or data_field.get("optype") or column.optype
    order = None
    if optype == "ordinal" and data_field.all("Value"):
        order = tuple(parse(v, v.get("value"), column.dtype) for v in data_field.all("Value"))
    return replace(column, optype=optype, order=order or column.order)


def _declared_missing(g: Graph, data_field: Element, column: Column) -> Column:
    markers = declared(g, data_field, column, "missing")
    if not markers:
        return column
    mask = g.member(g.column(column.numbers), markers)
    return merge(g, mask, constant(g, None, column.dtype), column)


def _fractions(g: Graph, mining: Element, data_field: Element, column: Column) -> Column:
    """A number that is no integer, in a field of integers, is invalid; as it is, it has no type."""
    if data_field.get("dataType") != "integer":
        return column
    x = g.column(column.numbers)
    fraction = g.Greater(g.Sub(x, g.Floor(x)), g.number(0.0))
    treatment = _invalid_treatment(mining)
    if treatment == ("asIs", None):
        g.invalid.append(fraction)
        return column
    return _invalid_values(g, mining, column, fraction)[0]


def _invalid_treatment(mining: Element) -> tuple[str | None, str | None]:
    return (
        mining.get("invalidValueTreatment") or mining.get("x-invalidValueTreatment"),
        mining.get("invalidValueReplacement") or mining.get("x-invalidValueReplacement"),
    )


def _invalid_values(
    g: Graph, mining: Element, column: Column, outside: ir.Value | None
) -> tuple[Column, bool]:
    """The column after the treatment, and whether every value of it is then a declared one."""
    if outside is None:
        return column, False
    treatment, replacement = _invalid_treatment(mining)
    if treatment in (None, "returnInvalid"):
        g.invalid.append(outside)
        return column, True
    if treatment == "asMissing":
        return merge(g, outside, constant(g, None, column.dtype), column), True
    if treatment == "asIs" and replacement is None:
        return column, False
    if treatment in ("asIs", "asValue") and replacement is not None:
        value = constant(g, parse(mining, replacement, column.dtype), column.dtype)
        return merge(g, outside, value, column), False
    raise Refusal(mining, f"invalidValueTreatment {treatment} is not one of PMML")


def _outliers(g: Graph, mining: Element, column: Column, invalid: ir.Value | None) -> Column:
    """The column with outliers treated; values that are `invalid` and were kept are none."""
    treatment = mining.get("outliers", "asIs")
    if treatment == "asIs":
        return column
    low, high = mining.get("lowValue"), mining.get("highValue")
    x, masks = column.numbers, []
    for limit, op_type in ((low, "Less"), (high, "Greater")):
        if limit is not None:
            bound = g.number(parse_real(mining, limit))
            mask = g.call(op_type, [x, bound])
            masks.append(mask)
            if treatment == "asExtremeValues":
                x = g.Where(mask, bound, x)
    if treatment == "asMissingValues":
        x = g.Where(g.any(masks), g.number(float("nan")), x) if masks else x
    elif treatment != "asExtremeValues":
        raise Refusal(mining, f"outliers {treatment} is not one of PMML")
    if invalid is not None:
        x = g.Where(invalid, column.numbers, x)
    return replace(column, numbers=x)


def _missing_values(g: Graph, mining: Element, column: Column) -> Column:
    text = mining.get("missingValueReplacement")
    treatment = mining.get("missingValueTreatment") or mining.get("x-missingValueTreatment")
    if treatment == "returnInvalid":
        g.invalid.append(missing(g, column))
        return column
    if text is None:
        return column
    value = constant(g, parse(mining, text, column.dtype), column.dtype)
    return merge(g, missing(g, column), value, column)


def top_scope(document: Document, model: Element) -> tuple[Scope, list[ir.Value]]:
    """The scope of the outermost model: its inputs after treatment, and all transformations."""
    scope = Scope(document)
    inputs = document.inputs
    derived = {
        element.get("name")
        for holder in (document.root.child("TransformationDictionary"), local(model))
        if holder is not None
        for element in holder.all("DerivedField")
    }
    for mining in mining_fields(model):
        name = mining.get("name")
        if name in derived or mining.get("usageType") in TARGETS:
            continue
        if mining.get("usageType") not in ACTIVE:
            _define_input(scope, inputs, mining)
            continue
        data = document.data_fields.get(name)
        with document.refusals.collected():
            if data is None:
                raise Refusal(mining, f"field {name!r} is not in the DataDictionary")
            column, value = input_column(document, data)
            inputs.append(value)
            _define_treated(scope, data, mining, column)
    transformations(scope, document.root.child("TransformationDictionary"))
    return scope, inputs


def _define_treated(scope: Scope, data: Element, mining: Element, column: Column) -> None:
    """A field is treated on first use: values of one that nobody uses make no row invalid."""
    scope.define(mining.get("name"), mining, lambda: treated(scope, data, mining, column))


def _define_input(scope: Scope, inputs: list[ir.Value], mining: Element) -> None:
    """A field that is no active one is an input if something refers to it."""
    data = scope.document.data_fields.get(mining.get("name"))
    if data is None:
        return

    def make() -> Column:
        column, value = input_column(scope.document, data)
        inputs.append(value)
        return treated(scope, data, mining, column)

    scope.define(mining.get("name"), mining, make)


def mining_fields(model: Element) -> list[Element]:
    schema = model.child("MiningSchema")
    return schema.all("MiningField") if schema is not None else []


def local(model: Element) -> Element | None:
    return model.child("LocalTransformations")


def transformations(scope: Scope, holder: Element | None) -> None:
    """Define the derived fields of a dictionary in a scope."""
    for element in holder.all("DerivedField") if holder is not None else ():
        name = element.get("name")
        scope.define(name, element, lambda e=element: derived_field(scope, e))  # type: ignore[misc]


def nested_scope(document: Document, parent: Scope, model: Element) -> Scope:
    """The scope of a model inside another: the fields around it, treated by its own schema."""
    scope = Scope(document, parent)
    for mining in mining_fields(model):
        if mining.get("usageType") in ACTIVE and has_treatment(mining):
            name = mining.get("name")
            scope.define(name, mining, lambda m=mining: _nested(scope, m))  # type: ignore[misc]
    transformations(scope, local(model))
    return scope


def has_treatment(mining: Element) -> bool:
    names = ("missingValueReplacement", "lowValue", "highValue", "invalidValueReplacement")
    return (
        any(mining.get(name) is not None for name in names)
        or mining.get("missingValueTreatment") == "returnInvalid"
        or mining.get("invalidValueTreatment") == "asMissing"
    )


def _nested(scope: Scope, mining: Element) -> Column:
    name = mining.get("name")
    assert scope.parent is not None
    column = scope.parent.column(name, mining)
    data = scope.document.data_fields.get(name)
    if mining.get("invalidValueTreatment") in (None, "returnInvalid"):
        data = None  # the model around has decided about invalid values
    return replace(treated(scope, data, mining, column), order=column.order, optype=column.optype)


def target_fields(model: Element) -> list[Element]:
    return [m for m in mining_fields(model) if m.get("usageType") in TARGETS]
