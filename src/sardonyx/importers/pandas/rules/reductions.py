"""Reductions: over rows they are frozen on the training frame, over columns they are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas import lookup
from sardonyx.importers.pandas.column import Column, record
from sardonyx.importers.pandas.emission import DOUBLE, INT64, NAMES, Emission, Rep
from sardonyx.importers.pandas.recorder import Proxy, freeze, refuse, rule, trace
from sardonyx.importers.pandas.rules.ufuncs import extremum, truth

FROZEN = (
    "mean", "median", "mode", "min", "max", "std", "var", "sum", "prod", "product", "quantile",
    "nunique", "unique", "value_counts", "count", "skew", "kurt", "kurtosis", "describe", "any",
    "all", "sem", "is_unique", "is_monotonic_increasing", "hasnans", "corr", "cov", "autocorr",
)  # fmt: skip
PROPERTIES = ("is_unique", "is_monotonic_increasing", "hasnans")
DYNAMIC = {"mean", "sum", "min", "max", "std", "var", "count"}
OF_FRAMES = (
    "mean", "median", "mode", "min", "max", "std", "var", "sum", "prod", "quantile", "nunique",
    "count", "skew", "kurt", "describe", "any", "all", "corr", "cov", "value_counts", "sem", "agg",
    "aggregate", "pivot_table", "pivot", "memory_usage", "idxmax", "idxmin",
)  # fmt: skip


class Grouped(Column):
    """A column inside `groupby(...).transform(lambda x: ...)`: its reductions are per group."""

    def per_group(self, name: str, *arguments: Any, **options: Any) -> Any:
        keys: list[Column] = self.__dict__["keys"]
        values = [k.step.value for k in keys]
        table = self.step.value.groupby(values, observed=True).agg(
            lambda s: getattr(s, name)(*arguments, **options)
        )
        freeze(f"groupby.{name}", table)
        return of_groups(self, keys, table)


class Modes(Proxy):
    """The most frequent values of each group, of which the first can be taken."""

    _owner = "mode of groups"

    def __init__(self, column: Grouped):
        self.column = column

    def __getattr__(self, name: str) -> Any:
        return self if name in ("iloc", "iat", "values") else super().__getattr__(name)

    def __getitem__(self, place: Any) -> Any:
        if place != 0:
            refuse("only the first mode of a group has a rule")
        keys: list[Column] = self.column.__dict__["keys"]
        groups = self.column.step.value.groupby([k.step.value for k in keys], observed=True)
        table = freeze(
            "groupby.mode", groups.agg(lambda s: s.mode().iloc[0] if s.notna().any() else None)
        )
        return of_groups(self.column, keys, table)


def of_groups(self: Column, keys: list[Column], table: pd.Series) -> Any:
    """The value of each row's group; missing where the training frame did not have the group."""
    frame = table.index.to_frame(index=False)

    def emit(em: Emission, *reps: Rep) -> Rep:
        if len(reps) == 1:
            return lookup.looked_up(em, reps[0], frame.iloc[:, 0], table)
        return lookup.gather(em, lookup.together(em, list(reps), frame), table)

    def replay(*values: pd.Series) -> pd.Series:
        if len(values) == 1:
            return (
                values[0].astype(object).map(table.set_axis(table.index.astype(object)))
                if (isinstance(values[0].dtype, pd.CategoricalDtype))
                else values[0].map(table)
            )
        left = pd.DataFrame(dict(enumerate(values)))
        right = frame.set_axis(range(len(values)), axis=1)
        right["value"] = table.to_numpy()
        merged = left.merge(right, how="left", on=list(range(len(values))))
        return merged["value"].set_axis(values[0].index)

    column = record("groupby", keys, replay, emit, label=self.label)
    if isinstance(self, Grouped):
        return self.derive(column.step, self.label)
    return Column(column.step, self.label)


def _frozen(name: str) -> None:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(self, Grouped):
            if name == "mode":
                return Modes(self)
            return self.per_group(name, *arguments, **options)
        if name in trace().dynamic or f"{self.label}.{name}" in trace().dynamic:
            return over_batch(self, name, *arguments, **options)
        arguments = tuple(a.value if isinstance(a, Column) else a for a in arguments)
        return freeze(f"{self.label}.{name}", getattr(self.value, name)(*arguments, **options))

    def get(self: Any) -> Any:
        return freeze(f"{self.label}.{name}", getattr(self.value, name))

    if name in PROPERTIES:
        rule("Series", name, is_property=True)(get)
    else:
        rule("Series", name)(method)


for _name in FROZEN:
    _frozen(_name)


@rule("Series", "agg", "aggregate")
def agg(self: Any, func: Any) -> Any:
    if isinstance(self, Grouped) and isinstance(func, str):
        return self.per_group(func)
    return freeze(f"{self.label}.agg", self.value.agg(func))


@rule("Series", "idxmax", "idxmin", "argmax", "argmin", "argsort")
def idxmax(self: Any, *_: Any, **__: Any) -> Any:
    refuse("the label of a row of the training frame says nothing about other rows")


def over_batch(self: Any, name: str, ddof: int = 1) -> Any:
    """A reduction over the rows of the batch, in every row."""
    if name not in DYNAMIC:
        refuse(f"{name} over the batch has no rule", f"dynamic takes {', '.join(sorted(DYNAMIC))}")
    trace().uses_order = True

    def emit(em: Emission, a: Rep) -> Rep:
        op = em.op
        x = em.double(a)
        present = op.Not(op.IsNaN(x))
        count = op.ReduceSum(op.Cast(present, to=int(DOUBLE)), [0], keepdims=1)
        total = op.ReduceSum(op.Where(present, x, em.doubles(0.0)), [0], keepdims=1)
        mean = op.Div(total, count)
        value = {"mean": mean, "sum": total, "count": count}.get(name)
        if name in ("std", "var"):
            off = op.Where(present, op.Sub(x, mean), em.doubles(0.0))
            squares = op.ReduceSum(op.Mul(off, off), [0], keepdims=1)
            free = op.Sub(count, em.doubles(float(ddof)))
            value = op.Div(
                squares, op.Where(op.Greater(free, em.doubles(0.0)), free, em.doubles(np.nan))
            )
            value = op.Sqrt(value) if name == "std" else value
        if name in ("min", "max"):
            worst = np.inf if name == "min" else -np.inf
            reduce = op.ReduceMin if name == "min" else op.ReduceMax
            padded = op.Concat(op.Where(present, x, em.doubles(worst)), em.doubles([worst]), axis=0)
            value = reduce(padded, [0], keepdims=1)
            value = op.Where(op.Equal(count, em.doubles(0.0)), em.doubles(np.nan), value)
        return Rep("float", op.Expand(value, op.Shape(x)))

    options = {"ddof": ddof} if name in ("std", "var") else {}

    def replay(a: pd.Series) -> pd.Series:
        return pd.Series(float(getattr(a, name)(**options)), index=a.index)

    return record(f"{name} of the batch", [self], replay, emit)


# -- frames -------------------------------------------------------------------------


def _of_frame(name: str) -> None:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        axis = options.pop("axis", None)
        if (
            arguments
            and arguments[0] in (1, "columns")
            and name not in ("quantile", "agg", "aggregate")
        ):
            axis, arguments = arguments[0], arguments[1:]
        if axis in (1, "columns"):
            if name not in ACROSS:
                refuse(f"{name}(axis=1) has no rule")
            return across(self, name, *arguments, **options)
        return freeze(f"frame.{name}", getattr(self.real(), name)(*arguments, **options))

    rule("DataFrame", name)(method)


for _name in OF_FRAMES:
    _of_frame(_name)


def across(
    self: Any, name: str, skipna: bool = True, numeric_only: bool = False, ddof: int = 1,
    min_count: int = 0, q: Any = None, dropna: bool = True,
) -> Any:  # fmt: skip
    """A reduction over the columns of each row."""
    if not skipna or min_count or q is not None or not dropna:
        refuse(f"{name}(axis=1) with these arguments has no rule")
    frame = (
        self.select(self.real().select_dtypes(["number", "bool"]).columns) if numeric_only else self
    )
    columns = list(frame.series.values())
    if not columns:
        refuse("a frame without columns is reduced")
    options = {"ddof": ddof} if name in ("std", "var") else {}
    labels = list(frame.series)

    def replay(*values: pd.Series) -> pd.Series:
        table = pd.DataFrame(dict(enumerate(values)))
        table.columns = labels
        return getattr(table, name)(axis=1, **options)

    def emit(em: Emission, *reps: Rep) -> Rep:
        if name in ("idxmax", "idxmin"):
            return _which(em, name, list(reps), labels)
        if name in ("any", "all"):
            return _logical(em, name, list(reps))
        return ACROSS[name](em, name, list(reps), ddof)

    result = record(f"{name} across", columns, replay, emit)
    return Column(result.step, None)


def _numbers(em: Emission, reps: list[Rep]) -> Any:
    """[rows, columns] of doubles."""
    bad = [r.kind for r in reps if r.kind not in ("float", "int", "bool")]
    if bad:
        em.refuse(f"{NAMES[bad[0]]} are reduced over columns", "choose the numeric columns first")
    to = em.float_type()
    parts = [em.op.Unsqueeze(em.double(r, to), em.ints([1])) for r in reps]
    return em.op.Concat(*parts, axis=1)


def _are_integers(reps: list[Rep]) -> bool:
    return all(r.kind in ("int", "bool") and r.missing is None for r in reps)


def _total(em: Emission, name: str, reps: list[Rep], ddof: int) -> Rep:
    op = em.op
    if _are_integers(reps):
        parts = [op.Unsqueeze(em.int64(r), em.ints([1])) for r in reps]
        reduce = op.ReduceSum if name == "sum" else op.ReduceProd
        return Rep("int", reduce(op.Concat(*parts, axis=1), [1], keepdims=0))
    x = _numbers(em, reps)
    neutral = op.const(0.0 if name == "sum" else 1.0, x.dtype)
    reduce = op.ReduceSum if name == "sum" else op.ReduceProd
    return Rep("float", reduce(op.Where(op.IsNaN(x), neutral, x), [1], keepdims=0))


def _counts(em: Emission, x: Any) -> Any:
    return em.op.ReduceSum(em.op.Cast(em.op.Not(em.op.IsNaN(x)), to=int(x.dtype)), [1], keepdims=1)


def _moment(em: Emission, name: str, reps: list[Rep], ddof: int) -> Rep:
    op = em.op
    x = _numbers(em, reps)
    zero = op.const(0.0, x.dtype)
    count = _counts(em, x)
    mean = op.Div(op.ReduceSum(op.Where(op.IsNaN(x), zero, x), [1], keepdims=1), count)
    if name == "mean":
        return Rep("float", op.Squeeze(mean, em.ints([1])))
    off = op.Where(op.IsNaN(x), zero, op.Sub(x, mean))
    free = op.Sub(count, op.const(float(ddof), x.dtype))
    free = op.Where(op.Greater(free, zero), free, op.const(np.nan, x.dtype))
    variance = op.Div(op.ReduceSum(op.Mul(off, off), [1], keepdims=1), free)
    variance = op.Squeeze(variance, em.ints([1]))
    return Rep("float", op.Sqrt(variance) if name == "std" else variance)


def _extreme(em: Emission, name: str, reps: list[Rep], ddof: int) -> Rep:
    result = reps[0]
    for rep in reps[1:]:
        left, right = em.unify(result, rep)
        if left.kind in ("datetime", "timedelta"):
            result = _extreme_time(em, name, left, right)
            continue
        if left.kind not in ("int", "float"):
            em.refuse(f"{name} of {NAMES[left.kind]} has no rule")
        result = extremum(em, "Max" if name == "max" else "Min", left, right, True)
    return result


def _extreme_time(em: Emission, name: str, left: Rep, right: Rep) -> Rep:
    test = em.op.Greater if name == "max" else em.op.Less
    value = em.op.Where(test(left.data, right.data), left.data, right.data)
    value = em.op.Where(em.missing(left), right.data, value)
    return left.but(data=em.op.Where(em.missing(right), left.data, value))


def _median(em: Emission, name: str, reps: list[Rep], ddof: int) -> Rep:
    op = em.op
    x = _numbers(em, reps)
    last = op.Where(op.IsNaN(x), op.const(np.inf, x.dtype), x)
    ordered, _ = op.TopK(last, em.ints([len(reps)]), axis=1, largest=0, outputs=2)
    count = op.Cast(_counts(em, x), to=int(INT64))
    low = op.Div(op.Sub(op.Max(count, em.ints(1)), em.ints(1)), em.ints(2))
    high = op.Min(op.Div(count, em.ints(2)), em.ints(len(reps) - 1))
    pair = [op.GatherElements(ordered, place, axis=1) for place in (low, high)]
    middle = op.Div(op.Add(*pair), op.const(2.0, x.dtype))
    middle = op.Where(op.Equal(pair[0], pair[1]), pair[0], middle)
    value = op.Where(op.Equal(count, em.ints(0)), op.const(np.nan, x.dtype), middle)
    return Rep("float", op.Squeeze(value, em.ints([1])))


def _count(em: Emission, name: str, reps: list[Rep], ddof: int) -> Rep:
    parts = [em.op.Cast(em.op.Not(em.missing(r)), to=int(INT64)) for r in reps]
    total = parts[0]
    for part in parts[1:]:
        total = em.op.Add(total, part)
    return Rep("int", total)


def _logical(em: Emission, name: str, reps: list[Rep]) -> Rep:
    combine = em.op.Or if name == "any" else em.op.And
    result = None
    for rep in reps:
        test = truth(em, rep)
        if rep.kind == "float":  # a missing number is skipped
            is_missing = em.missing(rep)
            test = (
                em.op.And(test, em.op.Not(is_missing))
                if name == "any"
                else em.op.Or(test, is_missing)
            )
        result = test if result is None else combine(result, test)
    return Rep("bool", result)  # type: ignore[arg-type]


def _which(em: Emission, name: str, reps: list[Rep], labels: list[Any]) -> Rep:
    op = em.op
    x = _numbers(em, reps)
    worst = op.const(-np.inf if name == "idxmax" else np.inf, x.dtype)
    pick = op.ArgMax if name == "idxmax" else op.ArgMin
    filled = op.Where(op.IsNaN(x), worst, x)
    present = op.Cast(op.Not(op.IsNaN(x)), to=int(INT64))
    best = pick(filled, axis=1, keepdims=1)
    chosen = op.GatherElements(present, best, axis=1)
    first = op.ArgMax(present, axis=1, keepdims=1)  # only infinities of the wrong sign are there
    best = op.Where(op.Equal(chosen, em.ints(0)), first, best)
    none = op.Equal(op.ReduceMax(present, [1], keepdims=0), em.ints(0))
    place = op.Where(none, em.ints(-1), op.Squeeze(best, em.ints([1])))
    return lookup.gather(em, place, pd.Series(labels))


def _nunique(em: Emission, name: str, reps: list[Rep], ddof: int) -> Rep:
    """A value counts where no column before has it."""
    op, total = em.op, None
    x = [em.double(r) for r in reps]
    for number, value in enumerate(x):
        new = op.Not(op.IsNaN(value))
        for earlier in x[:number]:
            new = op.And(new, op.Not(op.Equal(value, earlier)))
        part = op.Cast(new, to=int(INT64))
        total = part if total is None else op.Add(total, part)
    return Rep("int", total)  # type: ignore[arg-type]


ACROSS: dict[str, Any] = {
    "sum": _total, "prod": _total, "mean": _moment, "std": _moment, "var": _moment,
    "min": _extreme, "max": _extreme, "median": _median, "count": _count, "any": _logical,
    "all": _logical, "idxmax": _which, "idxmin": _which, "nunique": _nunique,
}  # fmt: skip
