"""torch's kernels for the nodes that conversions make of idioms, and for layers in training."""

from __future__ import annotations

import torch.nn.functional as F

from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.driver import lowering
from sardonyx.lower.nn import simple


@lowering("Linear", domain=NATIVE, only="torch")
def linear(xp, x, w, b=None, *, transposed):
    return F.linear(x, w if transposed else w.t(), b)


@lowering("DotProductAttention", domain=NATIVE, only="torch")
def dot_product_attention(xp, q, k, v, mask=None, *, scale, is_causal):
    if mask is not None and mask.ndim < 2:
        mask = mask.reshape(1, -1)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=bool(is_causal), scale=scale)


@lowering("BatchNormalization", domain=NATIVE, only="torch")
def batch_normalization(xp, x, scale, b, mean, var, *, epsilon, momentum):
    """Normalize by the batch, and update the running statistics in place as torch's layer does."""
    return F.batch_norm(x, mean, var, scale, b, True, 1 - momentum, epsilon)


@lowering("Dropout", only="torch", static=("ratio", "training_mode"))
def dropout(xp, x, ratio=None, training_mode=None, *, seed, count):
    trains = training_mode is not None and training_mode.dtype != object and training_mode.all()
    if not trains or count > 1 or seed is not None:
        ratio = None if ratio is None else xp.asarray(ratio)
        return simple.dropout(xp, x, ratio, training_mode, seed=seed, count=count)
    return F.dropout(x, 0.5 if ratio is None else float(ratio.reshape(())), True)
