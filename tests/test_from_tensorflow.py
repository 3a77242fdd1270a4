"""Graphs of TensorFlow through `sx.from_tensorflow`; TensorFlow itself is the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.importers import proof

tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(0)


def spec(*shape: int | None, dtype: Any = "float32") -> Any:
    return tf.TensorSpec(shape, dtype)


def operators(model: sx.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def require_equal(model: sx.Model, function: Any, *arrays: np.ndarray) -> None:
    """The model gives what TensorFlow gives, in onnxruntime, for arrays that it has not seen."""
    onnx.checker.check_model(model.proto(), full_check=True)
    feeds = {v.name: a for v, a in zip(model.inputs, arrays, strict=True)}
    actual = proof.run(model, feeds)
    results = tf.nest.flatten(function(*map(tf.constant, arrays)))
    for value, wanted in zip(model.outputs, results, strict=True):
        np.testing.assert_allclose(actual[value.name], wanted.numpy(), rtol=2e-5, atol=1e-5)


class Classifier(tf.Module):
    """A small network of images, one variable of which is not trained."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.kernel = tf.Variable(rng.normal(size=(3, 3, 3, 8)).astype("f"), name="conv/kernel")
        self.bias = tf.Variable(rng.normal(size=8).astype("f"), name="conv/bias")
        head = rng.normal(size=(8, 5)).astype("f")
        self.head = tf.Variable(head, name="head", trainable=False)

    @tf.function(input_signature=[spec(None, 16, 16, 3)])
    def __call__(self, x: Any) -> Any:
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, self.kernel, 2, "SAME"), self.bias))
        y = tf.reduce_mean(y, [1, 2])
        return {"logits": y @ self.head, "pairs": tf.reshape(y, [tf.shape(y)[0], -1, 2])}


def test_variables_keep_their_names_and_sizes_stay_free() -> None:
    module = Classifier()
    model = sx.from_tensorflow(module)
    weights = {
        w.name: list(w.shape) for w in sx.weights(model) if w.name in "conv/kernel conv/bias head"
    }
    assert weights == {"conv/kernel": [3, 3, 3, 8], "conv/bias": [8], "head": [8, 5]}
    assert "Shape" not in operators(model)
    for batch in (1, 5):
        require_equal(model, module, RNG.normal(size=(batch, 16, 16, 3)).astype("f"))


def test_loops_and_branches() -> None:
    @tf.function(input_signature=[spec(4, None, 3)])
    def function(x: Any) -> Any:
        steps = tf.transpose(x, [1, 0, 2])
        states = tf.scan(lambda a, t: tf.tanh(a + t), steps, tf.zeros([4, 3]))
        sums = tf.map_fn(tf.reduce_sum, steps)
        chosen = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x - 1)
        return states, sums, chosen

    model = sx.from_tensorflow(function)
    assert operators(model).count("Loop") == 2 and "If" in operators(model)
    for sign in (1, -1):
        require_equal(model, function, sign * RNG.random((4, 6, 3)).astype("f"))


def test_what_cannot_be_imported_is_refused_at_once() -> None:
    counter = tf.Variable(0.0, name="counter")

    @tf.function(input_signature=[spec(2)])
    def function(x: Any) -> Any:
        counter.assign_add(1.0)
        y = tf.numpy_function(np.sin, [x], tf.float32)
        return y + tf.math.igamma(x, x) + counter

    with pytest.raises(sx.errors.ImportRefused) as caught:
        sx.from_tensorflow(function)
    names = {str(row[0]) for row in caught.value.where}
    assert names == {"AssignAddVariableOp", "PyFunc", "Igamma"}
