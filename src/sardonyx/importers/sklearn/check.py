"""Verification of an import: the model and the estimator on the same rows.

NOTE [tolerance]: floats may differ by 1e-10 of their output's magnitude: the order of long sums is
not the estimator's, and a factor that was rounded to float32 shows at 1e-8. Where they differ by
more, the estimator is run again on inputs that are a few rounding errors away: a difference that
such a change explains is rounding too. For float32 the estimator's own run in double shows its
rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.errors import ImportDiffers, quote
from sardonyx.importers.proof import equal, relative, run
from sardonyx.importers.sklearn.inputs import Schema, is_na, parts_of
from sardonyx.importers.sklearn.outputs import expected
from sardonyx.importers.sklearn.rows import batches
from sardonyx.importers.sklearn.table import DOUBLE, FLOAT
from sardonyx.model import Model

FEW = 16  # rounding errors by which inputs are moved
EXPLAINED = 16  # times the effect of that
TOLERANCE = 1e-10
MOST = 1e-5  # the largest difference that rounding may explain in double
SINGLE = 2e-6
MOST_SINGLE = 1e-3
REPORT = "nothing was returned; please report the estimator's settings"
TIES = (
    "nothing was returned. Where several neighbours are at the same distance, as in data of whole "
    "numbers, scikit-learn chooses by the order of its search, which a model cannot repeat; "
    "rescale the columns by factors that leave no ties, or remove duplicates"
)


@dataclass
class Verdict:
    """How many rows were compared, and the largest difference that was seen."""

    rows: int = 0
    largest: float = 0.0
    kinds: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(self.kinds)
        return f"{self.rows:,} rows ({kinds}); largest difference {self.largest:.1e}"


def verify(estimator, model: Model, schema: Schema, x: Any, outputs: dict[str, str]) -> Verdict:
    """Compare on every batch that the estimator accepts; raises ImportDiffers."""
    verdict = Verdict()
    problems: list[list[object]] = []
    reasons = []
    for kind, rows in batches(estimator, schema, x, model):
        try:
            wants = expected(estimator, rows, outputs)
        except Exception as error:
            reasons.append(f"{kind}: {str(error).splitlines()[0] if str(error) else error!r}")
            verdict.skipped.append(kind)
            continue
        if any(not _is_finite(v) for v in wants.values()) and kind == "distant rows":
            continue
        actual = run(model, schema.feeds(rows))
        for name, want in wants.items():
            largest, bad = _compare(estimator, schema, rows, outputs, name, actual[name], want)
            verdict.largest = max(verdict.largest, largest)
            problems += [[quote(name), kind, *row] for row in bad]
        verdict.rows += len(next(iter(wants.values())))
        verdict.kinds.append(kind)
    if problems:
        raise ImportDiffers(
            f"the imported model and {type(estimator).__name__} differ",
            problems,
            hint=TIES if _has_neighbors(estimator) else REPORT,
        )
    if not verdict.rows:
        raise ImportDiffers(
            f"{type(estimator).__name__} accepts none of the rows that were tried",
            [[r] for r in reasons],
            hint="give rows that it accepts: from_sklearn(estimator, X)",
        )
    return verdict


def _has_neighbors(estimator: Any) -> bool:
    parts = parts_of(estimator)
    return any(hasattr(p, "kneighbors") or type(p).__name__ == "KNNImputer" for p in parts)


def _is_finite(values: np.ndarray) -> bool:
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _compare(estimator, schema, rows, outputs, name, actual, want):
    """The largest relative difference, and rows that differ: [where, model, source]."""
    actual = np.asarray(actual)
    if actual.size != want.size:
        return np.inf, [[f"shape {actual.shape}", f"the estimator's is {want.shape}"]]
    actual, want = actual.reshape(want.shape), _plain(want, actual, schema.missing)
    single = FLOAT in schema.types or holds_float32(estimator)
    if want.dtype.kind == "f" or (actual.dtype.kind == "f" and want.dtype.kind in "iub"):
        error = relative(actual.astype(np.float64), want.astype(np.float64))
        allowed = np.full(error.shape, SINGLE if single else TOLERANCE)
        if (error > allowed).any():
            noise = _noise(estimator, schema, rows, outputs, name, want, single)
            allowed = np.maximum(allowed, np.minimum(noise, MOST_SINGLE if single else MOST))
        wrong = ~(error <= allowed)
        if wrong.any() and single:  # as the estimator computes in double is right as well
            wide = _other(estimator, schema, rows, outputs, name, "double")
            if wide is not None:
                wrong &= ~(relative(actual.astype(np.float64), wide.astype(np.float64)) <= SINGLE)
        finite = error[np.isfinite(error)]
        largest = float(finite.max()) if finite.size else 0.0
    else:
        wrong, largest = ~equal(actual, want), 0.0
        if wrong.any() and single:
            other = _other(estimator, schema, rows, outputs, name, "double")
            wrong &= ~equal(actual, other) if other is not None else True
    places = np.argwhere(wrong)[:3]
    table = [
        [f"row {', '.join(map(str, p))}", f"model {actual[tuple(p)]}", f"source {want[tuple(p)]}"]
        for p in places
    ]
    return largest, table


def _plain(want: np.ndarray, actual: np.ndarray, missing: str) -> np.ndarray:
    """An array of objects, as columns of mixed types give it, in the type of the model's output."""
    if want.dtype != object:
        return want
    if actual.dtype.kind == "f":
        return np.array([np.nan if is_na(v) else v for v in want.ravel()], float).reshape(
            want.shape
        )
    return np.array([missing if is_na(v) else v for v in want.ravel()], object).reshape(want.shape)


def _noise(estimator, schema, rows, outputs, name, want, single) -> np.ndarray:
    """How far rounding moves the estimator's own result, relative to the output."""
    most = MOST_SINGLE if single else MOST
    total = 0.0
    for change in ("double", "step") if single else ("step",):
        other = _other(estimator, schema, rows, outputs, name, change)
        if other is None or other.shape != want.shape:
            continue
        moved = relative(other.astype(np.float64), want.astype(np.float64))
        small = moved[moved < most]  # more than that is a jump, which explains nothing
        total = max(total, float(small.max()) if small.size else 0.0)
    return np.full(want.shape, (4 if single else EXPLAINED) * total)


def _other(estimator, schema, rows, outputs, name, change) -> np.ndarray | None:
    """The estimator on the same rows in double, or on rows that are one rounding step away."""
    try:
        if not schema.frame:
            return expected(estimator, _changed(np.asarray(rows), change), outputs)[name]
        frame = rows.copy()
        for column, kind in zip(rows.columns, schema.types):
            if kind in (FLOAT, DOUBLE):
                frame[column] = _changed(np.asarray(rows[column]), change)
        return expected(estimator, frame, outputs)[name]
    except Exception:
        return None


def _changed(values: np.ndarray, change: str) -> np.ndarray:
    if change == "double":
        return values.astype(np.float64)
    steps = np.random.default_rng(0).integers(-FEW, FEW + 1, values.shape)
    return values + np.spacing(values) * steps.astype(values.dtype)


def holds_float32(estimator: Any) -> bool:
    """Whether a part of the estimator was fitted in float32, and so computes in it."""
    from sardonyx.importers.boosting.steps import has_xgboost

    if has_xgboost(estimator):
        return True
    arrays = (v for part in parts_of(estimator) for v in vars(part).values())
    return any(isinstance(v, np.ndarray) and v.dtype == np.float32 for v in arrays)
