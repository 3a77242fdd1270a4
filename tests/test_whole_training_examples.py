"""The examples of a whole training in Python, Node and C++ end in the numbers of sardonyx."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx

from .test_export_step import node_modules

EXAMPLES = Path(__file__).parent.parent / "examples" / "whole_training"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    subprocess.run([sys.executable, EXAMPLES / "make.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def losses(exported: Path) -> list[float]:
    """What sardonyx itself computes."""
    run = sx.run_training(exported / "whole.onnx", exported / "data.npz", epochs=8, seed=0)
    assert run.history[-1]["val_loss"] < run.history[0]["val_loss"] / 2
    return [epoch["val_loss"] for epoch in run.history]


def test_python_without_sardonyx(exported: Path, losses: list[float], tmp_path: Path) -> None:
    script = shutil.copy(EXAMPLES / "python" / "train.py", tmp_path)
    blocked = "import sys; sys.modules['sardonyx'] = None; sys.modules['onnx'] = None\n"
    Path(script).write_text(blocked + Path(script).read_text())
    done = subprocess.run(
        [sys.executable, script, exported], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == [losses, losses]


def test_node(exported: Path, losses: list[float], tmp_path: Path) -> None:
    modules = node_modules()
    script = shutil.copy(EXAMPLES / "node" / "train.mjs", tmp_path)
    os.symlink(modules, tmp_path / "node_modules")
    done = subprocess.run(["node", script, exported], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), losses, rtol=1e-4)


def test_cpp(exported: Path, losses: list[float], tmp_path: Path) -> None:
    """Where the variable ORT names an unpacked release of onnxruntime, and there is a compiler."""
    release = os.environ.get("ORT")
    if release is None or shutil.which("g++") is None:
        pytest.skip("ORT names no release of onnxruntime, or there is no g++")
    command = ["g++", "-std=c++17", EXAMPLES / "cpp" / "train.cpp", f"-I{release}/include"]
    command += [f"-L{release}/lib", "-lonnxruntime", f"-Wl,-rpath,{release}/lib"]
    subprocess.run([*command, "-o", tmp_path / "train"], check=True, capture_output=True)
    done = subprocess.run(
        [tmp_path / "train", exported], check=True, capture_output=True, text=True
    )
    np.testing.assert_allclose(json.loads(done.stdout), losses, rtol=1e-4)
