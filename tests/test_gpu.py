"""What needs a GPU, in processes of their own: one that aborts must not end the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_checks import CHECKS

pytest.importorskip("torch")
pytest.importorskip("jax")
HIDDEN = ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")  # the other tests compute on the CPU


def has_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    return tool is not None and not subprocess.run([tool], capture_output=True).returncode


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_on_a_gpu(check: str) -> None:
    if not has_gpu():
        pytest.skip("there is no NVIDIA GPU")
    environment = {n: v for n, v in os.environ.items() if n not in HIDDEN}
    environment |= {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.gpu_checks", check],
        env=environment, cwd=Path(__file__).parent.parent, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("ok\n"), done.stderr[-4000:]
