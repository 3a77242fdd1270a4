"""Linear models."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.traditionalml.score import (
    FLOAT32,
    INT64,
    ML,
    constant,
    labels,
    rows,
    transformed,
    two_sided,
)


def linear(xp, x, coefficients, intercepts, targets):
    weights = np.array(coefficients).reshape(targets, -1)
    scores = xp.matmul(x, constant(xp, weights.T, x))
    return scores if not intercepts else scores + constant(xp, intercepts, x)


@lowering("LinearRegressor", domain=ML)
def linear_regressor(xp, x, *, coefficients, intercepts, post_transform, targets):
    scores = linear(xp, rows(xp, x), coefficients, intercepts, targets)
    return xp.cast(transformed(xp, scores, post_transform), FLOAT32)


@lowering("LinearClassifier", domain=ML)
def linear_classifier(
    xp,
    x,
    *,
    classlabels_ints,
    classlabels_strings,
    coefficients,
    intercepts,
    multi_class,
    post_transform,
):
    x = rows(xp, x)
    names = classlabels_ints or classlabels_strings
    # The number of features is part of the shape: two labels may come with one row of weights.
    width = xp.shape(x)[1]
    targets = len(intercepts or ()) or len(coefficients) // width
    scores = linear(xp, x, coefficients, intercepts, targets)
    if targets == 1 and len(names or ()) == 2:
        positive = xp.greater(scores, xp.scalar(0, scores))
        winner = xp.reshape(xp.cast(positive, INT64), (-1,))
        scores = two_sided(xp, scores, post_transform, mixed=False)
    else:
        winner = xp.argmax(scores, 1)
        scores = transformed(xp, scores, post_transform)
    return labels(xp, winner, classlabels_ints, classlabels_strings), xp.cast(scores, FLOAT32)
