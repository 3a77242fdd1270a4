"""Lowerings of ONNX's family math: elementwise functions, activations, products, rows."""

from __future__ import annotations

from sardonyx.lower.math import activation, axiswise, elementwise, product, quantized, signal

__all__ = ["activation", "axiswise", "elementwise", "product", "quantized", "signal"]
