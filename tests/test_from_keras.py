"""Keras models as ONNX models: Keras on the backend of this process is the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError

pytest.importorskip("jax")
keras = pytest.importorskip("keras")
ort = pytest.importorskip("onnxruntime")
# Keras 3.15 reads variables of TensorFlow by a signature that NumPy 2 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def small() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 3), name="image"),
            layers.Conv2D(4, 3, padding="same", name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(3, name="head"),
        ],
        name="net",
    )


def two_inputs() -> Any:
    layers = keras.layers
    tokens = layers.Input((None,), dtype="int32", name="tokens")
    extra = layers.Input((6,), name="extra")
    x = layers.LSTM(5)(layers.Embedding(20, 8)(tokens))
    y = layers.Concatenate()([x, extra])
    return keras.Model(
        {"tokens": tokens, "extra": extra}, {"score": layers.Dense(2)(y), "state": x}
    )


def run(model: sx.Model, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    proto = model.proto()
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def test_a_model_keeps_its_names_and_its_free_batch() -> None:
    source = small()
    model = sx.from_keras(source)
    assert {"net/conv/kernel", "net/head/bias", "net/norm/moving_mean"} <= set(
        model.graph.initializers
    )
    for count in (1, 3):
        x = np.random.default_rng(0).normal(size=(count, 8, 8, 3)).astype(np.float32)
        (y,) = run(model, image=x).values()
        expected = keras.ops.convert_to_numpy(source(x, training=False))
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_inputs_and_outputs_by_name() -> None:
    source = two_inputs()
    model = sx.from_keras(source)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 20, (2, 7)).astype(np.int32)
    extra = rng.normal(size=(2, 6)).astype(np.float32)
    outputs = run(model, tokens=tokens, extra=extra)
    expected = source({"tokens": tokens, "extra": extra}, training=False)
    for name, value in expected.items():
        value = keras.ops.convert_to_numpy(value)
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)


def test_a_file_is_imported(tmp_path: Path) -> None:
    source = small()
    source.save(tmp_path / "model.keras")
    model = sx.from_keras(tmp_path / "model.keras")
    x = np.ones((2, 8, 8, 3), np.float32)
    (y,) = run(model, image=x).values()
    expected = keras.ops.convert_to_numpy(source(x, training=False))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_on_the_backend_itself() -> None:
    code = (
        "import keras, numpy as np, sardonyx as sx\n"
        "layers = [keras.layers.Input((4,)), keras.layers.Dense(3, name='head')]\n"
        "model = sx.from_keras(keras.Sequential(layers, name='net'))\n"
        "print([v.name for v in model.inputs], 'net/head/kernel' in model.graph.initializers)"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['input'] True"


def test_what_is_no_built_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no Keras model"):
        sx.from_keras(3)
    with pytest.raises(ArgumentError, match="no file of Keras"):
        sx.from_keras(tmp_path / "missing.keras")
