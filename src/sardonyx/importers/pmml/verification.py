"""ModelVerification: the rows that a document carries to prove an import, run on the result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ImportDiffers, MissingExtra, counted, quote
from sardonyx.importers.proof import run
from sardonyx.model import Model

from .document import Element
from .literals import as_number

SHOWN = 10
# A document may ask for more digits than a sum or an exponential keeps in its arithmetic.
DOUBLE, SINGLE = (1e-9, 1e-12), (1e-5, 1e-6)


def verify_rows(model: Model, element: Element, single: Collection[str]) -> int:
    """Run the document's own rows; raises `ImportDiffers` where a result is another.

    single -- outputs that are computed in floats of 32 bits
    """
    holder = element.child("ModelVerification")
    table = holder.child("InlineTable") if holder is not None else None
    fields = holder.child("VerificationFields") if holder is not None else None
    if holder is None or table is None or fields is None:
        return 0
    rows = [{cell.tag: cell.text.strip() for cell in row.children} for row in table.all("row")]
    if not rows:
        return 0
    try:
        actual = run(model, _feeds(model, fields, rows))
    except MissingExtra as missing:
        warnings.warn(f"the document's own test was not run: {missing}", stacklevel=2)
        return 0
    problems = []
    for field in fields.all("VerificationField"):
        name = field.get("field")
        if name not in actual:
            continue
        values = np.asarray(actual[name]).reshape(-1)
        for i, (cell, value) in enumerate(zip(_cells(field, rows), values, strict=True)):
            if cell is not None and not _agrees(field, cell, value, name in single):
                problems.append([quote(name), f"row {i}", f"model {value!r}", f"document {cell}"])
    if problems:
        raise ImportDiffers(
            f"the model fails {counted(len(problems), 'value')} of the document's own test",
            problems[:SHOWN],
            hint="this is a defect of the import or of the document: nothing was returned",
        )
    return len(rows)


def _cells(field: Element, rows: list[dict[str, str]]) -> list[str | None]:
    column = (field.get("column") or field.get("field")).rpartition(":")[2]
    return [row.get(column) for row in rows]


def _feeds(model: Model, fields: Element, rows: list[dict[str, str]]) -> dict[str, np.ndarray]:
    by_name = {f.get("field"): f for f in fields.all("VerificationField")}
    feeds = {}
    for value in model.inputs:
        field = by_name.get(value.name)
        cells = _cells(field, rows) if field is not None else [None] * len(rows)
        if value.dtype == ir.DataType.STRING:
            feeds[str(value.name)] = np.array(["" if c is None else c for c in cells], object)
            continue
        numbers = [None if c is None else as_number(c) for c in cells]
        feeds[str(value.name)] = np.array([np.nan if n is None else n for n in numbers])
    return feeds


def _agrees(field: Element, cell: str, value: Any, is_single: bool) -> bool:
    if isinstance(value, (str, bytes)):
        text = value.decode() if isinstance(value, bytes) else value
        if text == cell:
            return True
        numbers = as_number(text), as_number(cell)
        return None not in numbers and numbers[0] == numbers[1]
    expected, actual = as_number(cell), float(value)
    if expected is None or math.isnan(expected):
        return math.isnan(actual)
    relative, absolute = SINGLE if is_single else DOUBLE
    zero = float(field.get("zeroThreshold", 1e-16))
    if abs(expected) <= zero and abs(actual) <= zero:
        return True
    precision = max(float(field.get("precision", 1e-6)), relative)
    return abs(actual - expected) <= precision * abs(expected) + absolute
