"""Lowerings of ai.onnx.preview: FlexAttention, whose scores and probabilities go through bodies."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn.attention import Inputs, grouped, scores_of, softmax

FLOAT32 = np.dtype(np.float32)


@lowering("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    xp, q, k, v, *, scale=None, softmax_precision=None, score_mod=None, prob_mod=None
):
    dtype = xp.dtype(q)
    _, scores = scores_of(xp, Inputs(q, k, v, scale), 0.0)
    if softmax_precision is not None:
        wide = np.dtype(ir.DataType(softmax_precision).numpy())
    else:
        wide = dtype if dtype.itemsize > 4 else FLOAT32
    scores = xp.cast(scores, wide)
    if score_mod is not None:
        (scores,) = score_mod(scores)
    probabilities = softmax(xp, scores)
    if prob_mod is not None:
        (probabilities,) = prob_mod(probabilities)
    weights = xp.cast(probabilities, xp.dtype(v))
    return xp.cast(grouped(xp, xp.matmul, weights, v), dtype)
