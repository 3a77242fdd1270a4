"""Feeds from a data frame for models each of whose inputs is one column, by the input's name.

Models from `sx.from_pmml`, and from estimators that were given a data frame, are such models. They
need no stored schema: the inputs say the names and the types.

    input         cells                                            missing
    float         numbers, booleans, and texts that spell them     NaN
    string        texts, whole numbers, booleans                   metadata["missing_string"]
    int, bool     numbers and booleans that the type can hold      none

An empty text is fed as metadata["empty_string"], where the empty text stands for missing values.
Where metadata["missing_kinds"] says that a column's missing texts are None, or NaN, the other of
the two is a text that is no category. metadata["input_columns"] has the columns of inputs that are
named otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import DataError, counted, quote

OTHER_MISSING = "\x1fother missing"
BOOLEANS = {"true": 1.0, "false": 0.0}


def feeds(inputs: Sequence[ir.Value], metadata: Mapping[str, str], frame: Any) -> dict[str, Any]:
    """The inputs for the rows of a pandas or polars frame; every column that does not fit is named.

    A column that a PMML document declares and the frame lacks is missing in every row, as PMML has
    it; for other models it is an error.
    """
    arrays, problems = {}, []
    absent = metadata.get("source", "").startswith("PMML")
    columns = json.loads(metadata.get("input_columns", "{}"))
    for value in inputs:
        name = value.name or ""
        column_name = columns.get(name, name)
        try:
            if column_name in frame.columns:
                cells = np.asarray(frame[column_name], object).tolist()
            elif absent:
                cells = [None] * len(frame)
            else:
                raise ValueError("is missing")
            column = _column(value, cells, metadata)
            arrays[name] = column.reshape(-1, 1) if _rank(value) == 2 else column
        except (TypeError, ValueError, OverflowError) as error:
            problems.append([quote(name), str(error)])
    if problems:
        raise DataError(
            f"{counted(len(problems), 'column')} of the frame do not fit the model", problems
        )
    return arrays


def are_columns(inputs: Sequence[ir.Value]) -> bool:
    """Whether each input is one column: of shape [rows] or [rows, 1]."""
    return all(_rank(v) == 1 or (_rank(v) == 2 and v.shape[1] == 1) for v in inputs)  # type: ignore[index]


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _column(value: ir.Value, cells: list[Any], metadata: Mapping[str, str]) -> np.ndarray:
    assert value.dtype is not None
    if value.dtype == ir.DataType.STRING:
        missing, empty = metadata.get("missing_string", ""), metadata.get("empty_string", "")
        kind = json.loads(metadata.get("missing_kinds", "{}")).get(value.name)
        return np.array([_text(cell, missing, empty, kind) for cell in cells], object)
    numbers = np.array([_number(cell) for cell in cells], np.float64)
    dtype = value.dtype.numpy()
    if dtype.kind == "f":
        return numbers.astype(dtype)
    if np.isnan(numbers).any():
        raise ValueError(f"has missing values, which {dtype} cannot have")
    pairs = zip(cells, numbers.tolist())
    whole = [int(cell) if isinstance(cell, (int, np.integer)) else n for cell, n in pairs]
    array = np.array(whole, object).astype(dtype)
    if any(a != w for a, w in zip(array.tolist(), whole)):
        raise ValueError(f"has values that {dtype} cannot have")
    return array


def _is_missing(cell: Any) -> bool:
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or cell != cell


def kind_of_missing(cell: Any) -> str:
    return "None" if cell is None else "NaN"


def _number(cell: Any) -> float:
    if _is_missing(cell):
        return np.nan
    if isinstance(cell, str):
        try:
            return float(cell)
        except ValueError:
            if cell.strip().lower() in BOOLEANS:
                return BOOLEANS[cell.strip().lower()]
            raise ValueError(f"has the text {quote(cell)} in a column of numbers") from None
    if not isinstance(cell, (int, float, np.number, np.bool_)):
        raise TypeError(f"has values of type {type(cell).__name__} in a column of numbers")
    return float(cell)


def _text(cell: Any, missing_text: str, empty_text: str, kind: str | None) -> str:
    if _is_missing(cell):
        return missing_text if kind in (None, kind_of_missing(cell)) else OTHER_MISSING
    if isinstance(cell, str):
        if cell == missing_text and cell:
            raise ValueError("contains the text that stands for a missing value")
        return cell or empty_text
    if isinstance(cell, (bool, np.bool_)):
        return "true" if cell else "false"
    if isinstance(cell, (int, np.integer)):
        return str(cell)
    raise TypeError(f"has values of type {type(cell).__name__} in a column of texts")
