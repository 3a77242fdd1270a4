"""Gradients of ONNX's tensor family: operators that move, pick, write and resample elements.

layout.py   the same elements in another order, shape or type
window.py   a part of a tensor, or a tensor with a margin: Slice, Pad, CenterCropPad
gather.py   elements picked by indices
scatter.py  elements written by indices
resize.py   Resize: one interpolation matrix per axis
grid.py     GridSample and AffineGrid
"""

from __future__ import annotations

from sardonyx.grad.driver import no_gradient
from sardonyx.grad.tensor import gather, grid, layout, resize, scatter, window

__all__ = ["gather", "grid", "layout", "resize", "scatter", "window"]

no_gradient("BitCast", "IsInf", "IsNaN", "NonZero", "Shape", "Size")
