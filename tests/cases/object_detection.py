"""Cases of ONNX's object_detection family."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import Case, case

from .nn import ints, spaced

ROIS = np.array([[0.3, 1.2, 4.1, 5.4], [2.0, 0.5, 9.0, 7.5], [-3.0, -2.0, 2.5, 3.3]])
OWNERS = ints(1, 0, 1)

CASES: list[Case] = [
    case(
        "RoiAlign",
        (2, 3, 6, 8),
        ROIS,
        OWNERS,
        output_height=2,
        output_width=3,
        sampling_ratio=2,
        wrt=[0],
    ),
    case(
        "RoiAlign",
        (2, 3, 6, 8),
        ROIS,
        OWNERS,
        output_height=3,
        output_width=2,
        spatial_scale=0.7,
        wrt=[0],
        coordinate_transformation_mode="output_half_pixel",
        id="adaptive-sampling",
    ),
    case(
        "RoiAlign",
        spaced(2, 3, 6, 8),
        ROIS,
        OWNERS,
        output_height=2,
        output_width=3,
        sampling_ratio=2,
        mode="max",
        wrt=[0],
        id="max",
    ),
    case(
        "RoiAlign",
        spaced(2, 3, 6, 8),
        ROIS,
        OWNERS,
        output_height=2,
        output_width=1,
        mode="max",
        wrt=[0],
        id="max-adaptive-sampling",
    ),
]


def boxes(count: int, id: str, *limits: Any, **given: Any) -> Case:
    """Suppression among random boxes of two images and three classes; corners in any order."""
    rng = np.random.default_rng(count)
    return case(
        "NonMaxSuppression",
        rng.uniform(0, 3, (2, count, 4)).astype(np.float32),
        rng.permutation(6 * count).reshape(2, 3, count).astype(np.float32) / (6 * count),
        *limits,
        fed=True,
        order=0,
        id=id,
        **given,
    )


SIXTH, HALF, NONE = (np.array([v], np.float32) for v in (1 / 6, 0.5, -1.0))

CASES += [
    boxes(9, "more-than-there-are", ints(100), SIXTH, NONE),
    boxes(9, "few", ints(2), SIXTH, NONE),
    boxes(9, "scores", ints(5), SIXTH, HALF),
    boxes(9, "centres", ints(5), SIXTH, HALF, center_point_box=1),
]
