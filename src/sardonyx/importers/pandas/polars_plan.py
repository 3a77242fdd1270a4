"""polars (experimental): the plan of a lazy frame, carried out by the recorder of pandas.

`from_pandas` given a polars frame runs the function on a lazy one, which polars itself writes down
as a plan of expressions. Each expression becomes calls of pandas' methods, on a frame of pandas or
on one that records. What is proved in the end is the graph against polars.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.errors import ImportDiffers, ImportRefused, quote
from sardonyx.frames import frozen, schema
from sardonyx.importers.pandas.recorder import Proxy
from sardonyx.importers.pandas.rules.reshape import data_frame

Table = dict[str, Any]  # columns by name


def is_polars(frame: Any) -> bool:
    return type(frame).__module__.partition(".")[0] == "polars"


def refuse(what: str) -> Any:
    raise ImportRefused(
        "the function has an expression of polars that cannot become ONNX",
        [[what]],
        hint="polars is experimental; write the step in pandas, or before the model",
    )


def pandas_function(function: Callable[[Any], Any], frame: Any) -> Callable[[Any], Any]:
    """The function of a lazy frame of polars as a function of a frame of pandas."""
    lazy = frame.head(0).lazy()
    result = function(lazy)
    if type(result).__name__ != "LazyFrame":
        refuse("the function does not return a lazy frame: it gets one, and must not collect it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # polars calls this format unstable
        plan = json.loads(result.serialize(format="json"))
    names = list(result.collect_schema().names())

    def run(df: Any) -> Any:
        table = carried_out(plan, {name: df[name] for name in frame.columns})
        return frame_of({name: table[name] for name in names})

    return run


def frame_of(table: Table) -> Any:
    is_recorded = any(isinstance(column, Proxy) for column in table.values())
    return data_frame(table) if is_recorded else pd.DataFrame(table)


# -- plans --------------------------------------------------------------------------


def carried_out(plan: dict[str, Any], source: Table) -> Table:
    ((kind, body),) = plan.items()
    if kind == "DataFrameScan":
        return dict(source)
    if kind not in ("Select", "HStack", "Filter", "MapFunction", "SimpleProjection"):
        return refuse(f"the step {kind} of the plan has no rule")
    table = carried_out(body["input"], source)
    if kind == "Filter":
        keep = value(body["predicate"], table)
        kept = frame_of(table)[keep]
        return {name: kept[name] for name in table}
    if kind == "MapFunction":
        renamed = body["function"].get("Rename") if isinstance(body["function"], dict) else None
        if renamed is None:
            return refuse(f"{body['function']} has no rule")
        new = dict(zip(renamed["existing"], renamed["new"], strict=True))
        return {new.get(name, name): column for name, column in table.items()}
    if kind == "SimpleProjection":
        return {name: table[name] for name in body["columns"]}
    changed: Table = {}
    for expression in body["expr"] if kind == "Select" else body["exprs"]:
        changed.update(outputs(expression, table))
    return changed if kind == "Select" else {**table, **changed}


def outputs(expression: dict[str, Any], table: Table) -> Table:
    """The columns that an expression of select or with_columns gives, by their names."""
    if "Selector" in expression:
        return {name: table[name] for name in selected(expression["Selector"], table)}
    result = value(expression, table)
    if not hasattr(result, "isna"):  # one value for all rows
        like = next(iter(table.values()))
        result = like.isna().map({True: result, False: result})
    return {name_of(expression): result}


def selected(selector: Any, table: Table) -> list[str]:
    if selector == "Wildcard":
        return list(table)
    if isinstance(selector, dict) and "ByName" in selector:
        return [n for n in table if n in selector["ByName"]["names"]]
    if isinstance(selector, dict) and "Difference" in selector:
        all_names, without = (selected(s, table) for s in selector["Difference"])
        return [n for n in all_names if n not in without]
    return refuse(f"the selector {selector} has no rule")


def name_of(expression: Any) -> str:
    """The name of what an expression gives: of its alias, or of the first column in it."""
    if isinstance(expression, dict):
        if "Alias" in expression:
            return expression["Alias"][1]
        if "Column" in expression:
            return expression["Column"]
        if "Literal" in expression:
            return "literal"
        if "Ternary" in expression:
            return name_of(expression["Ternary"]["truthy"])
        if "BinaryExpr" in expression:
            return name_of(expression["BinaryExpr"]["left"])
        if "Function" in expression:
            return name_of(expression["Function"]["input"][0])
        if "Over" in expression:
            return name_of(expression["Over"]["function"])
        if "Cast" in expression:
            return name_of(expression["Cast"]["expr"])
        if "Agg" in expression:
            (inner,) = expression["Agg"].values()
            return name_of(inner[0] if isinstance(inner, list) else inner)
    return refuse(f"an expression without a name: {str(expression)[:80]}")


# -- expressions --------------------------------------------------------------------

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Plus": lambda a, b: a + b,
    "Minus": lambda a, b: a - b,
    "Multiply": lambda a, b: a * b,
    "Divide": lambda a, b: a / b,
    "TrueDivide": lambda a, b: a / b,
    "FloorDivide": lambda a, b: a // b,
    "Modulus": lambda a, b: a % b,
    "Eq": lambda a, b: a == b,
    "NotEq": lambda a, b: a != b,
    "Lt": lambda a, b: a < b,
    "LtEq": lambda a, b: a <= b,
    "Gt": lambda a, b: a > b,
    "GtEq": lambda a, b: a >= b,
    "And": lambda a, b: a & b,
    "LogicalAnd": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "LogicalOr": lambda a, b: a | b,
}
DTYPES = {
    "Float64": "float64", "Float32": "float32", "Int64": "int64", "Int32": "int32",
    "Int16": "int16", "Int8": "int8", "UInt8": "uint8", "Boolean": "bool", "String": "str",
}  # fmt: skip
AGGREGATIONS = {"Mean": "mean", "Median": "median", "Min": "min", "Max": "max", "Sum": "sum",
                "Std": "std", "Var": "var", "First": "first", "NUnique": "nunique"}  # fmt: skip


def value(expression: Any, table: Table) -> Any:
    """What an expression gives: a column, or one value."""
    if not isinstance(expression, dict) or len(expression) != 1:
        return refuse(f"the expression {str(expression)[:80]} has no rule")
    ((kind, body),) = expression.items()
    if kind == "Column":
        return table[body]
    if kind == "Alias":
        return value(body[0], table)
    if kind == "Literal":
        return literal(body)
    if kind == "BinaryExpr":
        if body["op"] not in BINARY:
            return refuse(f"the operator {body['op']} has no rule")
        return BINARY[body["op"]](value(body["left"], table), value(body["right"], table))
    if kind == "Ternary":
        return _ternary(*(value(body[k], table) for k in ("predicate", "truthy", "falsy")))
    if kind == "Cast":
        dtype = DTYPES.get(body["dtype"].get("Literal", "") if body["dtype"] else "")
        if dtype is None:
            return refuse(f"a cast to {body['dtype']} has no rule")
        return value(body["expr"], table).astype(dtype)
    if kind == "Agg":
        return _aggregate(body, table)
    if kind == "Over":
        return _over(body, table)
    if kind == "Function":
        return called(body["function"], body["input"], table)
    return refuse(f"the expression {kind} has no rule")


def literal(body: Any) -> Any:
    ((_, content),) = body.items()
    if not isinstance(content, dict):
        return refuse(f"the literal {content} has no rule")
    ((kind, constant),) = content.items()
    if kind == "Null":
        return None
    if kind in ("Int", "Float", "String", "Boolean") or kind.startswith(("Int", "UInt", "Float")):
        return constant
    if kind == "List":
        import polars

        return polars.read_ipc_stream(io.BytesIO(bytes(constant))).to_series().to_list()
    return refuse(f"a literal of {kind} has no rule")


def _ternary(condition: Any, yes: Any, no: Any) -> Any:
    if hasattr(yes, "where"):
        return yes.where(condition, np.nan if no is None else no)
    if hasattr(no, "mask"):
        return no.mask(condition, np.nan if yes is None else yes)
    return condition.map({True: yes, False: no})


def _aggregate(body: dict[str, Any], table: Table) -> Any:
    ((name, inner),) = body.items()
    if name not in AGGREGATIONS or name == "First":
        return refuse(f"the aggregation {name} has no rule")
    return getattr(
        value(inner[0] if isinstance(inner, list) else inner, table), AGGREGATIONS[name]
    )()


def _over(body: dict[str, Any], table: Table) -> Any:
    """`expr.agg().over(keys)`: groupby and transform."""
    function, keys = body["function"], body["partition_by"]
    if "Agg" not in function or body["order_by"] is not None:
        return refuse("over is recorded for one aggregation")
    ((name, inner),) = function["Agg"].items()
    if name not in AGGREGATIONS:
        return refuse(f"the aggregation {name} over groups has no rule")
    column = value(inner[0] if isinstance(inner, list) else inner, table)
    return column.groupby([value(k, table) for k in keys]).transform(AGGREGATIONS[name])


def called(function: Any, inputs: list[Any], table: Table) -> Any:
    """A function of an expression; its options are in a dict of its own."""
    family, name = "", function
    options: Any = {}
    if isinstance(function, dict):
        ((family, name),) = function.items()
        if isinstance(name, dict) and family in ("StringExpr", "Boolean", "TemporalExpr"):
            ((name, options),) = name.items()
        elif isinstance(name, dict):
            name, options, family = family, name, ""
    rule = FUNCTIONS.get((family, name))
    if rule is None:
        return refuse(f"{family or 'the function'} {name} has no rule")
    return rule(options, *(value(i, table) for i in inputs))


def _clip(options: Any, a: Any, *bounds: Any) -> Any:
    low = bounds[0] if options["has_min"] else None
    high = bounds[-1] if options["has_max"] else None
    return a.clip(low, high)


def _joined(options: Any, *parts: Any) -> Any:
    result = parts[0]
    for part in parts[1:]:
        result = result + options["delimiter"] + part
    return result


FUNCTIONS: dict[tuple[str, Any], Callable[..., Any]] = {
    ("", "FillNull"): lambda o, a, b: a.fillna(b),
    ("", "Abs"): lambda o, a: a.abs(),
    ("", "Negate"): lambda o, a: -a,
    ("", "Exp"): lambda o, a: np.exp(a),
    ("", "Log1p"): lambda o, a: np.log1p(a),
    ("", "Log"): lambda o, a, b: np.log(a) if b == np.e else np.log(a) / np.log(b),
    ("", "Floor"): lambda o, a: np.floor(a),
    ("", "Ceil"): lambda o, a: np.ceil(a),
    ("", "Round"): lambda o, a: a.round(o["decimals"]),
    ("", "Clip"): _clip,
    ("Pow", "Sqrt"): lambda o, a: np.sqrt(a),
    ("Pow", "Generic"): lambda o, a, b: a**b,
    ("Trigonometry", "Sin"): lambda o, a: np.sin(a),
    ("Trigonometry", "Cos"): lambda o, a: np.cos(a),
    ("Boolean", "IsNull"): lambda o, a: a.isna(),
    ("Boolean", "IsNotNull"): lambda o, a: a.notna(),
    ("Boolean", "Not"): lambda o, a: ~a,
    ("Boolean", "IsIn"): lambda o, a, b: a.isin(b),
    ("Boolean", "IsBetween"): lambda o, a, b, c: a.between(b, c, inclusive=o["closed"].lower()),
    ("StringExpr", "Lowercase"): lambda o, a: a.str.lower(),
    ("StringExpr", "Uppercase"): lambda o, a: a.str.upper(),
    ("StringExpr", "LenChars"): lambda o, a: a.str.len(),
    ("StringExpr", "Contains"): lambda o, a, b: a.str.contains(b, regex=not o["literal"]),
    ("StringExpr", "StartsWith"): lambda o, a, b: a.str.startswith(b),
    ("StringExpr", "EndsWith"): lambda o, a, b: a.str.endswith(b),
    ("StringExpr", "Replace"): lambda o, a, b, c: a.str.replace(b, c, n=o["n"],
                                                                regex=not o["literal"]),
    ("StringExpr", "Slice"): lambda o, a, b, c: a.str.slice(b, b + c),
    ("StringExpr", "StripChars"): lambda o, a, b: a.str.strip(b),
    ("StringExpr", "ConcatHorizontal"): _joined,
    ("TemporalExpr", "Year"): lambda o, a: a.dt.year,
    ("TemporalExpr", "Month"): lambda o, a: a.dt.month,
    ("TemporalExpr", "Day"): lambda o, a: a.dt.day,
    ("TemporalExpr", "Hour"): lambda o, a: a.dt.hour,
    ("TemporalExpr", "Minute"): lambda o, a: a.dt.minute,
    ("TemporalExpr", "Quarter"): lambda o, a: a.dt.quarter,
    ("TemporalExpr", "WeekDay"): lambda o, a: a.dt.dayofweek + 1,
    ("TemporalExpr", "OrdinalDay"): lambda o, a: a.dt.dayofyear,
}  # fmt: skip


# -- proof --------------------------------------------------------------------------


def prove(model: Any, function: Callable[[Any], Any], frame: Any) -> None:
    """The graph against polars itself: the training frame, and rows in which a value is null."""
    from sardonyx.verify.subjects import OnnxSubject

    subject = OnnxSubject(model)

    def check(rows: Any) -> None:
        expected = function(rows.lazy()).collect()
        compare(expected, model.frame(subject(model.feeds(rows.to_pandas()))))

    check(frame)
    if frozen(model.metadata):  # polars would compute it again, over other rows
        return
    read = {column.name for column in schema(model.metadata).inputs}
    for name, dtype in frame.schema.items():
        if name in read and not dtype.is_integer() and "Boolean" not in str(dtype):
            empty = frame.head(1).to_dict(as_series=False) | {name: [None]}
            check(type(frame)(empty, schema=frame.schema))


def compare(expected: Any, actual: Any) -> None:
    """Raise the error that names the first value of polars that the graph does not give."""
    from sardonyx.importers.pandas import proof

    for name in expected.columns:
        want, have = expected[name].to_list(), proof.plain(actual[name])
        if expected[name].dtype.is_temporal():
            want = proof.plain(expected[name].to_pandas())
        if len(want) != len(have):
            raise ImportDiffers(f"polars gives {len(want)} rows, the graph {len(have)}")
        for number, (a, b) in enumerate(zip(want, have, strict=True)):
            missing = a is None or (isinstance(a, float) and a != a)
            if proof.differs(None if missing else a, b):
                raise ImportDiffers(
                    "the recorded graph does not give what polars gives",
                    [[f"column {quote(name)}", f"row {number}: {b!r} instead of {a!r}"]],
                    hint="polars is experimental; null behaves unlike in pandas in some places",
                )
