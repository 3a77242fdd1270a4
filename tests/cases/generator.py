"""Cases of ONNX's `generator` family."""

from __future__ import annotations

import numpy as np

from sardonyx.testing import Case, case

# Attributes by names that options of a case have too.
UNIFORM = {"low": 2.0, "high": 5.0, "seed": 7.0}

CASES = [
    case("Range", np.array(1.0), np.array(5.2), np.array(2.0), wrt=(0, 2)),
    case("Range", np.array(4.0), np.array(-2.7), np.array(-1.5), wrt=(0, 2), id="negative delta"),
    case("ConstantOfShape", np.array([2, 3]), order=0),
    case("EyeLike", (2, 3), k=1, order=0),
    case("RandomNormal", shape=[40, 50], mean=2.0, scale=3.0, seed=7.0, order=0),
    case("RandomNormalLike", (40, 50), mean=2.0, scale=3.0, seed=7.0, order=0),
    Case("RandomUniform", (), order=0, attributes={"shape": [40, 50], **UNIFORM}),
    Case("RandomUniformLike", ((40, 50),), order=0, attributes=UNIFORM),
    case("Bernoulli", np.full((40, 50), 0.25), seed=7.0, order=0),
    case("Multinomial", np.log([[0.25, 0.75]] * 4), sample_size=500, seed=7.0, order=0),
]
