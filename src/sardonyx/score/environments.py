"""The peers' own environments: what each needs, and how it is set up.

A peer runs in a virtual environment of its own, because the versions that they ask for exclude
one another. `sardonyx score --setup NAME` makes one; pip takes its packages from the index that the
user configured.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

from sardonyx.errors import EngineError
from sardonyx.score import folders

# What the worker needs in every environment.
WORKER = ("numpy", "ml_dtypes")


@dataclass(frozen=True)
class Peer:
    """What one peer needs: packages, and settings of its process."""

    module: str
    requirements: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


PEERS = {
    "plain-onnxruntime": Peer("plain_onnxruntime", ("onnx", "onnxruntime")),
    "reference": Peer("reference", ("onnx", "pillow")),
    "onnx2torch": Peer("onnx2torch", ("onnx2torch", "onnx", "torch", "torchvision", "setuptools")),
    "jaxonnxruntime": Peer("jaxonnxruntime", ("jaxonnxruntime", "jax", "onnx", "absl-py")),
    "onnx2tf": Peer(
        "onnx2tf", ("onnx2tf", "onnx", "onnxruntime", "tensorflow-cpu", "tf_keras", "psutil")
    ),
    # Its processes for compiling are started anew for every few kernels.
    "tinygrad": Peer("tinygrad", ("tinygrad", "onnx"), {"PARALLEL": "0"}),
    "plain-openvino": Peer("openvino", ("openvino", "onnx")),
    "plain-iree": Peer("iree", ("iree-base-compiler[onnx]", "iree-base-runtime")),
    "onnx-ad": Peer("onnx_ad", ("onnx-ad", "onnx", "onnxruntime")),
}


def folder_of(name: str) -> Path:
    return folders.peers() / name


def python_of(name: str) -> Path:
    part = "Scripts" if os.name == "nt" else "bin"
    return folder_of(name) / part / ("python.exe" if os.name == "nt" else "python")


def is_ready(name: str) -> bool:
    """Whether a peer's environment is complete."""
    return (folder_of(name) / ".ready").exists()


def set_up(name: str) -> Path:
    """Make a peer's environment anew; it counts only once everything is installed."""
    folder = folder_of(name)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    command = [str(python_of(name)), "-m", "pip", "install", "--quiet", "--retries", "10"]
    command += [*PEERS[name].requirements, *WORKER]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        rows = [[line] for line in process.stderr.splitlines() if line.startswith("ERROR")]
        raise EngineError(f"{name} could not be installed", rows)
    (folder / ".ready").touch()
    return folder


@functools.cache
def packages(python: Path) -> str:
    """What an environment holds: a digest of the names and versions of its packages."""
    names = sorted(p.name for p in python.parent.parent.rglob("site-packages/*.dist-info"))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


# Packages of this environment on which a result may depend.
COUNTED = (
    *("numpy", "ml-dtypes", "scipy", "pillow", "onnx", "onnx-ir", "onnxruntime"),
    *("torch", "jax", "jaxlib", "tensorflow", "tensorflow-cpu"),
    *("openvino", "iree-base-compiler", "tract"),
)


@functools.cache
def packages_here() -> str:
    """The same of the environment that this process runs in."""
    names = [f"{sys.version_info[:2]}"]
    for name in COUNTED:
        try:
            names.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
