"""Lowerings of ONNX's family optional: a value, or None."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering


@lowering("Optional")
def optional(xp, value=None, *, type):
    return value


@lowering("OptionalHasElement")
def optional_has_element(xp, value=None):
    return np.array(value is not None)


@lowering("OptionalGetElement")
def optional_get_element(xp, value):
    return value
