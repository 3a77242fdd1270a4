"""Cases of ONNX's quantization family.

A rounded value has no useful difference quotient: QuantizeLinear is compared with torch's own
straight-through estimators, inside and outside the range, and away from its edges, where
conventions differ by half a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import case

INT8 = np.array([[-100, 3, 90, -7], [12, -128, 127, 5]], np.int8)
UINT8 = np.array([[0, 255, 90], [12, 128, 5]], np.uint8)
BLOCKS = (np.arange(24, dtype=np.int8) * 7 - 80).reshape(4, 6)


def torch() -> Any:
    import torch

    return torch


def rounded(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """Quantized and back, straight through: values outside the range move with the scale only."""
    level = x / scale
    whole = level + (level.round() - level).detach()
    return (whole.clamp(low - zero, high - zero)) * scale


X = np.array([[-30.2, 0.34, 1.26, 40.3], [7.71, -2.2, -0.11, 3.87]])

CASES = [
    case("DequantizeLinear", INT8, (), np.array(3, np.int8), order=2, id="tensor"),
    case("DequantizeLinear", INT8, (1,), id="tensor-as-vector-no-zero-point"),
    case("DequantizeLinear", UINT8, (3,), np.array([1, 200, 128], np.uint8), axis=1, id="axis"),
    case(
        "DequantizeLinear", UINT8, (2,), np.array([1, 200], np.uint8), axis=-2, id="negative-axis"
    ),
    case("DequantizeLinear", BLOCKS, (4, 2), BLOCKS[:, :2], axis=1, block_size=3, id="blocks"),
    case("DequantizeLinear", BLOCKS, (4, 2), axis=1, block_size=4, id="last-block-shorter"),
    case(
        "DequantizeLinear",
        BLOCKS,
        (4, 2),
        BLOCKS[:, :2],
        axis=1,
        block_size=3,
        fed=True,
        id="blocks-known-when-run",
    ),
    case(
        "QuantizeLinear",
        X,
        np.array([[0.1], [0.2]]),
        np.array([3, -4], np.int8),
        nodes="s = Squeeze(x1) q = QuantizeLinear<axis=0>(x0, s, x2) "
        "y0 = DequantizeLinear<axis=0>(q, s, x2)",
        order=0,
        torch=lambda x, s: rounded(x, s, torch().tensor([[3.0], [-4.0]]), -128, 127),
        id="axis",
    ),
    case(
        "QuantizeLinear",
        X,
        np.array(0.1),
        np.array(100, np.uint8),
        nodes="q = QuantizeLinear(x0, x1, x2) y0 = DequantizeLinear(q, x1, x2)",
        order=0,
        torch=lambda x, s: rounded(x, s, 100.0, 0, 255),
        id="tensor",
    ),
    case(
        "QuantizeLinear",
        X,
        np.array([[0.1, 0.3], [0.03, 0.2]]),
        nodes="q = QuantizeLinear<axis=1, block_size=2, output_dtype=3>(x0, x1) "
        "y0 = DequantizeLinear<axis=1, block_size=2>(q, x1)",
        order=0,
        torch=lambda x, s: rounded(x, s.repeat_interleave(2, 1), 0.0, -128, 127),
        id="blocks",
    ),
    case(
        "DynamicQuantizeLinear",
        X,
        nodes="f = Cast<to=1>(x0) q, s, z = DynamicQuantizeLinear(f) "
        "y0 = DequantizeLinear(q, s, z)",
        order=0,
        id="values",
    ),
]

LEFT = np.array([[11, 7, 3], [10, 6, 255], [9, 0, 1], [8, 4, 0]], np.uint8)
RIGHT = np.array([[1, 4], [2, -128], [3, 127]], np.int8)


CASES += [
    case("MatMulInteger", LEFT, RIGHT, order=0, fed=True, id="no-zero-points"),
    case(
        "MatMulInteger",
        LEFT,
        RIGHT,
        np.array(12, np.uint8),
        np.array([3, -7], np.int8),
        order=0,
        fed=True,
        id="zero-point-per-column",
    ),
    *(
        case(
            "QLinearMatMul",
            LEFT if kind is np.uint8 else (LEFT // 2).astype(np.int8),
            np.abs(RIGHT).astype(kind) if kind is np.uint8 else RIGHT,
            np.array(113, kind),
            np.array([1, 114], kind),
            np.array(118, kind),
            nodes="a = Constant<value_float=0.0066>() b = Constant<value_floats=[0.00705, 0.02]>() "
            "y = Constant<value_float=0.0107>() y0 = QLinearMatMul(x0, a, x2, x1, b, x3, y, x4)",
            order=0,
            fed=True,
            id=f"{kind.__name__}-scale-per-column",
        )
        for kind in (np.uint8, np.int8)
    ),
]
