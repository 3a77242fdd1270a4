"""Categories: their codes and names, dummies, and factorized values, over frozen levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas import lookup
from sardonyx.importers.pandas.column import Column, is_column, record
from sardonyx.importers.pandas.emission import Emission, Rep
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.recorder import Proxy, freeze, refuse, rule


def categorical(self: Any, dtype: Any = None) -> Any:
    """A column as categories: those given, or those of the training frame."""
    if not isinstance(dtype, pd.CategoricalDtype) or dtype.categories is None:
        levels = self.value.astype("category").cat.categories
        ordered = bool(getattr(dtype, "ordered", False))
        dtype = pd.CategoricalDtype(freeze(f"{self.label} categories", levels), ordered)
    kind, levels = dtype, dtype.categories

    def emit(em: Emission, a: Rep) -> Rep:
        place = lookup.position(em, a, levels)
        return Rep("category", place, categories=levels, ordered=bool(kind.ordered))

    def replay(a: pd.Series) -> pd.Series:
        values = a.astype(object) if isinstance(a.dtype, pd.CategoricalDtype) else a
        values_of_levels = values.where(values.isin(list(levels)))
        return pd.Series(pd.Categorical(values_of_levels, dtype=kind), index=a.index)

    return record("astype", [self], replay, emit, label=self.label)


@rule("pandas", "Categorical")
def categorical_(
    values: Any, categories: Any = None, ordered: Any = None, dtype: Any = None
) -> Any:
    if dtype is not None:
        return categorical(values, pd.CategoricalDtype() if dtype == "category" else dtype)
    if categories is None:
        return categorical(values, pd.CategoricalDtype(None, bool(ordered)))
    return categorical(values, pd.CategoricalDtype(list(categories), bool(ordered)))


class Categories(Proxy):
    """`series.cat`."""

    _owner = "cat"

    def __init__(self, column: Column):
        self.column = column


@rule("Series", "cat", is_property=True)
def cat_(self: Any) -> Any:
    if not isinstance(self.step.value.dtype, pd.CategoricalDtype):
        raise AttributeError("Can only use .cat accessor with a 'category' dtype")
    return Categories(self)


@rule("Series", "codes", is_property=True)
def codes_of_categorical(self: Any) -> Any:
    return codes(Categories(self))


@rule("cat", "codes", is_property=True)
def codes(self: Any) -> Any:
    return record(
        "cat.codes", [self.column], lambda a: a.cat.codes, lambda em, a: Rep("int", a.data)
    )


@rule("cat", "categories", is_property=True)
def categories_(self: Any) -> Any:
    return self.column.step.value.cat.categories


@rule("cat", "ordered", is_property=True)
def ordered_(self: Any) -> Any:
    return self.column.step.value.cat.ordered


def _relevels(name: str) -> None:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        changed = getattr(self.column.step.value.cat, name)(*arguments, **options)
        before, dtype = self.column.step.value.cat.categories, changed.dtype
        levels = dtype.categories

        def emit(em: Emission, a: Rep) -> Rep:
            data = a.data
            if name != "rename_categories":
                table = [*levels.get_indexer(before), -1]
                at = em.op.Where(em.missing(a), em.ints(len(before)), data)
                data = em.op.Gather(em.ints(table), at)
            return a.but(data=data, categories=levels, ordered=bool(dtype.ordered))

        def replay(a: pd.Series) -> pd.Series:
            if name == "rename_categories":
                return pd.Series(pd.Categorical.from_codes(a.cat.codes, dtype=dtype), index=a.index)
            return a.cat.set_categories(levels, ordered=bool(dtype.ordered))

        return record(f"cat.{name}", [self.column], replay, emit, label=self.column.label)

    rule("cat", name)(method)


for _name in (
    "set_categories", "add_categories", "remove_categories", "rename_categories",
    "reorder_categories", "as_ordered", "as_unordered", "remove_unused_categories",
):  # fmt: skip
    _relevels(_name)


# -- dummies ------------------------------------------------------------------------


@rule("pandas")
def get_dummies(
    data: Any, prefix: Any = None, prefix_sep: str = "_", dummy_na: bool = False,
    columns: Any = None, sparse: bool = False, drop_first: bool = False, dtype: Any = None,
) -> Any:  # fmt: skip
    if sparse or not isinstance(prefix_sep, str):
        refuse("sparse dummies and several separators have no rule")
    options = (prefix_sep, dummy_na, drop_first, dtype or bool)
    if is_column(data):
        return Frame(_dummies(data, prefix, *options), data.rows)
    if columns is None:
        kinds = ["object", "string", "category"]
        columns = list(data.real().select_dtypes(include=kinds).columns)
    columns = list(columns)
    result = {n: c for n, c in data.series.items() if n not in columns}
    for number, name in enumerate(columns):
        chosen = (
            prefix[name]
            if isinstance(prefix, dict)
            else prefix[number]
            if isinstance(prefix, (list, tuple))
            else prefix
            if prefix is not None
            else name
        )
        for label, column in _dummies(data.series[name], chosen, *options).items():
            if label in result:
                refuse("a frame with two columns of one name has no rule")
            result[label] = column
    return Frame(result, data.rows, data.length)


def _dummies(
    self: Any, prefix: Any, sep: str, dummy_na: bool, drop_first: bool, dtype: Any
) -> dict[Any, Any]:
    kind = self.step.value.dtype
    is_categorical = isinstance(kind, pd.CategoricalDtype)
    levels = list(kind.categories if is_categorical else pd.Categorical(self.step.value).categories)
    if not is_categorical:
        freeze(f"{self.label} dummies", levels)
    keys = [*levels, np.nan] if dummy_na else levels
    keys = keys[1:] if drop_first else keys
    result = {}
    for level in keys:
        label = f"{prefix}{sep}{level}" if prefix is not None else level
        result[label] = _is_level(self, level).astype(dtype)
    return result


def _is_level(self: Any, level: Any) -> Any:
    if lookup.is_missing(level):
        return self.isna()

    def emit(em: Emission, a: Rep) -> Rep:
        place = lookup.position(em, a, [level])
        return Rep("bool", em.op.Equal(place, em.ints(0)))

    return record("get_dummies", [self], lambda a: (a == level).astype(bool), emit)


@rule("pandas")
def factorize(values: Any, sort: bool = False, use_na_sentinel: bool = True) -> Any:
    if not is_column(values):
        refuse("pd.factorize of something that is no column has no rule")
    _, levels = pd.factorize(values.value, sort=sort, use_na_sentinel=use_na_sentinel)
    freeze(f"{values.label} factorize", list(levels))

    def emit(em: Emission, a: Rep) -> Rep:
        return Rep("int", lookup.position(em, a, list(levels)))

    def replay(a: pd.Series) -> pd.Series:
        places = pd.Index(levels).get_indexer(pd.Index(a))
        return pd.Series(places, index=a.index)

    return record("factorize", [values], replay, emit), levels


@rule("Series", "factorize")
def factorize_of_column(self: Any, sort: bool = False, use_na_sentinel: bool = True) -> Any:
    return factorize(self, sort, use_na_sentinel)
