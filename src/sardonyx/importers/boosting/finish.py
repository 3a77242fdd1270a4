"""The end of an import: named outputs, metadata, and the verification against the library."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ImportDiffers
from sardonyx.importers.assembly import assemble
from sardonyx.importers.proof import prove
from sardonyx.importers.sklearn.inputs import Schema
from sardonyx.importers.sklearn.table import FLOAT, INT64
from sardonyx.importers.trees import Forest
from sardonyx.model import Model
from sardonyx.versions import fit

ROWS, EDGES = 100, 150
TOLERANCE = 1e-6  # of libraries that add up in float32

Predict = Callable[[Any], Mapping[str, np.ndarray]]


def finished(
    op: Builder,
    schema: Schema,
    outputs: Mapping[str, ir.Value],
    *,
    source: str,
    predict: Predict,
    x: Any,
    forest: Forest | None,
    tolerance: float | Callable[[Mapping[str, np.ndarray]], float] = TOLERANCE,
    classes: Any = None,
    categories: Mapping[int, Any] | None = None,
    scales: Mapping[str, Any] | None = None,
) -> Model:
    """The model, compared with what the library predicts."""
    metadata = {"source": source, "sardonyx.importer": "sardonyx"}
    if classes is not None:
        metadata["classes"] = json.dumps(np.asarray(classes).tolist(), default=str)
    metadata |= schema.metadata()
    model = assemble(op, schema.values, outputs, source, metadata)
    largest, count = 0.0, 0
    for rows in batches(schema, x, forest, categories or {}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = dict(predict(rows))
        if not len(rows):
            continue
        largest = max(
            largest,
            prove(
                model,
                schema.feeds(rows),
                {k: v for k, v in expected.items() if k in outputs},
                tolerance=tolerance(expected) if callable(tolerance) else tolerance,
                source=source,
                scales=scales,
            ),
        )
        count += len(rows)
    if not count:
        raise ImportDiffers("there were no rows to compare", hint="give X, some rows of data")
    model.metadata["sardonyx.verified"] = f"{count:,} rows; largest difference {largest:.1e}"
    return fit(model)


def single_precision(trees: int) -> Callable[[Mapping[str, np.ndarray]], float]:
    """The tolerance for a library that adds up `trees` leaves in float32.

    The error of a sum grows like the square root of its length, and functions such as exp turn an
    error of the sum into a relative one of the result.
    """

    def tolerance(expected: Mapping[str, np.ndarray]) -> float:
        raw = np.abs(np.asarray(expected["raw"], np.float64))
        largest = float(raw[np.isfinite(raw)].max(initial=0.0))
        return max(TOLERANCE, 2 * 2.0**-24 * np.sqrt(trees) * (1.0 + largest))

    return tolerance


def batches(schema: Schema, x: Any, forest: Forest | None, categories: Mapping[int, Any]) -> Any:
    """Given rows, random rows with missing values, and rows on the edges of splits."""
    rng = np.random.default_rng(0)
    if x is not None:
        yield x.iloc[:ROWS] if hasattr(x, "iloc") else _dense(x[:ROWS])
    if schema.frame:
        if x is not None and len(x):
            yield _shuffled(x, rng)
        return
    width = schema.width or 1
    thresholds = forest.thresholds() if forest is not None else {}
    rows = rng.normal(size=(ROWS, width))
    if x is not None:
        sample = _dense(x)[:ROWS].astype(np.float64)
        rows = sample[rng.integers(len(sample), size=ROWS)]
    for j, values in thresholds.items():
        values = values[np.isfinite(values)]
        if j >= width or not len(values):
            continue
        if x is None:
            low, high = values.min(), values.max()
            spread = (high - low) or max(abs(high), 1.0)
            rows[:, j] = rng.uniform(low - 0.3 * spread, high + 0.3 * spread, size=ROWS)
    if schema.types[0] == INT64:
        yield np.round(rows).astype(np.int64)
        return
    dtype = np.float32 if schema.types[0] == FLOAT else np.float64
    yield rows.astype(dtype)
    holes = rows.copy()
    holes[rng.random(holes.shape) < 0.25] = np.nan
    yield holes.astype(dtype)
    edges = _edges(rows, thresholds, width, rng)
    if edges is not None:
        yield edges.astype(dtype)


def _edges(rows, thresholds, width, rng) -> np.ndarray | None:
    pairs = [(j, v) for j, vs in thresholds.items() if j < width for v in vs if np.isfinite(v)]
    if not pairs:
        return None
    chosen = [pairs[i] for i in rng.integers(len(pairs), size=EDGES)]
    out = rows[rng.integers(len(rows), size=3 * EDGES)].copy()
    for k, (j, value) in enumerate(chosen):
        single = np.float32(value)
        out[3 * k, j] = value
        out[3 * k + 1, j] = np.nextafter(single, np.float32(np.inf))
        out[3 * k + 2, j] = np.nextafter(single, np.float32(-np.inf))
    return out


def _dense(x: Any) -> np.ndarray:
    return x.toarray() if hasattr(x, "toarray") else np.asarray(x)


def _shuffled(x: Any, rng: Any) -> Any:
    """The values of each column in another order."""
    out = x.iloc[rng.integers(len(x), size=ROWS)].reset_index(drop=True)
    for name in out.columns:
        order = rng.integers(len(x), size=ROWS)
        out[name] = x[name].iloc[order].reset_index(drop=True)
    return out
