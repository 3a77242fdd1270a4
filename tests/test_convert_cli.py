"""`sardonyx convert`: what it writes gives the same numbers without us, and it says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import sardonyx as sx
from sardonyx.cli.__main__ import program
from sardonyx.engines.onnxruntime import Runner
from tests.networks import mlp

WRITTEN = {"torch": "mlp.pt2", "jax": "mlp", "tensorflow": "mlp", "numpy": "mlp.npz"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.onnx"
    sx.save(mlp(), path)
    return path


def call(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(program(), [str(a) for a in arguments], prog_name="sardonyx")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", WRITTEN)
def test_what_is_written_is_verified(target: str, model: Path, tmp_path: Path) -> None:
    pytest.importorskip(target)
    output = tmp_path / WRITTEN[target]
    code, stdout, stderr = call("convert", model, "--to", target, "-o", output, "--seeds", 2)
    assert code == 0
    assert stdout.strip() == str(output)
    assert "same on 2 random inputs" in stderr


@pytest.mark.filterwarnings("ignore")
def test_written_programs_are_the_frameworks_own(model: Path, tmp_path: Path) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    call("convert", model, "--to", "torch", "-o", tmp_path / "mlp.pt2", "-q", "--seeds", 0)
    call("convert", model, "--to", "jax", "-o", tmp_path / "folder", "-q", "--seeds", 0)
    x = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    wanted = Runner(sx.load(model))({"x": x})["scores"]
    program = torch.export.load(tmp_path / "mlp.pt2").module()
    np.testing.assert_allclose(program(torch.from_numpy(x)).detach(), wanted, rtol=1e-5, atol=1e-6)
    function = jax.export.deserialize(bytearray((tmp_path / "folder/function.jax").read_bytes()))
    params = dict(np.load(tmp_path / "folder" / "params.npz"))
    np.testing.assert_allclose(function.call(params, x), wanted, rtol=1e-5, atol=1e-6)
    slope = jax.grad(lambda p: function.call(p, x).sum())(params)
    np.testing.assert_allclose(slope["fc1.bias"], np.full(3, 7.0), rtol=1e-6)


def test_a_conversion_that_differs_is_told(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sardonyx.engines.native import Stored

    def store(loaded: object, path: Path) -> Stored:
        path.write_bytes(b"")
        run = sx.to_numpy(model)
        return Stored(path, lambda x: run(x) * 1.01, [])

    monkeypatch.setattr("sardonyx.engines.numpy.convert.store", store)
    code, _, stderr = call("convert", model, "--to", "numpy", "-o", tmp_path / "mlp.npz")
    assert code == 1
    assert "different" in stderr


def test_wrong_targets_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(sx.errors.ArgumentError, match="cannot convert to 'mxnet'"):
        call("convert", model, "--to", "mxnet", "-o", tmp_path / "x")
    with pytest.raises(sx.errors.ArgumentError, match="a .pt2 file"):
        call("convert", model, "--to", "torch", "-o", tmp_path / "x.pth")
