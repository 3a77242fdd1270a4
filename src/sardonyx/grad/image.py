"""ONNX's image family: ImageDecoder reads bytes, and bytes have no gradient."""

from __future__ import annotations

from sardonyx.grad.driver import no_gradient

no_gradient("ImageDecoder")
