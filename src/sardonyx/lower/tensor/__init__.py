"""Lowerings of ONNX's family tensor: layout, indexing, casts."""

from __future__ import annotations

from sardonyx.lower.tensor import cast, gather, layout, scatter

__all__ = ["cast", "gather", "layout", "scatter"]
