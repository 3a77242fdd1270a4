"""numpy's adapter: the one with which known values are computed in every engine."""

from __future__ import annotations

from sardonyx.lower.static import Numpy, numpy_arrays

__all__ = ["Numpy", "arrays"]

arrays = numpy_arrays
