"""What classifiers and regressors have in common: transforms of scores, and labels of classes."""

from __future__ import annotations

import math

import numpy as np

INT64, FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)
ML = "ai.onnx.ml"


def transformed(xp, scores, name):
    """Scores [N, C] after a `post_transform`."""
    # onnxruntime leaves a score that stands alone as it is, but for PROBIT.
    if name == "NONE" or (name != "PROBIT" and xp.shape(scores)[1] == 1):
        return scores
    return TRANSFORMS[name](xp, scores)


def softmax(xp, x):
    x = xp.rounded(x)
    e = xp.exp(x - xp.max(x, 1, True))
    return e / xp.sum(e, 1, True)


def softmax_zero(xp, x):
    """A softmax that leaves zeros at zero."""
    x = xp.rounded(x)
    highest = xp.max(x, 1, True)
    is_zero = xp.less_equal(xp.abs(x), xp.scalar(1e-7, x))
    e = xp.where(is_zero, x * xp.exp(xp.negative(highest)), xp.exp(x - highest))
    total = xp.sum(e, 1, True)
    empty = xp.equal(total, xp.scalar(0, x))
    return xp.where(empty, xp.scalar(0.5, x), e / xp.where(empty, xp.scalar(1, x), total))


def probit(xp, x):
    """The quantile of the normal distribution, with runtimes' own inverse of erf."""
    x = x * 2 - 1
    log = xp.log((1 - x) * (1 + x))
    half = 2 / (math.pi * 0.147) + 0.5 * log
    root = xp.sqrt(xp.sqrt(half * half - log / 0.147) - half)
    return xp.where(xp.less(x, xp.scalar(0, x)), xp.negative(root), root) * math.sqrt(2)


TRANSFORMS = {
    "SOFTMAX": softmax,
    "LOGISTIC": lambda xp, x: xp.sigmoid(x),
    "SOFTMAX_ZERO": softmax_zero,
    "PROBIT": probit,
}


def two_sided(xp, score, name, mixed):
    """The scores of both classes from that of the second, [N, 1]. `mixed`: it may be negative."""
    if name == "LOGISTIC":
        return xp.concat([xp.sigmoid(xp.negative(score)), xp.sigmoid(score)], 1)
    both = xp.concat([xp.negative(score) if mixed else 1 - score, score], 1)
    return probit(xp, both) if name == "PROBIT" else both


def labels(xp, winner, integers, strings):
    """The labels of the classes at the places `winner`; where there are none, the places."""
    if strings:
        return np.array(strings, object)[winner]
    if not integers:
        return winner
    return xp.take(xp.asarray(np.array(integers, INT64)), winner, 0)


def rows(xp, x):
    """An input as a matrix of numbers with fractions: a vector is one row."""
    x = x if xp.dtype(x) == np.dtype(np.float64) else xp.cast(x, FLOAT32)
    return x if xp.rank(x) == 2 else xp.reshape(x, (1, -1))


def constant(xp, values, like):
    """Attributes as an array of the type of `like`."""
    return xp.asarray(np.asarray(values, xp.dtype(like)))
