"""Lowerings of ONNX's family math: elementwise functions, activations, products, rows."""

from __future__ import annotations

from sardonyx.lower.math import activation, axiswise, elementwise, product, signal

__all__ = ["activation", "axiswise", "elementwise", "product", "signal"]
