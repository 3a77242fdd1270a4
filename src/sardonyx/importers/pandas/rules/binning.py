"""Bins: cut with edges, cut with a number of bins, and qcut; edges of the training frame stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas.column import is_column, record
from sardonyx.importers.pandas.emission import DOUBLE, INT32, INT64, NAMES, Emission, Rep
from sardonyx.importers.pandas.recorder import Proxy, freeze, refuse, rule


@rule("pandas")
def cut(
    x: Any, bins: Any, right: bool = True, labels: Any = None, retbins: bool = False,
    precision: int = 3, include_lowest: bool = False, duplicates: str = "raise",
    ordered: bool = True,
) -> Any:  # fmt: skip
    if not is_column(x) or isinstance(bins, Proxy):
        refuse("pd.cut is recorded for a column and constant bins")
    if isinstance(bins, pd.IntervalIndex):
        bins, right, labels = _of_intervals(bins, labels)
    options = {
        "right": right, "labels": labels, "precision": precision, "ordered": ordered,
        "include_lowest": include_lowest, "duplicates": duplicates,
    }  # fmt: skip
    example, edges = pd.cut(x.value, bins, retbins=True, **options)
    if np.ndim(bins) == 0:
        freeze(f"{x.label} bins", edges)
    frozen = np.ndim(bins) == 0
    lowest = include_lowest and not frozen
    column = _binned("cut", x, edges, example, right, lowest, labels)
    return (column, edges) if retbins else column


def _of_intervals(bins: pd.IntervalIndex, labels: Any) -> tuple[list[Any], bool, Any]:
    """Intervals that follow each other, as edges."""
    follow = (bins.left[1:] == bins.right[:-1]).all()
    if labels is not None or not follow or bins.closed not in ("left", "right"):
        refuse("pd.cut with intervals that do not follow each other has no rule", "pass the edges")
    return [*bins.left, bins.right[-1]], bins.closed == "right", None


@rule("pandas")
def qcut(
    x: Any, q: Any, labels: Any = None, retbins: bool = False, precision: int = 3,
    duplicates: str = "raise",
) -> Any:  # fmt: skip
    if not is_column(x):
        refuse("pd.qcut is recorded for columns")
    example, edges = pd.qcut(
        x.value, q, labels=labels, retbins=True, precision=precision, duplicates=duplicates
    )
    freeze(f"{x.label} quantiles", edges)
    column = _binned("qcut", x, np.asarray(edges), example, True, True, labels)
    return (column, edges) if retbins else column


def _edges_below(em: Emission, value: Any, edges: Any, right: bool, lowest: bool) -> Any:
    """Which edges lie below each value; the outer edge counts as inside where asked."""
    op = em.op
    test = op.Greater if right else op.GreaterOrEqual
    tests = [test(value, em.doubles(edge)) for edge in edges]
    if lowest and right:
        tests[0] = op.GreaterOrEqual(value, em.doubles(edges[0]))
    if lowest and not right:
        tests[-1] = op.Greater(value, em.doubles(edges[-1]))
    return tests


def _binned(
    name: str, x: Any, edges: Any, example: pd.Series, right: bool, lowest: bool,
    labels: Any,
) -> Any:  # fmt: skip
    if getattr(edges, "dtype", np.dtype(float)).kind not in "iufb":
        refuse("bins of datetimes have no rule", "subtract a Timestamp and use days")
    edges = np.asarray(edges, float)
    if len(np.unique(edges)) < len(edges):
        edges = np.unique(edges)

    def emit(em: Emission, a: Rep) -> Rep:
        op = em.op
        if a.kind not in ("float", "int", "bool"):
            em.refuse(f"bins of {NAMES[a.kind]} have no rule")
        value = em.double(a)
        tests = _edges_below(em, value, edges, right, lowest)
        above = op.Cast(tests[0], to=int(INT32))
        for part in tests[1:]:
            above = op.Add(above, op.Cast(part, to=int(INT32)))
        # Below the first edge, above the last, and for NaN (which is above none) there is no bin.
        if labels is False:
            held = op.Cast(op.And(tests[0], op.Not(tests[-1])), to=int(DOUBLE))
            number = op.Sub(op.Cast(above, to=int(DOUBLE)), em.doubles(1.0))
            return Rep("float", op.Mul(number, op.Div(held, held)))  # 0 / 0 is missing
        code = op.Gather(em.ints([-1, *range(len(edges) - 1), -1]), above)
        dtype = em.dtype
        assert isinstance(dtype, pd.CategoricalDtype)
        if len(dtype.categories) != len(edges) - 1:  # labels that repeat
            em.refuse("labels that repeat have no rule", "give every bin its own label")
        return Rep("category", code, categories=dtype.categories, ordered=bool(dtype.ordered))

    def replay(a: pd.Series) -> pd.Series:
        codes = pd.cut(a, edges, right=right, include_lowest=lowest, labels=False)
        if labels is False:
            return codes
        levels = example.dtype
        numbers = codes.fillna(-1).astype(int)
        return pd.Series(pd.Categorical.from_codes(numbers, dtype=levels), index=a.index)

    return record(name, [x], replay, emit, label=x.label)


def _count_below(x: Any, edges: Any, test: str) -> Any:
    """How many edges a value is above, as np.searchsorted counts; NaN is above all."""
    edges = np.asarray(edges, float)
    if edges.ndim != 1 or not (np.diff(edges) >= 0).all():
        refuse("the edges must be numbers in rising order")

    def emit(em: Emission, a: Rep) -> Rep:
        value = em.double(a)
        count = em.op.Mul(em.op.Cast(em.op.IsNaN(value), to=int(INT64)), em.ints(len(edges)))
        for edge in edges:
            part = getattr(em.op, test)(value, em.doubles(edge))
            count = em.op.Add(count, em.op.Cast(part, to=int(INT64)))
        return Rep("int", count)

    side: Any = "left" if test == "Greater" else "right"

    def replay(a: pd.Series) -> pd.Series:
        return pd.Series(np.searchsorted(edges, a.to_numpy(float), side), index=a.index)

    return record("searchsorted", [x], replay, emit)


@rule("numpy")
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    if not is_column(x):
        refuse("np.digitize is recorded for a column and constant bins")
    return _count_below(x, bins, "Greater" if right else "GreaterOrEqual")


@rule("numpy")
def searchsorted(a: Any, v: Any, side: str = "left") -> Any:
    if not is_column(v):
        refuse("np.searchsorted is recorded for constant edges and a column of values")
    return _count_below(v, a, "Greater" if side == "left" else "GreaterOrEqual")
