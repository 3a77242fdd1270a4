"""How much memory a tensor of a step takes, and in whose memory it lies."""

from __future__ import annotations

import math

import onnx_ir as ir

SMALL = 1 << 13  # bytes: less does not count
UNKNOWN = 32  # how large an unknown dimension is taken to be
# Operators whose output may share the memory of an input.
VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


def base(value: ir.Value) -> ir.Value:
    """The value whose memory a value shares."""
    maker = value.producer()
    while maker is not None and maker.op_type in VIEWS and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return value


def nbytes(value: ir.Value) -> int:
    if value.shape is None or value.dtype is None:
        return 0
    sizes = [d if isinstance(d, int) else UNKNOWN for d in value.shape.dims]
    return int(math.prod(sizes) * value.dtype.itemsize)
