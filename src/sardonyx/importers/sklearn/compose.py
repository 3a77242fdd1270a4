"""Pipelines, unions, column transformers, and estimators that wrap one other."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.array_code import traced_call
from sardonyx.importers.sklearn.driver import method, methods, refuse, transform
from sardonyx.importers.sklearn.table import (
    DOUBLE,
    INT64,
    beside,
    double,
    select,
)
from sardonyx.importers.special import expm1

F = np.float64


@importer("sklearn.pipeline.Pipeline", columns=True)
def pipeline(op, model, x):
    *before, (name, last) = model.steps
    for step_name, estimator in before:
        x = transform(op, estimator, x, step_name)
    if last is None or (isinstance(last, str) and last == "passthrough"):
        return {"transform": x}
    return methods(op, last, x, name)


def _weighted(op, value, weight):
    return value if weight is None else op.Mul(double(op, value), F(weight))


@importer("sklearn.pipeline.FeatureUnion", columns=True)
def feature_union(op, model, x):
    weights = model.transformer_weights or {}
    parts = [
        _weighted(op, transform(op, estimator, x, name), weights.get(name))
        for name, estimator in model.transformer_list
        if not (isinstance(estimator, str) and estimator == "drop")
    ]
    if not parts:
        raise refuse("a FeatureUnion without any part")
    return {"transform": beside(op, parts)}


@importer("sklearn.compose.ColumnTransformer", columns=True)
def column_transformer(op, model, x):
    weights = model.transformer_weights or {}
    parts = []
    for name, estimator, _ in model.transformers_:
        indices = list(model._transformer_to_input_indices.get(name, []))
        if not indices or (isinstance(estimator, str) and estimator == "drop"):
            continue
        value = transform(op, estimator, select(op, x, indices), name)
        parts.append(_weighted(op, value, weights.get(name)))
    if not parts:
        raise refuse("a ColumnTransformer without any output")
    return {"transform": beside(op, parts)}


@importer(
    "sklearn.model_selection.GridSearchCV",
    "sklearn.model_selection.RandomizedSearchCV",
    "sklearn.model_selection.HalvingGridSearchCV",
    "sklearn.model_selection.HalvingRandomSearchCV",
    columns=True,
)
def search(op, model, x):
    if not hasattr(model, "best_estimator_"):
        raise refuse("a search without best_estimator_", hint="fit it with refit=True")
    return methods(op, model.best_estimator_, x, "best_estimator_")


@importer("sklearn.frozen.FrozenEstimator", columns=True)
def frozen_estimator(op, model, x):
    return methods(op, model.estimator, x, "estimator")


@importer("sklearn.semi_supervised.SelfTrainingClassifier", columns=True)
def self_training_classifier(op, model, x):
    return methods(op, model.estimator_, x, "estimator_")


# -- thresholds -----------------------------------------------------------------------------------


@importer(
    "sklearn.model_selection.FixedThresholdClassifier",
    "sklearn.model_selection.TunedThresholdClassifierCV",
    columns=True,
)
def threshold_classifier(op, model, x):
    inner = getattr(model, "estimator_", model.estimator)
    result = methods(op, inner, x, "estimator_")
    if type(model).__name__ == "FixedThresholdClassifier":
        positive, threshold = model.pos_label, model.threshold
    else:
        positive, threshold = model._curve_scorer._get_pos_label(), model.best_threshold_
    order = ["predict_proba", "decision_function"]
    if model.response_method != "auto":
        order = [model.response_method]
    used = next(name for name in order if hasattr(inner, name))
    if isinstance(threshold, str):
        threshold = 0.5 if used == "predict_proba" else 0.0
    classes = np.asarray(model.classes_)
    second = positive is None or positive == classes[1]
    score = result[used]
    if used == "predict_proba":
        at = 1 if second else 0
        score = op.Squeeze(op.Slice(score, [at], [at + 1], [1]), [1])
    elif not second:
        score = op.Neg(score)
    above = op.Cast(op.GreaterOrEqual(score, F(threshold)), to=int(INT64))
    names = classes if second else classes[::-1]
    label = op.Gather(_labels(op, names), above, axis=0)
    scores = {k: v for k, v in result.items() if k in ("predict_proba", "decision_function")}
    return {**scores, "predict": label}


def _labels(op, names):
    from sardonyx.importers.sklearn.table import constant

    return constant(op, names)


# -- targets --------------------------------------------------------------------------------------


@importer("sklearn.compose.TransformedTargetRegressor", columns=True)
def transformed_target_regressor(op, model, x):
    y = method(op, model.regressor_, x, "predict", "regressor_")
    y = op.cast(y, DOUBLE)
    if len(y.shape) == 1:
        y = op.Unsqueeze(y, [1])
    out = inverse(op, model.transformer_, y)
    return {"predict": op.Squeeze(out, [1]) if model._training_dim == 1 else out}


def inverse(op, model: Any, y: ir.Value) -> ir.Value:
    """What `inverse_transform` of a transformer of targets gives."""
    name = type(model).__name__
    if name == "FunctionTransformer":
        function = model.inverse_func
        if function is None:
            return y
        return traced_call(op, function, y, model.inv_kw_args or {})
    if name == "StandardScaler":
        y = op.Mul(y, np.asarray(model.scale_, F)) if model.with_std else y
        return op.Add(y, np.asarray(model.mean_, F)) if model.with_mean else y
    if name == "MinMaxScaler":
        return op.Div(op.Sub(y, np.asarray(model.min_, F)), np.asarray(model.scale_, F))
    if name == "MaxAbsScaler":
        return op.Mul(y, np.asarray(model.scale_, F))
    if name == "RobustScaler":
        y = op.Mul(y, np.asarray(model.scale_, F)) if model.with_scaling else y
        return op.Add(y, np.asarray(model.center_, F)) if model.with_centering else y
    if name == "QuantileTransformer" and model.output_distribution == "uniform":
        return _inverse_quantiles(op, model, y)
    if name == "PowerTransformer":
        return _inverse_power(op, model, y)
    if name == "Pipeline":
        for _, part in reversed(model.steps):
            y = inverse(op, part, y)
        return y
    raise refuse(f"the inverse of {name}")


def _inverse_quantiles(op, model, y):
    from sardonyx.importers.sklearn.preprocessing import interp
    from sardonyx.importers.sklearn.table import column

    parts = []
    for i in range(model.quantiles_.shape[1]):
        quantiles, part = np.asarray(model.quantiles_[:, i], F), column(op, y, i)
        out = interp(op, part, np.asarray(model.references_, F), quantiles)
        out = op.Where(op.Equal(part, F(1)), F(quantiles[-1]), out)
        parts.append(op.Where(op.Equal(part, F(0)), F(quantiles[0]), out))
    return op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]


def _inverse_power(op, model, y):
    from sardonyx.importers.sklearn.table import column
    from sardonyx.importers.special import log1p

    if model.standardize:
        y = inverse(op, model._scaler, y)
    parts = []
    for i, power in enumerate(float(p) for p in model.lambdas_):
        part = column(op, y, i)
        if model.method == "box-cox":
            logs = part if power == 0 else op.Div(log1p(op, op.Mul(part, F(power))), F(power))
            parts.append(op.Exp(logs))
            continue
        up, down = op.Max(part, F(0)), op.Max(op.Neg(part), F(0))
        if power != 0:
            up = op.Div(log1p(op, op.Mul(up, F(power))), F(power))
        if power != 2:
            down = op.Div(log1p(op, op.Mul(down, F(2 - power))), F(2 - power))
        positive = op.GreaterOrEqual(part, F(0))
        parts.append(op.Where(positive, expm1(op, up), op.Neg(expm1(op, down))))
    return op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]
