"""Gradients by parts: an operator written out in simpler ones, whose own rules then do the work.

What of the written-out forward the gradient does not need is removed with the dead code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.grad.driver import backward, is_differentiable


def by_parts(
    op: Builder,
    gs: Sequence[ir.Value | None],
    inputs: Sequence[ir.Value | None],
    forward: Callable[..., Any],
) -> list[ir.Value | None]:
    """The cotangents of `inputs` through `forward(op, *inputs)`, given those of its outputs."""
    # One value may be read as several inputs: each reading gets a name and cotangent of its own.
    named = [None if x is None else op.Identity(x) for x in inputs]
    start = len(op.nodes)
    outputs = forward(op, *named)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    cotangents = {y: g for y, g in zip(outputs, gs, strict=False) if g is not None}
    differentiable = [x for x in named if x is not None and is_differentiable(x)]
    gradients = dict(
        zip(differentiable, backward(op, op.nodes[start:], cotangents, differentiable), strict=True)
    )
    return [None if x is None else gradients.get(x) for x in named]
