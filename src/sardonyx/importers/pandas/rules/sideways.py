"""Along the columns of each row (`axis=1`): differences, running totals, ranks, products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas.column import constant, is_column
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.recorder import refuse, rule


def _before(frame: Any, periods: int) -> list[Any]:
    """For each column, the one that stands `periods` places before it; missing where none does."""
    columns = list(frame.series.values())
    none = constant(np.nan, frame.rows, frame.length)
    places = [number - periods for number in range(len(columns))]
    return [columns[p] if 0 <= p < len(columns) else none for p in places]


def _with_earlier(frame: Any, periods: int, combine: Callable[[Any, Any], Any]) -> Any:
    pairs = zip(frame.series.items(), _before(frame, int(periods)), strict=True)
    return Frame({n: combine(c, b) for (n, c), b in pairs}, frame.rows, frame.length)


def shift(self: Any, periods: int = 1) -> Any:
    return _with_earlier(self, periods, lambda _, before: before)


def diff(self: Any, periods: int = 1) -> Any:
    return _with_earlier(self, periods, lambda column, before: column - before)


def pct_change(self: Any, periods: int = 1) -> Any:
    return _with_earlier(self, periods, lambda column, before: column / before - 1)


def _running(self: Any, neutral: float, combine: Callable[[Any, Any], Any]) -> Any:
    """Over the columns so far; a missing number stays missing and does not count."""
    results: dict[Any, Any] = {}
    total: Any = None
    for name, column in self.series.items():
        filled = column.fillna(neutral)
        total = filled if total is None else combine(total, filled)
        results[name] = total.where(column.notna())
    return Frame(results, self.rows, self.length)


def cumsum(self: Any) -> Any:
    return _running(self, 0, lambda total, column: total + column)


def cumprod(self: Any) -> Any:
    return _running(self, 1, lambda total, column: total * column)


def cummax(self: Any) -> Any:
    return _running(self, -np.inf, np.maximum)


def cummin(self: Any) -> Any:
    return _running(self, np.inf, np.minimum)


def rank(self: Any, method: str = "average", ascending: bool = True, pct: bool = False) -> Any:
    """How many columns of the row are smaller, and how many are equal."""
    if method not in ("average", "min", "max", "first"):
        refuse(f"rank(method={method!r}, axis=1) has no rule")
    columns = list(self.series.values())
    present = sum(c.notna().astype("int64") for c in columns)
    results = {}
    for place, (name, column) in enumerate(self.series.items()):
        smaller = [(c < column if ascending else c > column).astype("int64") for c in columns]
        earlier = columns[: place + 1] if method == "first" else columns
        equal = sum((c == column).astype("int64") for c in earlier)
        share = {"average": (equal + 1) / 2, "min": 1, "max": equal, "first": equal}[method]
        result = (sum(smaller) + share).astype("float64")
        results[name] = (result / present if pct else result).where(column.notna())
    return Frame(results, self.rows, self.length)


SIDEWAYS: dict[str, Callable[..., Any]] = {
    "shift": shift, "diff": diff, "pct_change": pct_change, "cumsum": cumsum, "cumprod": cumprod,
    "cummax": cummax, "cummin": cummin, "rank": rank,
}  # fmt: skip


@rule("numpy", "matmul", "dot")
def dot(a: Any, b: Any) -> Any:
    """The columns of a frame, each times its weight, in one sum; a frame for several sums."""
    if not isinstance(a, Frame):
        refuse("a product with a frame on its right has no rule", "put the frame on the left")
    if isinstance(b, pd.DataFrame):
        b = b.loc[list(a.series)]
        return Frame({n: dot(a, b[n]) for n in b.columns}, a.rows, a.length)
    if isinstance(b, pd.Series):
        b = b.loc[list(a.series)]
    weights = None if isinstance(b, Frame) or is_column(b) else np.asarray(b)
    if weights is None or weights.ndim not in (1, 2) or len(weights) != len(a.series):
        refuse("a product with something that is no constant vector or matrix has no rule")
    if weights.ndim == 2:
        sums = {n: dot(a, weights[:, n]) for n in range(weights.shape[1])}
        return Frame(sums, a.rows, a.length)
    terms = [c * w.item() for c, w in zip(a.series.values(), weights, strict=True)]
    return sum(terms[1:], terms[0]).named(None)


rule("DataFrame", "dot", "__matmul__")(dot)


@rule("numpy", "norm")
def norm(x: Any, ord: Any = None, axis: Any = None) -> Any:
    if not isinstance(x, Frame) or axis not in (1, -1) or ord not in (None, 1, 2):
        refuse("np.linalg.norm has a rule for the rows of a frame", "pass axis=1")
    columns = [abs(c.astype("float64")) for c in x.series.values()]
    terms = columns if ord == 1 else [c * c for c in columns]
    total = sum(terms[1:], terms[0])
    return (total if ord == 1 else np.sqrt(total)).named(None)
