"""Missing values: finding, filling, dropping, replacing, and choosing by a condition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas import lookup
from sardonyx.importers.pandas.column import check_operand, is_column, is_scalar, record
from sardonyx.importers.pandas.emission import Emission, Rep
from sardonyx.importers.pandas.recorder import Proxy, freeze, needs_order, refuse, rule
from sardonyx.importers.pandas.rules.labels import LabelledColumn
from sardonyx.importers.pandas.rules.ufuncs import extremum, truth


@rule("Series", "isna", "isnull")
def isna(self: Any) -> Any:
    return record(
        "isna", [self], lambda a: a.isna(), lambda em, a: Rep("bool", em.missing(a)), pure=True
    )


@rule("Series", "notna", "notnull")
def notna(self: Any) -> Any:
    def emit(em: Emission, a: Rep) -> Rep:
        return Rep("bool", em.op.Not(em.missing(a)))

    return record("notna", [self], lambda a: a.notna(), emit, pure=True)


@rule("Series")
def fillna(self: Any, value: Any = None, inplace: bool = False) -> Any:
    if inplace:
        refuse(
            "fillna(inplace=True) on a column does not change the frame in pandas 3",
            'write df["x"] = df["x"].fillna(...)',
        )
    if isinstance(value, (pd.Series, dict)):
        refuse("fillna of a column with a table fills by row labels", "fill with map(...) instead")
    value = check_operand(value)

    def emit(em: Emission, a: Rep, other: Any) -> Rep:
        if a.kind in ("int", "bool") and a.missing is None:
            return a
        if a.kind == "category":
            return _fill_category(em, a, other)
        filler = em.operand(other, em.dtype if getattr(em.dtype, "kind", "") in "Mm" else None)
        result = em.where(em.missing(a), filler, a)
        if a.kind in ("int", "bool") and filler.missing is None:
            return result.but(missing=None)
        if result.kind in ("text", "chars") and filler.missing is None:
            return result.but(missing=None)
        return result

    return record("fillna", [self, value], lambda a, v: a.fillna(v), emit, label=self.label)


def _fill_category(em: Emission, a: Rep, other: Any) -> Rep:
    if isinstance(other, Rep):
        em.refuse("categories are filled with a column")
    levels = a.categories.tolist()
    if other not in levels:
        em.refuse(f"{other!r} is none of the categories")
    return a.but(data=em.op.Where(em.missing(a), em.ints(levels.index(other)), a.data))


@rule("Series", "where")
def where(self: Any, cond: Any, other: Any = np.nan) -> Any:
    return _choose("where", self, _condition(cond, self), other)


@rule("Series")
def mask(self: Any, cond: Any, other: Any = np.nan) -> Any:
    return _choose("mask", self, ~_condition(cond, self), other)


def _condition(cond: Any, column: Any) -> Any:
    if callable(cond) and not isinstance(cond, Proxy):
        cond = cond(column)
    if not is_column(cond):
        refuse("a condition must be a boolean column")
    return cond


def _choose(name: str, self: Any, keep: Any, other: Any) -> Any:
    if callable(other) and not isinstance(other, Proxy):
        other = other(self)
    other = check_operand(other)

    def emit(em: Emission, a: Rep, c: Rep, b: Any) -> Rep:
        dtype = em.dtype if getattr(em.dtype, "kind", "") in ("M", "m") else None
        if a.kind == "category" and not isinstance(b, Rep):
            return _choose_category(em, a, c, b)
        if a.kind == "bool" and a.missing is None and not isinstance(b, Rep) and pd.isna(b):
            return a.but(missing=em.op.Not(truth(em, c)))
        return em.where(truth(em, c), a, em.operand(b, dtype))

    def replay(a: Any, c: Any, b: Any) -> Any:
        return a.where(c if c.dtype.kind == "b" else c.astype(bool), b)

    return record(name, [self, keep, other], replay, emit, label=self.label)


def _choose_category(em: Emission, a: Rep, c: Rep, other: Any) -> Rep:
    levels = a.categories.tolist()
    if not lookup.is_missing(other) and other not in levels:
        em.refuse(f"{other!r} is none of the categories")
    code = -1 if lookup.is_missing(other) else levels.index(other)
    return a.but(data=em.op.Where(truth(em, c), a.data, em.ints(code)))


@rule("Series")
def combine_first(self: Any, other: Any) -> Any:
    return self.fillna(other)


@rule("Series")
def clip(self: Any, lower: Any = None, upper: Any = None, axis: Any = None) -> Any:
    bounds = [
        None if b is None or (is_scalar(b) and pd.isna(b)) else check_operand(b)
        for b in (lower, upper)
    ]

    def emit(em: Emission, a: Rep, low: Any, high: Any) -> Rep:
        for bound, name in ((low, "Max"), (high, "Min")):
            if bound is None:
                continue
            other = em.operand(bound)
            if a.kind not in ("int", "float") or other.kind not in ("int", "float", "bool"):
                em.refuse("clip of something that is not a number has no rule")
            a, other = em.unify(a, other)
            a = (
                extremum(em, name, a, other, True)
                if isinstance(bound, Rep)
                else _bounded(em, a, other, name)
            )
        return a

    def replay(a: Any, low: Any, high: Any) -> Any:
        return a.clip(low, high)

    return record("clip", [self, *bounds], replay, emit, label=self.label)


def _bounded(em: Emission, a: Rep, bound: Rep, operator: str) -> Rep:
    test = em.op.Less if operator == "Max" else em.op.Greater
    return a.but(data=em.op.Where(test(a.data, bound.data), bound.data, a.data))


@rule("Series")
def replace(
    self: Any, to_replace: Any = None, value: Any = None, inplace: bool = False, regex: Any = False
) -> Any:
    if inplace:
        refuse("replace(inplace=True) on a column does not change the frame in pandas 3")
    if regex is not False:
        return _by_pattern(self, to_replace, value, regex)
    pairs = _pairs(to_replace, value)

    def replay(a: Any) -> Any:
        if isinstance(to_replace, (dict, pd.Series)):
            return a.replace(dict(pairs))
        return a.replace(to_replace, value)

    def emit(em: Emission, a: Rep) -> Rep:
        if a.kind == "category":
            em.refuse(
                "replace in categories has no rule", "use astype(str) or cat.rename_categories"
            )
        fitting = [(k, v) for k, v in pairs if _fits(a, k)]
        if not fitting:
            return a
        return substituted(em, a, [k for k, _ in fitting], [v for _, v in fitting])

    return record("replace", [self], replay, emit, label=self.label)


def _fits(a: Rep, key: Any) -> bool:
    """Whether a value of the column can be equal to a key: no number is equal to a text."""
    if lookup.is_missing(key):
        return may_miss(a)
    if a.kind in ("int", "float", "bool"):
        return not isinstance(key, str)
    return a.kind not in ("text", "chars") or isinstance(key, str)


def may_miss(a: Rep) -> bool:
    return a.missing is not None or a.kind not in ("int", "bool", "text", "chars")


def _by_pattern(self: Any, to_replace: Any, value: Any, regex: Any) -> Any:
    """replace(regex=...): in strings, as .str.replace; other columns stay."""
    if regex is not True:
        to_replace = regex
    pairs = _pairs(to_replace, value)
    dtype = self.step.value.dtype
    if not (isinstance(dtype, pd.StringDtype) or dtype == np.dtype(object)):
        return self
    for pattern, text in pairs:
        if not isinstance(pattern, str) or not (isinstance(text, str) or lookup.is_missing(text)):
            refuse("replace with patterns is recorded for texts", "use .str.replace")
        if isinstance(text, str):
            self = self.str.replace(pattern, text, regex=True)
        else:
            self = self.mask(self.str.contains(pattern, na=False))
    return self


def _pairs(to_replace: Any, value: Any) -> list[tuple[Any, Any]]:
    if isinstance(to_replace, Proxy) or isinstance(value, Proxy):
        refuse("replace with a column has no rule", "np.where or Series.where choose row by row")
    if isinstance(to_replace, (dict, pd.Series)):
        if any(isinstance(v, dict) for v in to_replace.values() if isinstance(to_replace, dict)):
            refuse("replace with a table of tables has no rule for one column")
        return list(to_replace.items())
    if isinstance(to_replace, (list, tuple, np.ndarray, pd.Index)):
        several = isinstance(value, (list, tuple, np.ndarray, pd.Index))
        values = list(value) if several else [value] * len(to_replace)
        if len(values) != len(to_replace):
            refuse("replace needs as many values as there are values to be replaced")
        return list(zip(list(to_replace), values, strict=True))
    if not is_scalar(to_replace):
        refuse(f"replace of a {type(to_replace).__name__} has no rule")
    return [(to_replace, value)]


def substituted(em: Emission, a: Rep, keys: list[Any], values: list[Any]) -> Rep:
    """A column in which the keys are replaced by their values."""
    if len(keys) == 1 or all(lookup._equal(v, values[0]) for v in values):
        hit = em.op.GreaterOrEqual(lookup.position(em, a, keys), em.ints(0))
        return _kept(em, a, em.where(hit, em.operand(values[0]), a), values, keys)
    place = lookup.position(em, a, keys)
    table = lookup.gather(em, place, pd.Series(values))
    return _kept(em, a, em.where(em.op.GreaterOrEqual(place, em.ints(0)), table, a), values, keys)


def _kept(em: Emission, a: Rep, result: Rep, values: list[Any], keys: list[Any]) -> Rep:
    """Integers stay integers if all the new values are."""
    whole = all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in values)
    if a.kind == "int" and result.kind == "float" and whole:
        return Rep("int", em.op.Cast(result.data, to=7))
    replaces_missing = any(lookup.is_missing(k) for k in keys)
    if (
        result.kind in ("text", "chars")
        and replaces_missing
        and not any(map(lookup.is_missing, values))
    ):
        return result.but(missing=None)
    return result


@rule("Series", "map")
def map_(self: Any, func: Any = None, na_action: Any = None, arg: Any = None) -> Any:
    from sardonyx.importers.pandas.rules.apply import trace_function

    table = func if func is not None else arg
    if isinstance(table, LabelledColumn):
        table = freeze(f"{table.label} by its labels", table.labelled_real())
    if isinstance(table, Proxy):
        refuse("map with a column that is computed row by row has no rule")
    if callable(table) and not isinstance(table, (dict, pd.Series)):
        return trace_function(self, table, ignores_missing=na_action == "ignore")
    series = _table(table)
    if not series.index.is_unique:
        refuse("map with a table whose keys are not unique fails in pandas")

    def emit(em: Emission, a: Rep) -> Rep:
        return lookup.looked_up(em, a, series.index, series)

    def replay(a: Any) -> Any:
        return a.map(table, na_action=na_action)

    if hasattr(table, "__missing__"):
        refuse("map with a dict that has defaults has no rule", "use map(dict(...)).fillna(...)")
    result = record("map", [self], replay, emit, label=self.label)
    return result


def _table(table: Any) -> pd.Series:
    if isinstance(table, pd.Series):
        if isinstance(table.index, pd.MultiIndex):
            refuse("map with a table of several keys has no rule", "merge takes several keys")
        return table
    if isinstance(table, dict):
        if not table:
            return pd.Series([], dtype=float)
        return pd.Series(list(table.values()), index=pd.Index(list(table), dtype=object))
    return refuse(f"map with a {type(table).__name__} has no rule")


@rule("Series")
def isin(self: Any, values: Any) -> Any:
    if isinstance(values, Proxy):
        refuse("isin with a column computes over the batch", "take its unique() values")
    keys = list(dict.fromkeys(values))

    def emit(em: Emission, a: Rep) -> Rep:
        place = lookup.position(em, a, keys)
        return Rep("bool", em.op.GreaterOrEqual(place, em.ints(0)))

    return record("isin", [self], lambda a: a.isin(list(keys)), emit)


for _name in ("ffill", "bfill", "interpolate"):

    def _fills_from_neighbours(self: Any, *_: Any, name: str = _name, **__: Any) -> Any:
        needs_order(name)
        refuse(f"{name} has no rule")

    rule("Series", _name)(_fills_from_neighbours)
    rule("DataFrame", _name)(_fills_from_neighbours)
