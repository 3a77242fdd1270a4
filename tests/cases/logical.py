"""Cases of ONNX's `logical` family: values only, no gradient flows through any of them."""

from __future__ import annotations

import numpy as np

from sardonyx.testing import case

LEFT, RIGHT = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]]), np.array([1.0, 1.5, 3.0])
TRUE, FALSE = np.array([[True, True], [False, False]]), np.array([True, False])
BITS, MASK = np.array([[1, 6, 12], [7, 0, 255]], np.uint8), np.array([3, 5, 6], np.uint8)
CASES = [
    *[
        case(op, LEFT, RIGHT, order=0)
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ],
    *[case(op, TRUE, FALSE, order=0) for op in ("And", "Or", "Xor")],
    case("Not", TRUE, order=0),
    *[case(op, BITS, MASK, order=0) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")],
    case("BitwiseNot", BITS, order=0),
    case("BitShift", BITS, MASK, order=0, direction="LEFT", id="left"),
    case("BitShift", BITS, MASK, order=0, direction="RIGHT", id="right"),
]
