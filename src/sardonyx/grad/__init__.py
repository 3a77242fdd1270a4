"""Gradients: ONNX in, ONNX out. Rules live in one file per ONNX family of operators."""

from __future__ import annotations

import importlib
import pkgutil

from sardonyx.grad.driver import GRADIENT_RULES, NO_GRADIENT, gradient_rule, no_gradient

__all__ = ["GRADIENT_RULES", "NO_GRADIENT", "grad", "gradient_rule", "jvp", "no_gradient"]

_APART = {"driver", "transform"}

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in _APART:
        importlib.import_module(f"{__name__}.{_module.name}")

from sardonyx.grad.transform import grad, jvp  # noqa: E402  (the rules register first)
