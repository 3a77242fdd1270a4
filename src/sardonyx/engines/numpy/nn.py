"""numpy's own kernels for ONNX's family nn: the slow exact reference sums in double precision."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn import conv
from sardonyx.lower.nn.window import padded, window_of

BLOCK = 1 << 18  # elements of a block's patches: what fits a cache, and bounds the memory


@lowering("Conv", only="numpy")
def convolution(xp, x, w, b=None, **attributes):
    # BLAS rounds the last rows of a product otherwise than the rest: equal channels would differ.
    if x.dtype != np.float32:
        return _in_blocks(xp, x, w, b, **attributes)
    wide = [None if v is None else v.astype(np.float64) for v in (w, b)]
    return _in_blocks(xp, x, *wide, **attributes)


def _in_blocks(xp, x, w, b, *, group, **attributes):
    """The convolution, computed for some rows of the output of one image at a time."""
    window = window_of(x.shape[2:], attributes, w.shape[2:])
    steps = {"strides": window.strides, "dilations": window.dilations}
    features, rows = w.shape[0], window.outputs[0]
    patches = max(w.shape[1] * group, features) * math.prod(window.outputs[1:])
    step = max(BLOCK // max(patches, 1), 1)
    y = np.empty((x.shape[0], features, *window.outputs), x.dtype)
    extent = (window.kernel[0] - 1) * window.dilations[0] + 1
    wide = np.float64 if x.dtype == np.float32 else x.dtype
    for image in range(x.shape[0]):
        source = padded(xp, x[image : image + 1], window, 0)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            begin = first * window.strides[0]
            end = (last - 1) * window.strides[0] + extent
            part = source[:, :, begin:end].astype(wide)
            inner = window_of(part.shape[2:], steps, window.kernel)
            block = conv.biased(xp, conv.convolved(xp, part, w, inner, group), b)
            y[image, :, first:last] = block[0]
    return y
