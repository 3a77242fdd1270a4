"""Distances and kernels between the rows of the input and rows that an estimator keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.sklearn.driver import refuse

F = np.float64
UNROLLED = 256  # features that are handled one by one, to keep [rows, rows kept, features] away


def squared_norms(op: Builder, x: ir.Value) -> ir.Value:
    return op.ReduceSum(op.Mul(x, x), [1], keepdims=1)


def squared_by_products(op: Builder, x: ir.Value, y: np.ndarray) -> ir.Value:
    """Squared distances as |x|² - 2xy + |y|², which is what scikit-learn's fast paths compute."""
    y = np.asarray(y, F)
    cross = op.MatMul(x, np.ascontiguousarray(-2 * y.T))
    total = op.Add(op.Add(cross, squared_norms(op, x)), (y * y).sum(1)[None])
    return op.Max(total, F(0))


def by_feature(op: Builder, x: ir.Value, y: np.ndarray, term: Any, join: Any) -> ir.Value:
    """`join` over features of `term(x_j - y_j)`: [rows, rows of y]."""
    y = np.asarray(y, F)
    if y.shape[1] > UNROLLED:
        raise refuse(f"distances over {y.shape[1]} features")
    total = None
    for j in range(y.shape[1]):
        part = term(op.Sub(op.Gather(x, np.array([j]), axis=1), y[None, :, j]), j)
        total = part if total is None else join(total, part)
    assert total is not None
    return total


def squared(op: Builder, x: ir.Value, y: np.ndarray, scale: Any = None) -> ir.Value:
    """Squared distances as sums of squared differences: exact zeros for equal rows."""
    return by_feature(op, x, y, lambda d, j: op.Mul(d, d), op.Add)


def distances(op, x, y, metric: str, p: float = 2, parameters: Any = None, product=False):
    """Distances by scikit-learn's names; `product` computes Euclidean ones by products."""
    parameters = dict(parameters or {})
    if metric == "minkowski" and not parameters:
        metric = {1: "manhattan", 2: "euclidean", np.inf: "chebyshev"}.get(p, metric)
    if metric in ("euclidean", "l2", "sqeuclidean") and not parameters:
        d = squared_by_products(op, x, y) if product or y.shape[1] > UNROLLED else squared(op, x, y)
        return d if metric == "sqeuclidean" else op.Sqrt(d)
    if metric in ("manhattan", "cityblock", "l1") and not parameters:
        return by_feature(op, x, y, lambda d, j: op.Abs(d), op.Add)
    if metric in ("chebyshev", "infinity") and not parameters:
        return by_feature(op, x, y, lambda d, j: op.Abs(d), op.Max)
    if metric == "minkowski" and set(parameters) <= {"w", "p"}:
        w = np.asarray(parameters.get("w", np.ones(y.shape[1])), F)
        p = parameters.get("p", p)
        if np.isinf(p):
            raise refuse("a weighted Chebyshev distance")
        total = by_feature(op, x, y, lambda d, j: op.Mul(op.Pow(op.Abs(d), F(p)), w[j]), op.Add)
        return op.Pow(total, F(1 / p))
    if metric == "seuclidean" and set(parameters) == {"V"}:
        v = np.asarray(parameters["V"], F)
        return op.Sqrt(by_feature(op, x, y, lambda d, j: op.Div(op.Mul(d, d), v[j]), op.Add))
    if metric == "mahalanobis" and set(parameters) in ({"V"}, {"VI"}):
        inverse = parameters["VI"] if "VI" in parameters else np.linalg.inv(parameters["V"])
        root = np.linalg.cholesky(np.asarray(inverse, F))
        return distances(op, op.MatMul(x, root), y @ root, "euclidean")
    if metric == "cosine" and not parameters:
        return op.Sub(F(1), cosine_similarity(op, x, y))
    if metric == "canberra" and not parameters:
        return _canberra(op, x, y)
    if metric == "hamming" and not parameters:

        def unequal(d, j):
            return op.Cast(op.Not(op.Equal(d, F(0))), to=int(ir.DataType.DOUBLE))

        return op.Div(by_feature(op, x, y, unequal, op.Add), F(y.shape[1]))
    raise refuse(f"the metric {metric!r}" + (f" with {sorted(parameters)}" if parameters else ""))


def _canberra(op, x, y):
    total = None
    for j in range(y.shape[1]):
        column = op.Gather(x, np.array([j]), axis=1)
        size = op.Add(op.Abs(column), np.abs(y[None, :, j]))
        zero = op.Equal(size, F(0))
        part = op.Div(op.Abs(op.Sub(column, y[None, :, j])), op.Where(zero, F(1), size))
        total = part if total is None else op.Add(total, part)
    return total


def cosine_similarity(op, x, y):
    """Products of rows of length one; a row of zeros stays zero."""
    norm = op.Sqrt(squared_norms(op, x))
    unit = op.Div(x, op.Where(op.Equal(norm, F(0)), F(1), norm))
    lengths = np.sqrt((y * y).sum(1, keepdims=True))
    return op.MatMul(unit, np.ascontiguousarray((y / np.where(lengths == 0, 1, lengths)).T))


def pairwise_kernel(op, x, y, name: Any, gamma=None, degree=3, coef0=1, parameters=None):
    """The kernels of `sklearn.metrics.pairwise`, by name."""
    y = np.asarray(y, F)
    if not isinstance(name, str):
        raise refuse("a kernel that is a Python function")
    if gamma is None:
        gamma = 1.0 if name == "chi2" else 1.0 / y.shape[1]
    coef0 = 1 if coef0 is None else coef0
    degree = 3 if degree is None else degree
    if name in ("linear", "cosine"):
        return (
            op.MatMul(x, np.ascontiguousarray(y.T))
            if name == "linear"
            else (cosine_similarity(op, x, y))
        )
    if name == "rbf":
        return op.Exp(op.Mul(squared_by_products(op, x, y), F(-gamma)))
    if name == "laplacian":
        total = by_feature(op, x, y, lambda d, j: op.Abs(d), op.Add)
        return op.Exp(op.Mul(total, F(-gamma)))
    if name in ("poly", "polynomial", "sigmoid"):
        product = op.MatMul(x, np.ascontiguousarray(y.T))
        inner = op.Add(op.Mul(product, F(gamma)), F(coef0))
        return op.Tanh(inner) if name == "sigmoid" else power(op, inner, degree)
    if name in ("chi2", "additive_chi2"):
        total = _chi2(op, x, y)
        return total if name == "additive_chi2" else op.Exp(op.Mul(total, F(gamma)))
    raise refuse(f"the kernel {name!r}")


def _chi2(op, x, y):
    total = None
    for j in range(y.shape[1]):
        column = op.Gather(x, np.array([j]), axis=1)
        size = op.Add(column, y[None, :, j])
        zero = op.Equal(size, F(0))
        d = op.Sub(column, y[None, :, j])
        part = op.Where(zero, F(0), op.Div(op.Mul(d, d), op.Where(zero, F(1), size)))
        total = part if total is None else op.Add(total, part)
    return op.Neg(total)


def power(op: Builder, x: ir.Value, n: float) -> ir.Value:
    """x to the power n; small whole powers by multiplication, as libsvm and NumPy compute them."""
    if n == 1:
        return x
    if n == 2:
        return op.Mul(x, x)
    return op.Pow(x, F(n))
