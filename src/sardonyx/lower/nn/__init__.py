"""Lowerings of ONNX's family nn: convolutions, pools, normalizations, attention.

What a framework does faster itself is in `engines/<framework>/nn.py`; those kernels call back here
for the options that they do not have.
"""

from __future__ import annotations

from sardonyx.lower.nn import (  # noqa: F401  (registers the rules)
    attention,
    conv,
    deform,
    linear_attention,
    ngram,
    norm,
    pool,
    quantized,
    rotary,
    simple,
    unpool,
    window,
)
