"""One table of cases per ONNX family; `all_cases()` joins them."""

from __future__ import annotations

import importlib
import pkgutil

from sardonyx.testing import Case


def all_cases() -> list[Case]:
    cases: list[Case] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        cases += getattr(importlib.import_module(f"{__name__}.{module}"), "CASES", [])
    return cases
