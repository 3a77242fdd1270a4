"""Cases of ONNX's tensor family that have values only: bits, indices, other element types."""

from __future__ import annotations

import numpy as np
import onnx

from sardonyx.testing import case

FLOAT, INT8, INT32, INT64 = 1, 3, 6, 7
SPECIAL = np.array([[1.5, np.nan, -np.inf], [np.inf, -0.0, -2.25]])
WORDS = np.array([[-3, 7, 0], [200, -200, 70_000]], np.int32)
MARKS = np.array([[0, 3, 0], [5, 0, 7]], np.int64)
LAST = np.iinfo(np.int64).max


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


ELEMENTS = [
    case("IsNaN", SPECIAL, order=0),
    case("IsInf", SPECIAL, order=0, id="both"),
    case("IsInf", SPECIAL, detect_negative=0, order=0, id="positive"),
    case("IsInf", SPECIAL, detect_positive=0, order=0, id="negative"),
    case("BitCast", (2, 3), to=INT64, order=0),
    case("BitCast", WORDS, to=FLOAT, order=0, id="integers"),
    case("Cast", WORDS, to=INT8, order=0, id="wraps"),
    case("Cast", (2, 3), to=INT32, low=-9, high=9, order=0, id="toward-zero"),
    case("Cast", SPECIAL, to=onnx.TensorProto.BOOL, order=0, id="to-bool"),
    case("Cast", (2, 3), to=onnx.TensorProto.FLOAT16, order=0, id="to-half"),
]

SIZES = [
    case("Shape", (2, 3, 4), order=0),
    case("Shape", (2, 3, 4), start=-2, order=0, id="from-the-end"),
    case("Shape", (2, 3, 4), start=1, end=-1, order=0, id="part"),
    case("Size", (2, 3, 4), order=0),
    case("NonZero", MARKS, order=0),
    case("NonZero", MARKS, fed=True, order=0, id="known-when-run"),
]

# Elements that only move, in types that are not floats.
MOVED = [
    case(
        "Slice", MARKS, ints(-1, 5), ints(-9, -9), ints(0, 1), ints(-1, -2), order=0, id="integers"
    ),
    case("Slice", MARKS, ints(0), ints(LAST), ints(1), ints(2), fed=True, order=0, id="ints-fed"),
    case("Pad", MARKS, ints(1, 0, 0, 2), np.array(9), order=0, id="integers"),
    case("Where", MARKS > 0, MARKS, -MARKS, order=0, id="integers"),
    case("Tile", MARKS > 0, ints(2, 1), order=0, id="bools"),
    case("Trilu", MARKS, ints(1).reshape(()), upper=0, order=0, id="integers"),
    case(
        "ScatterElements", MARKS, MARKS[:1] * 0, MARKS[1:], reduction="max", order=0, id="ints-max"
    ),
    case("Unique", MARKS, outputs=4, order=0, id="integers"),
    case("Unique", MARKS, outputs=4, sorted=0, order=0, id="not-sorted"),
    case("Unique", np.array([[1, 0], [1, 0], [2, 3]]), outputs=4, axis=0, order=0, id="rows"),
    case("Compress", MARKS, np.array([True, False, True]), axis=1, order=0, id="integers"),
    case("OneHot", MARKS, ints(4), np.array([-1, 5]), axis=1, order=0, id="integers"),
]

CASES = ELEMENTS + SIZES + MOVED
