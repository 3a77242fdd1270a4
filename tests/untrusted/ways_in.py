"""The two ways by which a file comes in, and what every refusal has in common."""

from __future__ import annotations

import pytest
from onnx import ModelProto

import sardonyx
from sardonyx.errors import ModelError
from sardonyx.limits import Limits, parse, scan


def through_gate(data: bytes) -> None:
    """The count alone, before anything is transformed."""
    scan(parse(data, Limits()), Limits())


DOORS = pytest.mark.parametrize("door", [through_gate, sardonyx.load], ids=["gate", "load"])


def scanned(proto: ModelProto, **limits: int):
    return scan(proto, Limits(**limits))


def refusal(door, proto: ModelProto, error: type[Exception] = ModelError) -> str:
    """The message with which `door` refuses a model."""
    with pytest.raises(error) as caught:
        door(proto.SerializeToString())
    return judged(caught.value)


def judged(error: Exception) -> str:
    """The message of an error, which has the form that all have."""
    message = str(error)
    assert isinstance(error, ModelError) and error.hint
    assert len(message.encode()) < 4096
    assert all(c == "\n" or c.isprintable() for c in message)
    return message
