"""Estimators over several estimators: votes, stacks, bags, boosts, calibration, one versus rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.bayes import _repeated
from sardonyx.importers.sklearn.driver import method, methods, refuse
from sardonyx.importers.sklearn.labels import highest, normalized, pair, picked
from sardonyx.importers.sklearn.linear import interpolated
from sardonyx.importers.sklearn.svm import one_versus_rest
from sardonyx.importers.sklearn.table import (
    DOUBLE,
    INT64,
    STRING,
    Table,
    as_computed,
    beside,
    double,
    select,
    texts,
)
from sardonyx.importers.special import sigmoid, softmax

F = np.float64
ENSEMBLE = "sklearn.ensemble."


def as_column(op, value: ir.Value) -> ir.Value:
    """A vector as a matrix of one column."""
    return op.Unsqueeze(value, [1]) if rank(value) == 1 else value


def second(op, proba: ir.Value) -> ir.Value:
    """The probability of the second class, a vector."""
    return op.Squeeze(op.Slice(proba, [1], [2], [1]), [1])


def average(op, values: list[ir.Value], weights: Any = None) -> ir.Value:
    """`numpy.average` over a list of arrays."""
    if weights is None:
        return op.Div(op.Sum(*values) if len(values) > 1 else values[0], F(len(values)))
    weights = np.asarray(weights, F)
    parts = [op.Mul(v, F(w)) for v, w in zip(values, weights)]
    return op.Div(op.Sum(*parts) if len(parts) > 1 else parts[0], F(weights.sum()))


def each(op, estimators: Any, x: Any, name: str) -> list[dict[str, Any]]:
    return [methods(op, e, x, f"{name}[{i}]") for i, e in enumerate(estimators)]


# -- votes and stacks -----------------------------------------------------------------------------


def _vote_weights(model: Any) -> Any:
    if model.weights is None:
        return None
    return [w for (_, e), w in zip(model.estimators, model.weights) if not _is_drop(e)]


def _is_drop(estimator: Any) -> bool:
    return isinstance(estimator, str) and estimator == "drop"


@importer(ENSEMBLE + "VotingClassifier", columns=True)
def voting_classifier(op, model, x):
    results = each(op, model.estimators_, x, "estimators_")
    weights = _vote_weights(model)
    if model.voting == "soft":
        probas = [r["predict_proba"] for r in results]
        proba = average(op, probas, weights)
        label = highest(op, model.classes_, proba)
        stacked = op.Concat(*probas, axis=1) if len(probas) > 1 else probas[0]
        return {"predict": label, "predict_proba": proba, "transform": stacked}
    votes = []
    numbers = np.arange(len(model.classes_))[None]
    for result, weight in zip(results, weights or [1.0] * len(results)):
        same = op.Equal(as_column(op, op.cast(result["predict"], INT64)), numbers)
        votes.append(op.Mul(op.Cast(same, to=int(DOUBLE)), F(weight)))
    total = op.Sum(*votes) if len(votes) > 1 else votes[0]
    stacked = op.Concat(*(as_column(op, r["predict"]) for r in results), axis=1)
    return {"predict": highest(op, model.classes_, total), "transform": stacked}


@importer(ENSEMBLE + "VotingRegressor", columns=True)
def voting_regressor(op, model, x):
    values = [op.cast(r["predict"], DOUBLE) for r in each(op, model.estimators_, x, "estimators_")]
    stacked = op.Concat(*(as_column(op, v) for v in values), axis=1)
    return {"predict": average(op, values, _vote_weights(model)), "transform": stacked}


def _stacked(op, model, x) -> Table:
    parts: list[Any] = []
    for i, (estimator, name) in enumerate(zip(model.estimators_, model.stack_method_)):
        value = method(op, estimator, x, name, f"estimators_[{i}]")
        if isinstance(value, list):
            parts += [op.Slice(v, [1], [v.shape[1]], [1]) for v in value]
        elif len(value.shape) == 1:
            parts.append(op.cast(as_column(op, value), DOUBLE))
        elif name == "predict_proba" and len(model.classes_) == 2:
            parts.append(op.Slice(value, [1], [2], [1]))
        else:
            parts.append(op.cast(value, DOUBLE))
    if model.passthrough:
        parts.append(x)
    return beside(op, parts)


@importer(ENSEMBLE + "StackingRegressor", columns=True)
def stacking_regressor(op, model, x):
    meta = _stacked(op, model, x)
    return {**methods(op, model.final_estimator_, meta, "final_estimator_"), "transform": meta}


@importer(ENSEMBLE + "StackingClassifier", columns=True)
def stacking_classifier(op, model, x):
    meta = _stacked(op, model, x)
    result = dict(methods(op, model.final_estimator_, meta, "final_estimator_"))
    if isinstance(model._label_encoder, list):
        labels = []
        for k, encoder in enumerate(model._label_encoder):
            code = op.Squeeze(op.Slice(result["predict"], [k], [k + 1], [1]), [1])
            labels.append(as_column(op, picked(op, encoder.classes_, op.cast(code, INT64))))
        result["predict"] = op.Concat(*labels, axis=1)
        if isinstance(result.get("predict_proba"), list):
            first = [op.Slice(p, [0], [1], [1]) for p in result["predict_proba"]]
            result["predict_proba"] = op.Concat(*first, axis=1)
    else:
        classes = model._label_encoder.classes_
        result["predict"] = picked(op, classes, op.cast(result["predict"], INT64))
    return {**result, "transform": meta}


# -- bags and boosts ------------------------------------------------------------------------------


def _subset(op, model, x, i):
    features = np.asarray(model.estimators_features_[i])
    return select(op, x, features)


@importer(ENSEMBLE + "BaggingClassifier")
def bagging_classifier(op, model, x):
    count = len(model.classes_)
    total, decisions = [], []
    for i, estimator in enumerate(model.estimators_):
        result = methods(op, estimator, _subset(op, model, x, i), f"estimators_[{i}]")
        if hasattr(estimator, "predict_proba"):
            proba = result["predict_proba"]
            if len(estimator.classes_) != count:
                place = np.zeros((len(estimator.classes_), count))
                place[np.arange(len(estimator.classes_)), estimator.classes_] = 1
                proba = op.MatMul(proba, place)
        else:
            same = op.Equal(
                as_column(op, op.cast(result["predict"], INT64)), np.arange(count)[None]
            )
            proba = op.Cast(same, to=int(DOUBLE))
        total.append(proba)
        if hasattr(estimator, "decision_function"):
            decisions.append(result["decision_function"])
    proba = op.Div(op.Sum(*total) if len(total) > 1 else total[0], F(model.n_estimators))
    out = {"predict": highest(op, model.classes_, proba), "predict_proba": proba}
    if len(decisions) == len(total):
        whole = op.Sum(*decisions) if len(decisions) > 1 else decisions[0]
        out["decision_function"] = op.Div(whole, F(model.n_estimators))
    return out


@importer(ENSEMBLE + "BaggingRegressor")
def bagging_regressor(op, model, x):
    values = [
        op.cast(method(op, e, _subset(op, model, x, i), "predict", f"estimators_[{i}]"), DOUBLE)
        for i, e in enumerate(model.estimators_)
    ]
    return {"predict": op.Div(op.Sum(*values) if len(values) > 1 else values[0], F(len(values)))}


@importer(ENSEMBLE + "AdaBoostClassifier")
def ada_boost_classifier(op, model, x):
    count = model.n_classes_
    if count == 1:
        ones = _repeated(op, x, np.ones(1))
        return {"predict": highest(op, model.classes_, ones), "predict_proba": ones}
    weights = np.asarray(model.estimator_weights_, F)[: len(model.estimators_)]
    parts = []
    for i, (estimator, w) in enumerate(zip(model.estimators_, weights)):
        label = as_column(op, method(op, estimator, x, "predict", f"estimators_[{i}]"))
        same = _same_class(op, label, model.classes_)
        parts.append(op.Where(same, F(w), F(-1 / (count - 1) * w)))
    decision = op.Sum(*parts) if len(parts) > 1 else parts[0]
    decision = op.Div(decision, F(np.asarray(model.estimator_weights_, F).sum()))
    if count > 2:
        proba = softmax(op, op.Div(decision, F(count - 1)))
        label = highest(op, model.classes_, decision)
        return {"decision_function": decision, "predict": label, "predict_proba": proba}
    score = op.Sub(second(op, decision), op.Squeeze(op.Slice(decision, [0], [1], [1]), [1]))
    column = as_column(op, score)
    proba = softmax(op, op.Div(op.Concat(op.Neg(column), column, axis=1), F(2)))
    label = picked(op, model.classes_, op.Cast(op.Greater(score, F(0)), to=int(INT64)))
    return {"decision_function": score, "predict": label, "predict_proba": proba}


def _same_class(op, label: ir.Value, classes: Any) -> ir.Value:
    if label.dtype == STRING:
        return op.Equal(label, texts(op, [list(classes)]))
    return op.Equal(op.cast(label, DOUBLE), np.asarray(classes, F)[None])


@importer(ENSEMBLE + "AdaBoostRegressor")
def ada_boost_regressor(op, model, x):
    values = [
        as_column(op, op.cast(r["predict"], DOUBLE))
        for r in each(op, model.estimators_, x, "estimators_")
    ]
    if len(values) == 1:
        return {"predict": op.Squeeze(values[0], [1])}
    weights = np.asarray(model.estimator_weights_, F)[: len(values)]
    predictions = op.Concat(*values, axis=1)
    ordered, at = op.TopK(predictions, [len(values)], largest=0, axis=1, outputs=2)
    cdf = op.CumSum(op.Gather(op.const(weights), at), op.const(np.array(1, np.int64)))
    half = op.Mul(op.Slice(cdf, [len(values) - 1], [len(values)], [1]), F(0.5))
    above = op.Cast(op.GreaterOrEqual(cdf, half), to=int(INT64))
    place = op.ArgMax(above, axis=1, keepdims=1)
    return {"predict": op.Squeeze(op.GatherElements(ordered, place, axis=1), [1])}


# -- calibration ----------------------------------------------------------------------------------


@importer("sklearn.calibration.CalibratedClassifierCV", columns=True)
def calibrated_classifier_cv(op, model, x):
    probas = [
        _calibrated(op, c, x, f"calibrated_classifiers_[{i}]")
        for i, c in enumerate(model.calibrated_classifiers_)
    ]
    proba = op.Div(op.Sum(*probas) if len(probas) > 1 else probas[0], F(len(probas)))
    return {"predict": highest(op, model.classes_, proba), "predict_proba": proba}


def _calibrated(op, model, x, name) -> ir.Value:
    inner = model.estimator
    used = "decision_function" if hasattr(inner, "decision_function") else "predict_proba"
    scores = method(op, inner, x, used, name)
    count = len(model.classes)
    if used == "predict_proba" and count == 2:
        scores = op.Slice(scores, [1], [2], [1])
    scores = as_column(op, scores)
    if model.method == "temperature":
        return _by_temperature(op, model.calibrators[0], scores, used, count)
    places = np.searchsorted(np.asarray(model.classes), np.asarray(inner.classes_))
    columns: list[Any] = [None] * count
    for k, (place, calibrator) in enumerate(zip(places, model.calibrators)):
        score = op.Squeeze(op.Slice(scores, [k], [k + 1], [1]), [1])
        at = int(place) + (count == 2)
        columns[at] = as_column(op, _calibrator(op, calibrator, score))
    if count == 2:
        proba = op.Concat(op.Sub(F(1), columns[1]), columns[1], axis=1)
    else:
        zero = op.Mul(op.Slice(scores, [0], [1], [1]), F(0))
        proba = op.Concat(*(zero if c is None else c for c in columns), axis=1)
        proba = normalized(op, proba)
    slightly = op.And(op.Greater(proba, F(1)), op.LessOrEqual(proba, F(1 + 1e-5)))
    return op.Where(slightly, F(1), proba)


def _calibrator(op, model, score) -> ir.Value:
    if type(model).__name__ == "_SigmoidCalibration":
        return sigmoid(op, op.Neg(op.Add(op.Mul(score, F(model.a_)), F(model.b_))))
    points = np.asarray(model.X_thresholds_, F)
    return interpolated(op, score, points, np.asarray(model.y_thresholds_, F))


def _by_temperature(op, model, scores, used, count) -> ir.Value:
    if used == "predict_proba":
        if count == 2:
            scores = op.Concat(op.Sub(F(1), scores), scores, axis=1)
        scores = op.Log(op.Add(scores, F(1e-12)))
    elif count == 2:
        scores = op.Concat(op.Neg(scores), scores, axis=1)
    return softmax(op, op.Mul(scores, F(model.beta_)))


# -- one versus rest, one versus one, codes -------------------------------------------------------


def _binary_score(op, estimator, result) -> ir.Value:
    from sklearn.base import is_regressor

    if is_regressor(estimator):
        return op.cast(result["predict"], DOUBLE)
    if hasattr(estimator, "decision_function"):
        score = result["decision_function"]
        return op.cast(score if len(score.shape) == 1 else op.Squeeze(score, [1]), DOUBLE)
    return second(op, result["predict_proba"])


def _binary_threshold(estimator: Any) -> float:
    from sklearn.base import is_classifier

    return 0.0 if hasattr(estimator, "decision_function") and is_classifier(estimator) else 0.5


@importer("sklearn.multiclass._ConstantPredictor", columns=True)
def constant_predictor(op, model, x):
    y = float(np.ravel(model.y_)[0])
    proba = _repeated(op, x, np.array([1 - y, y]))
    value = second(op, proba)
    return {
        "predict": op.cast(value, INT64),
        "decision_function": value,
        "predict_proba": proba,
    }


@importer("sklearn.multiclass.OneVsRestClassifier", columns=True)
def one_vs_rest_classifier(op, model, x):
    results = each(op, model.estimators_, x, "estimators_")
    scores = [_binary_score(op, e, r) for e, r in zip(model.estimators_, results)]
    stacked = op.Concat(*(as_column(op, s) for s in scores), axis=1)
    binarizer = model.label_binarizer_
    out: dict[str, Any] = {}
    if binarizer.y_type_ == "multiclass":
        out["predict"] = highest(op, model.classes_, stacked)
    else:
        positive = op.Greater(stacked, F(_binary_threshold(model.estimators_[0])))
        index = op.Cast(positive, to=int(INT64))
        if binarizer.y_type_.startswith("multilabel"):
            out["predict"] = index
        else:
            out["predict"] = picked(op, model.classes_, op.Squeeze(index, [1]))
    if all(hasattr(e, "predict_proba") for e in model.estimators_):
        ps = [as_column(op, second(op, r["predict_proba"])) for r in results]
        proba = op.Concat(*ps, axis=1) if len(ps) > 1 else pair(op, op.Squeeze(ps[0], [1]))
        if not model.multilabel_:
            total = op.ReduceSum(proba, [1], keepdims=1)
            zero = op.Equal(total, F(0))
            proba = op.Where(zero, proba, op.Div(proba, op.Where(zero, F(1), total)))
        out["predict_proba"] = proba
    if all(hasattr(e, "decision_function") for e in model.estimators_):
        out["decision_function"] = scores[0] if len(scores) == 1 else stacked
    return out


@importer("sklearn.multiclass.OneVsOneClassifier")
def one_vs_one_classifier(op, model, x):
    indices = model.pairwise_indices_
    predictions, confidences = [], []
    for i, estimator in enumerate(model.estimators_):
        part = x if indices is None else select(op, x, indices[i])
        result = methods(op, estimator, part, f"estimators_[{i}]")
        predictions.append(as_column(op, op.cast(result["predict"], DOUBLE)))
        confidences.append(as_column(op, _binary_score(op, estimator, result)))
    is_loss = op.Equal(op.Concat(*predictions, axis=1), F(1))
    y = one_versus_rest(op, is_loss, op.Concat(*confidences, axis=1), len(model.classes_))
    if model.n_classes_ == 2:
        score = second(op, y)
        threshold = F(_binary_threshold(model.estimators_[0]))
        index = op.Cast(op.Greater(score, threshold), to=int(INT64))
        return {"decision_function": score, "predict": picked(op, model.classes_, index)}
    return {"decision_function": y, "predict": highest(op, model.classes_, y)}


@importer("sklearn.multiclass.OutputCodeClassifier")
def output_code_classifier(op, model, x):
    from sardonyx.importers.sklearn.kernel import squared_by_products

    results = each(op, model.estimators_, x, "estimators_")
    scores = [as_column(op, _binary_score(op, e, r)) for e, r in zip(model.estimators_, results)]
    d = squared_by_products(op, op.Concat(*scores, axis=1), np.asarray(model.code_book_, F))
    return {"predict": picked(op, model.classes_, op.ArgMin(d, axis=1, keepdims=0))}


# -- several outputs ------------------------------------------------------------------------------


@importer(
    "sklearn.multioutput.MultiOutputClassifier",
    "sklearn.multioutput.MultiOutputRegressor",
    columns=True,
)
def multi_output(op, model, x):
    results = each(op, model.estimators_, x, "estimators_")
    labels = [as_column(op, r["predict"]) for r in results]
    if len({label.dtype for label in labels}) > 1:
        raise refuse("outputs of different types")
    out: dict[str, Any] = {"predict": op.Concat(*labels, axis=1)}
    if all(hasattr(e, "predict_proba") for e in model.estimators_):
        out["predict_proba"] = [r["predict_proba"] for r in results]
    return out


def _response(op, estimator, x, name, used) -> ir.Value:
    """The prediction, the score or the probability of the second class: double [rows, 1]."""
    value = method(op, estimator, x, used, name)
    if used == "predict_proba":
        return op.Slice(value, [1], [2], [1])
    return op.cast(as_column(op, value), DOUBLE)


@importer("sklearn.multioutput.ClassifierChain", "sklearn.multioutput.RegressorChain")
def chain(op, model, x):
    chain_method = getattr(model, "chain_method_", "predict")
    methods = ["predict", "predict_proba", "decision_function"]
    methods = [n for n in methods if all(hasattr(e, n) for e in model.estimators_)]
    features: list[Any] = []
    columns: dict[str, list[Any]] = {name: [] for name in methods}
    for i, estimator in enumerate(model.estimators_):
        table = beside(op, [as_computed(op, double(op, x), x), *features]) if features else x
        features.append(_response(op, estimator, table, f"estimators_[{i}]", chain_method))
        for name in methods:
            columns[name].append(_response(op, estimator, table, f"estimators_[{i}]", name))
    back = np.empty(len(model.order_), np.int64)
    back[np.asarray(model.order_)] = np.arange(len(back))
    return {name: op.Concat(*(parts[i] for i in back), axis=1) for name, parts in columns.items()}
