"""The columns of a booster: one matrix, or one input per column of a data frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.sklearn.encoders import coded, missing_text
from sardonyx.importers.sklearn.inputs import Schema, schema_of
from sardonyx.importers.sklearn.table import DOUBLE, FLOAT, INT64, STRING, column

F = np.float64


def booster_schema(x: Any, width: int, dtype: ir.DataType) -> Schema:
    """The inputs: those of X, or one matrix of the library's own type."""
    if x is not None:
        return schema_of(None, x)
    return Schema(["X"], [dtype], False, width)


def matrix_of(op: Builder, schema: Schema, categories: dict[int, Any], single: bool) -> ir.Value:
    """All columns in double: numbers (rounded to float32 if `single`) and codes of categories.

    categories -- the values of a column's categories, in the order of their codes; the codes of a
                  value that is not among them is missing
    """
    table = schema.table()
    if not schema.frame:
        assert isinstance(table, ir.Value)
        value = op.cast(table, FLOAT) if single else table
        return op.cast(value, DOUBLE)
    token = missing_text.set(schema.missing)
    try:
        parts = []
        for i in range(len(schema.names)):
            part = column(op, table, i)
            if i in categories:
                values = list(categories[i])
                code = coded(op, part, values, np.arange(len(values)), len(values))
                codes = np.append(np.arange(len(values), dtype=F), np.nan)
                parts.append(op.Gather(op.const(codes), code))
            elif part.dtype == STRING:
                raise _texts(schema.names[i])
            else:
                value = op.cast(part, FLOAT) if single and part.dtype != INT64 else part
                value = op.cast(value, FLOAT) if single else value
                parts.append(op.cast(value, DOUBLE))
    finally:
        missing_text.reset(token)
    return op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]


def _texts(name: str) -> Exception:
    from sardonyx.errors import ImportRefused, quote

    return ImportRefused(
        f"column {quote(name)} holds texts, and the booster has no categories for it"
    )


def frame_categories(x: Any) -> dict[int, list[Any]]:
    """The categories of the category columns of a frame, by the column's number."""
    out = {}
    for i, name in enumerate(x.columns):
        dtype = x[name].dtype
        if str(dtype) == "category":
            out[i] = list(dtype.categories)
    return out
