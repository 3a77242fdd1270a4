"""Features made ready for a model, one column at a time."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.traditionalml.score import FLOAT32, ML, constant
from sardonyx.lower.xp import is_float


@lowering("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(xp, x, y):
    x = x if xp.rank(x) > 1 else xp.reshape(x, (1, -1))
    return xp.take(x, xp.reshape(y, (-1,)), xp.rank(x) - 1)


@lowering("Binarizer", domain=ML)
def binarizer(xp, x, *, threshold):
    dtype = xp.dtype(x)
    compared = x if is_float(dtype) else xp.cast(x, FLOAT32)
    return xp.cast(xp.greater(compared, xp.scalar(threshold, compared)), dtype)


@lowering("FeatureVectorizer", domain=ML)
def feature_vectorizer(xp, *xs, inputdimensions):
    columns = [xp.cast(x if xp.rank(x) > 1 else xp.reshape(x, (1, -1)), FLOAT32) for x in xs]
    widths = inputdimensions or [xp.shape(x)[1] for x in columns]
    return xp.concat([fitted(xp, x, size) for x, size in zip(columns, widths)], 1)


def fitted(xp, x, size):
    """A matrix of `size` columns: zeros are added, or the last ones left out."""
    width = xp.shape(x)[1]
    if isinstance(width, int) and width == size:
        return x
    return xp.index(xp.pad(x, (0, 0), (0, size), 0), 1, 0, size)


@lowering("Imputer", domain=ML)
def imputer(
    xp, x, *, imputed_value_floats, imputed_value_int64s, replaced_value_float, replaced_value_int64
):
    with_fractions = is_float(xp.dtype(x))
    replaced = replaced_value_float if with_fractions else replaced_value_int64
    values = imputed_value_floats if with_fractions else imputed_value_int64s
    if with_fractions and np.isnan(replaced):
        missing = xp.isnan(x)
    else:
        missing = xp.equal(x, xp.scalar(replaced or 0, x))
    return xp.where(missing, constant(xp, values, x), x)


@lowering("Normalizer", domain=ML)
def normalizer(xp, x, *, norm):
    x = xp.cast(x, FLOAT32)
    x = x if xp.rank(x) > 1 else xp.reshape(x, (1, -1))
    if norm == "MAX":
        size = xp.max(x, 1, True)
    elif norm == "L1":
        size = xp.sum(xp.abs(x), 1, True)
    else:
        size = xp.sqrt(xp.sum(x * x, 1, True))
    return x / xp.where(xp.equal(size, xp.scalar(0, x)), xp.scalar(1, x), size)


@lowering("Scaler", domain=ML)
def scaler(xp, x, *, offset, scale):
    x = xp.cast(x, FLOAT32)
    x = x if not offset else x - constant(xp, offset, x)
    return x if not scale else x * constant(xp, scale, x)
