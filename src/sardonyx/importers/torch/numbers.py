"""Numbers in translations: float64 until they are cast; networks of float64 lose nothing."""

from __future__ import annotations

from typing import Any

import onnx
from onnxscript import opset18 as op


def number(value: float, like: Any) -> Any:
    """A constant of the type of another value."""
    wide = onnx.helper.make_tensor("number", onnx.TensorProto.DOUBLE, [], [value])
    return op.CastLike(op.Constant(value=wide), like)
