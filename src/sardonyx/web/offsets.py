"""Where the numbers of initializers are in the bytes of a model file.

A page that trains has the state as arrays and the model as a file. It writes the arrays into the
file at these places, which needs no protobuf in the browser. The bytes are walked by the rules of
protobuf's wire format: a field is a key (number and type) and a value; messages are nested values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sardonyx.errors import ModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# the numbers of fields in onnx.proto
MODEL_GRAPH, MODEL_TRAINING_INFO = 7, 20
TRAINING_INITIALIZATION, TRAINING_ALGORITHM = 1, 2
GRAPH_INITIALIZER = 5
TENSOR_NAME, TENSOR_RAW_DATA = 8, 9


@dataclass(frozen=True)
class Place:
    """The bytes of one tensor in a file."""

    offset: int
    length: int


def places(data: bytes) -> dict[str, Place]:
    """The raw data of the initializers of the graph and of the training records, by name.

    >>> places(b"")
    {}
    """
    tensors: dict[str, Place] = {}
    for number, start, end in _fields(data, 0, len(data)):
        if number == MODEL_GRAPH:
            tensors.update(_of_graph(data, start, end))
        elif number == MODEL_TRAINING_INFO:
            for part, first, last in _fields(data, start, end):
                if part == TRAINING_ALGORITHM:
                    tensors.update(_of_graph(data, first, last))
    return tensors


def _of_graph(data: bytes, start: int, end: int) -> Iterator[tuple[str, Place]]:
    for number, first, last in _fields(data, start, end):
        if number != GRAPH_INITIALIZER:
            continue
        name, place = "", None
        for part, low, high in _fields(data, first, last):
            if part == TENSOR_NAME:
                name = data[low:high].decode()
            elif part == TENSOR_RAW_DATA:
                place = Place(low, high - low)
        if place is not None:
            yield name, place


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message: their number, and where their value begins and ends."""
    at = start
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            _, last = _varint(data, at)
        elif kind == BYTES:
            length, at = _varint(data, at)
            last = at + length
        elif kind in (FIXED32, FIXED64):
            last = at + (4 if kind == FIXED32 else 8)
        else:
            raise ModelError(f"the file has a field of the unknown type {kind}")
        yield key >> 3, at, last
        at = last


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
