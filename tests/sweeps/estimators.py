"""Every estimator of scikit-learn, in several settings, imported and held against itself.

    python -m tests.sweeps.estimators [names] [--quick]

Prints one line per estimator (right, refused, wrong) in float64 and float32, and the totals. The
comparison is this file's own: onnxruntime on rows that the import did not see.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort

import sardonyx as sx
from sardonyx.errors import ImportRefused

ROWS, HELD_OUT, COLUMNS = 80, 40, 5
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}


@dataclass
class Data:
    """Rows and targets of one kind."""

    name: str
    X: Any
    y: Any
    test: Any


@dataclass
class Result:
    status: Counter = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)


def _numbers(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS + HELD_OUT, COLUMNS))
    return x.astype(np.float32).astype(np.float64), rng.normal(size=(COLUMNS, 3))


def _classes(x: np.ndarray, w: np.ndarray, count: int) -> np.ndarray:
    score = (x @ w)[:, 0] + 0.3 * np.sin(3 * x[:, 1])
    return np.searchsorted(np.quantile(score, np.arange(1, count) / count), score)


def datasets() -> dict[str, Data]:
    x, w = _numbers()
    sets: dict[str, tuple[Any, Any]] = {
        "binary": (x, _classes(x, w, 2)),
        "multiclass": (x, _classes(x, w, 3)),
        "texts": (x, np.array(["low", "mid", "high"])[_classes(x, w, 3)]),
        "multilabel": (x, (x @ w > 0).astype(int)),
        "regression": (x, (x @ w)[:, 0] + 0.1 * x[:, 1] ** 2),
        "outputs": (x, x @ w[:, :2]),
        "positive": (np.abs(x), np.exp((x @ w)[:, 0] / 3)),
        "counts": (np.round(np.abs(x) * 2), _classes(x, w, 3)),
        "line": (x[:, :1], (x @ w)[:, 0]),
        "categories": (_category_rows(), _classes(x, w, 2)),
        "sparse-like": (np.where(np.abs(x) > 0.8, x, 0.0), _classes(x, w, 2)),
        "kernel": (x @ x[:ROWS].T, _classes(x, w, 2)),
        "holes": (_holes(x), _classes(x, w, 2)),
    }
    return {n: Data(n, X[:ROWS], y[:ROWS], X[ROWS:]) for n, (X, y) in sets.items()}


def _category_rows() -> np.ndarray:
    rng = np.random.default_rng(3)
    colors = np.array(["red", "green", "blue", "black"], object)
    sizes = np.array(["S", "M", "L"], object)
    n = ROWS + HELD_OUT
    return np.stack([colors[rng.integers(4, size=n)], sizes[rng.integers(3, size=n)]], 1)


def _holes(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[np.random.default_rng(4).random(out.shape) < 0.15] = np.nan
    return out


def settings(name: str) -> list[tuple[dict[str, Any], str]]:
    """Keyword arguments and kinds of data on which an estimator is tried."""
    from tests.sweeps import estimator_settings

    return estimator_settings.settings(name)


def fitted(cls: Any, arguments: dict[str, Any], data: Data, dtype: str = "float64") -> Any:
    estimator = cls(**arguments)
    if "random_state" in estimator.get_params() and "random_state" not in arguments:
        estimator.set_params(random_state=0)
    if cls.__name__ in ("LabelEncoder", "LabelBinarizer"):
        return estimator.fit(data.y)
    if cls.__name__ == "MultiLabelBinarizer":
        return estimator.fit([[1, 2], [3]])
    x = data.X.astype(dtype) if data.X.dtype.kind == "f" else data.X
    return estimator.fit(x, data.y)


def tried(cls: Any, arguments: dict[str, Any], data: Data, dtype: str) -> tuple[str, str]:
    """right, refused, wrong or unfit, and the reason."""
    label_only = cls.__name__ in ("LabelEncoder", "LabelBinarizer", "MultiLabelBinarizer")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator = fitted(cls, arguments, data, dtype)
    except Exception as error:
        return "unfit", f"{type(error).__name__}: {str(error)[:100]}"
    x, test = (data.y, data.y) if label_only else (data.X, data.test)
    if x.dtype.kind == "f" and dtype == "float32":
        x, test = x.astype(np.float32), test.astype(np.float32)
    try:
        model = sx.from_sklearn(estimator, x)
    except ImportRefused as error:
        return "refused", str(error).splitlines()[0]
    except Exception as error:
        return "failed", f"{type(error).__name__}: {str(error)[:400]}"
    single = dtype == "float32" or _holds_float32(estimator)
    tolerance = TOLERANCE["float32" if single else "float64"]
    status, reason = compared(estimator, model, test, tolerance)
    if status == "wrong" and single:  # where float32 is too coarse, the estimator in double decides
        status, reason = compared(estimator, model, test, tolerance, test.astype(np.float64))
    elif status == "wrong" and "relative" in reason:
        # Where one rounding error of the rows changes the estimator's own result by more than the
        # tolerance, that is the tolerance.
        noise = _own_noise(estimator, test)
        status, reason = compared(estimator, model, test, max(tolerance, 64 * noise))
    return status, reason


def _holds_float32(estimator: Any) -> bool:
    inner = [v for v in vars(estimator).values() if hasattr(v, "get_params")]
    arrays = [v for part in (estimator, *inner) for v in vars(part).values()]
    return any(isinstance(v, np.ndarray) and v.dtype == np.float32 for v in arrays)


def _own_noise(estimator: Any, test: np.ndarray) -> float:
    up = np.random.default_rng(0).random(test.shape) < 0.5
    near = np.where(up, np.nextafter(test, np.inf), np.nextafter(test, -np.inf))
    worst = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for methods in METHODS.values():
            for method in methods:
                if hasattr(estimator, method):
                    one, two = (getattr(estimator, method)(x) for x in (test, near))
                    if getattr(one, "dtype", None) == np.float64:
                        size = np.maximum(np.abs(one), np.median(np.abs(one)))
                        moved = np.abs(one - two) / np.where(size > 0, size, 1)
                        worst = max(worst, float(moved[moved < 1e-7].max(initial=0.0)))
    return worst


METHODS = {
    "label": ["predict"],
    "variable": ["predict"],
    "transformed": ["transform"],
    "probabilities": ["predict_proba"],
    "scores": ["decision_function", "score_samples"],
}


def compared(
    estimator: Any, model: Any, test: Any, tolerance: float, rows: Any = None
) -> tuple[str, str]:
    """The model on `test` against the estimator on the same rows, or on `rows`."""
    session = ort.InferenceSession(
        sx.save(model, f"/tmp/estimator_sweep_{os.getpid()}.onnx").read_bytes(),
        providers=["CPUExecutionProvider"],
    )
    feed = test.astype(object) if test.dtype.kind in "OU" else test
    names = [o.name for o in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, {session.get_inputs()[0].name: feed})))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for stem, methods in METHODS.items():
            mine = [n for n in names if n == stem or n.startswith(stem + "_")]
            if not mine:
                continue
            method = next(m for m in methods if hasattr(estimator, m))
            value = getattr(estimator, method)(test if rows is None else rows)
            wants = value if isinstance(value, list) else [value]
            for name, want in zip(mine, wants):
                reason = difference(outputs[name], want, tolerance)
                if reason:
                    return "wrong", f"{name}: {reason}"
    return "right", ""


def difference(actual: np.ndarray, want: Any, tolerance: float) -> str:
    want = want.toarray() if hasattr(want, "toarray") else np.asarray(want)
    if actual.size != want.size:
        return f"shape {actual.shape}, not {want.shape}"
    actual = actual.reshape(want.shape)
    if want.dtype.kind != "f":
        same = actual.astype(str) == want.astype(str) if want.dtype.kind in "OU" else actual == want
        return "" if same.all() else f"{(~same).sum()} of {same.size} labels differ"
    size = np.maximum(np.abs(want), np.nanmedian(np.abs(want)) if want.size else 0)
    error = np.abs(actual - want) / np.where(size > 0, size, 1)
    error = np.where((actual == want) | (np.isnan(actual) & np.isnan(want)), 0, error)
    worst = float(error.max()) if error.size else 0.0
    return "" if worst <= tolerance else f"relative difference {worst:.1e}"


def sweep(names: list[str] | None = None, quick: bool = False) -> Iterator[tuple[str, dict]]:
    """For each estimator, what became of its settings in both precisions."""
    from sklearn.utils import all_estimators

    sets = datasets()
    for name, cls in all_estimators():
        if names and name not in names:
            continue
        outcome: dict[str, Result] = defaultdict(Result)
        chosen = settings(name)
        for arguments, kind in chosen[:1] if quick else chosen:
            for dtype in TOLERANCE:
                status, reason = tried(cls, arguments, sets[kind], dtype)
                outcome[dtype].status[status] += 1
                if reason:
                    outcome[dtype].reasons.append(f"{kind} {arguments}: {status}: {reason}")
        yield name, outcome


def verdict(outcome: dict[str, Result]) -> str:
    """One word for an estimator: right needs both precisions and nothing wrong."""
    counts = sum((r.status for r in outcome.values()), Counter())
    if counts["wrong"]:
        return "wrong"
    if counts["failed"]:
        return "failed"
    if outcome and all(r.status["right"] for r in outcome.values()):
        return "right" if not counts["refused"] else "right in part"
    return "refused" if counts["refused"] else "unfit"


def main(arguments: list[str]) -> int:
    from sklearn.utils import all_estimators

    quick = "--quick" in arguments
    names = [a for a in arguments if not a.startswith("-")]
    totals: Counter = Counter()
    verdicts = {}
    for name, outcome in sweep(names, quick):
        start = time.perf_counter()
        word = verdicts[name] = verdict(outcome)
        totals[word] += 1
        counts = {d: dict(r.status) for d, r in outcome.items()}
        print(f"{name:32} {word:14} {counts}", flush=True)
        if word not in ("right",):
            for reason in dict.fromkeys(r for o in outcome.values() for r in o.reasons):
                print("     ", reason[:600].replace("\n", "\n        "))
        del start
    print(dict(totals))
    for kind in ("classifier", "regressor"):
        members = [n for n, _ in all_estimators(type_filter=kind) if n in verdicts]
        good = sum(verdicts[n].startswith("right") for n in members)
        print(f"{kind}s: {good} of {len(members)} right")
    return int(bool(totals["wrong"] + totals["failed"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
