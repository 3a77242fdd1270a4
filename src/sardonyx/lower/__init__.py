"""Lowerings: ONNX to arrays, each operator written once against `xp`. One file per ONNX family."""

from __future__ import annotations

import importlib
import pkgutil

from sardonyx.lower.driver import LOWERINGS, lowering

__all__ = ["LOWERINGS", "lowering"]

_APART = {
    "driver",
    "numpy_xp",
    "partition",
    "precompute",
    "program",
    "run_limits",
    "runner",
    "sizes",
    "unsigned",
    "xp",
}

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in _APART:
        importlib.import_module(f"{__name__}.{_module.name}")
