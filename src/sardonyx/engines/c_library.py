"""C sources as a library of this machine: compiled once, then kept.

A library is kept in the user's cache folder, under a name that stands for its sources, the compiler
and the processor. Of a model it contains operators and single constants, never names or weights.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLAGS = (
    *("-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-std=gnu11"),
    # Sums and products stay apart, as in onnxruntime's own kernels.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    "-fopenmp-simd",
)
NATIVE = (("-march=native",), ("-mcpu=native",), ())  # the first that the compiler takes
SECONDS = 120
MOST = 256  # libraries that are kept
UNFINISHED = "build-"  # how folders of what is being compiled are called
LONGEST = 1 << 20  # characters that are compiled


def compile_library(text: str, headers: Path | None = None) -> str | None:
    """The path of a library with the functions of a text in C; None where it cannot be built.

    headers -- a folder of what the text includes
    """
    compiler = find_compiler()
    if compiler is None or len(text) > LONGEST:
        return None
    key = _key(compiler, text, headers)
    path = None if key in _failed else _library(compiler, text, headers, key)
    if path is None:
        _failed.add(key)
    return path


_failed: set[str] = set()  # keys of what could not be built: it is not tried again


def _library(compiler: str, text: str, headers: Path | None, key: str) -> str | None:
    try:
        for folder in (_folder, _temporary):  # the first may be full, or run no programs
            with contextlib.suppress(OSError):
                path = _found(folder(), key) or _build(compiler, text, headers, folder(), key)
                if path is None:  # the compiler fails
                    return None
                ctypes.CDLL(str(path))
                return str(path)
    except subprocess.TimeoutExpired:  # a compiler that hangs
        pass
    return None


def _found(folder: Path, key: str) -> Path | None:
    """A library that was built before. What is damaged would end the process: it is removed."""
    for path in folder.glob(f"{key}-*.so"):
        if path.name == _name(key, path):
            with contextlib.suppress(OSError):
                path.touch()
            return path
        path.unlink()
    _remove_oldest(folder)
    return None


def _name(key: str, path: Path) -> str:
    """What a library is called: its key, and its content."""
    return f"{key}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.so"


def find_compiler() -> str | None:
    """The C compiler of this machine."""
    if sys.platform not in ("linux", "darwin") or sys.byteorder != "little":
        return None
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((p for name in names if name and (p := shutil.which(name))), None)


def _folder() -> Path:
    """A folder that only this user writes to."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "sardonyx"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return folder
    except (OSError, RuntimeError):
        pass
    return _temporary()


@functools.cache
def _temporary() -> Path:
    import atexit

    folder = tempfile.mkdtemp(prefix="sardonyx-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _remove_oldest(folder: Path) -> None:
    with contextlib.suppress(OSError):
        kept = sorted(folder.glob("*.so"), key=lambda p: p.stat().st_mtime, reverse=True)
        for path in kept[MOST - 1 :]:
            path.unlink()
        for path in folder.glob(f"{UNFINISHED}*"):  # of a process that was killed
            if time.time() - path.stat().st_mtime > 10 * SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _key(compiler: str, text: str, headers: Path | None) -> str:
    digest = hashlib.sha256(text.encode())
    for source in sorted(headers.glob("*.h")) if headers is not None else ():
        digest.update(source.read_bytes())
    digest.update(" ".join(FLAGS).encode())
    digest.update(_version(compiler))
    digest.update(_processor().encode())
    return digest.hexdigest()[:32]


@functools.cache
def _version(compiler: str) -> bytes:
    try:
        return subprocess.run([compiler, "--version"], capture_output=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""


@functools.cache
def _processor() -> str:
    """What instructions the processor has: a folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("flags", "Features", "model name")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


@functools.cache
def instructions() -> frozenset[str]:
    """The instructions that the processor has, by the names that Linux gives them."""
    lines = _processor().splitlines()
    return frozenset(word for line in lines if line.startswith("flags") for word in line.split())


def _build(compiler: str, text: str, headers: Path | None, folder: Path, key: str) -> Path | None:
    """Compile under another name, so that nobody meets half a library."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=UNFINISHED) as inner:
        source, result = Path(inner) / "kernels.c", Path(inner) / "kernels.so"
        source.write_text(text)
        included = () if headers is None else (f"-I{headers}",)
        for native in NATIVE:
            command = [compiler, *FLAGS, *native, *included, "-o", str(result), str(source)]
            run = subprocess.run([*command, "-lm"], capture_output=True, timeout=SECONDS)
            if run.returncode == 0:
                return result.replace(folder / _name(key, result))
    return None
