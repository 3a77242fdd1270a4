"""Graphs with free sizes through `sx.from_tensorflow`; TensorFlow itself is the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.errors import ImportDiffers
from sardonyx.importers import proof, rules

tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(0)
KERNELS = ("area", "bicubic", "lanczos3", "lanczos5", "mitchellcubic", "gaussian")


def require_equal(model: sx.Model, function: Any, *arrays: np.ndarray) -> None:
    onnx.checker.check_model(model.proto(), full_check=True)
    feeds = {v.name: a for v, a in zip(model.inputs, arrays, strict=True)}
    actual = proof.run(model, feeds)
    for value, expected in zip(
        model.outputs, tf.nest.flatten(function(*map(tf.constant, arrays))), strict=True
    ):
        np.testing.assert_allclose(actual[value.name], expected.numpy(), rtol=2e-5, atol=2e-5)


def resized(method: str, antialias: bool) -> Any:
    def function(x: Any) -> Any:
        size = tf.shape(x)[1:3]
        fixed = tf.image.resize(x, [7, 4], method, antialias=antialias)
        return fixed, tf.image.resize(x, size * 3 // 2, method, antialias=antialias)

    return function


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("method", KERNELS)
def test_images_of_free_size_are_resized_by_weights(method: str, antialias: bool) -> None:
    function = resized(method, antialias)
    signature = [tf.TensorSpec([None, None, None, 2])]
    model = sx.from_tensorflow(tf.function(function, input_signature=signature))
    for shape in ((2, 9, 13, 2), (1, 30, 5, 2), (1, 1, 1, 2)):
        require_equal(model, function, RNG.random(shape, np.float32))


@pytest.mark.parametrize("align_corners", [False, True])
def test_images_of_free_size_as_tensorflow_1_resizes_them(align_corners: bool) -> None:
    image = tf.compat.v1.image

    def function(x: Any) -> Any:
        return (
            image.resize_bicubic(x, [7, 4], align_corners=align_corners),
            image.resize_area(x, [5, 12], align_corners=align_corners),
        )

    signature = [tf.TensorSpec([None, None, None, 2])]
    model = sx.from_tensorflow(tf.function(function, input_signature=signature))
    for shape in ((2, 9, 13, 2), (1, 3, 5, 2)):
        require_equal(model, function, RNG.random(shape, np.float32))


def test_an_array_grows_by_elements_of_a_free_size() -> None:
    def function(x: Any) -> Any:
        rows = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None])
        for i in tf.range(tf.shape(x)[0] * 2):
            rows = rows.write(i, x[i // 2])
        return rows.stack()

    model = sx.from_tensorflow(tf.function(function, input_signature=[tf.TensorSpec([None, None])]))
    for shape in ((4, 6), (1, 1), (3, 2)):
        require_equal(model, function, RNG.normal(size=shape).astype("f"))


def test_matrices_for_cholesky_are_positive_definite() -> None:
    """TensorFlow leaves the memory of its result as it was where a matrix is not."""
    signature = [tf.TensorSpec([None, 3, 3])]
    model = sx.from_tensorflow(tf.function(tf.linalg.cholesky, input_signature=signature))
    x = RNG.normal(size=(4, 3, 3)).astype("f")
    require_equal(model, tf.linalg.cholesky, x @ x.transpose(0, 2, 1) + np.eye(3, dtype="f"))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_size_that_is_taken_for_another_is_seen(
    axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over rows that divides by the number of columns is right on squares."""

    def mean(op: Any, x: Any, axes: Any) -> Any:
        count = op.Cast(op.Shape(x, start=axis, end=axis + 1), to=1)
        return op.Div(op.ReduceSum(x, [0], keepdims=0), count)

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def mean_row(x: Any) -> Any:
        return tf.reduce_mean(x, 0)

    monkeypatch.setitem(rules.RULES, "tensorflow.Mean", mean)
    if axis == 0:
        require_equal(sx.from_tensorflow(mean_row), mean_row, RNG.normal(size=(2, 5)).astype("f"))
        return
    with pytest.raises(ImportDiffers, match="differ"):
        sx.from_tensorflow(mean_row)
