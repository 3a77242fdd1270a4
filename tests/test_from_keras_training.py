"""Compiled Keras models whose losses or metrics leave something out, step by step beside Keras."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from tests.networks import parse

pytest.importorskip("jax")
pytest.importorskip("keras")
pytest.importorskip("onnxruntime")

START = """
import json, sys, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, onnxruntime, sardonyx as sx
from keras import Input, layers
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
def floats(*shape):
    return rng.normal(size=shape).astype(np.float32)
def steps(source, draw, label="label", **options):
    x, y, *weight = draw()
    source.train_on_batch(x, y, *weight)
    model = sx.from_keras(source, **options)
    trainer = sx.prepare_training(model)
    rows = []
    for _ in range(2):
        x, y, *weight = draw()
        feeds = {"x": x, label: y[label[6:]] if isinstance(y, dict) else y}
        feeds.update({"sample_weight": w for w in weight})
        ours = {k.removeprefix("metrics/"): float(v) for k, v in trainer.step(feeds).items()}
        source.reset_metrics()
        logs = source.train_on_batch(x, y, *weight, return_dict=True)
        rows.append([ours, {k: float(v) for k, v in logs.items()}])
    return rows
def masked():
    x = Input((None, 3), name="x")
    h = layers.GRU(4, return_sequences=True)(layers.Masking()(x))
    source = keras.Model(x, layers.TimeDistributed(layers.Dense(2))(h))
    source.compile("sgd", "mse", metrics=["mae"])
    def draw():
        array = floats(4, 5, 3)
        array[:2, 2:] = 0
        return array, floats(4, 5, 2)
    return steps(source, draw)
"""
MORE = """
def weights_of_steps():
    x = Input((None, 3), name="x")
    h = layers.SimpleRNN(4, return_sequences=True)(x)
    source = keras.Model(x, layers.Dense(2)(h))
    source.compile("sgd", "huber", weighted_metrics=["mse"])
    draw = lambda: (floats(4, 5, 3), floats(4, 5, 2), abs(floats(4, 5)))
    return steps(source, draw, sample_weight=np.ones((4, 5)))
def one_of_two_outputs():
    x = Input((4,), name="x")
    h = layers.Dense(5, activation="relu")(x)
    source = keras.Model(x, {"a": layers.Dense(3)(h), "b": layers.Dense(2)(h)})
    source.compile("sgd", {"b": "mse"})
    return steps(source, lambda: (floats(6, 4), {"b": floats(6, 2)}), label="label_b")
class Sums(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(7, 4)
    def call(self, x):
        return self.table(x["word"]) + x["extra"][:, None]
def keys():
    source = Sums()
    example = {"word": np.array([[1, 6], [0, 3]], np.int32), "extra": floats(2, 4)}
    expected = np.asarray(source(example))
    model = sx.from_keras(source, example=example)
    session = onnxruntime.InferenceSession(model.proto().SerializeToString())
    (actual,) = session.run(None, example)
    return float(np.abs(actual - expected).max())
def refused():
    x = Input((None, 3), name="x")
    source = keras.Model(x, layers.TimeDistributed(layers.Dropout(0.3))(layers.Dense(2)(x)))
    source.compile("sgd", "mse")
    try:
        sx.from_keras(source)
    except sx.errors.ImportRefused as refusal:
        return str(refusal)
"""


def results(backend: str, code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", f"{START}{code}"],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def require_same(rows: Any) -> None:
    for ours, logs in rows:
        assert set(ours) == set(logs)
        for name, value in logs.items():
            assert ours[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_masks_weights_of_steps_and_outputs_without_a_loss() -> None:
    names = "masked", "weights_of_steps", "one_of_two_outputs", "refused", "keys"
    calls = ", ".join(f'"{name}": {name}()' for name in names)
    rows = results("jax", f"{MORE}\nprint(json.dumps({{{calls}}}))")
    assert "the number of steps is free" in rows.pop("refused")
    assert rows.pop("keys") < 1e-6  # the arguments of a user's class have their keys as names
    for each in rows.values():
        require_same(each)


@pytest.mark.slow
def test_metrics_of_another_backend_leave_out_what_is_masked() -> None:
    pytest.importorskip("tensorflow")
    require_same(results("tensorflow", "print(json.dumps(masked()))"))


def test_bits_that_a_branch_returns_are_read_in_their_own_width() -> None:
    model = sx.load(
        parse(
            """<ir_version: 13, opset_import: ["": 26]> g (float[2] x, bool c) => (float[2] y)
            { y = If (c) <
                then_branch = a () => (float[2] t) { i = BitCast <to = 6> (x)
                                                     t = BitCast <to = 1> (i) },
                else_branch = b () => (float[2] e) { e = Neg(x) } > }"""
        )
    )
    report = sx.verify(model, "onnxruntime", inputs={"x": np.ones(2, "f"), "c": np.array(True)})
    assert report.verdict == "same", report
