"""numpy's own kernels for ONNX's family nn: the slow exact reference sums in double precision."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn import conv


@lowering("Conv", only="numpy")
def convolution(xp, x, w, b=None, **attributes):
    # BLAS rounds the last rows of a product otherwise than the rest: equal channels would differ.
    if x.dtype != np.float32:
        return conv.conv(xp, x, w, b, **attributes)
    wide = [None if v is None else v.astype(np.float64) for v in (x, w, b)]
    return conv.conv(xp, *wide, **attributes).astype(np.float32)
