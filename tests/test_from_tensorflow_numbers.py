"""NaN, infinities and integers at their limits through `sx.from_tensorflow`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.importers import proof

tf = pytest.importorskip("tensorflow")

NAN, INF = np.nan, np.inf
X = np.array([
    [1, NAN, 3, 2], [NAN, 1, 2, 3], [3, NAN, 1, -0.0], [1, 2, 3, NAN], [NAN] * 4, [-INF] * 4,
    [NAN, -INF, INF, 1], [INF, NAN, NAN, -5], [0.0, -0.0, -1e-30, 8], [INF, -INF, -7, 7],
], np.float32)  # fmt: skip
Y = np.array([
    [2, 1, NAN, -2], [1, NAN, 2, -3], [-3, 0, -1, -2], [0, -2, INF, -1], [1, 2, 3, 4], [-INF] * 4,
    [1, INF, -INF, -INF], [INF, INF, -INF, -2], [-1, -0.0, 3, -INF], [-INF, INF, 2, -2],
], np.float32)  # fmt: skip
LIMITS = np.array([-(2**31), 2**31 - 1, -(2**31) + 1, 7, -7, 0, 5], np.int32)
DIVISORS = np.array([7, -7, 3, -(2**31), 2**31 - 1, -3, 2], np.int32)
FLOATS = {
    "argmax": lambda x, y: tf.argmax(x, 1),
    "argmin": lambda x, y: tf.argmin(x, 1),
    "argmax of rows": lambda x, y: tf.argmax(x, 0),
    "max": lambda x, y: tf.reduce_max(x, 1),
    "min": lambda x, y: tf.reduce_min(x, 0, keepdims=True),
    "max of all": lambda x, y: tf.reduce_max(x),
    "maximum": tf.maximum,
    "minimum": tf.minimum,
    "floormod": tf.math.floormod,
    "floordiv": tf.math.floordiv,
    "atan2": tf.math.atan2,
    "bucketize": lambda x, y: tf.raw_ops.Bucketize(input=x, boundaries=[0.0, 2.0]),
    "in_top_k": lambda x, y: tf.math.in_top_k(tf.zeros(tf.shape(x)[:1], tf.int32), x, 2),
    "relu": lambda x, y: tf.nn.relu(x) + tf.nn.relu6(y),
    "clip": lambda x, y: tf.clip_by_value(x, -1.0, 2.0),
}  # fmt: skip


def require_same(function: Any, *arrays: np.ndarray) -> None:
    specs = [tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in arrays]
    model = sx.from_tensorflow(function, example=specs)
    feeds = {v.name: a for v, a in zip(model.inputs, arrays, strict=False)}
    (actual,) = proof.run(model, {v.name: feeds[v.name] for v in model.inputs}).values()
    expected = tf.function(function)(*map(tf.constant, arrays)).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert actual.dtype == expected.dtype
    if function is tf.math.atan2:  # the sign of a zero says on which side an angle is
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(actual)[numbers], np.signbit(expected)[numbers])


@pytest.mark.parametrize("name", FLOATS)
def test_numbers_that_are_not_finite(name: str) -> None:
    require_same(FLOATS[name], X, Y)


@pytest.mark.parametrize("function", [tf.math.floordiv, tf.math.floormod, tf.truncatediv])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_at_their_limits(function: Any, dtype: Any) -> None:
    require_same(function, LIMITS.astype(dtype), DIVISORS.astype(dtype))


SHORT = [np.int8, np.uint8, np.int16, np.uint16]


@pytest.mark.parametrize("dtype", [*SHORT, np.int32])
def test_sums_of_integers_wrap_around_and_means_do_not(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, (20, 2, 5), dtype, True)
    require_same(lambda x: tf.reduce_mean(x, [1, 2]), x)
    require_same(lambda x: tf.reduce_sum(x, -1), x)
    if dtype in SHORT:
        require_same(lambda x: tf.reduce_prod(x, [2, 1]), x)
        require_same(lambda x: tf.reduce_prod(x, 1, keepdims=True), x)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_wide_integers_are_compared_whole(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, (20, 2, 5)).astype(dtype)
    require_same(lambda x: tf.reduce_max(x, [1, 2]), x)
    require_same(lambda x: tf.reduce_min(x, [0, 2], keepdims=True), x)
    require_same(lambda x: tf.reduce_max(x[:0], 0), x)
    if dtype == np.int64:
        require_same(lambda x: tf.maximum(x, x[::-1]) + tf.minimum(x, x[:, ::-1]), x)
        require_same(lambda x: tf.clip_by_value(x, 1 << 30, 3 << 30), x)


def test_halves_of_a_type_with_few_numbers() -> None:
    half = X.astype(np.float16)
    require_same(lambda x: tf.reduce_max(x, 1), half)
    require_same(lambda x: tf.argmax(x, 1), half)


def test_a_histogram_counts_what_is_outside_in_its_ends() -> None:
    x = np.array([-1.0, 0.0, 1.5, 2.0, 5.0, 15.0, 4.9999], np.float32)
    require_same(lambda x: tf.histogram_fixed_width(x, [0.0, 5.0], nbins=5), x)
