"""onnxruntime-web: the files of its npm package that a page needs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from sardonyx.errors import ArgumentError, quote

VERSION = "1.22.0"
PACKAGE = f"onnxruntime-web@{VERSION}"
FILES = (
    "ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm",
)  # fmt: skip
SECONDS = 300


def copy_runtime(target: Path, source: str | Path | None) -> None:
    """Copy onnxruntime-web into `target`.

    source -- a folder that holds its files, or an npm project that has it; None: npm installs it
              into a temporary folder
    """
    if source is not None:
        _copy(_dist(Path(source)), target)
        return
    if shutil.which("npm") is None:
        raise ArgumentError(
            "the page needs onnxruntime-web, and npm, which installs it, is not there",
            hint="install Node, or name a folder that holds its files with --runtime (runtime=)",
        )
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
        done = subprocess.run(
            [*command, folder, PACKAGE], capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode:
            lines = [[line] for line in done.stderr.strip().splitlines()[-5:]]
            raise ArgumentError(
                f"npm cannot install {PACKAGE}", lines, hint="--runtime names a folder that has it"
            )
        _copy(_dist(Path(folder)), target)


def _dist(folder: Path) -> Path:
    inner = ("", "dist", "onnxruntime-web/dist", "node_modules/onnxruntime-web/dist")
    for path in (folder / name for name in inner):
        if all((path / name).exists() for name in FILES):
            return path
    raise ArgumentError(
        f"{quote(str(folder))} does not hold onnxruntime-web",
        [[name] for name in FILES],
        hint=f"npm install {PACKAGE}",
    )


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(source / name, target / name)
