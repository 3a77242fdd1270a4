"""Scalers, discretizers, polynomials, splines, power and quantile transformers, functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.array_code import traced_call
from sardonyx.importers.sklearn.driver import methods
from sardonyx.importers.sklearn.frame_code import is_frame, traced_frame_call
from sardonyx.importers.sklearn.table import (
    FLOAT,
    Columns,
    as_computed,
    column,
    double,
    matrix,
)
from sardonyx.importers.special import expm1, log1p, normal_quantile

F = np.float64
PREPROCESSING = "sklearn.preprocessing."


def in_place(op: Builder, x: ir.Value, name: str, values: Any) -> ir.Value:
    """An operation of NumPy on an array itself: computed in double, stored in the array's type."""
    wide = op.cast(x, ir.DataType.DOUBLE)
    return as_computed(op, getattr(op, name)(wide, np.asarray(values, F)), x)


def _clipped(op, x, low, high):
    return as_computed(op, op.Min(op.Max(double(op, x), F(low)), F(high)), x)


def _single(values: Any, x: ir.Value) -> np.ndarray:
    """Values rounded to the type of x."""
    values = np.asarray(values, F)
    return values.astype(np.float32).astype(F) if x.dtype == FLOAT else values


@importer(PREPROCESSING + "StandardScaler")
def standard_scaler(op, model, x):
    y = x
    if model.with_mean:
        y = in_place(op, y, "Sub", _single(model.mean_, x))
    if model.with_std:
        y = in_place(op, y, "Div", _single(model.scale_, x))
    return {"transform": op.Identity(y) if y is x else y}


@importer(PREPROCESSING + "RobustScaler")
def robust_scaler(op, model, x):
    y = in_place(op, x, "Sub", model.center_) if model.with_centering else x
    y = in_place(op, y, "Div", model.scale_) if model.with_scaling else y
    return {"transform": op.Identity(y) if y is x else y}


@importer(PREPROCESSING + "MinMaxScaler")
def min_max_scaler(op, model, x):
    y = in_place(op, in_place(op, x, "Mul", model.scale_), "Add", model.min_)
    return {"transform": _clipped(op, y, *model.feature_range) if model.clip else y}


@importer(PREPROCESSING + "MaxAbsScaler")
def max_abs_scaler(op, model, x):
    y = in_place(op, x, "Div", model.scale_)
    return {"transform": _clipped(op, y, -1, 1) if getattr(model, "clip", False) else y}


@importer(PREPROCESSING + "Normalizer")
def normalizer(op, model, x):
    y = double(op, x)
    if model.norm == "l1":
        size = op.ReduceSum(op.Abs(y), [1], keepdims=1)
    elif model.norm == "l2":
        size = op.Sqrt(op.ReduceSum(op.Mul(y, y), [1], keepdims=1))
    else:
        size = op.ReduceMax(op.Abs(y), [1], keepdims=1)
    # Of a row that is nearly zero, scikit-learn takes the size for 1.
    least = 10 * np.finfo(np.float32 if x.dtype == FLOAT else F).eps
    return {"transform": op.Div(y, op.Where(op.Less(size, F(least)), F(1), size))}


@importer(PREPROCESSING + "Binarizer")
def binarizer(op, model, x):
    above = op.Greater(double(op, x), F(model.threshold))
    return {"transform": op.Cast(above, to=int(ir.DataType.DOUBLE))}


@importer(PREPROCESSING + "KernelCenterer")
def kernel_centerer(op, model, x):
    k = double(op, x)
    rows = np.asarray(model.K_fit_rows_, F)
    means = op.Div(op.ReduceSum(k, [1], keepdims=1), F(len(rows)))
    centered = op.Sub(op.Sub(k, rows[None]), means)
    return {"transform": op.Add(centered, F(model.K_fit_all_))}


@importer(PREPROCESSING + "PolynomialFeatures")
def polynomial_features(op, model, x):
    powers = np.asarray(model.powers_)
    y = double(op, x)
    degree = int(powers.sum(1).max()) if powers.size else 0
    ones = op.Add(op.Mul(op.Slice(y, [0], [1], [1]), F(0)), F(1))
    extended = op.Concat(ones, y, axis=1)
    index = np.zeros((max(degree, 1), len(powers)), np.int64)
    for k, row in enumerate(powers):
        factors = np.repeat(np.arange(1, len(row) + 1), row)
        index[: len(factors), k] = factors
    out = op.Gather(extended, index[0], axis=1)
    for level in index[1:]:
        out = op.Mul(out, op.Gather(extended, level, axis=1))
    return {"transform": out}


@importer(PREPROCESSING + "PowerTransformer")
def power_transformer(op, model, x):
    columns = [
        _POWERS[model.method](op, double(op, column(op, x, i)), float(power))
        for i, power in enumerate(model.lambdas_)
    ]
    y = op.Concat(*columns, axis=1) if len(columns) > 1 else columns[0]
    y = as_computed(op, y, x)
    if model.standardize:
        y = methods(op, model._scaler, y, "scaler")["transform"]
    return {"transform": y}


def _box_cox(op, x, power):
    logs = op.Log(x)
    return logs if power == 0 else op.Div(expm1(op, op.Mul(logs, F(power))), F(power))


def _yeo_johnson(op, x, power):
    up, down = op.Max(x, F(0)), op.Max(op.Neg(x), F(0))
    first, second = log1p(op, up), log1p(op, down)
    if power != 0:
        first = op.Div(expm1(op, op.Mul(first, F(power))), F(power))
    if power != 2:
        second = op.Div(expm1(op, op.Mul(second, F(2 - power))), F(2 - power))
    return op.Where(op.IsNaN(x), x, op.Where(op.GreaterOrEqual(x, F(0)), first, op.Neg(second)))


_POWERS = {"box-cox": _box_cox, "yeo-johnson": _yeo_johnson}
BOUNDS_THRESHOLD = 1e-7


@importer(PREPROCESSING + "QuantileTransformer")
def quantile_transformer(op, model, x):
    columns = []
    for i in range(model.quantiles_.shape[1]):
        part = double(op, column(op, x, i))
        columns.append(_quantile_column(op, model, part, np.asarray(model.quantiles_[:, i], F)))
    return {"transform": op.Concat(*columns, axis=1) if len(columns) > 1 else columns[0]}


def _quantile_column(op, model, x, quantiles):
    references = np.asarray(model.references_, F)
    y = op.Mul(
        op.Sub(
            interp(op, x, quantiles, references),
            interp(op, op.Neg(x), -quantiles[::-1], -references[::-1]),
        ),
        F(0.5),
    )
    low, high = F(quantiles[0]), F(quantiles[-1])
    if model.output_distribution == "normal":
        upper = op.Greater(op.Add(x, F(BOUNDS_THRESHOLD)), high)
        lower = op.Less(op.Sub(x, F(BOUNDS_THRESHOLD)), low)
    else:
        upper, lower = op.Equal(x, high), op.Equal(x, low)
    y = op.Where(lower, F(0), op.Where(upper, F(1), y))
    if model.output_distribution == "normal":
        from scipy import stats

        edge = BOUNDS_THRESHOLD - np.spacing(1)
        ends = stats.norm.ppf(edge), stats.norm.ppf(1 - edge)
        inner = op.And(op.Greater(y, F(0)), op.Less(y, F(1)))
        z = normal_quantile(op, op.Where(inner, y, F(0.5)))
        z = op.Min(op.Max(z, F(ends[0])), F(ends[1]))
        y = op.Where(inner, z, op.Where(op.Greater(y, F(0)), F(ends[1]), F(ends[0])))
    return op.Where(op.IsNaN(x), x, y)


def interp(op: Builder, x: ir.Value, points: np.ndarray, values: np.ndarray) -> ir.Value:
    """`numpy.interp` for x of shape [rows, 1]; points may repeat."""
    points, values = np.ascontiguousarray(points), np.ascontiguousarray(values)
    if len(points) == 1:
        return op.Where(op.IsNaN(x), x, F(values[0]))
    reached = op.Cast(op.GreaterOrEqual(x, points[None]), to=int(ir.DataType.INT64))
    at = op.Sub(op.ReduceSum(reached, [1], keepdims=1), np.int64(1))
    j = op.Min(op.Max(at, np.int64(0)), np.int64(len(points) - 2))
    with np.errstate(all="ignore"):
        slopes = np.diff(values) / np.diff(points)
    slopes = np.where(np.isfinite(slopes), slopes, 0.0)
    start = op.Gather(op.const(points), j)
    y = op.Add(op.Mul(op.Gather(op.const(slopes), j), op.Sub(x, start)), op.Gather(values, j))
    y = op.Where(op.Equal(x, start), op.Gather(values, j), y)
    y = op.Where(op.GreaterOrEqual(x, F(points[-1])), F(values[-1]), y)
    return op.Where(op.Less(x, F(points[0])), F(values[0]), y)


@importer(PREPROCESSING + "KBinsDiscretizer")
def k_bins_discretizer(op, model, x):
    columns = []
    for i, edges in enumerate(model.bin_edges_):
        part = double(op, column(op, x, i))
        inner = np.asarray(edges[1:-1], F)
        if len(inner):
            reached = op.Cast(op.GreaterOrEqual(part, inner[None]), to=int(ir.DataType.DOUBLE))
            code = op.ReduceSum(reached, [1], keepdims=1)
        else:
            code = op.Mul(part, F(0))
        if model.encode != "ordinal":
            numbers = np.arange(int(model.n_bins_[i]), dtype=F)[None]
            code = op.Cast(op.Equal(code, numbers), to=int(ir.DataType.DOUBLE))
        columns.append(code)
    return {"transform": op.Concat(*columns, axis=1) if len(columns) > 1 else columns[0]}


@importer(PREPROCESSING + "SplineTransformer")
def spline_transformer(op, model, x):
    columns, degree = [], model.degree
    for i, spline in enumerate(model.bsplines_):
        part = double(op, column(op, x, i))
        continued = degree
        if model.extrapolation == "linear" and degree <= 1:
            continued = degree + 1
        basis = _splines(op, model, spline, part, degree, continued)
        # scikit-learn 1.9 takes the raised degree for that of the columns that follow.
        degree = continued
        if getattr(model, "handle_missing", "error") == "zeros":
            basis = op.Where(op.IsNaN(part), F(0), basis)
        if not model.include_bias:
            basis = op.Slice(basis, [0], [spline.c.shape[1] - 1], [1])
        columns.append(basis)
    return {"transform": op.Concat(*columns, axis=1) if len(columns) > 1 else columns[0]}


def _splines(op, model, spline, x, degree: int, continued: int) -> ir.Value:
    """Splines of one column; `continued` of them, at either end, go on beyond the knots."""
    knots = np.asarray(spline.t, F)
    first, last = knots[degree], knots[-degree - 1]
    if model.extrapolation == "periodic":
        period = last - first
        if period <= 0:
            return _spline_values(op, spline, op.Mul(x, F(0)))
        turns = op.Floor(op.Div(op.Sub(x, F(first)), F(period)))
        shifted = op.Sub(op.Sub(x, F(first)), op.Mul(turns, F(period)))
        return _spline_values(op, spline, op.Add(shifted, F(first)))
    if model.extrapolation in ("continue", "error"):
        return _spline_values(op, spline, x)
    y = _spline_values(op, spline, op.Min(op.Max(x, F(first)), F(last)))
    number = np.arange(spline.c.shape[1])
    ends = (
        (op.Less(x, F(first)), first, number < continued),
        (op.Greater(x, F(last)), last, number >= len(number) - continued),
    )
    for outside, at, goes_on in ends:
        line: Any = (np.asarray(spline(at), F) * goes_on)[None]
        if model.extrapolation == "linear":
            slope = (np.asarray(spline(at, nu=1), F) * goes_on)[None]
            line = op.Add(op.Mul(op.Sub(x, F(at)), slope), line)
        y = op.Where(outside, line, y)
    return y


def _spline_values(op, spline, x) -> ir.Value:
    """The recursion of Cox and de Boor; the interval is fixed, so polynomials go on outside."""
    knots, degree = np.asarray(spline.t, F), spline.k
    count = len(knots) - degree - 1
    inner = knots[degree + 1 : count]
    interval = (
        op.ReduceSum(
            op.Cast(op.GreaterOrEqual(x, inner[None]), to=int(ir.DataType.INT64)), [1], keepdims=1
        )
        if len(inner)
        else op.Cast(op.Mul(x, F(0)), to=int(ir.DataType.INT64))
    )
    numbers = np.arange(len(knots) - 1)[None] - degree
    basis = op.Cast(op.Equal(interval, numbers), to=int(ir.DataType.DOUBLE))
    for k in range(1, degree + 1):
        n = len(knots) - 1 - k
        left, right = knots[k : k + n] - knots[:n], knots[k + 1 : k + 1 + n] - knots[1 : n + 1]
        one = op.Mul(op.Sub(x, knots[None, :n]), _inverse(left))
        two = op.Mul(op.Sub(knots[None, k + 1 : k + 1 + n], x), _inverse(right))
        low, high = op.Slice(basis, [0], [n], [1]), op.Slice(basis, [1], [n + 1], [1])
        basis = op.Add(op.Mul(one, low), op.Mul(two, high))
    coefficients = np.asarray(spline.c, F)
    if coefficients.shape[0] == coefficients.shape[1] and np.array_equal(
        coefficients, np.eye(len(coefficients))
    ):
        return basis
    return op.MatMul(basis, coefficients)


def _inverse(d: np.ndarray) -> np.ndarray:
    return np.where(d == 0, 0.0, 1.0 / np.where(d == 0, 1.0, d))[None]


# -- functions ------------------------------------------------------------------------------------


@importer(PREPROCESSING + "FunctionTransformer", columns=True)
def function_transformer(op, model, x):
    if model.func is None:
        if isinstance(x, Columns):
            return {"transform": Columns([op.Identity(p) for p in x.parts])}
        return {"transform": op.Identity(x)}
    if is_frame(x):
        return {"transform": traced_frame_call(op, model.func, x, model.kw_args or {})}
    value = matrix(op, x) if isinstance(x, Columns) else x
    result = traced_call(op, model.func, value, model.kw_args or {})
    return {"transform": op.Identity(result) if result is value else result}
