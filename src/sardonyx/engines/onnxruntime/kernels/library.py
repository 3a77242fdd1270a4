"""C sources as a library that onnxruntime loads: compiled once, then kept.

A library is kept in the user's cache folder, under a name that stands for its sources, the compiler
and the processor. Of a model it contains operators and single constants, never names or weights.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = (
    *("-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-std=gnu11"),
    # Sums and products stay apart, as in onnxruntime's own kernels.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    "-fopenmp-simd",
)
NATIVE = (("-march=native",), ("-mcpu=native",), ())  # the first that the compiler takes
SECONDS = 120
MOST = 256  # libraries that are kept
LONGEST = 1 << 20  # characters that are compiled
TEXT = """#include "runtime.h"
#include "elementwise.h"
{bodies}
#include "program.h"
#include "product.h"
#include "register.h"
"""


@functools.cache
def library(bodies: str) -> str | None:
    """The path of a library with these functions of blocks; None where it cannot be built."""
    compiler = find_compiler()
    if compiler is None or len(bodies) > LONGEST:
        return None
    text = TEXT.format(bodies=bodies)
    folder = _folder()
    path = folder / f"{_key(compiler, text)}.so"
    if path.is_file():
        with contextlib.suppress(OSError):
            path.touch()
        return str(path)
    _remove_oldest(folder)
    try:
        return str(path) if _build(compiler, text, path) else None
    except (OSError, subprocess.TimeoutExpired):  # a full disk, or a compiler that hangs
        return None


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


def _key(compiler: str, text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for source in sorted(SOURCES.glob("*.h")):
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


def _build(compiler: str, text: str, path: Path) -> bool:
    """Compile under another name, so that nobody meets half a library."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        source, result = Path(folder) / "kernels.c", Path(folder) / "kernels.so"
        source.write_text(text)
        for native in NATIVE:
            command = [compiler, *FLAGS, *native, f"-I{SOURCES}", "-o", str(result), str(source)]
            run = subprocess.run([*command, "-lm"], capture_output=True, timeout=SECONDS)
            if run.returncode == 0:
                result.replace(path)
                return True
    return False
