"""torch's kernels for ONNX's family tensor: symbolic sizes stay symbolic when cast."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.tensor import cast as shared
from sardonyx.lower.xp import is_integer, is_symbolic


@lowering("Cast", only="torch", either=("x",))
def cast(xp, x, *, to, saturate, round_mode, dtypes):
    """The shared rule; a shape cast to 32 bits, as TensorFlow's exporter does, stays a shape."""
    if isinstance(x, np.ndarray):
        if is_symbolic(x) and dtypes[0] is not None and is_integer(dtypes[0]):
            return x
        x = xp.known(x)
    return shared.cast(xp, x, to=to, saturate=saturate, round_mode=round_mode, dtypes=dtypes)
