"""Arrays as a MAT file of version 5, which every MATLAB and Octave reads with `load`."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from sardonyx.errors import ArgumentError

HEADER = b"MATLAB 5.0 MAT-file, written by sardonyx"
# numpy's kind and size -> class of the array, type of its elements, flags
CLASSES = {"f4": (7, 7, 0), "f8": (6, 9, 0), "b1": (9, 2, 2)}
CELL, STRUCT, CHAR = 1, 2, 4
MATRIX, INT8, INT32, UINT32, UTF8 = 14, 1, 5, 6, 16
LARGEST = (1 << 31) - 1024
FIELD = 64  # bytes of the name of a field


def write(file: BinaryIO, values: Mapping[str, Any]) -> None:
    """Write variables: arrays, with their axes in reverse order, or mappings, which become
    structures.
    """
    file.write(HEADER.ljust(116) + bytes(8) + struct.pack("<H", 0x0100) + b"IM")
    for name, value in values.items():
        for chunk in _variable(name, value):
            file.write(chunk)


def check_size(name: str, array: np.ndarray) -> None:
    """Refuse an array that is too large for this kind of file."""
    if stored(array).nbytes > LARGEST:
        raise ArgumentError(f"{name!r} has more than 2 GB, which a MAT file cannot hold")


def stored(array: np.ndarray) -> np.ndarray:
    """An array as MATLAB holds it: single, double or logical, or text; integers are doubles."""
    if array.dtype == np.float32 or array.dtype == np.bool_ or array.dtype.kind == "O":
        return array
    return array.astype(np.float64)


def _variable(name: str, value: Any) -> list[bytes]:
    if isinstance(value, Mapping):
        return _structure(name, value)
    array = stored(np.asarray(value))
    if array.dtype.kind == "O":
        return _cells(name, array)
    kind, element, flags = CLASSES[f"{array.dtype.kind}{array.dtype.itemsize}"]
    # The bytes of ONNX's row-major order are those of the reverse sizes in MATLAB's order.
    sizes = (*reversed(array.shape), *(1,) * (2 - array.ndim))
    head = _head(kind | flags << 8, sizes, name)
    data = np.ascontiguousarray(array).tobytes()
    tag = struct.pack("<II", element, len(data))
    padding = bytes(-len(data) % 8)
    length = len(head) + len(tag) + len(data) + len(padding)
    return [struct.pack("<II", MATRIX, length), head, tag, data, padding]


def _cells(name: str, texts: np.ndarray) -> list[bytes]:
    """Texts as a cell array."""
    sizes = (*reversed(texts.shape), *(1,) * (2 - texts.ndim))
    head = _head(CELL, sizes, name)
    inside = [chunk for text in texts.flat for chunk in _characters(str(text))]
    return [struct.pack("<II", MATRIX, len(head) + sum(map(len, inside))), head, *inside]


def _characters(text: str) -> list[bytes]:
    if not text.isascii():
        raise ArgumentError(
            f"{text!r} has letters beyond ASCII, which MATLAB counts otherwise than Octave"
        )
    data = _element(UTF8, text.encode())
    head = _head(CHAR, (bool(text), len(text)), "")
    return [struct.pack("<II", MATRIX, len(head) + len(data)), head, data]


def _head(kind: int, sizes: Sequence[int], name: str) -> bytes:
    """The kind, the sizes and the name with which a variable begins."""
    shape = _element(INT32, struct.pack(f"<{len(sizes)}i", *sizes))
    return _element(UINT32, struct.pack("<II", kind, 0)) + shape + _element(INT8, name.encode())


def _structure(name: str, fields: Mapping[str, Any]) -> list[bytes]:
    head = _head(STRUCT, (1, 1), name)
    head += struct.pack("<HHi", INT32, 4, FIELD)
    head += _element(INT8, b"".join(n.encode().ljust(FIELD, b"\0") for n in fields))
    inside = [chunk for value in fields.values() for chunk in _variable("", value)]
    length = len(head) + sum(map(len, inside))
    return [struct.pack("<II", MATRIX, length), head, *inside]


def _element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)
