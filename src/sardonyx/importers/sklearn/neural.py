"""Multi-layer perceptrons and the restricted Boltzmann machine."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.sklearn.labels import flat, highest, pair
from sardonyx.importers.sklearn.table import INT64, constant, double
from sardonyx.importers.special import sigmoid, softmax

F = np.float64

ACTIVATIONS = {
    "identity": lambda op, x: x,
    "logistic": sigmoid,
    "relu": lambda op, x: op.Relu(x),
    "softmax": softmax,
    "tanh": lambda op, x: op.Tanh(x),
}


def layers(op, model, x) -> tuple[ir.Value, ir.Value]:
    """The last layer before and after its activation."""
    y = double(op, x)
    count = len(model.coefs_)
    for i, (coef, bias) in enumerate(zip(model.coefs_, model.intercepts_)):
        weight = op.weight(f"coefs.{i}", np.asarray(coef, F))
        raw = op.Gemm(y, weight, op.weight(f"intercepts.{i}", np.asarray(bias, F)))
        last = i == count - 1
        y = ACTIVATIONS["identity" if last else model.activation](op, raw)
    name = model.out_activation_
    if name not in ACTIVATIONS and name != "exp":
        raise refuse(f"the output activation {name!r}")
    return raw, op.Exp(raw) if name == "exp" else ACTIVATIONS[name](op, raw)


@importer("sklearn.neural_network.MLPRegressor")
def mlp_regressor(op, model, x):
    _, y = layers(op, model, x)
    return {"predict": flat(op, y) if model.n_outputs_ == 1 else y}


@importer("sklearn.neural_network.MLPClassifier")
def mlp_classifier(op, model, x):
    raw, y = layers(op, model, x)
    binarizer = model._label_binarizer
    if binarizer.y_type_.startswith("multilabel"):
        label = op.Cast(op.Greater(y, F(0.5)), to=int(INT64))
        return {"predict": label, "predict_proba": y, "raw": raw}
    if model.n_outputs_ == 1:
        p = flat(op, y)
        index = op.Cast(op.Greater(p, F(0.5)), to=int(INT64))
        label = op.Gather(constant(op, model.classes_), index, axis=0)
        return {"predict": label, "predict_proba": pair(op, p), "raw": raw}
    return {"predict": highest(op, model.classes_, y), "predict_proba": y, "raw": raw}


@importer("sklearn.neural_network.BernoulliRBM")
def bernoulli_rbm(op, model, x):
    weights = np.asarray(model.components_, F)
    hidden = op.Add(
        op.MatMul(double(op, x), weights.T.copy()), np.asarray(model.intercept_hidden_, F)[None]
    )
    return {"transform": sigmoid(op, hidden)}
