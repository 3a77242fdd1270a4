"""Verification of real models: twins that are the same, and a pair that is not.

That no correct conversion of a real model raises an alarm is shown by `sweeps/verify.py`.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.verify.noise import DIFFERENT, SAME
from tests.public_models import models

pytestmark = pytest.mark.nightly


def silero(name: str) -> Path:
    return models()[f"silero-vad/{name}.onnx"]


def speech(batch: int):  # type: ignore[no-untyped-def]
    """Inputs that Silero's models take: 32 ms at 16 kHz with what came before, and a state."""

    def draw(seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            "input": (0.1 * rng.normal(size=(batch, 576))).astype(np.float32),
            "state": (0.1 * rng.normal(size=(2, batch, 128))).astype(np.float32),
            "sr": np.array(16000, np.int64),
        }

    return draw


@pytest.mark.parametrize(
    ("twin", "batch"),
    [
        ("silero_vad_op18_ifless", 2),
        ("silero_vad_16k_op15", 2),
        ("silero_vad_openvino_16k", 1),
    ],
)
def test_opset_variants_are_the_same(twin: str, batch: int) -> None:
    report = sx.verify(silero("silero_vad"), silero(twin), inputs=speech(batch), seeds=2)
    assert report.verdict == SAME, str(report)


def test_a_model_of_other_weights_is_different() -> None:
    report = sx.verify(
        silero("silero_vad"), silero("silero_vad_half"), inputs=speech(2), seeds=1, culprit=False
    )
    assert report.verdict == DIFFERENT


def test_onnx_and_tflite_of_one_network(tmp_path: Path) -> None:
    """Through saved outputs, as they would come from a device."""
    tensorflow = pytest.importorskip("tensorflow")
    path = models()["basic-pitch/nmp.onnx"]
    x = (0.1 * np.random.default_rng(0).normal(size=(1, 43844, 1))).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = tensorflow.lite.Interpreter(str(path.with_suffix(".tflite")))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    details = interpreter.get_output_details()
    outputs = {d["name"]: interpreter.get_tensor(d["index"]) for d in details}
    names = [v.name or "" for v in sx.load(path).outputs]
    assert set(outputs) == set(names)
    np.savez(tmp_path / "outputs.npz", **outputs)
    given = {sx.load(path).inputs[0].name: x}
    report = sx.verify(path, tmp_path / "outputs.npz", inputs=given)
    assert report.verdict == SAME, str(report)
