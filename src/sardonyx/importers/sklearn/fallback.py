"""skl2onnx, for estimators that have no rule here."""

from __future__ import annotations

import warnings
from typing import Any

from sardonyx.importers.sklearn.inputs import Schema
from sardonyx.importers.sklearn.table import BOOL, DOUBLE, FLOAT, INT64, STRING
from sardonyx.model import Model, load

OPSETS = {"": 18, "ai.onnx.ml": 3}
NAMES = {"output_label": "label", "output_probability": "probabilities"}


def converted(estimator: Any, schema: Schema, outputs: dict[str, str]) -> Model | None:
    """skl2onnx's model with the outputs named as ours, or None where it has none."""
    try:
        from skl2onnx import convert_sklearn
        from skl2onnx.common import data_types
    except ImportError:
        return None
    kinds = {
        FLOAT: data_types.FloatTensorType,
        DOUBLE: data_types.DoubleTensorType,
        INT64: data_types.Int64TensorType,
        STRING: data_types.StringTensorType,
        BOOL: data_types.BooleanTensorType,
    }
    width = 1 if schema.frame else schema.width
    types = [(n, kinds[t]([None, width])) for n, t in zip(schema.names, schema.types)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {"zipmap": False} if hasattr(estimator, "predict_proba") else {}
            proto = convert_sklearn(
                estimator,
                initial_types=types,
                target_opset=OPSETS,
                options={id(estimator): options} if options else None,
            )
        model = load(proto)
    except Exception:
        return None
    if len(model.outputs) < len(outputs):
        return None
    for value, name in zip(model.outputs, outputs):
        value.name = name
    del model.graph.outputs[len(outputs) :]
    return model
