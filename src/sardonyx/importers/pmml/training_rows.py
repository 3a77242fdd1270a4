"""Derived fields of training rows: a small model of the document's transformations, run on them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.importers.proof import run
from sardonyx.limits import Limits

from .document import Element
from .fields import mining_fields
from .literals import as_number
from .refusal import Refusal
from .results import Job


def derive(
    job: Job, rows: list[dict[str, str]], columns_of: dict[str | None, str], items: list[Element]
) -> None:
    """Add the fields that `items` name, which the rows lack, to rows that are not transformed."""
    holder = job.element.child("TrainingInstances")
    is_raw = holder is not None and holder.get("isTransformed", "false") == "false"
    for item in items:
        if not is_raw or job.scope.find(item.get("field")) is None:
            raise Refusal(item, f"the training rows have no field {item.get('field')!r}")
    if not items:
        return
    names = [item.get("field") for item in items]
    for name, cells in _scored(job, rows, columns_of, names).items():
        columns_of[name] = f"derived {name}"
        for row, cell in zip(rows, cells.tolist(), strict=True):
            if cell != "" and cell == cell:
                row[columns_of[name]] = str(cell)


def _scored(
    job: Job, rows: list[dict[str, str]], columns_of: Mapping[str | None, str], names: list[str]
) -> dict[str, np.ndarray]:
    from .driver import translate

    model = translate(_document(job, names), Limits())
    feeds = {}
    for value in model.inputs:
        cells = [row.get(columns_of.get(value.name, "")) for row in rows]
        if value.dtype == ir.DataType.STRING:
            feeds[str(value.name)] = np.array([c or "" for c in cells], object)
        else:
            numbers = [None if c is None else as_number(c) for c in cells]
            feeds[str(value.name)] = np.array([np.nan if n is None else n for n in numbers])
    outputs = run(model, feeds)
    return {name: np.asarray(outputs[f"derived {name}"]) for name in names}


def _document(job: Job, names: list[str]) -> Element:
    """A document whose outputs are the derived fields, over the fields of the model."""
    line, root = job.element.line, job.document.root
    output = Element("Output", {}, line)
    for name in names:
        settings = {"name": f"derived {name}", "feature": "transformedValue"}
        field = Element("OutputField", settings, line)
        field.children = [Element("FieldRef", {"field": name}, line)]
        output.children.append(field)
    schema = Element("MiningSchema", {}, line)
    schema.children = [m for m in mining_fields(job.element) if m.get("usageType") in USED]
    model = Element("RegressionModel", {"functionName": "regression"}, line)
    table = Element("RegressionTable", {"intercept": "0"}, line)
    model.children = [schema, output, *job.element.all("LocalTransformations"), table]
    out = Element("PMML", root.attributes, root.line)
    shared = ("DataDictionary", "TransformationDictionary")
    out.children = [c for c in root.children if c.tag in shared] + [model]
    return out


USED = ("active", None)
