"""Verification of real models: twins that are the same, a pair that is not, and no false alarms.

The twins run nightly. `sweeps/verify.py` shows that no correct conversion raises an alarm, over
all public models; some of its rows run here, with every change.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.verify.noise import DIFFERENT, SAME
from sardonyx.verify.subjects import OnnxSubject
from tests.mutants import NETWORKS, fault
from tests.public_models import models
from tests.sweeps import verify as sweep
from tests.sweeps.verify import EXPORTED, NOT_RUN, OPTIMIZED, Row, judge

QUICK = [
    ("onnx-asr/resample_24_8.onnx", "torch"),
    ("onnx-asr/kaldi.onnx", "numpy"),
    ("onnx-asr/gigaam_v2.onnx", "numpy"),  # a logarithm behind a transform of odd length
    ("pulsevad/pulsevad_2.1k.onnx", "torch"),
    ("pulsevad/pulsevad_2.1k_int8.onnx", "optimized"),
    ("surfaces-onnx-files/gradient_boosting_regressor.onnx", "torch"),
]


@pytest.mark.parametrize(("name", "kind"), QUICK)
def test_correct_conversions_of_public_models_raise_no_alarm(name: str, kind: str) -> None:
    result = judge(Row(kind, name, str(models()[name])))
    assert result.verdict == SAME, result


@pytest.mark.parametrize("name", ["dense", "residual", "attention", "hourglass"])
def test_what_torch_exports_raises_no_alarm(name: str) -> None:
    result = judge(Row(EXPORTED, f"torch {name}"))
    assert result.verdict == SAME, result


def test_the_sweep_would_see_an_alarm(tmp_path: Path) -> None:
    """A row whose conversion is wrong: the optimizer's file with one weight changed."""
    result = judge(Row(OPTIMIZED, "wrong", str(tmp_path / "right.onnx")))
    assert result.verdict == NOT_RUN
    onnx.save(NETWORKS["cnn"](), tmp_path / "right.onnx")
    row = Row(OPTIMIZED, "cnn", str(tmp_path / "right.onnx"))
    assert judge(row).verdict == SAME
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "optimized", lambda path, target: wrong(tmp_path / "wrong.onnx"))
        assert judge(row).verdict == DIFFERENT


def test_the_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    done, late = Row("numpy", "a"), Row("torch", "a")
    first = sweep.Kept(tmp_path / "kept.jsonl", resume=False)
    first.add(done, sweep.Outcome(SAME, 1.5, limit=60.0))
    first.add(late, sweep.Outcome(sweep.LATE, limit=60.0))
    again = sweep.Kept(tmp_path / "kept.jsonl", resume=True)
    assert again.outcomes == first.outcomes
    assert [again.is_settled(row, 60.0) for row in (done, late)] == [True, True]
    assert [again.is_settled(row, 90.0) for row in (done, late)] == [True, False]
    assert not again.is_settled(Row("jax", "a"), 60.0)
    assert not sweep.Kept(tmp_path / "kept.jsonl", resume=False).outcomes


def test_a_sweep_counts_alarms_and_not_what_was_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = sweep.Kept(tmp_path / "kept.jsonl", resume=False)
    asked = [Row(kind, "a") for kind in ("numpy", "torch", "jax", "tensorflow")]
    for row, verdict in zip(asked[:3], (SAME, DIFFERENT, sweep.LATE), strict=True):
        kept.add(row, sweep.Outcome(verdict, code=sweep.code()))
    assert sweep.table(asked, kept) == 1
    words = capsys.readouterr().out
    assert "2 correct conversions of 1 models judged" in words
    assert "false alarms: 1" in words and "1 rows are still to be judged" in words


def wrong(path: Path) -> Path:
    onnx.save(fault("cnn", "one weight"), path)
    return path


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


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_model_of_other_weights_is_different() -> None:
    report = sx.verify(
        silero("silero_vad"), silero("silero_vad_half"), inputs=speech(2), seeds=1, culprit=False
    )
    assert report.verdict == DIFFERENT


@pytest.mark.nightly
def test_saturating_integer_kernels_are_found() -> None:
    """onnxruntime's 8-bit products saturate on processors without VNNI, in fused kernels only.

    Whether they do here is asked of onnxruntime itself: with all optimizations against none.
    """
    path = models()["pulsevad/pulsevad_2.1k_int8.onnx"]
    precise = {"log_severity_level": 4, "session.x64quantprecision": "1"}
    report = sx.verify(OnnxSubject(sx.load(path), options=precise), "numpy", seeds=1)
    assert report.verdict == SAME, str(report)
    levels = onnxruntime.GraphOptimizationLevel
    result = []
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        result.append(session.run(None, report.data[0].inputs)[0])
    saturates = np.abs(result[0] - result[1]).max() > 0.01
    report = sx.verify(path, seeds=1)
    assert report.verdict == (DIFFERENT if saturates else SAME), str(report)
    if saturates:
        assert report.culprit is not None and report.culprit.replay.fused > 1


@pytest.mark.nightly
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
    inputs = {sx.load(path).inputs[0].name: x}
    report = sx.verify(path, tmp_path / "outputs.npz", inputs=inputs)
    assert report.verdict == SAME, str(report)
    # Off by less than a tolerance of 1e-3 would see: this pair is not the same.
    shifted = {name: value + np.float32(5e-4) for name, value in outputs.items()}
    np.savez(tmp_path / "shifted.npz", **shifted)
    report = sx.verify(path, tmp_path / "shifted.npz", inputs=inputs, culprit=False)
    assert report.verdict == DIFFERENT, str(report)
