"""Rows on which an import is verified: those given, and rows that try to find a difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx.importers.sklearn.inputs import Schema, categories, frame_categories
from sardonyx.importers.sklearn.table import BOOL, FLOAT, INT64, STRING
from sardonyx.model import Model

GIVEN, MADE, EDGES = 200, 60, 120


def batches(estimator: Any, schema: Schema, x: Any, model: Model) -> Iterator[tuple[str, Any]]:
    """Batches of rows in X's own form, with what is special about them."""
    rng = np.random.default_rng(0)
    if x is not None:
        yield "given rows", _first(x, GIVEN)
    if schema.frame:
        yield from _frames(estimator, schema, x, rng)
        return
    if schema.types[0] == STRING:
        yield from _texts(estimator, schema, x, rng)
        return
    base = _base(estimator, schema, x, rng)
    if base is None:
        return
    dtype = np.float32 if schema.types[0] == FLOAT else np.float64
    whole = schema.types[0] in (INT64, BOOL)

    def shaped(rows: np.ndarray) -> np.ndarray:
        rows = rows.astype(dtype)
        rows = rows if schema.width is not None else rows[:, 0]
        return rows.astype(schema.types[0].numpy()) if whole else rows

    center, spread = base.mean(0), base.std(0) + 1e-3 * (np.abs(base).mean(0) + 1e-3)
    near = center + spread * rng.normal(size=(MADE, base.shape[1]))
    yield "random rows", shaped(near)
    yield "random rows without a sign", shaped(np.abs(near))
    yield "whole numbers", shaped(np.round(np.abs(near)))
    if whole:
        return
    far = center + spread * rng.normal(size=(MADE // 3, base.shape[1])) * 10
    yield "distant rows", shaped(np.concatenate([far, np.zeros((1, base.shape[1]))]))
    edges = _edges(model, base, rng)
    if edges is not None:
        yield "edges of splits", shaped(edges)
    if takes_missing(estimator):
        holes = base[rng.integers(len(base), size=MADE)].copy()
        holes[rng.random(holes.shape) < 0.3] = np.nan
        yield "missing values", shaped(holes)


def _first(x: Any, count: int) -> Any:
    if hasattr(x, "toarray"):
        return x[:count].toarray()
    if hasattr(x, "columns"):
        return x.iloc[:count] if hasattr(x, "iloc") else x[:count]
    return np.asarray(x)[:count]


def takes_missing(estimator: Any) -> bool:
    from sklearn.utils import get_tags

    try:
        return bool(get_tags(estimator).input_tags.allow_nan)
    except Exception:
        return False


def _base(estimator: Any, schema: Schema, x: Any, rng: Any) -> np.ndarray | None:
    """Rows to vary: those given without missing values, or normal numbers."""
    width = 1 if schema.width is None else schema.width
    if x is not None:
        rows = np.asarray(_first(x, GIVEN), np.float64).reshape(-1, width)
        rows = rows[np.isfinite(rows).all(1)]
        if len(rows) > 1:
            return rows
    center, spread = np.zeros(width), np.ones(width)
    for part in (estimator, *(s for _, s in getattr(estimator, "steps", [])[:1])):
        mean: Any = getattr(part, "mean_", 0.0)
        scale: Any = getattr(part, "scale_", 0.0)
        if np.shape(mean) == (width,) and np.shape(scale) == (width,):
            center, spread = np.asarray(mean, float), np.asarray(scale, float)
    return center + spread * rng.normal(size=(MADE, width))


def _edges(model: Model, base: np.ndarray, rng: Any) -> np.ndarray | None:
    """Rows on the thresholds of trees that read the input itself, and one step beside them."""
    columns, values = [], []
    for node in model.graph:
        if node.op_type == "TreeEnsemble" and _reads_input(node.inputs[0], base.shape[1]):
            columns.append(np.asarray(node.attributes["nodes_featureids"].as_ints()))
            values.append(node.attributes["nodes_splits"].as_tensor().numpy())
    if not columns:
        return None
    column, value = np.concatenate(columns), np.concatenate(values)
    usable = (column < base.shape[1]) & np.isfinite(value) & (np.abs(value) < 1e30)
    column, value = column[usable], value[usable]
    if not len(column):
        return None
    which = rng.integers(len(column), size=EDGES)
    column, value = column[which], value[which]
    rows = base[rng.integers(len(base), size=3 * EDGES)].copy()
    below = np.nextafter(value.astype(np.float32), np.float32(-np.inf))
    above = np.nextafter(value.astype(np.float32), np.float32(np.inf))
    steps = np.concatenate([value, below, above, np.nextafter(value, -np.inf)])
    rows = np.concatenate([rows, base[rng.integers(len(base), size=EDGES)]])
    rows[np.arange(len(rows)), np.tile(column, 4)] = steps
    return rows


def _reads_input(value: Any, width: int) -> bool:
    while value is not None and value.producer() is not None:
        node = value.producer()
        if node.op_type not in ("Cast", "Identity"):
            return False
        value = node.inputs[0]
    return value is not None and value.shape is not None and value.shape[-1] == width


# -- texts and frames -----------------------------------------------------------------------------


def _texts(estimator, schema, x, rng) -> Iterator[tuple[str, Any]]:
    columns = [categories(estimator, i) for i in range(schema.width or 1)]
    if x is not None:
        array = np.asarray(x, object).reshape(len(x), -1)
        columns = [[*c, *array[:50, i].tolist()] for i, c in enumerate(columns)]
    if not all(columns):
        return
    rows = np.empty((MADE, len(columns)), object)
    for i, values in enumerate(columns):
        rows[:, i] = [values[k] for k in rng.integers(len(values), size=MADE)]
    shaped = rows if schema.width is not None else rows[:, 0]
    yield "categories", shaped
    unseen = rows.copy()
    unseen[rng.random(rows.shape) < 0.3] = "a category that was never seen"
    yield "unseen categories", unseen if schema.width is not None else unseen[:, 0]


def _frames(estimator, schema, x, rng) -> Iterator[tuple[str, Any]]:
    """Frames made of the columns of the one given: other combinations, unseen and missing ones."""
    if x is None or not len(x) or not hasattr(x, "iloc"):
        if x is None:
            yield from _made_frames(estimator, schema, rng)
        return
    mixed = x.iloc[rng.integers(len(x), size=MADE)].reset_index(drop=True)
    for name in mixed.columns:
        # A column, not an array of objects, whose type and missing values pandas would infer.
        mixed[name] = x[name].iloc[rng.integers(len(x), size=MADE)].reset_index(drop=True)
    yield "other combinations", mixed
    for i, (name, kind) in enumerate(zip(mixed.columns, schema.types)):
        changed = mixed.copy()
        if kind == STRING and str(x[name].dtype) != "category":
            changed.loc[:1, name] = ["a category that was never seen", ""]
            yield f"an unseen category in {name!r}", changed
        if kind not in (INT64, BOOL) and i < 20:
            changed = mixed.copy()
            missing = None if _holds_none(x[name]) else np.nan
            changed[name] = changed[name].where(rng.random(MADE) < 0.7, missing)
            yield f"missing values in {name!r}", changed


def _holds_none(column: Any) -> bool:
    """Whether the missing values of a column are None, which scikit-learn tells from NaN."""
    return any(value is None for value in np.asarray(column, object))


def _made_frames(estimator, schema, rng) -> Iterator[tuple[str, Any]]:
    try:
        import pandas
    except ImportError:
        return
    columns = {}
    for i, (name, kind) in enumerate(zip(schema.names, schema.types)):
        if kind == STRING:
            values = [v for v in frame_categories(estimator, i) if isinstance(v, str)]
            columns[name] = [values[k] for k in rng.integers(len(values), size=MADE)]
        else:
            columns[name] = rng.normal(size=MADE)
    yield "random rows", pandas.DataFrame(columns)
