"""Untrusted archives of arrays: their declared sizes are checked before anything is unpacked.

An `.npz` is a zip file of arrays. Each entry declares its size, and each array in it a shape: both
are read first, unpacking no more than a header, and nothing is allocated because of them alone.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

from numpy.lib import format as npy

from sardonyx.errors import DataError, quote

ALWAYS_ALLOWED_BYTES = 64 * 2**20
"""An archive may always hold so much."""
EXPANSION = 200
"""Bytes unpacked for each byte packed, in an archive that holds more."""
HEADER = 1024


def check_archive(path: Path) -> None:
    """Raise a `DataError` for an `.npz` that is damaged, pickled, or much larger than its file."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_sizes(path, entries)
            rows = [[quote(e.filename), why] for e in entries if (why := _problem(archive, e))]
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise DataError(f"{quote(path.name)} is not a whole .npz file: {quote(error)}") from error
    if rows:
        raise DataError(f"{quote(path.name)} holds what cannot be read", rows)


def _check_sizes(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    declared = sum(e.file_size for e in entries)
    packed = path.stat().st_size
    if declared > max(ALWAYS_ALLOWED_BYTES, EXPANSION * packed):
        raise DataError(
            f"{quote(path.name)} has {packed:,} bytes and would unpack to {declared:,}",
            hint="if you trust it, save it again with numpy.savez, which does not compress",
        )


def _problem(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str | None:
    """What is wrong with one array, as its header has it."""
    with archive.open(entry) as file:
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(file, HEADER * HEADER)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            return f"is not an array: {type(error).__name__}"
        if dtype.hasobject:
            return "holds pickled objects, which are not read"
        needed = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or needed > entry.file_size:
            return f"needs {needed:,} bytes and has {entry.file_size:,}"
    return None
