"""The safetensors format: named arrays and a few texts in one file, written and read here.

Eight bytes with the length of a JSON header, the header, then the numbers, little-endian. What a
file claims is checked before anything is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.errors import ModelError, quote

TYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
}
NAMES = {np.dtype(dtype): name for name, dtype in TYPES.items()}
ALIGNMENT = 8
LARGEST_HEADER = 100_000_000  # the bound of the format's own reader
METADATA = "__metadata__"


def to_bytes(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """The content of a file."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    for name, array in arrays.items():
        kind = NAMES[array.dtype.newbyteorder("=")]
        end = offset + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    contents = (
        np.ascontiguousarray(a, a.dtype.newbyteorder("<")).tobytes() for a in arrays.values()
    )
    return len(text).to_bytes(8, "little") + text + b"".join(contents)


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The float arrays of a file, and its metadata."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    try:
        if len(content) < 8 or size > min(len(content) - 8, LARGEST_HEADER):
            raise ValueError("the header is longer than the file")
        header = json.loads(content[8 : 8 + size])
        metadata = {str(k): str(v) for k, v in header.pop(METADATA, {}).items()}
        data = memoryview(content)[8 + size :]
        return {str(name): _array(entry, data) for name, entry in header.items()}, metadata
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{quote(path.name)} is no safetensors file of floats: {error}") from error


def _array(entry: Mapping[str, Any], data: memoryview) -> np.ndarray:
    dtype, shape = np.dtype(TYPES[entry["dtype"]]), tuple(int(d) for d in entry["shape"])
    begin, end = (int(n) for n in entry["data_offsets"])
    fits = 0 <= begin <= end <= len(data) and end - begin == math.prod(shape) * dtype.itemsize
    if any(d < 0 for d in shape) or not fits:
        raise ValueError("an array lies outside of the file")
    little = np.frombuffer(data[begin:end], dtype.newbyteorder("<"))
    return little.astype(dtype).reshape(shape)
