"""Imputers and indicators of missing values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.column_inputs import OTHER_MISSING, kind_of_missing
from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import method, refuse
from sardonyx.importers.sklearn.encoders import (
    is_missing,
    missing_kinds,
    missing_text,
    text_equals,
)
from sardonyx.importers.sklearn.inputs import is_na
from sardonyx.importers.sklearn.table import (
    DOUBLE,
    STRING,
    Columns,
    Table,
    as_computed,
    beside,
    column,
    double,
    select,
    texts,
    width,
)

F = np.float64


def missing_mask(op, x: ir.Value, missing_values: Any) -> ir.Value:
    """Which values of a matrix or column are missing."""
    if x.dtype == STRING:
        masks = [text_equals(op, x, text) for text in _missing_texts(x, missing_values)]
        return op.Or(*masks) if len(masks) > 1 else masks[0]
    if is_na(missing_values):
        return op.IsNaN(double(op, x))
    return op.Equal(double(op, x), F(missing_values))


def _missing_texts(x: ir.Value, missing_values: Any) -> list[str]:
    """The texts that stand for the missing values of an imputer, to which None is not NaN."""
    if not is_na(missing_values):
        return [str(missing_values)]
    kind = missing_kinds.get().get(x.name or "") if x.producer() is None else None
    if kind is None:
        return [missing_text.get()]
    if not is_missing(missing_values):  # pandas.NA: both
        return [missing_text.get(), OTHER_MISSING]
    return [missing_text.get() if kind == kind_of_missing(missing_values) else OTHER_MISSING]


@importer("sklearn.impute.SimpleImputer", columns=True)
def simple_imputer(op, model, x):
    statistics = np.asarray(model.statistics_, object)
    positions = [
        i
        for i, value in enumerate(statistics)
        if model.strategy == "constant" or model.keep_empty_features or value == value  # no NaN
    ]
    single = not isinstance(x, Columns)
    if single and x.dtype != STRING:
        y = double(op, select(op, x, positions))
        values = np.array([statistics[i] for i in positions], F)[None]
        mask = missing_mask(op, y, model.missing_values)
        filled: Table = as_computed(op, op.Where(mask, values, y), x)
    else:
        parts = []
        for i in positions:
            part = column(op, x, i)
            mask = missing_mask(op, part, model.missing_values)
            if part.dtype == STRING:
                fill = statistics[i]  # None, where that is the most frequent value
                text = _missing_texts(part, fill)[0] if is_missing(fill) else str(fill)
                parts.append(op.Where(mask, texts(op, [[text]]), part))
            else:
                parts.append(op.Where(mask, F(statistics[i]), double(op, part)))
        filled = beside(op, parts)
    return {"transform": with_indicator(op, model, x, filled)}


def with_indicator(op, model, x, filled):
    """The filled columns, and beside them the indicators where the imputer adds them."""
    indicator = getattr(model, "indicator_", None)
    if indicator is None:
        return filled
    flags = []
    for i in indicator.features_:
        mask = missing_mask(op, column(op, x, int(i)), model.missing_values)
        flags.append(op.Cast(mask, to=int(DOUBLE)))
    return beside(op, [filled, *flags]) if flags else filled


@importer("sklearn.impute.MissingIndicator", columns=True)
def missing_indicator(op, model, x):
    which = range(width(x)) if model.features == "all" else model.features_
    flags = [missing_mask(op, column(op, x, int(i)), model.missing_values) for i in which]
    if not flags:
        raise refuse("an indicator without any output")
    return {"transform": op.Concat(*flags, axis=1) if len(flags) > 1 else flags[0]}


@importer("sklearn.impute.KNNImputer")
def knn_imputer(op, model, x):
    if model.metric != "nan_euclidean" or callable(model.weights):
        raise refuse("a KNNImputer with a metric or weights of its own")
    y = double(op, x)
    fit = np.asarray(model._fit_X, F)
    present = ~np.asarray(model._mask_fit_X)
    mask = missing_mask(op, y, model.missing_values)
    weights = op.Cast(op.Not(mask), to=int(DOUBLE))
    distance = _nan_distances(
        op, op.Where(mask, F(0), y), weights, np.where(present, fit, 0), present
    )
    columns = []
    for j in range(fit.shape[1]):
        values, is_missing = column(op, y, j), column(op, mask, j)
        if not model._valid_mask[j]:
            if model.keep_empty_features:
                columns.append(op.Mul(op.Cast(is_missing, to=int(DOUBLE)), F(0)))
            continue
        columns.append(
            op.Where(is_missing, _from_donors(op, model, distance, fit, present, j), values)
        )
    filled = op.Concat(*columns, axis=1) if len(columns) > 1 else columns[0]
    return {"transform": with_indicator(op, model, x, as_computed(op, filled, x))}


def _nan_distances(op, x, is_present, fit, present):
    """Euclidean distances over the features that both have, scaled up; NaN where there are none."""
    both = op.MatMul(is_present, present.astype(F).T.copy())
    total = None
    for j in range(fit.shape[1]):
        d = op.Sub(op.Gather(x, np.array([j]), axis=1), fit[None, :, j])
        weight = op.Mul(op.Gather(is_present, np.array([j]), axis=1), present[None, :, j].astype(F))
        part = op.Mul(op.Mul(d, d), weight)
        total = part if total is None else op.Add(total, part)
    scaled = op.Mul(op.Div(total, op.Max(both, F(1))), F(fit.shape[1]))
    return op.Where(op.Equal(both, F(0)), F(np.inf), op.Sqrt(scaled))


def _from_donors(op, model, distance, fit, present, j):
    donors = np.flatnonzero(present[:, j])
    count = min(model.n_neighbors, len(donors))
    some = op.Gather(distance, donors, axis=1)
    near, at = op.TopK(some, [count], largest=0, axis=1, outputs=2)
    none = op.IsInf(near)
    if model.weights == "distance":
        zero = op.Equal(near, F(0))
        any_zero = op.ReduceMax(op.Cast(zero, to=int(DOUBLE)), [1], keepdims=1)
        inverse = op.Div(F(1), op.Where(zero, F(1), near))
        inverse = op.Where(none, F(0), inverse)
        weights = op.Where(op.Greater(any_zero, F(0)), op.Cast(zero, to=int(DOUBLE)), inverse)
    else:
        weights = op.Where(none, F(0), op.Add(op.Mul(op.Cast(at, to=int(DOUBLE)), F(0)), F(1)))
    values = op.Gather(op.const(fit[donors, j]), at)
    total = op.ReduceSum(weights, [1], keepdims=1)
    mean = op.Div(
        op.ReduceSum(op.Mul(weights, values), [1], keepdims=1),
        op.Where(op.Equal(total, F(0)), F(1), total),
    )
    # As scikit-learn computes it, in float32 too: a value of many rows may be the edge of a step.
    usual = np.ma.array(model._fit_X[:, j], mask=model._mask_fit_X[:, j]).mean()
    return op.Where(op.Equal(total, F(0)), F(usual), mean)


@importer("sklearn.impute.IterativeImputer")
def iterative_imputer(op, model, x):
    if model.sample_posterior:
        raise refuse("an IterativeImputer that draws random samples")
    y = double(op, x)
    mask: Table = missing_mask(op, y, model.missing_values)
    filled = method(op, model.initial_imputer_, y, "transform", "initial_imputer_")
    valid = [i for i in range(width(y)) if i in set(_valid(model))]
    mask = select(op, mask, valid)
    columns = [column(op, double(op, filled), i) for i in range(len(valid))]
    for n, entry in enumerate(model.imputation_sequence_):
        others = op.Concat(*(columns[int(i)] for i in entry.neighbor_feat_idx), axis=1)
        value = method(op, entry.estimator, others, "predict", f"round {n}")
        j = int(entry.feat_idx)
        value = op.Unsqueeze(op.cast(value, DOUBLE), [1])
        low, high = np.ravel(model._min_value), np.ravel(model._max_value)
        value = op.Min(op.Max(value, F(low[j])), F(high[j]))
        columns[j] = op.Where(column(op, mask, j), value, columns[j])
    filled = op.Concat(*columns, axis=1) if len(columns) > 1 else columns[0]
    return {"transform": with_indicator(op, model, x, filled)}


def _valid(model: Any) -> list[int]:
    statistics = model.initial_imputer_.statistics_
    return [i for i, s in enumerate(statistics) if model.keep_empty_features or not is_missing(s)]
