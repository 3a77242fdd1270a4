"""More rows than are fed: melt, stack, and frames one below the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas import characters
from sardonyx.importers.pandas.column import Column, constant, record
from sardonyx.importers.pandas.emission import Emission, Rep
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.recorder import Rows, refuse, rule


def of_one_kind(em: Emission, reps: list[Rep]) -> list[Rep]:
    """Columns brought to the kind in which all of them can be expressed."""
    general = reps[0]
    for rep in reps[1:]:
        general, _ = em.unify(general, rep)
    return [em.unify(rep, general)[0] for rep in reps]


def _joined(em: Emission, reps: list[Rep], turned: bool) -> Rep:
    """The rows of columns one after the other; `turned`: all columns of a row, then the next."""
    op, reps = em.op, of_one_kind(em, reps)
    data = [rep.data for rep in reps]
    if reps[0].kind == "chars":
        size = op.Max(*(characters.width(em, d) for d in data))
        data = [characters.widened(em, d, size) for d in data]
    missing = None
    if any(rep.missing is not None for rep in reps):
        missing = _put(em, [em.missing(rep) for rep in reps], turned)
    return reps[0].but(data=_put(em, data, turned), missing=missing)


def _put(em: Emission, parts: list[Any], turned: bool) -> Any:
    op = em.op
    if not turned:
        return op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]
    table = op.Concat(*(op.Unsqueeze(p, em.ints([1])) for p in parts), axis=1)
    rest = op.Shape(parts[0], start=1) if len(parts[0].shape or (0,)) > 1 else None
    shape = em.ints([-1]) if rest is None else op.Concat(em.ints([-1]), rest, axis=0)
    return op.Reshape(table, shape)


def below(columns: list[Any], rows: Rows, label: Any, turned: bool = False) -> Column:
    """Columns of the same or of other rows, one below the other."""

    def replay(*values: pd.Series) -> pd.Series:
        whole = pd.concat([v.reset_index(drop=True) for v in values], ignore_index=True)
        if not turned:
            return whole
        order = np.arange(len(whole)).reshape(len(values), -1).T.reshape(-1)
        return whole.iloc[order].reset_index(drop=True)

    def emit(em: Emission, *reps: Rep) -> Rep:
        return _joined(em, list(reps), turned)

    plain = [Column(c.step, None) for c in columns]
    return Column(record("concat", plain, replay, emit, rows=rows).step, label)


def _names_of(like: Any, names: list[Any], rows: Rows, turned: bool) -> Column:
    """The name of the column that each row comes from."""
    length = len(like.step.value)
    parts = [constant(n, like.rows, length) for n in names]
    if all(isinstance(n, str) for n in names):
        parts = [p.astype("str") for p in parts]
    return below(parts, rows, None, turned)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, pd.Index, np.ndarray)) else [value]


@rule("DataFrame")
def melt(
    self: Any, id_vars: Any = None, value_vars: Any = None, var_name: Any = None,
    value_name: Any = "value", ignore_index: bool = True,
) -> Any:  # fmt: skip
    kept = [] if id_vars is None else _listed(id_vars)
    others = [n for n in self.series if n not in kept]
    names = others if value_vars is None else _listed(value_vars)
    absent = [n for n in (*kept, *names) if n not in self.series]
    if absent:
        raise KeyError(f"{absent} not in the columns")
    if not names or not ignore_index:
        refuse("melt without columns of values, or with the labels of rows, has no rule")
    rows = Rows(parts=(self.rows,) * len(names))
    series = {n: below([self.series[n]] * len(names), rows, n) for n in kept}
    first = self.series[names[0]]
    label = "variable" if var_name is None else var_name
    series[label] = _names_of(first, names, rows, False).named(label)
    series[value_name] = below([self.series[n] for n in names], rows, value_name)
    return Frame(series, rows)


@rule("pandas", "melt")
def melt_of_frame(frame: Any, *arguments: Any, **options: Any) -> Any:
    return frame.melt(*arguments, **options)


def stacked(frame: Any, labels: dict[Any, Any]) -> tuple[dict[Any, Any], Column]:
    """`stack`: the labels of the new rows as columns, and the values."""
    names, columns = list(frame.series), list(frame.series.values())
    rows = Rows(parts=(frame.rows,) * len(names))
    repeated = {n: below([c] * len(names), rows, n, True) for n, c in labels.items()}
    variable = f"level_{len(labels)}" if labels else "level_1"
    repeated[variable] = _names_of(columns[0], names, rows, True).named(variable)
    return repeated, below(columns, rows, None, True)


def rows_below(parts: list[Any], ignore_index: bool) -> Any:
    """`pd.concat` of frames or columns along the rows."""
    if all(not isinstance(p, Frame) for p in parts):
        rows = Rows(parts=tuple(p.rows for p in parts))
        labels = {p.label for p in parts}
        return below(parts, rows, labels.pop() if len(labels) == 1 else None)
    if not all(isinstance(p, Frame) and p.series for p in parts):
        refuse("a frame and something else are put below each other")
    names = list(dict.fromkeys(n for p in parts for n in p.series))
    rows = Rows(parts=tuple(p.rows for p in parts))
    series = {}
    for name in names:
        columns = [
            p.series.get(name) if name in p.series else constant(np.nan, p.rows, p.length)
            for p in parts
        ]
        series[name] = below(columns, rows, name)
    return Frame(series, rows)
