"""Naive Bayes, discriminant analysis, Gaussian mixtures: log likelihoods of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.sklearn.labels import highest, pair
from sardonyx.importers.sklearn.linear import linear_scores
from sardonyx.importers.sklearn.table import INT64, column, double
from sardonyx.importers.special import logsumexp, sigmoid, softmax

F = np.float64
BAYES = "sklearn.naive_bayes."


def _classified(op, model, joint: ir.Value) -> dict[str, Any]:
    proba = op.Exp(op.Sub(joint, logsumexp(op, joint)))
    return {"predict": highest(op, model.classes_, joint), "predict_proba": proba}


@importer(BAYES + "GaussianNB")
def gaussian_nb(op, model, x):
    y = double(op, x)
    parts = []
    for i in range(len(model.classes_)):
        variance, mean = np.asarray(model.var_[i], F), np.asarray(model.theta_[i], F)
        constant = np.log(model.class_prior_[i]) - 0.5 * np.sum(np.log(2.0 * np.pi * variance))
        d = op.Sub(y, mean[None])
        total = op.ReduceSum(op.Div(op.Mul(d, d), variance[None]), [1], keepdims=1)
        parts.append(op.Sub(F(constant), op.Mul(total, F(0.5))))
    return _classified(op, model, op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0])


@importer(BAYES + "MultinomialNB")
def multinomial_nb(op, model, x):
    joint = op.MatMul(double(op, x), np.asarray(model.feature_log_prob_, F).T.copy())
    return _classified(op, model, op.Add(joint, np.asarray(model.class_log_prior_, F)[None]))


@importer(BAYES + "ComplementNB")
def complement_nb(op, model, x):
    joint = op.MatMul(double(op, x), np.asarray(model.feature_log_prob_, F).T.copy())
    if len(model.classes_) == 1:
        joint = op.Add(joint, np.asarray(model.class_log_prior_, F)[None])
    return _classified(op, model, joint)


@importer(BAYES + "BernoulliNB")
def bernoulli_nb(op, model, x):
    y = double(op, x)
    if model.binarize is not None:
        y = op.Cast(op.Greater(y, F(model.binarize)), to=int(ir.DataType.DOUBLE))
    logs = np.asarray(model.feature_log_prob_, F)
    negative = np.log(1 - np.exp(logs))
    joint = op.MatMul(y, (logs - negative).T.copy())
    constant = np.asarray(model.class_log_prior_, F) + negative.sum(axis=1)
    return _classified(op, model, op.Add(joint, constant[None]))


@importer(BAYES + "CategoricalNB")
def categorical_nb(op, model, x):
    total: Any = np.asarray(model.class_log_prior_, F)[None]
    for i in range(model.n_features_in_):
        index = op.Cast(double(op, column(op, x, i)), to=int(INT64))
        table = np.asarray(model.feature_log_prob_[i], F).T.copy()
        most = np.int64(len(table) - 1)
        bounded = op.Squeeze(op.Min(op.Max(index, np.int64(0)), most), [1])
        total = op.Add(op.Gather(op.const(table), bounded, axis=0), total)
    return _classified(op, model, total)


@importer("sklearn.discriminant_analysis.LinearDiscriminantAnalysis")
def linear_discriminant_analysis(op, model, x):
    result = linear_scores(op, model, x)
    scores = result["decision_function"]
    if len(model.classes_) == 2:
        result["predict_proba"] = pair(op, sigmoid(op, scores))
    else:
        result["predict_proba"] = softmax(op, scores)
    if model.solver in ("svd", "eigen"):
        y = double(op, x)
        if model.solver == "svd":
            y = op.Sub(y, np.asarray(model.xbar_, F)[None])
        scalings = np.asarray(model.scalings_, F)[:, : model._max_components]
        result["transform"] = op.MatMul(y, np.ascontiguousarray(scalings))
    return result


@importer("sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis")
def quadratic_discriminant_analysis(op, model, x):
    y = double(op, x)
    parts = []
    for i in range(len(model.classes_)):
        scalings = np.asarray(model.scalings_[i])
        rotation = (np.asarray(model.rotations_[i]) * scalings ** (-0.5)).astype(F)
        z = op.MatMul(
            op.Sub(y, np.asarray(model.means_[i], F)[None]), np.ascontiguousarray(rotation)
        )
        norm = op.ReduceSum(op.Mul(z, z), [1], keepdims=1)
        half = op.Mul(op.Add(norm, F(np.sum(np.log(scalings)))), F(-0.5))
        parts.append(op.Add(half, F(np.log(model.priors_[i]))))
    scores = op.Concat(*parts, axis=1)
    decision = scores
    if len(model.classes_) == 2:
        decision = op.Squeeze(op.Sub(parts[1], parts[0]), [1])
    shifted = op.Sub(scores, op.ReduceMax(scores, [1], keepdims=1))
    total = op.Log(op.ReduceSum(op.Exp(shifted), [1], keepdims=1))
    return {
        "decision_function": decision,
        "predict": highest(op, model.classes_, scores),
        "predict_proba": op.Exp(op.Sub(shifted, total)),
    }


# -- mixtures -------------------------------------------------------------------------------------


def _log_gaussians(op, model, x) -> ir.Value:
    """Log likelihoods of the components, without the part that does not depend on x."""
    y = double(op, x)
    means = np.asarray(model.means_, F)
    factor = np.asarray(model.precisions_cholesky_, F)
    kind = model.covariance_type
    parts = []
    for k, mean in enumerate(means):
        if kind in ("full", "tied"):
            chol = factor[k] if kind == "full" else factor
            z = op.Sub(op.MatMul(y, np.ascontiguousarray(chol)), (mean @ chol)[None])
        else:
            z = op.Mul(op.Sub(y, mean[None]), np.broadcast_to(factor[k], mean.shape).copy()[None])
        parts.append(op.ReduceSum(op.Mul(z, z), [1], keepdims=1))
    return op.Mul(op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0], F(-0.5))


def _log_determinants(model: Any) -> np.ndarray:
    factor = np.asarray(model.precisions_cholesky_, F)
    features = np.asarray(model.means_).shape[1]
    if model.covariance_type == "full":
        return np.array([np.sum(np.log(np.diag(f))) for f in factor])
    if model.covariance_type == "tied":
        return np.full(len(model.means_), np.sum(np.log(np.diag(factor))))
    if model.covariance_type == "diag":
        return np.log(factor).sum(1)
    return features * np.log(factor)


@importer("sklearn.mixture.GaussianMixture", "sklearn.mixture.BayesianGaussianMixture")
def gaussian_mixture(op, model, x):
    features = np.asarray(model.means_).shape[1]
    constant = _log_determinants(model) - 0.5 * features * np.log(2 * np.pi)
    constant = constant + np.asarray(model._estimate_log_weights(), F)
    if type(model).__name__ == "BayesianGaussianMixture":
        from scipy.special import digamma

        freedom = np.asarray(model.degrees_of_freedom_, F)
        steps = np.arange(0, features)[:, None]
        log_lambda = features * np.log(2.0) + np.sum(digamma(0.5 * (freedom - steps)), 0)
        constant = constant - 0.5 * features * np.log(freedom)
        constant = constant + 0.5 * (log_lambda - features / model.mean_precision_)
    joint = op.Add(_log_gaussians(op, model, x), np.asarray(constant, F)[None])
    total = logsumexp(op, joint)
    return {
        "predict": op.ArgMax(joint, axis=1, keepdims=0),
        "predict_proba": op.Exp(op.Sub(joint, total)),
        "score_samples": op.Squeeze(total, [1]),
    }


# -- covariance -----------------------------------------------------------------------------------


@importer("sklearn.covariance.EllipticEnvelope")
def elliptic_envelope(op, model, x):
    d = op.Sub(double(op, x), np.asarray(model.location_, F)[None])
    precision = np.asarray(model.get_precision(), F)
    squared = op.ReduceSum(op.Mul(op.MatMul(d, precision), d), [1], keepdims=0)
    scores = op.Neg(squared)
    decision = op.Sub(scores, F(model.offset_))
    label = op.Where(op.GreaterOrEqual(decision, F(0)), np.int64(1), np.int64(-1))
    return {"score_samples": scores, "decision_function": decision, "predict": label}


# -- dummies --------------------------------------------------------------------------------------


def _repeated(op, x, row: np.ndarray) -> ir.Value:
    """A constant row for each row of x."""
    y = double(op, x)
    count = op.Shape(y, start=0, end=1)
    row = np.asarray(row, F).reshape(1, -1)
    sizes = op.Concat(count, op.const(np.array([row.shape[1]], np.int64)), axis=0)
    out = op.Expand(op.const(row), sizes)
    assert y.shape is not None
    out.shape = ir.Shape([y.shape[0], row.shape[1]])
    return out


@importer("sklearn.dummy.DummyRegressor")
def dummy_regressor(op, model, x):
    y = _repeated(op, x, model.constant_)
    return {"predict": op.Squeeze(y, [1]) if model.n_outputs_ == 1 else y}


@importer("sklearn.dummy.DummyClassifier")
def dummy_classifier(op, model, x):
    strategy = model.strategy
    if strategy in ("uniform", "stratified"):
        raise refuse(f"a DummyClassifier with strategy={strategy!r}, which draws random labels")
    several = model.n_outputs_ > 1
    classes = model.classes_ if several else [model.classes_]
    priors = model.class_prior_ if several else [model.class_prior_]
    constants = np.ravel(model.constant) if strategy == "constant" else [None] * len(classes)
    probas, labels = [], []
    for names, prior, value in zip(classes, priors, constants):
        row = np.zeros(len(names))
        at = int(np.argmax(prior)) if value is None else int(np.flatnonzero(names == value)[0])
        row[at] = 1
        hot = _repeated(op, x, row)
        probas.append(_repeated(op, x, prior) if strategy == "prior" else hot)
        labels.append(highest(op, names, hot))
    if not several:
        return {"predict": labels[0], "predict_proba": probas[0]}
    stacked = op.Concat(*(op.Unsqueeze(label, [1]) for label in labels), axis=1)
    return {"predict": stacked, "predict_proba": probas}
