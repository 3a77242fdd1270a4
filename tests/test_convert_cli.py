"""`sardonyx convert`: what it writes gives the same numbers without us, and it says so."""

from __future__ import annotations

import errno
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.engines.onnxruntime import Runner
from tests.networks import mlp, parse

WRITTEN = {"torch": "mlp.pt2", "jax": "mlp", "tensorflow": "mlp", "numpy": "mlp"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.onnx"
    sx.save(mlp(), path)
    return path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command: its exit code, what it printed, what it told people."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main([str(a) for a in arguments])
        return int(done.value.code or 0), *capsys.readouterr()

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", WRITTEN)
def test_what_is_written_is_verified(
    target: str, model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    pytest.importorskip(target)
    output = tmp_path / WRITTEN[target]
    code, stdout, stderr = call("convert", model, "--to", target, "-o", output, "--seeds", 2)
    assert code == 0
    assert stdout.strip() == str(output)
    assert "same on 2 random inputs" in stderr


def test_numpy_is_a_module_that_runs_or_the_weights_alone(
    model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, said = call("convert", model, "--to", "numpy", "-o", tmp_path / "mlp.npz")
    assert code == 0 and "an .npz holds no program" in said
    graph = sx.load(model).graph
    expected = {name: sx.load(model).initializer(name).numpy() for name in graph.initializers}
    held = np.load(tmp_path / "mlp.npz")
    assert set(held.files) == set(expected)
    assert all(np.array_equal(held[name], array) for name, array in expected.items())
    call("convert", model, "--to", "numpy", "-o", tmp_path / "folder", "-q", "--seeds", 0)
    x = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    program = "import model, numpy; y = model.load()(numpy.load('../x.npy')); numpy.save('y', y)"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "folder", capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    result = np.load(tmp_path / "folder" / "y.npy")
    np.testing.assert_allclose(result, Runner(sx.load(model))({"x": x})["scores"], rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_written_programs_are_the_frameworks_own(
    model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    call("convert", model, "--to", "torch", "-o", tmp_path / "mlp.pt2", "-q", "--seeds", 0)
    call("convert", model, "--to", "jax", "-o", tmp_path / "folder", "-q", "--seeds", 0)
    x = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    expected = Runner(sx.load(model))({"x": x})["scores"]
    program = torch.export.load(tmp_path / "mlp.pt2").module()
    np.testing.assert_allclose(
        program(torch.from_numpy(x)).detach(), expected, rtol=1e-5, atol=1e-6
    )
    function = jax.export.deserialize(bytearray((tmp_path / "folder/function.jax").read_bytes()))
    params = dict(np.load(tmp_path / "folder" / "params.npz"))
    np.testing.assert_allclose(function.call(params, x), expected, rtol=1e-5, atol=1e-6)
    slope = jax.grad(lambda p: function.call(p, x).sum())(params)
    np.testing.assert_allclose(slope["fc1.bias"], np.full(3, 7.0), rtol=1e-6)


def test_a_conversion_that_differs_is_told(
    model: Path,
    tmp_path: Path,
    call: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
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


def test_a_conversion_is_verified_on_the_inputs_that_are_named(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    """The logarithm of random numbers is NaN whatever is drawn: only these inputs tell."""
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N] x) => (float[N] y)
    <float k = {100}> { h = Sub(x, k) y = Log(h) }"""
    model = sx.save(parse(text), tmp_path / "log.onnx")
    np.savez(tmp_path / "in.npz", x=np.linspace(101, 200, 7, dtype=np.float32))
    arguments = ["convert", model, "--to", "numpy", "-o", tmp_path / "log"]
    code, _, stderr = call(*arguments)
    assert code == 5 and "could not tell on 3 random inputs" in stderr
    code, _, stderr = call(*arguments, "--inputs", tmp_path / "in.npz")
    assert code == 0 and "same on the inputs of" in stderr


def test_a_conversion_that_fails_is_told_with_its_error(
    model: Path,
    tmp_path: Path,
    call: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sardonyx.engines.native import Stored

    def store(loaded: object, path: Path) -> Stored:
        path.mkdir()
        return Stored(path, lambda x: x.no_such_method(), [])

    monkeypatch.setattr("sardonyx.engines.numpy.convert.store", store)
    code, _, stderr = call("convert", model, "--to", "numpy", "-o", tmp_path / "mlp")
    assert code == 6
    assert "AttributeError" in stderr and "no_such_method" in stderr


def test_wrong_targets_are_refused(
    model: Path, tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, stderr = call("convert", model, "--to", "mxnet", "-o", tmp_path / "x")
    assert code == 2 and "cannot convert to 'mxnet'" in stderr
    code, _, stderr = call("convert", model, "--to", "torch-sorce", "-o", tmp_path / "x")
    assert code == 2 and "did you mean torch-source?" in stderr
    code, _, stderr = call("convert", model, "--to", "torch", "-o", tmp_path / "x.pth")
    assert code == 2 and "a .pt2 file" in stderr
    assert list(tmp_path.iterdir()) == [model]


def test_what_fails_leaves_what_was_there(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., tuple[int, str, str]],
) -> None:
    """A write that fails half-way on a full disk: nothing new stays, and the disk is named."""
    torch = pytest.importorskip("torch")

    def no_room(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write_half(_: object, file: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] unexpected pos 11520")

    monkeypatch.setattr(torch.export, "save", write_half)
    monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
    old, new = tmp_path / "old.pt2", tmp_path / "new.pt2"
    old.write_bytes(b"before")
    for output in (old, new):
        code, _, said = call("convert", model, "--to", "torch", "-o", output)
        assert code == 2 and "no space left on device" in said
    assert old.read_bytes() == b"before" and not new.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlp.onnx", "old.pt2"]


@pytest.mark.parametrize("problem", [MemoryError("all of it"), KeyboardInterrupt()])
def test_nothing_unverified_stays(
    problem: BaseException,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., tuple[int, str, str]],
) -> None:
    """Verification that ends in an error, or is interrupted, leaves what was there before."""

    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(importlib.import_module("sardonyx.verify"), "verify", fail)
    old, new = tmp_path / "old.npz", tmp_path / "new"
    old.write_bytes(b"before")
    for output in (old, new):
        try:
            code, _, _ = call("convert", model, "--to", "numpy", "-o", output)
        except BaseException as error:
            assert error is problem
        else:
            assert code not in (0, 1)
    assert old.read_bytes() == b"before" and not new.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlp.onnx", "old.npz"]


def test_nothing_is_in_place_while_it_is_verified(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., tuple[int, str, str]],
) -> None:
    """A process that is killed meanwhile can undo nothing."""
    package = importlib.import_module("sardonyx.verify")
    verify, seen = package.verify, []

    def look(*arguments: Any, **options: Any) -> Any:
        seen.append((old.read_bytes(), new.exists()))
        return verify(*arguments, **options)

    monkeypatch.setattr(package, "verify", look)
    old, new = tmp_path / "old file.npz", tmp_path / "größe" / "new"
    old.write_bytes(b"before")
    for output in (new, new, old):
        assert call("convert", model, "--to", "numpy", "-o", output)[0] == 0
    assert seen == [(b"before", False), (b"before", True), (b"before", True)]
    assert np.load(old).files
    assert sorted(p.name for p in tmp_path.iterdir()) == ["größe", "mlp.onnx", "old file.npz"]
    assert [p.name for p in new.parent.iterdir()] == ["new"]


@pytest.mark.parametrize("target", ["torch", "torch-source", "numpy"])
def test_a_model_without_outputs_is_refused(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = onnx.helper.make_graph([], "empty", [], [])
    imports = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    output = tmp_path / ("out.pt2" if target == "torch" else "out")
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(tmp_path / "m.onnx"), "--to", target, "-o", str(output)])
    assert stopped.value.code == 2 and "no outputs" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize("target", ["torch-source", "numpy", "torch"])
def test_a_limit_on_sizes_of_files_is_no_defect(tmp_path: Path, target: str) -> None:
    """As a full disk or a quota: one line that names the folder, and nothing half-written."""
    resource = pytest.importorskip("resource")
    if target.startswith("torch"):
        pytest.importorskip("torch")
    sx.save(mlp((6, 500, 3)), tmp_path / "model.onnx")
    suffix = ".pt2" if target == "torch" else ""
    limit = f"import resource; resource.setrlimit({resource.RLIMIT_FSIZE}, (4096, 4096)); "
    program = f"{limit}from sardonyx.cli.__main__ import main; main()"
    command = [sys.executable, "-c", program, "convert", "model.onnx", "--to", target]
    done = subprocess.run(
        [*command, "-o", f"out{suffix}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert 'cannot write into "."' in done.stderr and "file too large" in done.stderr
    assert ".sardonyx-" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
