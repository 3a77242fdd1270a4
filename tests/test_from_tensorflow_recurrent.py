"""Loops of TensorFlow that are recurrent layers become LSTM, GRU and RNN; others stay loops."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.importers import proof

tf = pytest.importorskip("tensorflow")

UNITS, WIDTH = 3, 2
RECURRENT = ("LSTM", "GRU", "RNN", "Loop")


def kinds(model: sx.Model) -> list[str]:
    return sorted(n.op_type for n in model.graph.all_nodes() if n.op_type in RECURRENT)


def weights(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [tf.Variable(rng.normal(0, 0.7, s).astype(np.float32)) for s in shapes]


def looped(cell: Callable[..., Any], states: int, count: Any = None) -> Any:
    """A function that applies a cell to every step, in a loop with a list of outputs."""

    @tf.function(input_signature=[tf.TensorSpec([None, None, WIDTH])])
    def apply(x: Any) -> Any:
        steps = tf.transpose(x, [1, 0, 2])
        length = tf.shape(steps)[0] if count is None else count
        start = [tf.zeros([tf.shape(x)[0], UNITS])] * states
        outputs = tf.TensorArray(tf.float32, length)

        def body(i: Any, outputs: Any, *now: Any) -> Any:
            after = cell(steps[i], *now)
            return i + 1, outputs.write(i, after[0]), *after

        _, outputs, *last = tf.while_loop(lambda i, *_: i < length, body, [0, outputs, *start])
        return outputs.stack(), *last

    return apply


def require_same(function: Any, model: sx.Model) -> None:
    for length in (1, 2, 7):
        x = np.random.default_rng(length).normal(0, 2, (4, length, WIDTH)).astype(np.float32)
        actual = list(proof.run(model, {model.inputs[0].name: x}).values())
        for a, b in zip(actual, function(tf.constant(x)), strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=2e-5, atol=2e-6)


def lstm_with_peepholes() -> Any:
    kernel, bias, pi, pf, po = weights(
        (WIDTH + UNITS, 4 * UNITS), (4 * UNITS,), (UNITS,), (UNITS,), (UNITS,)
    )

    def cell(x: Any, h: Any, c: Any) -> Any:
        gates = tf.concat([x, h], 1) @ kernel + bias
        i, g, f, o = tf.split(gates, 4, axis=1)
        c = tf.sigmoid(f + 1.0 + pf * c) * c + tf.sigmoid(i + pi * c) * tf.tanh(g)
        return tf.tanh(c) * tf.sigmoid(o + po * c), c

    return looped(cell, 2)


def gru_of_parts() -> Any:
    """The reset gate before the matrix, and matrices of different gates apart."""
    shapes = [(WIDTH, UNITS)] * 3 + [(UNITS, UNITS)] * 3 + [(UNITS,)]
    wz, wr, wn, uz, ur, un, b = weights(*shapes)

    def cell(x: Any, h: Any) -> Any:
        z, r = tf.sigmoid(x @ wz + h @ uz), tf.sigmoid(x @ wr + h @ ur + b)
        return ((1.0 - z) * tf.tanh((r * h) @ un + x @ wn) + h * z,)

    return looped(cell, 1)


def rnn() -> Any:
    w, u = weights((WIDTH, UNITS), (UNITS, UNITS))
    return looped(lambda x, h: (tf.nn.relu(h @ u + x @ w),), 1)


def gru_without_reset() -> Any:
    w, u, wn, un = weights(*[(WIDTH, UNITS), (UNITS, UNITS)] * 2)

    def cell(x: Any, h: Any) -> Any:
        z = tf.sigmoid(x @ w + h @ u)
        return (z * h + (1.0 - z) * tf.tanh(x @ wn + h @ un),)

    return looped(cell, 1)


def lstm_with_another_gate() -> Any:
    """The output gate has an activation of its own, which ONNX's LSTM cannot say."""
    w, u = weights((WIDTH, 4 * UNITS), (UNITS, 4 * UNITS))

    def cell(x: Any, h: Any, c: Any) -> Any:
        i, f, g, o = tf.split(x @ w + h @ u, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        return tf.nn.softplus(o) * tf.tanh(c), c

    return looped(cell, 2)


def lstm_whose_memory_is_the_output() -> Any:
    w, u = weights((WIDTH, 4 * UNITS), (UNITS, 4 * UNITS))

    def cell(x: Any, h: Any, c: Any) -> Any:
        i, f, g, o = tf.split(x @ w + h @ u, 4, axis=1)
        c = tf.sigmoid(f) * h + tf.sigmoid(i) * tf.tanh(g)  # of h, not of c
        return tf.sigmoid(o) * tf.tanh(c), c

    return looped(cell, 2)


def rnn_with_the_number_of_the_step() -> Any:
    w, u, v = weights((WIDTH, UNITS), (UNITS, UNITS), (UNITS,))

    def cell(x: Any, h: Any, n: Any) -> Any:
        return tf.tanh(x @ w + h @ u + n * v), n + 1.0

    return looped(cell, 2)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lstm_with_peepholes, ["LSTM"]),
        (gru_of_parts, ["GRU"]),
        (rnn, ["RNN"]),
        (gru_without_reset, ["Loop"]),
        (lstm_with_another_gate, ["Loop"]),
        (lstm_whose_memory_is_the_output, ["Loop"]),
        (rnn_with_the_number_of_the_step, ["Loop"]),
    ],
)
def test_cells_in_loops(build: Callable[[], Any], expected: list[str]) -> None:
    function = build()
    model = sx.from_tensorflow(function)
    assert kinds(model) == expected
    require_same(function, model)


def test_a_loop_over_some_steps_stays_a_loop() -> None:
    w, u = weights((WIDTH, UNITS), (UNITS, UNITS))
    function = looped(lambda x, h: (tf.tanh(x @ w + h @ u),), 1, count=2)
    model = sx.from_tensorflow(function, example=np.ones((2, 5, WIDTH), np.float32))
    assert kinds(model) == ["Loop"]
    x = np.random.default_rng(0).normal(size=(4, 6, WIDTH)).astype(np.float32)
    actual = list(proof.run(model, {model.inputs[0].name: x}).values())
    for a, b in zip(actual, function(tf.constant(x)), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=2e-5, atol=2e-6)


KERAS = """
import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
import sardonyx as sx
from sardonyx.importers import proof

L = keras.layers
cells = L.StackedRNNCells([L.LSTMCell(3), L.GRUCell(4), L.SimpleRNNCell(2)])
CASES = {
    "LSTM with relu": (L.LSTM(1, activation="relu"), ["LSTM"]),
    "backwards": (L.LSTM(3, go_backwards=True, return_sequences=True), ["LSTM"]),
    "GRU": (L.GRU(3), ["GRU"]),
    "GRU with the reset before": (L.GRU(3, reset_after=False, return_sequences=True), ["GRU"]),
    "both directions": (L.Bidirectional(L.GRU(3, return_sequences=True)), ["GRU", "GRU"]),
    "cells": (L.RNN(cells, return_sequences=True), ["GRU", "LSTM", "RNN"]),
    "hard sigmoid": (L.LSTM(3, recurrent_activation="hard_sigmoid"), ["Loop"]),
}
rng = np.random.default_rng(0)
for name, (layer, expected) in CASES.items():
    network = keras.Sequential([L.Input((None, 2)), layer])
    for variable in network.variables:
        variable.assign(rng.normal(0, 0.7, variable.shape))
    model = sx.from_tensorflow(network)
    kinds = [n.op_type for n in model.graph.all_nodes()]
    kinds = sorted(k for k in kinds if k in ("LSTM", "GRU", "RNN", "Loop"))
    assert kinds == expected, (name, kinds)
    for length in (1, 2, 7):
        x = rng.normal(0, 2, (4, length, 2)).astype(np.float32)
        (actual,) = proof.run(model, {model.inputs[0].name: x}).values()
        np.testing.assert_allclose(actual, network(x), rtol=2e-5, atol=2e-6, err_msg=name)
"""


def test_layers_of_keras_on_tensorflow() -> None:
    result = subprocess.run([sys.executable, "-c", KERAS], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
