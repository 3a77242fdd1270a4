"""The registry of rules: functions named after the operators of TensorFlow Lite.

A rule gets the builder, the operator (its options by name, its tensors) and its inputs, quantized
ones as floats. It returns the output, or a tuple of them; the driver adds the fused activation,
the type and the quantization of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.importers.tflite.reader import Operator, Tensor

RULES: dict[str, Callable[..., Any]] = {}
# Operators that LiteRT computes on the integers of quantized tensors, whatever their scales are.
RAW: set[str] = set()
# Operators that copy the integers as they are, also where the file gives the result another scale.
COPIES = frozenset([
    "BROADCAST_TO", "EXPAND_DIMS", "GATHER", "GATHER_ND", "MIRROR_PAD", "PACK", "RESHAPE",
    "REVERSE_SEQUENCE", "REVERSE_V2", "SELECT", "SELECT_V2", "SLICE", "SPLIT", "SPLIT_V", "SQUEEZE",
    "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK",
])  # fmt: skip
# Operators whose rules apply the fused activation.
OWN_ACTIVATION: set[str] = set()


def reads_integers(operator: Operator, tensors: Sequence[Tensor]) -> bool:
    """Whether LiteRT computes on the integers of the quantized tensors of an operator."""
    if operator.name not in COPIES:
        return operator.name in RAW
    quantized = [t for t in tensors if t.is_quantized]
    return any(not _alike(quantized[0], t) for t in quantized)


def _alike(a: Tensor, b: Tensor) -> bool:
    pairs = ((a.scale, b.scale), (a.zero, b.zero))
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


class Unsupported(Exception):
    """A setting of an operator that ONNX cannot express; the driver reports all of them."""


def rule(
    *names: str, raw: bool = False, own_activation: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names or (function.__name__.upper(),):
            RULES[name] = function
            if raw:
                RAW.add(name)
            if own_activation:
                OWN_ACTIVATION.add(name)
        return function

    return register


@dataclass
class Node:
    """An operator with its tensors, as rules see it.

    turned    -- a constant in another order of axes
    assign    -- give the variable that is an input its next value
    operators -- the names of the operators of another graph, by its number
    """

    operator: Operator
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    turned: Callable[[Builder, Tensor, Callable[[np.ndarray], np.ndarray], int], ir.Value]
    assign: Callable[[int, ir.Value], None]
    operators: Callable[[int], list[str]]

    def __getitem__(self, option: str) -> Any:
        return self.operator.options[option]

    def get(self, option: str, default: Any = None) -> Any:
        return self.operator.options.get(option, default)


def known(value: ir.Value | None, what: str) -> np.ndarray:
    """The array behind a constant input."""
    array = constant(value)
    maker = value.producer() if value is not None else None
    if array is None and maker is not None and maker.op_type == "Cast":
        half = constant(maker.inputs[0])
        array = half.astype(np.float32) if half is not None and half.dtype == np.float16 else None
    if array is None:
        raise Unsupported(f"{what} depends on data")
    return array


def sizes(value: ir.Value) -> list[Any]:
    if value.shape is None:
        raise Unsupported("the rank of an input is not known")
    return list(value.shape)


def rank(value: ir.Value) -> int:
    return len(sizes(value))
