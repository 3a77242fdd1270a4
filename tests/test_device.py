"""`device=` and `--device`: where an engine computes, and that a device which is not there is one
error before any work.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx import plugins
from sardonyx.cli.__main__ import main
from sardonyx.engines.prepare import engine_package
from sardonyx.errors import EngineError
from sardonyx.lower.devices import device_name, is_among
from tests.networks import mlp

ENGINES = ["onnxruntime", "torch", "jax", "tensorflow", "numpy"]
RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.normal(size=(12, 6)).astype(np.float32),
    "label": RNG.integers(0, 3, 12).astype(np.int64),
}
ABSENT = "cuda:97"


def test_names_of_devices() -> None:
    assert device_name("CUDA:1") == "cuda:1" and device_name("gpu") == "cuda"
    here = ["cpu", "cuda:0", "cuda:1"]
    for name in ("cpu", "CPU", "cpu:0", "cuda", "GPU", "gpu:1", "cuda:0"):
        assert is_among(name, here)
    for name in ("cuda:2", "mps", "", "cuda:", "cuda:x", "cpu:1", "cuda:-1"):
        assert not is_among(name, here)


CALLS: dict[str, Any] = {
    "train": lambda engine: sx.train("absent.onnx", DATA, engine=engine, device=ABSENT),
    "evaluate": lambda engine: sx.evaluate("absent.onnx", DATA, engine=engine, device=ABSENT),
    "predict": lambda engine: sx.predict("absent.onnx", DATA, engine=engine, device=ABSENT),
    "prepare_training": lambda engine: sx.prepare_training("absent.onnx", engine, device=ABSENT),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("call", CALLS)
def test_an_absent_device_is_refused_before_the_model_is_read(call: str, engine: str) -> None:
    pytest.importorskip(engine)
    with pytest.raises(EngineError, match=f'{engine} has no device "{ABSENT}"') as caught:
        CALLS[call](engine)
    assert "cpu" in caught.value.hint


@pytest.mark.parametrize("device", ["", "cuda:x", "tpu9", "0"])
def test_what_is_no_name_of_a_device_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(EngineError, match="has no device") as caught:
        sx.prepare_training("absent.onnx", "numpy", device=device)
    assert "devices are written cpu, cuda, cuda:1, mps" in caught.value.hint


def test_auto_refuses_a_device_that_no_engine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "contenders", lambda: ["onnxruntime", "numpy"])
    with pytest.raises(EngineError, match="no installed engine has a device") as caught:
        sx.train("absent.onnx", DATA, engine="auto", device=ABSENT)
    assert [row[0] for row in caught.value.where] == ["onnxruntime", "numpy"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_cpu_by_name_gives_the_same_losses(engine: str) -> None:
    pytest.importorskip(engine)
    how: dict[str, Any] = {"loss": "cross_entropy", "steps": 3, "batch_size": 4}
    expected = sx.train(mlp(), DATA, **how)
    run = sx.train(mlp(), DATA, engine=engine, device="CPU", **how)
    np.testing.assert_allclose(run.losses, expected.losses, rtol=1e-5)
    assert ["device", "cpu", "as requested"] in run.settings["choices"]
    values = sx.evaluate(run.model, DATA, engine=engine, device="cpu")
    assert values["loss"] == pytest.approx(sx.evaluate(run.model, DATA)["loss"], rel=1e-5)
    (ours,) = sx.predict(run.model, DATA, engine=engine, device="cpu").values()
    (theirs,) = sx.predict(run.model, DATA).values()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_auto_obeys_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "contenders", lambda: ["onnxruntime", "numpy"])
    numpy = engine_package("numpy")
    monkeypatch.setattr(numpy.Backend, "devices", classmethod(lambda cls: ["cpu:0", "cpu:1"]))
    how: dict[str, Any] = {"loss": "cross_entropy", "steps": 1, "engine": "auto"}
    run = sx.train(mlp(), DATA, device="cpu:1", **how)  # onnxruntime has one CPU
    assert run.engine == "numpy"


def test_the_run_says_how_the_gradient_is_computed(capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("torch")
    how: dict[str, Any] = {"loss": "cross_entropy", "steps": 1, "engine": "torch"}
    run = sx.train(mlp(), DATA, display="lines", **how)
    words = "the framework differentiates the forward part"
    assert ["gradient", words, ""] in run.settings["choices"]
    assert f"gradient: {words}" in capsys.readouterr().err
    run = sx.train(mlp(), DATA, engine_options={"native": False}, **how)
    row = ["gradient", "the expanded gradient is executed", "as requested"]
    assert row in run.settings["choices"]


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_commands_take_a_device(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    np.savez(tmp_path / "data.npz", **DATA)
    sx.save(mlp(), tmp_path / "model.onnx")
    arguments = [command, str(tmp_path / "model.onnx"), str(tmp_path / "data.npz")]
    if command != "evaluate":
        arguments += ["-o", str(tmp_path / ("out.npz" if command == "predict" else "out.onnx"))]
    arguments += [] if command == "predict" else ["--loss", "cross_entropy"]
    with pytest.raises(SystemExit) as done:
        main([*arguments, "--device", "cpu"])
    assert not done.value.code
    capsys.readouterr()
    with pytest.raises(SystemExit) as done:
        main([*arguments, "--device", ABSENT])
    assert done.value.code == 2
    assert f'onnxruntime has no device "{ABSENT}"' in capsys.readouterr().err


ON_THE_SECOND = """
import numpy as np, jax
import sardonyx as sx
from tests.networks import mlp

net = sx.trainable(mlp(), "cross_entropy")
rep = sx.prepare_training(net, "jax", device="cpu:1")
x = np.ones((5, 6), np.float32)
rep.step({"x": x, "label": np.zeros(5, np.int64)})
second = jax.devices("cpu")[1]
assert all(v.value.devices() == {second} for v in rep.variables.values())
try:
    sx.prepare_training(net, "jax", device="cpu:2")
except sx.errors.EngineError as error:
    assert "cpu:0, cpu:1" in str(error), error
else:
    raise AssertionError
"""


def test_jax_computes_on_the_device_of_a_number() -> None:
    pytest.importorskip("jax")
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", ON_THE_SECOND], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
