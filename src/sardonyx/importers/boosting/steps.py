"""Boosters as steps of scikit-learn's pipelines and meta estimators: rules for their wrappers.

Only columns of numbers come in here. A booster with columns of categories is imported by its own
function, which knows the frame.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.boosting import catboost, lightgbm, xgboost
from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.sklearn.inputs import parts_of
from sardonyx.importers.sklearn.labels import flat
from sardonyx.importers.sklearn.table import width

# Whether a step before XGBoost gives a sparse matrix, whose zeros are missing values for it.
zeros_are_missing: ContextVar[bool] = ContextVar("zeros_are_missing", default=False)


def has_xgboost(estimator: Any) -> bool:
    """Whether a part of an estimator is a wrapper of XGBoost."""
    return any(type(part).__module__.startswith("xgboost.") for part in parts_of(estimator))


@importer(
    "xgboost.sklearn.XGBClassifier", "xgboost.sklearn.XGBRegressor", "xgboost.sklearn.XGBRanker",
    "xgboost.sklearn.XGBRFClassifier", "xgboost.sklearn.XGBRFRegressor",
)  # fmt: skip
def xgboost_wrapper(op: Builder, model: Any, x: ir.Value) -> dict[str, Any]:
    if xgboost.has_categories(model):
        raise refuse("an XGBoost model of columns of categories", hint="use sx.from_xgboost")
    if zeros_are_missing.get():
        x = op.cast(x, ir.DataType.DOUBLE)
        x = op.Where(op.Equal(x, np.float64(0)), np.float64(np.nan), x)
    return _methods(xgboost.outputs_of(op, model, x))


@importer(
    "lightgbm.sklearn.LGBMClassifier", "lightgbm.sklearn.LGBMRegressor",
    "lightgbm.sklearn.LGBMRanker",
)  # fmt: skip
def lightgbm_wrapper(op: Builder, model: Any, x: ir.Value) -> dict[str, Any]:
    text = lightgbm.parse(model.booster_.model_to_string())
    if text.categories:
        raise refuse("a LightGBM model of columns of categories", hint="use sx.from_lightgbm")
    outputs, margin, _ = lightgbm.outputs_of(op, text, model, op.cast(x, ir.DataType.DOUBLE))
    scores = flat(op, margin) if width(margin) == 1 else margin
    return {**_methods(outputs), "decision_function": scores}


@importer("catboost.core.CatBoostClassifier", "catboost.core.CatBoostRegressor")
def catboost_wrapper(op: Builder, model: Any, x: ir.Value) -> dict[str, Any]:
    if model.get_cat_feature_indices():
        raise refuse("a CatBoost model of columns of categories", hint="use sx.from_catboost")
    return _methods(catboost.outputs_of(op, model, x))


def _methods(outputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs by the names of the methods that give them."""
    names = {"label": "predict", "variable": "predict", "probabilities": "predict_proba"}
    return {names[name]: value for name, value in outputs.items()}
