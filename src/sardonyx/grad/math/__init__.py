"""Gradients of ONNX's `math` family, ordered by difficulty.

`elementwise` one input, one formula; `activation` the functions with kinks; `arithmetic` two or
more inputs that broadcast; `axiswise` along one axis; `product` matrices; `loss` classification;
`signal` Fourier.
"""

from __future__ import annotations

from sardonyx.grad.driver import no_gradient
from sardonyx.grad.math import (  # noqa: F401  (each registers its rules)
    activation,
    arithmetic,
    axiswise,
    elementwise,
    loss,
    product,
    signal,
)

no_gradient("Ceil", "Floor", "Hardmax", "Round", "Sign")
# Tables of constants: their inputs are sizes and corner frequencies that are rounded to bins.
no_gradient("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix")
# Integers in, integers out: no float flows through.
no_gradient("MatMulInteger")
