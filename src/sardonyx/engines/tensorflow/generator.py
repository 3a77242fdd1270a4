"""tensorflow's own kernels for ONNX's family generator."""

from __future__ import annotations

from sardonyx.engines.tensorflow.xp import tf
from sardonyx.lower.driver import lowering


@lowering("Range", only="tensorflow", either=("start", "limit", "delta"))
def range_(xp, start, limit, delta, *, dtypes, **attributes):
    # Unlike other frameworks, tensorflow has arrays whose size depends on data.
    bounds = [tf.reshape(xp.asarray(v), ()) for v in (start, limit, delta)]
    return xp.arange(*bounds, dtypes[0] or xp.dtype(bounds[0]))
