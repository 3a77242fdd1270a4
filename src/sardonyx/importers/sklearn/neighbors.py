"""Nearest neighbours: all distances, then the nearest, or those within a radius."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.sklearn.kernel import distances
from sardonyx.importers.sklearn.labels import highest, picked
from sardonyx.importers.sklearn.linear import dense
from sardonyx.importers.sklearn.table import DOUBLE, double
from sardonyx.importers.special import logsumexp

F = np.float64
NEIGHBORS = "sklearn.neighbors."


def _all_distances(op, model, x, metric: str | None = None) -> ir.Value:
    if callable(model.metric):
        raise refuse("a metric that is a Python function")
    if model.metric == "precomputed":
        return double(op, x)
    fit = np.asarray(dense(model._fit_X), F)
    parameters = dict(model.metric_params or {})
    p = getattr(model, "p", 2)
    product = model._fit_method == "brute"
    return distances(op, double(op, x), fit, metric or model.metric, p, parameters, product=product)


def _nearest(op, model, x, count: int) -> tuple[ir.Value, ir.Value]:
    return op.TopK(_all_distances(op, model, x), [count], largest=0, axis=1, outputs=2)


def _weights(op, model, near: ir.Value) -> ir.Value:
    """The weights of neighbours at these distances; equal points take all of it."""
    if model.weights in (None, "uniform"):
        return op.Add(op.Mul(op.Cast(op.IsNaN(near), to=int(DOUBLE)), F(0)), F(1))
    if model.weights != "distance":
        raise refuse("weights that are a Python function")
    zero = op.Equal(near, F(0))
    flags = op.Cast(zero, to=int(DOUBLE))
    any_zero = op.Greater(op.ReduceMax(flags, [1], keepdims=1), F(0))
    return op.Where(any_zero, flags, op.Div(F(1), op.Where(zero, F(1), near)))


def _shares(op, weights, labels, count: int) -> ir.Value:
    """The share of each class in the weights: `labels` are the classes of [rows, neighbours]."""
    parts = []
    for c in range(count):
        same = op.Cast(op.Equal(labels, np.int64(c)), to=int(DOUBLE))
        parts.append(op.ReduceSum(op.Mul(same, weights), [1], keepdims=1))
    return op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]


def _outputs(model: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    y = np.asarray(model._y, np.int64)
    if not model.outputs_2d_:
        return y.reshape(-1, 1), [model.classes_]
    return y, list(model.classes_)


@importer(NEIGHBORS + "KNeighborsClassifier")
def k_neighbors_classifier(op, model, x):
    near, at = _nearest(op, model, x, model.n_neighbors)
    weights = _weights(op, model, near)
    y, classes = _outputs(model)
    probas, labels = [], []
    for k, names in enumerate(classes):
        shares = _shares(op, weights, op.Gather(op.const(y[:, k].copy()), at), len(names))
        probas.append(op.Div(shares, op.ReduceSum(shares, [1], keepdims=1)))
        labels.append(highest(op, names, shares))
    return _joined(op, model, probas, labels)


def _joined(op, model, probas, labels) -> dict[str, Any]:
    if not model.outputs_2d_:
        return {"predict_proba": probas[0], "predict": labels[0]}
    stacked = op.Concat(*(op.Unsqueeze(label, [1]) for label in labels), axis=1)
    return {"predict_proba": probas, "predict": stacked}


@importer(NEIGHBORS + "KNeighborsRegressor")
def k_neighbors_regressor(op, model, x):
    near, at = _nearest(op, model, x, model.n_neighbors)
    y = np.asarray(model._y, F)
    values = op.Gather(op.const(y.reshape(len(y), -1).copy()), at, axis=0)
    weights = _weights(op, model, near)
    total = op.ReduceSum(op.Mul(values, op.Unsqueeze(weights, [2])), [1], keepdims=0)
    mean = op.Div(total, op.ReduceSum(weights, [1], keepdims=1))
    return {"predict": op.Squeeze(mean, [1]) if y.ndim == 1 else mean}


def _inside(op, model, x) -> tuple[ir.Value, ir.Value]:
    """Which points are within the radius, and the distances of all.

    scikit-learn compares squares: a point at the distance 1.0 after rounding may be outside.
    """
    euclidean = model.metric in ("euclidean", "l2") or (model.metric, model.p) == ("minkowski", 2)
    if euclidean and not model.metric_params:
        squares = _all_distances(op, model, x, "sqeuclidean")
        return op.LessOrEqual(squares, F(model.radius) * F(model.radius)), op.Sqrt(squares)
    d = _all_distances(op, model, x)
    return op.LessOrEqual(d, F(model.radius)), d


def _within(op, model, x) -> tuple[ir.Value, ir.Value]:
    """Weights of all points, zero beyond the radius; which rows have no neighbour."""
    inside, d = _inside(op, model, x)
    flags = op.Cast(inside, to=int(DOUBLE))
    alone = op.Equal(op.ReduceSum(flags, [1], keepdims=1), F(0))
    if model.weights in (None, "uniform"):
        return flags, alone
    if model.weights != "distance":
        raise refuse("weights that are a Python function")
    zero = op.Cast(op.And(op.Equal(d, F(0)), inside), to=int(DOUBLE))
    any_zero = op.Greater(op.ReduceMax(zero, [1], keepdims=1), F(0))
    inverse = op.Mul(flags, op.Div(F(1), op.Where(op.Equal(d, F(0)), F(1), d)))
    return op.Where(any_zero, zero, inverse), alone


@importer(NEIGHBORS + "RadiusNeighborsClassifier")
def radius_neighbors_classifier(op, model, x):
    weights, alone = _within(op, model, x)
    y, classes = _outputs(model)
    probas, labels = [], []
    for k, names in enumerate(classes):
        hot = (y[:, k][:, None] == np.arange(len(names))).astype(F)
        shares = op.MatMul(weights, hot)
        outlier = None if model.outlier_label_ is None else np.ravel(model.outlier_label_)[k]
        same = np.zeros(len(names), bool) if outlier is None else np.asarray(names) == outlier
        index = np.flatnonzero(same)
        fallback = np.zeros((1, len(names)))
        fallback[0, index] = 1
        total = op.ReduceSum(shares, [1], keepdims=1)
        proba = op.Div(shares, op.Where(op.Equal(total, F(0)), F(1), total))
        proba = op.Where(alone, fallback, proba)
        label = highest(op, names, proba)
        if outlier is not None and not len(index):
            if np.asarray(names).dtype.kind not in "iub":
                raise refuse("an outlier label that is no class")
            label = op.Where(op.Squeeze(alone, [1]), np.int64(outlier), label)
        probas.append(proba)
        labels.append(label)
    return _joined(op, model, probas, labels)


@importer(NEIGHBORS + "RadiusNeighborsRegressor")
def radius_neighbors_regressor(op, model, x):
    weights, alone = _within(op, model, x)
    y = np.asarray(model._y, F)
    total = op.MatMul(weights, y.reshape(len(y), -1).copy())
    size = op.ReduceSum(weights, [1], keepdims=1)
    empty = 0.0 if np.asarray(model._y).dtype.kind in "iu" else np.nan
    if np.isnan(empty):
        mean = op.Where(alone, F(np.nan), op.Div(total, op.Where(alone, F(1), size)))
    else:
        raise refuse("a RadiusNeighborsRegressor of integers, which has no mark for missing values")
    return {"predict": op.Squeeze(mean, [1]) if y.ndim == 1 else mean}


@importer(NEIGHBORS + "KNeighborsTransformer", NEIGHBORS + "RadiusNeighborsTransformer")
def neighbors_transformer(op, model, x):
    """The graph of neighbours as a matrix with zeros where there is no neighbour."""
    if type(model).__name__ == "RadiusNeighborsTransformer":
        inside, d = _inside(op, model, x)
        keep = op.Cast(inside, to=int(DOUBLE))
    else:
        d = _all_distances(op, model, x)
        count = model.n_neighbors + (model.mode == "distance")
        near, _ = op.TopK(d, [count], largest=0, axis=1, outputs=2)
        keep = op.Cast(op.LessOrEqual(d, op.Slice(near, [count - 1], [count], [1])), to=int(DOUBLE))
    return {"transform": keep if model.mode == "connectivity" else op.Mul(keep, d)}


@importer(NEIGHBORS + "NearestCentroid")
def nearest_centroid(op, model, x):
    y = double(op, x)
    centroids = np.asarray(model.centroids_, F)
    if model.metric not in ("euclidean", "manhattan"):
        raise refuse(f"the metric {model.metric!r}")
    prior = np.asarray(model.class_prior_, F)
    uniform = bool(np.isclose(prior, 1 / len(model.classes_)).all())
    d = distances(op, y, centroids, model.metric, product=True)
    result: dict[str, Any] = {}
    if model.metric == "euclidean":
        result = _centroid_scores(op, model, y)
    if uniform or model.metric != "euclidean":
        result["predict"] = picked(op, model.classes_, op.ArgMin(d, axis=1, keepdims=0))
    else:
        result["predict"] = highest(op, model.classes_, result["scores"])
    return result


def _centroid_scores(op, model, y) -> dict[str, Any]:
    scale = np.asarray(model.within_class_std_dev_, F)
    scale = np.where(scale != 0, scale, 1.0)
    normal = op.Div(y, scale[None])
    centers = np.asarray(model.centroids_, F) / scale
    d = distances(op, normal, centers, "sqeuclidean", product=True)
    scores = op.Add(op.Neg(d), 2.0 * np.log(np.asarray(model.class_prior_, F))[None])
    if len(model.classes_) == 2:
        one = op.Sub(op.Slice(scores, [1], [2], [1]), op.Slice(scores, [0], [1], [1]))
        decision = op.Squeeze(one, [1])
    else:
        decision = scores
    proba = op.Exp(op.Sub(scores, logsumexp(op, scores)))
    return {"scores": scores, "decision_function": decision, "predict_proba": proba}


@importer(NEIGHBORS + "NeighborhoodComponentsAnalysis")
def neighborhood_components_analysis(op, model, x):
    return {"transform": op.MatMul(double(op, x), np.asarray(model.components_, F).T.copy())}


@importer(NEIGHBORS + "KernelDensity")
def kernel_density(op, model, x):
    tree = model.tree_
    data = np.asarray(tree.data, F)
    weights = None if tree.sample_weight is None else np.asarray(tree.sample_weight, F)
    if model.kernel != "gaussian" or model.metric != "euclidean":
        raise refuse("a KernelDensity other than Gaussian over Euclidean distances")
    d = distances(op, double(op, x), data, "sqeuclidean")
    h, dims = model.bandwidth_, data.shape[1]
    logs = op.Mul(d, F(-0.5 / h**2))
    if weights is not None:
        logs = op.Add(logs, np.log(weights)[None])
    total = len(data) if weights is None else weights.sum()
    norm = -0.5 * dims * np.log(2 * np.pi) - dims * np.log(h) - np.log(total)
    return {"score_samples": op.Add(logsumexp(op, logs, keepdims=False), F(norm))}


@importer(NEIGHBORS + "LocalOutlierFactor")
def local_outlier_factor(op, model, x):
    if not model.novelty:
        raise refuse("a LocalOutlierFactor without novelty=True, which cannot score new rows")
    near, at = _nearest(op, model, x, model.n_neighbors_)
    distances = np.asarray(model._distances_fit_X_, F)[:, model.n_neighbors_ - 1]
    reach = op.Max(near, op.Gather(op.const(distances.copy()), at))
    density = op.Div(F(1), op.Add(op.ReduceMean(reach, [1], keepdims=1), F(1e-10)))
    theirs = op.Gather(op.const(np.asarray(model._lrd, F)), at)
    scores = op.Neg(op.ReduceMean(op.Div(theirs, density), [1], keepdims=0))
    decision = op.Sub(scores, F(model.offset_))
    label = op.Where(op.Less(decision, F(0)), np.int64(-1), np.int64(1))
    return {"score_samples": scores, "decision_function": decision, "predict": label}
