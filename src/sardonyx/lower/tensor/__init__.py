"""Lowerings of ONNX's family tensor: layout, indexing, casts."""

from __future__ import annotations

from sardonyx.lower.tensor import cast, gather, grid, layout, resize, scatter, unique

__all__ = ["cast", "gather", "grid", "layout", "resize", "scatter", "unique"]
