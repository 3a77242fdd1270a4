"""Which outputs a model has, and what the estimator itself gives for them.

label           predict of classifiers, clusterings and outlier detectors
probabilities   predict_proba; `probabilities_0`, … where there are several outputs
scores          decision_function where there are no probabilities; score_samples of densities
variable        predict of regressors
transformed     transform
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np


def wanted(estimator: Any) -> dict[str, str]:
    """The outputs of an estimator's model, and the methods that they are."""
    has = {n for n in METHODS if _has(estimator, n)}
    outputs: dict[str, str] = {}
    if "predict" in has:
        regression = _is_regressor(estimator)
        outputs["variable" if regression else "label"] = "predict"
        if not regression:
            if "predict_proba" in has:
                outputs["probabilities"] = "predict_proba"
            elif "decision_function" in has:
                outputs["scores"] = "decision_function"
            elif "transform" in has:
                outputs["transformed"] = "transform"
    elif "transform" in has:
        outputs["transformed"] = "transform"
    elif "score_samples" in has:
        outputs["scores"] = "score_samples"
    return outputs


METHODS = ("predict", "predict_proba", "decision_function", "transform", "score_samples")


def _has(estimator: Any, name: str) -> bool:
    try:
        return callable(getattr(estimator, name, None))
    except Exception:
        return False


def _is_regressor(estimator: Any) -> bool:
    from sklearn.base import is_regressor

    if is_regressor(estimator):
        return True
    steps = getattr(estimator, "steps", None)
    inner = steps[-1][1] if steps else getattr(estimator, "best_estimator_", None)
    inner = getattr(estimator, "estimator_", None) if inner is None else inner
    return inner is not None and not isinstance(inner, str) and _is_regressor(inner)


def classes_of(estimator: Any) -> Any:
    """The names of the classes, as plain lists; None where there are none."""
    try:
        classes = getattr(estimator, "classes_", None)
    except Exception:
        return None
    if classes is None:
        return None
    if isinstance(classes, (list, tuple)):
        return [np.asarray(c).tolist() for c in classes]
    return np.asarray(classes).tolist()


def expected(estimator: Any, x: Any, outputs: dict[str, str]) -> dict[str, np.ndarray]:
    """What the estimator gives, by the names of outputs."""
    arrays: dict[str, np.ndarray] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, method in outputs.items():
            value = _called(getattr(estimator, method), x)
            if isinstance(value, list):
                arrays.update({f"{name}_{i}": plain(v) for i, v in enumerate(value)})
            elif isinstance(value, tuple):
                arrays[name] = plain(value[0])
            else:
                arrays[name] = plain(value)
    return arrays


def _called(method: Any, x: Any) -> Any:
    """The method on x; some estimators that were fitted on doubles take no float32."""
    try:
        return method(x)
    except ValueError as error:
        if isinstance(x, np.ndarray) and "dtype mismatch" in str(error):
            return method(x.astype(np.float64))
        raise


def plain(value: Any) -> np.ndarray:
    """Frames and sparse matrices as arrays."""
    if hasattr(value, "toarray"):
        value = value.toarray()
    return np.asarray(value)
