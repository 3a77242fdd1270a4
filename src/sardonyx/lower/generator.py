"""Lowerings of ONNX's family generator: arrays out of sizes and of chance."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.lower.driver import lowering

FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype(np.int64)


def numpy_type(code):
    return np.dtype(ir.DataType(code).numpy())


@lowering("ConstantOfShape", static=("shape",))
def constant_of_shape(xp, shape, *, value):
    filler = np.zeros(1, np.float32) if value is None else value
    return xp.full(shape.tolist(), filler.reshape(-1)[0], filler.dtype)


@lowering("Range", static=("start", "limit", "delta"))
def range_(xp, start, limit, delta, *, stash_type):
    dtype = start.dtype if start.dtype != object else INT64
    bounds = (v.reshape(-1)[0] for v in (start, limit, delta))
    return xp.arange(*(v.item() if isinstance(v, np.generic) else v for v in bounds), dtype)


@lowering("EyeLike")
def eye_like(xp, x, *, dtype, k):
    rows, columns = xp.shape(x)
    target = xp.dtype(x) if dtype is None else numpy_type(dtype)
    row = xp.reshape(xp.arange(0, rows, 1, INT64), (rows, 1))
    column = xp.reshape(xp.arange(0, columns, 1, INT64), (1, columns))
    return xp.cast(xp.equal(column - row, xp.full((), k, INT64)), target)


@lowering("RandomNormal")
def random_normal(xp, *, dtype, mean, scale, seed, shape):
    return xp.normal(shape, numpy_type(dtype), mean, scale, seed)


@lowering("RandomUniform")
def random_uniform(xp, *, dtype, low, high, seed, shape):
    return xp.uniform(shape, numpy_type(dtype), low, high, seed)


@lowering("RandomNormalLike")
def random_normal_like(xp, x, *, dtype, mean, scale, seed):
    target = xp.dtype(x) if dtype is None else numpy_type(dtype)
    return xp.normal(xp.shape(x), target, mean, scale, seed)


@lowering("RandomUniformLike")
def random_uniform_like(xp, x, *, dtype, low, high, seed):
    target = xp.dtype(x) if dtype is None else numpy_type(dtype)
    return xp.uniform(xp.shape(x), target, low, high, seed)


@lowering("Bernoulli")
def bernoulli(xp, x, *, dtype, seed):
    target = xp.dtype(x) if dtype is None else numpy_type(dtype)
    sample = xp.uniform(xp.shape(x), FLOAT32, 0.0, 1.0, seed)
    return xp.cast(xp.less(sample, xp.cast(x, FLOAT32)), target)


@lowering("Multinomial")
def multinomial(xp, x, *, dtype, sample_size, seed):
    """Inverse transform: the first class whose cumulated probability exceeds a uniform number."""
    rows, _ = xp.shape(x)
    x = xp.rounded(x)
    weights = xp.exp(x - xp.max(x, 1, keepdims=True))
    below = xp.cumsum(weights, 1) / xp.sum(weights, 1, keepdims=True)
    sample = xp.uniform((rows, sample_size), xp.dtype(x), 0.0, 1.0, seed)
    beyond = xp.greater_equal(xp.expand_dims(sample, (2,)), xp.expand_dims(below, (1,)))
    chosen = xp.sum(xp.cast(beyond, np.dtype(np.int32)), 2)
    return xp.cast(chosen, numpy_type(dtype))
