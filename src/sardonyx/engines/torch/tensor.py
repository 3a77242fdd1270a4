"""torch's kernels for ONNX's family tensor: symbolic sizes stay symbolic when cast."""

from __future__ import annotations

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from sardonyx.lower.driver import lowering
from sardonyx.lower.tensor import cast as shared
from sardonyx.lower.tensor import layout
from sardonyx.lower.xp import is_integer, is_symbolic, settle


@lowering("Cast", only="torch", either=("x",))
def cast(xp, x, *, to, saturate, round_mode, dtypes):
    """The shared rule; a shape cast to 32 bits, as TensorFlow's exporter does, stays a shape."""
    if isinstance(x, np.ndarray):
        if is_symbolic(x) and dtypes[0] is not None and is_integer(dtypes[0]):
            return x
        x = xp.known(x)
    return shared.cast(xp, x, to=to, saturate=saturate, round_mode=round_mode, dtypes=dtypes)


@lowering("Reshape", only="torch", static=("shape",), sizes=True)
def reshape(xp, x, shape, *, allowzero):
    """The shared rule; where a computed size is 0, the input's size is used."""
    if not allowzero and is_symbolic(shape):
        dims = xp.shape(x)
        sizes = [
            torch.sym_ite(d == 0, dims[i], d) if is_unbacked(d) and i < len(dims) else d
            for i, d in enumerate(shape.tolist())
        ]
        shape = settle(sizes)
    return layout.reshape(xp, x, shape, allowzero=allowzero)


def is_unbacked(size):
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))
