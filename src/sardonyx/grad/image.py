"""ONNX's image family: ImageDecoder reads bytes, and bytes have no gradient."""

from __future__ import annotations

from sardonyx.grad.engine import no_gradient

no_gradient("ImageDecoder")
