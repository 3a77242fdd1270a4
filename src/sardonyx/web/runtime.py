"""onnxruntime-web: the files of its npm package that a page needs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sardonyx.errors import ArgumentError, quote

VERSION = "1.30.0"
PACKAGE = f"onnxruntime-web@{VERSION}"
BINARY = "ort-wasm-simd-threaded"
WASM = ("ort.wasm.min.mjs", f"{BINARY}.mjs", f"{BINARY}.wasm")
WEBGPU = ("ort.webgpu.min.mjs", f"{BINARY}.asyncify.mjs", f"{BINARY}.asyncify.wasm")
# What a page needs, by where it computes. The files for WebGPU lack kernels in double precision.
FILES = {"wasm": WASM, "webgpu": WASM + WEBGPU}
SECONDS = 300


def copy_runtime(folder: Path, target: str, source: str | Path | None) -> None:
    """Copy onnxruntime-web into a folder.

    target -- where the page computes: "wasm" or "webgpu"
    source -- a folder that holds its files, or an npm project that has it; None: npm installs it
              into a temporary folder
    """
    if source is not None:
        _copy(Path(source), folder, FILES[target])
        return
    if shutil.which("npm") is None:
        raise ArgumentError(
            "the page needs onnxruntime-web, and npm, which installs it, is not there",
            hint="install Node, or name a folder that holds its files with --runtime (runtime=)",
        )
    with tempfile.TemporaryDirectory() as project:
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
        done = subprocess.run(
            [*command, project, PACKAGE], capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode:
            lines = [[line] for line in done.stderr.strip().splitlines()[-5:]]
            raise ArgumentError(
                f"npm cannot install {PACKAGE}", lines, hint="--runtime names a folder that has it"
            )
        _copy(Path(project), folder, FILES[target])


def _copy(source: Path, folder: Path, files: Sequence[str]) -> None:
    inner = ("", "dist", "onnxruntime-web/dist", "node_modules/onnxruntime-web/dist")
    for path in (source / name for name in inner):
        if all((path / name).exists() for name in files):
            break
    else:
        raise ArgumentError(
            f"{quote(str(source))} does not hold onnxruntime-web",
            [[name] for name in files],
            hint=f"npm install {PACKAGE}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    if path.resolve() == folder.resolve():
        return  # a page that is written again, with the runtime that it has
    for name in files:
        shutil.copyfile(path / name, folder / name)
