"""Gradients: ONNX in, ONNX out. Rules live in one file per ONNX family of operators."""

from __future__ import annotations

import importlib
import pkgutil

from sardonyx.grad.engine import NO_GRADIENT, VJP, no_gradient, vjp

__all__ = ["NO_GRADIENT", "VJP", "grad", "jvp", "no_gradient", "vjp"]

_APART = {"engine", "transform"}

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in _APART:
        importlib.import_module(f"{__name__}.{_module.name}")

from sardonyx.grad.transform import grad, jvp  # noqa: E402  (the rules register first)
