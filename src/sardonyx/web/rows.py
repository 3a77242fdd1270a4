"""What a page is fed with: inputs, the rows that it begins with, and how a user tries the model.

A model whose front turns text or raw columns into numbers (`record/front.py`) is fed with these:
the front is a file of its own, which the page runs in WebAssembly before each step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.engines.training import as_text
from sardonyx.errors import ArgumentError, DataError, quote
from sardonyx.model import Model
from sardonyx.passes.nesting import graphs
from sardonyx.record.describe import settings_of
from sardonyx.record.front import ORDINARY_DOMAINS, Front
from sardonyx.record.step import step_inputs
from sardonyx.save import save
from sardonyx.train.evaluation import class_names, links_for, open_for
from sardonyx.train.fields import Feeding, convert, field_names
from sardonyx.train.setup import names_of_classes
from sardonyx.train.tables import Table

WAYS = ("draw", "image", "webcam", "csv", "text")
PICTURES = ("draw", "image", "webcam")
TEXT = "string"
NUMBERS = (
    "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "bool",
)  # fmt: skip
TYPES = (*NUMBERS, TEXT)  # what the page has arrays for
NO_PIXELS = (TEXT, "bool", "int8")  # hold no numbers from 0 to 255
OLDEST_RUNTIME = "onnxruntime==1.21"
ALIGNMENT = 8
FRONT = "front.onnx"
MOST_COLUMNS = 10_000


def fed(
    model: Model, inputs: Sequence[Mapping[str, Any]], front: Front | None
) -> list[dict[str, Any]]:
    """What a row consists of, with its labels: names, types, and the shapes of one row.

    inputs -- those of the step, of which a front computes some
    """
    features = front.features if front is not None else ()
    declared = [_declared(v) for v in front.model.inputs] if front is not None else []
    declared += [dict(i) for i in inputs if i["name"] not in features]
    names = [v.name for v in model.inputs]
    by_name = {i["name"]: i for i in declared}
    declared = [by_name.pop(n) for n in names if n in by_name] + list(by_name.values())
    _refuse(declared)
    return [
        {**i, "shape": [d if isinstance(d, int) else None for d in i["shape"][1:]]}
        for i in declared
    ]


def _declared(value: ir.Value) -> dict[str, Any]:
    dtype = value.dtype
    name = TEXT if dtype == ir.DataType.STRING else str(dtype.numpy()) if dtype else None
    shape = None if value.shape is None else [*value.shape]
    return {"name": value.name, "type": name, "shape": shape}


def _refuse(inputs: Sequence[Mapping[str, Any]]) -> None:
    """An error for inputs that a page cannot feed with any number of rows."""
    problems = []
    for i in inputs:
        if i["type"] not in TYPES:
            problems.append([quote(i["name"]), f"has the type {i['type']}"])
        elif not i["shape"]:
            problems.append([quote(i["name"]), "has no axis of rows"])
        elif isinstance(i["shape"][0], int):
            problems.append([quote(i["name"]), f"takes {i['shape'][0]} rows, and no other number"])
    if problems:
        raise ArgumentError(
            "a page cannot feed these inputs",
            problems,
            hint="it feeds any number of rows along the first axis",
        )


def labels(model: Model, inputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The inputs of the step that the served model does not have."""
    served = {v.name for v in model.inputs}
    return [i["name"] for i in inputs if i["name"] not in served]


def write_front(front: Front, folder: Path) -> dict[str, Any]:
    """Write what turns text and raw columns into numbers; the description of the file."""
    nodes = [n for graph in graphs(front.model.graph) for n in graph]
    foreign = {
        (n.domain, n.op_type) for n in nodes if opset.domain_name(n.domain) not in ORDINARY_DOMAINS
    }
    if foreign:
        raise ArgumentError(
            "onnxruntime-web does not have these operators",
            [[operator, domain] for domain, operator in sorted(foreign)],
            hint="standard ones, such as StringSplit and LabelEncoder, run in a page",
        )
    save(front.model, folder / FRONT, runtime=OLDEST_RUNTIME)
    inputs = [v.name for v in front.model.inputs]
    return {"file": FRONT, "inputs": inputs, "features": list(front.features)}


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageRows:
    """The rows that a page begins with, by input, and the names of the classes in them."""

    arrays: Mapping[str, np.ndarray]
    classes: tuple[str, ...]

    def write(self, path: Path) -> dict[str, Any]:
        """Write the rows into one file, text as JSON; where each field is in it."""
        fields, at = [], 0
        with open(path, "wb") as file:
            for name, array in self.arrays.items():
                text = array.dtype.kind in "OUS"
                content = _as_json(array) if text else array.tobytes()
                kind = TEXT if text else str(array.dtype)
                place = {"offset": at, "bytes": len(content)}
                fields.append({"name": name, "type": kind, "shape": array.shape[1:], **place})
                content += bytes(-len(content) % ALIGNMENT)
                file.write(content)
                at += len(content)
        return {"file": path.name, "rows": len(next(iter(self.arrays.values()))), "fields": fields}


def _as_json(array: np.ndarray) -> bytes:
    texts = [t.decode() if isinstance(t, bytes) else str(t) for t in array.reshape(-1)]
    return json.dumps(texts, ensure_ascii=False).encode()


def read(model: Model, data: Any) -> PageRows:
    """The rows of the data, by the names of the inputs."""
    source = open_for(model, data, None, None, class_names(model))
    if not isinstance(source, Table):
        raise DataError("a page needs data that fits into memory", hint="a table, not a stream")
    links = links_for(model, step_inputs(model), source, Feeding(), settings_of(model))
    moved = [[quote(i.input), f"axis {i.axis}"] for i in links if i.axis]
    if moved:
        raise ArgumentError("the rows of a page's inputs lie along the first axis", moved)
    rows = convert(source.take(np.arange(len(source)), field_names(links)), links)
    arrays = {n: np.ascontiguousarray(as_text(a, n)) for n, a in rows.items()}
    return PageRows(arrays, names_of_classes(source, links))


# -- trying the model -----------------------------------------------------------------------------


def way_to_try(
    inputs: Sequence[Mapping[str, Any]], table: PageRows | None, kind: str | None
) -> dict[str, Any] | None:
    """How a user tries the model: what makes a row, and the sizes of its inputs.

    None for a model that cannot be tried by hand, such as one with rows of free sizes.
    """
    shown = [{**i, "shape": _sizes(i, table)} for i in inputs]
    if len(shown) == 1:
        (only,) = shown
        kind = kind or _suitable(only)
        _require(kind, only)
        if kind in PICTURES and table is None and None in inputs[0]["shape"]:
            what = f"{quote(only['name'])} takes pictures of any size"
            raise ArgumentError(f"{what}, and a page of one", hint="data shows it which")
        return {"kind": kind, **only}
    if kind not in (None, "csv"):
        rows = [[quote(i["name"]), i["type"], str(i["shape"])] for i in shown]
        raise ArgumentError(
            f'input="{kind}" needs a model with one input', rows, hint='input="csv"'
        )
    columns = sum(math.prod(i["shape"]) for i in shown)
    return {"kind": "csv", "columns": shown} if columns <= MOST_COLUMNS else None


def _sizes(field: Mapping[str, Any], table: PageRows | None) -> list[int]:
    """The sizes of a row; those that are free as the data has them, else 1."""
    actual = table.arrays[field["name"]].shape[1:] if table is not None else None
    if actual is not None and len(actual) == len(field["shape"]):
        return list(actual)
    return [1 if d is None else d for d in field["shape"]]


def _suitable(field: Mapping[str, Any]) -> str:
    if field["type"] == TEXT:
        return "text" if math.prod(field["shape"]) == 1 else "csv"
    if field["type"] in NO_PIXELS or not _is_picture(field["shape"]):
        return "csv"
    return "draw" if field["shape"][0] == 1 else "image"


def _require(kind: str, field: Mapping[str, Any]) -> None:
    """An error for a way that does not make a row of the model."""
    shape, what = field["shape"], f"{quote(field['name'])} is {field['type']} {field['shape']}"
    is_picture = field["type"] not in NO_PIXELS and (_is_picture(shape) or _is_square(shape))
    if kind in PICTURES and not is_picture:
        raise ArgumentError(
            f'input="{kind}" needs a model of images, and {what}', hint='input="csv"'
        )
    if kind == "text" and (field["type"] != TEXT or math.prod(shape) != 1):
        raise ArgumentError(
            f'input="text" needs a model that reads one text, and {what}',
            hint="a graph reads text through StringSplit, LabelEncoder or TfIdfVectorizer in front",
        )


def _is_picture(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and shape[0] in (1, 3)


def _is_square(shape: Sequence[int]) -> bool:
    """Whether rows of numbers may be the pixels of a grey picture."""
    return len(shape) == 1 and math.isqrt(shape[0]) ** 2 == shape[0]
