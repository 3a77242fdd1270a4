"""Linear models: scores are products with weights that can be trained, and functions of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.sklearn.labels import flat, highest, normalized, pair, positive
from sardonyx.importers.sklearn.table import double
from sardonyx.importers.special import sigmoid, softmax

F = np.float64
LINEAR = "sklearn.linear_model."

REGRESSORS = [
    "ARDRegression", "BayesianRidge", "ElasticNet", "ElasticNetCV", "HuberRegressor", "Lars",
    "LarsCV", "Lasso", "LassoCV", "LassoLars", "LassoLarsCV", "LassoLarsIC", "LinearRegression",
    "MultiTaskElasticNet", "MultiTaskElasticNetCV", "MultiTaskLasso", "MultiTaskLassoCV",
    "OrthogonalMatchingPursuit", "OrthogonalMatchingPursuitCV", "PassiveAggressiveRegressor",
    "QuantileRegressor", "Ridge", "RidgeCV", "SGDRegressor", "TheilSenRegressor",
]  # fmt: skip


def dense(value: Any) -> np.ndarray:
    """Coefficients that may be a sparse matrix."""
    return value.toarray() if hasattr(value, "toarray") else np.asarray(value)


def affine(op: Builder, x: Any, coef: Any, intercept: Any) -> ir.Value:
    """x @ coef.T + intercept, of shape [rows, outputs], with weights of these names."""
    coef = np.atleast_2d(dense(coef)).astype(np.float64)
    bias = np.broadcast_to(np.asarray(intercept, np.float64).reshape(-1), coef.shape[:1])
    weight = op.weight("coef", np.ascontiguousarray(coef))
    return op.Gemm(double(op, x), weight, op.weight("intercept", bias.copy()), transB=1)


@importer(*(LINEAR + name for name in REGRESSORS), "sklearn.svm.LinearSVR")
def linear_regressor(op, model, x):
    coef = dense(model.coef_)
    scores = affine(op, x, coef, model.intercept_)
    several = coef.ndim > 1
    if type(model).__name__ == "LinearRegression" and several and np.ndim(model.intercept_):
        return {"predict": scores}
    return {"predict": scores if several else flat(op, scores)}


@importer(*(LINEAR + n for n in ("GammaRegressor", "PoissonRegressor", "TweedieRegressor")))
def generalized_linear(op, model, x):
    raw = flat(op, affine(op, x, model.coef_, model.intercept_))
    link = type(model._base_loss.link).__name__
    if link not in ("LogLink", "IdentityLink"):
        raise refuse(f"the link {link}")
    return {"predict": op.Exp(raw) if link == "LogLink" else raw}


def linear_scores(op: Builder, model: Any, x: Any) -> dict[str, Any]:
    """decision_function and predict of a linear classifier."""
    scores = affine(op, x, model.coef_, model.intercept_)
    binarizer = getattr(model, "_label_binarizer", None)
    if binarizer is not None and binarizer.y_type_.startswith("multilabel"):
        # A Ridge classifier of several labels: each score by its sign.
        label = op.Cast(op.Greater(scores, F(0)), to=int(ir.DataType.INT64))
        return {"decision_function": scores, "predict": label}
    if np.atleast_2d(dense(model.coef_)).shape[0] == 1:
        score = flat(op, scores)
        return {"decision_function": score, "predict": positive(op, model.classes_, score)}
    return {"decision_function": scores, "predict": highest(op, model.classes_, scores)}


@importer(
    *(LINEAR + n for n in ("PassiveAggressiveClassifier", "Perceptron", "RidgeClassifier")),
    LINEAR + "RidgeClassifierCV",
    "sklearn.svm.LinearSVC",
)
def linear_classifier(op, model, x):
    return linear_scores(op, model, x)


@importer(LINEAR + "LogisticRegression", LINEAR + "LogisticRegressionCV")
def logistic_regression(op, model, x):
    result = linear_scores(op, model, x)
    scores = result["decision_function"]
    if len(model.classes_) <= 2:
        proba = pair(op, sigmoid(op, scores))
    elif _is_one_versus_rest(model):
        proba = normalized(op, sigmoid(op, scores))
    else:
        proba = softmax(op, scores)
    return {**result, "predict_proba": proba}


def _is_one_versus_rest(model: Any) -> bool:
    """Versions before 1.8 fitted one model per class with `multi_class="ovr"` or liblinear."""
    kind = getattr(model, "multi_class", "deprecated")
    return kind == "ovr" or (kind in ("auto", "deprecated", "warn") and model.solver == "liblinear")


@importer(LINEAR + "SGDClassifier")
def sgd_classifier(op, model, x):
    result = linear_scores(op, model, x)
    scores = result["decision_function"]
    if model.loss == "log_loss":
        p = sigmoid(op, scores)
    elif model.loss == "modified_huber":
        p = op.Div(op.Add(op.Min(op.Max(scores, F(-1)), F(1)), F(1)), F(2))
    else:
        return result
    two = len(model.classes_) == 2
    return {**result, "predict_proba": pair(op, p) if two else normalized(op, p)}


@importer(LINEAR + "SGDOneClassSVM")
def sgd_one_class_svm(op, model, x):
    score = flat(op, affine(op, x, model.coef_, -np.asarray(model.offset_)))
    inlier = op.GreaterOrEqual(score, F(0))
    one = np.int64(1)
    return {
        "decision_function": score,
        "predict": op.Where(inlier, one, -one),
        "score_samples": op.Add(score, F(model.offset_[0])),
    }


@importer(*(f"sklearn.cross_decomposition.{n}" for n in ("CCA", "PLSCanonical", "PLSRegression")))
def partial_least_squares(op, model, x):
    centered = op.Sub(double(op, x), np.asarray(model._x_mean, F))
    predict = op.Add(op.MatMul(centered, np.asarray(model.coef_, F).T), _row(model.intercept_))
    scaled = op.Div(centered, np.asarray(model._x_std, F))
    one = getattr(model, "_predict_1d", False)
    return {
        "predict": flat(op, predict) if one else predict,
        "transform": op.MatMul(scaled, np.asarray(model.x_rotations_, F)),
    }


@importer("sklearn.cross_decomposition.PLSSVD")
def pls_svd(op, model, x):
    scaled = op.Div(op.Sub(double(op, x), np.asarray(model._x_mean, F)), _row(model._x_std))
    return {"transform": op.MatMul(scaled, np.asarray(model.x_weights_, F))}


def _row(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64).reshape(1, -1)


@importer("sklearn.isotonic.IsotonicRegression")
def isotonic_regression(op, model, x):
    points, values = np.asarray(model.X_thresholds_, F), np.asarray(model.y_thresholds_, F)
    position = double(op, x)
    if rank(position) == 2:
        position = flat(op, position)
    y = interpolated(op, position, points, values)
    if model.out_of_bounds == "nan":
        inside = op.And(
            op.GreaterOrEqual(position, F(model.X_min_)), op.LessOrEqual(position, F(model.X_max_))
        )
        y = op.Where(inside, y, F(np.nan))
    return {"predict": y, "transform": y}


def interpolated(op: Builder, x: ir.Value, points: np.ndarray, values: np.ndarray) -> ir.Value:
    """Piecewise linear interpolation through sorted points, constant beyond them."""
    if len(points) == 1:
        return op.Add(op.Mul(x, F(0)), F(values[0]))
    clipped = op.Min(op.Max(x, F(points[0])), F(points[-1]))
    above = op.Greater(op.Unsqueeze(clipped, [1]), points[None, 1:-1])
    at = op.ReduceSum(op.Cast(above, to=int(ir.DataType.INT64)), [1], keepdims=0)
    low, high = op.Gather(op.const(points[:-1]), at), op.Gather(op.const(points[1:]), at)
    first, last = op.Gather(op.const(values[:-1]), at), op.Gather(op.const(values[1:]), at)
    slope = op.Div(op.Sub(last, first), op.Sub(high, low))
    y = op.Add(op.Mul(slope, op.Sub(clipped, low)), first)
    return op.Where(op.Equal(clipped, high), last, y)


@importer(LINEAR + "RANSACRegressor")
def ransac_regressor(op, model, x):
    from sardonyx.importers.sklearn.driver import method

    return {"predict": method(op, model.estimator_, x, "predict", "estimator_")}
