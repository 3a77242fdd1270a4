"""Cases of ONNX's `generator` family."""

from __future__ import annotations

import numpy as np

from sardonyx.testing import case

CASES = [
    case("Range", np.array(1.0), np.array(5.2), np.array(2.0), wrt=(0, 2)),
    case("Range", np.array(4.0), np.array(-2.7), np.array(-1.5), wrt=(0, 2), id="negative delta"),
    case("ConstantOfShape", np.array([2, 3]), order=0),
    case("EyeLike", (2, 3), k=1, order=0),
]
