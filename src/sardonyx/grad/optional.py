"""Gradients of ONNX's optional family.

The cotangent of an optional is the cotangent of what is in it, bare: where a gradient arrives
there was a value, so there is nothing to wrap.
"""

from __future__ import annotations

from sardonyx.grad.driver import gradient_rule, no_gradient

no_gradient("OptionalHasElement")


@gradient_rule("Optional")
def optional(op, g, x, *, type):
    return g


@gradient_rule("OptionalGetElement")
def optional_get_element(op, g, x):
    return g
