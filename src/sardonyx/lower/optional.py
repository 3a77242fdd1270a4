"""Lowerings of ONNX's family optional: a value, or None."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.engine import lower


@lower("Optional")
def optional(xp, value=None, *, type):
    return value


@lower("OptionalHasElement")
def optional_has_element(xp, value=None):
    return np.array(value is not None)


@lower("OptionalGetElement")
def optional_get_element(xp, value):
    return value
