"""Cases of ONNX's object_detection family."""

from __future__ import annotations

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
