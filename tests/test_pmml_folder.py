"""A folder of PMML documents and tables, as vendors publish them: every one right, or refused.

The environment variable SARDONYX_PMML names a folder with an `index.json`, whose `pairs` name a
document (`pmml`), the table that it scores (`input`) and the expected results (`expected`), with
their separators (`input_sep`, `expected_sep`), the texts that mean missing (`na_values`), and the
columns of the expected table with the outputs that they belong to (`columns`). A `soundness.json`
beside it may name pairs and columns that no evaluator reproduces.
"""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.errors import ImportRefused

FOLDER = os.environ.get("SARDONYX_PMML", "")
RELATIVE, ABSOLUTE = 1e-6, 1e-9

pytestmark = pytest.mark.nightly


def pairs() -> list[dict[str, Any]]:
    if not FOLDER:
        return []
    sound = Path(FOLDER) / "soundness.json"
    verdicts = json.loads(sound.read_text()) if sound.exists() else {}
    entries = json.loads((Path(FOLDER) / "index.json").read_text())["pairs"]
    for entry in entries:
        entry.update(verdicts.get(entry["name"], {}))
    return [entry for entry in entries if entry.get("sound") != "no" and entry["columns"]]


def table(pair: dict[str, Any], what: str) -> dict[str, list[str | None]]:
    path = Path(FOLDER) / pair[what]
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        head, *rows = list(csv.reader(file, delimiter=pair[what + "_sep"]))
    missing = {*pair["na_values"], ""}
    return {
        name: [None if row[i] in missing else row[i] for row in rows if row]
        for i, name in enumerate(head)
    }


def number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return {"true": 1.0, "false": 0.0}.get(str(cell).lower())


def score(model: sx.Model, columns: dict[str, list[str | None]]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(
        model.proto().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    count = len(next(iter(columns.values())))
    feeds = {}
    for value in session.get_inputs():
        cells = columns.get(value.name, [None] * count)
        if "string" in value.type:
            feeds[value.name] = np.array(["" if c is None else c for c in cells], object)
        else:
            numbers = [number(c) for c in cells]
            feeds[value.name] = np.array([np.nan if n is None else n for n in numbers])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def agrees(actual: Any, expected: str | None, relative: float) -> bool:
    is_missing = actual == "" or (isinstance(actual, float) and math.isnan(actual))
    if expected is None or is_missing:
        return expected is None and is_missing
    a, b = number(actual), number(expected)
    if a is None or b is None:
        return str(actual) == expected
    return abs(a - b) <= ABSOLUTE + relative * abs(b)


@pytest.mark.parametrize("pair", pairs(), ids=lambda pair: pair["name"])
def test_document_gives_its_table(pair: dict[str, Any]) -> None:
    try:
        model = sx.from_pmml(Path(FOLDER) / pair["pmml"])
    except ImportRefused as refusal:
        pytest.skip(str(refusal))
    outputs = score(model, table(pair, "input"))
    expected = table(pair, "expected")
    for column, field in pair["columns"].items():
        if column in pair.get("columns_unsound", ()):
            continue
        names = [field, column, *(pair["predicted"] if field in pair["target"] else [])]
        values = next(outputs[name] for name in names if name in outputs)
        relative = max(RELATIVE, pair.get("columns_rtol", {}).get(column, 0.0))
        wrong = [
            (i, a, b)
            for i, (a, b) in enumerate(zip(values, expected[column], strict=True))
            if i not in pair.get("rows_open", ()) and not agrees(a, b, relative)
        ]
        assert not wrong, f"{column}: {wrong[:3]}"


def test_the_comparison_can_fail() -> None:
    assert agrees("a", "a", RELATIVE)
    assert agrees(1.0, "1", RELATIVE)
    assert agrees(float("nan"), None, RELATIVE)
    assert not agrees("a", "b", RELATIVE)
    assert not agrees(1.0, "1.1", RELATIVE)
    assert not agrees(float("nan"), "1", RELATIVE)
    assert not agrees(1.0, None, RELATIVE)


@pytest.mark.skipif(not FOLDER, reason="SARDONYX_PMML names no folder")
def test_few_documents_are_refused() -> None:
    refused = []
    for pair in pairs():
        try:
            sx.from_pmml(Path(FOLDER) / pair["pmml"])
        except ImportRefused as refusal:
            refused.append(f"{pair['name']}: {refusal}")
    assert len(refused) <= 0.05 * len(pairs()), "\n".join(refused)
