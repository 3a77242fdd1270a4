"""Proof of an import: the model's results on some rows, held against those of its source.

The model runs in onnxruntime. Floats may differ by a tolerance relative to the magnitude of their
output; integers, texts and booleans are equal, NaN equals NaN and an infinity itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import ImportDiffers, quote
from sardonyx.model import Model
from sardonyx.verify.subjects import OnnxSubject

SHOWN_ROWS = 3
DOUBLE, SINGLE = 1e-12, 1e-5


def run(model: Model, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The outputs of the model in onnxruntime, by name."""
    return OnnxSubject(model)(feeds)


def prove(
    model: Model,
    feeds: Mapping[str, np.ndarray],
    expected: Mapping[str, Any],
    *,
    tolerance: float = DOUBLE,
    source: str = "the source",
    scales: Mapping[str, Any] | None = None,
) -> float:
    """Run the model and compare; returns the largest relative difference.

    expected   -- arrays by output name; a single column may have or lack its axis
    tolerance  -- the difference of floats that is accepted, relative to the magnitude of the output
    source     -- what the expected values come from, for the error
    scales     -- the magnitude of an output, where its values do not show it

    Raises `ImportDiffers`, which names every output that differs, rows and both values.
    """
    actual = run(model, feeds)
    problems: list[list[object]] = []
    largest = 0.0
    for name, reference in expected.items():
        if name not in actual:
            problems.append([quote(name), "the model has no such output"])
            continue
        scale = (scales or {}).get(name)
        difference, rows = differences(actual[name], np.asarray(reference), tolerance, scale)
        largest = max(largest, difference)
        problems += [[quote(name), *row] for row in rows]
    if problems:
        raise ImportDiffers(
            f"the imported model and {source} differ",
            problems,
            hint="this is a defect of the import: please report the model; nothing was returned",
        )
    return largest


def differences(
    actual: Any, expected: np.ndarray, tolerance: float, scale: Any = None
) -> tuple[float, list[list[object]]]:
    """The largest relative difference, and the first rows in which two arrays differ."""
    actual = np.asarray(actual)
    if expected.shape != actual.shape:
        if expected.size != actual.size:
            return np.inf, [[f"shape {actual.shape}", f"expected {expected.shape}"]]
        actual = actual.reshape(expected.shape)
    if expected.dtype.kind == "f" or (actual.dtype.kind == "f" and expected.dtype.kind in "iub"):
        error = relative(actual.astype(np.float64), expected.astype(np.float64), scale)
        wrong = ~(error <= tolerance)
        finite = error[np.isfinite(error)]
        largest = float(finite.max()) if finite.size else 0.0
    else:
        wrong = ~equal(actual, expected)
        largest = 0.0
    if not wrong.any():
        return largest, []
    places = np.argwhere(wrong)
    rows = [_row(place, actual, expected) for place in places[:SHOWN_ROWS]]
    if len(places) > SHOWN_ROWS:
        rows.append([f"… and {len(places) - SHOWN_ROWS:,} more of {wrong.size:,} values"])
    return np.inf, rows


def relative(actual: np.ndarray, expected: np.ndarray, scale: Any = None) -> np.ndarray:
    """Differences of floats, relative to the value, or to the output's magnitude if that is more.

    The magnitude of an output is its median, or a thousandth of its largest value.
    """
    if scale is None:
        usual = np.abs(expected[np.isfinite(expected)])
        scale = max(float(np.median(usual)), 1e-3 * float(usual.max())) if usual.size else 0.0
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(expected), scale)
        error = np.abs(actual - expected) / np.where(size > 0, size, 1.0)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    error = np.where(same, 0.0, error)
    return np.where(np.isnan(error), np.inf, error)


def equal(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Which integers, booleans and texts are equal."""
    if expected.dtype.kind in "OUST" or actual.dtype.kind in "OUST":
        pairs = zip(actual.reshape(-1), expected.reshape(-1))
        return np.array([_text(a) == _text(b) for a, b in pairs], bool).reshape(expected.shape)
    return np.asarray(actual == expected)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _row(place: Sequence[int], actual: np.ndarray, expected: np.ndarray) -> list[object]:
    where = tuple(int(i) for i in place)
    words = f"row {where[0]}" if where else "the value"
    if len(where) > 1:
        words += f", column {', '.join(map(str, where[1:]))}"
    value, want = actual[where], expected[where]
    return [words, f"model {_shown(value)}", f"source {_shown(want)}"]


def _shown(value: Any) -> str:
    return quote(value) if isinstance(value, (str, bytes)) else repr(np.asarray(value).item())
