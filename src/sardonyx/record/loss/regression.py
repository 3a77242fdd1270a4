"""Losses of regression: squared, absolute and Huber's."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.record.loss.kinds import Loss, reduce


def mse(reduction: str = "mean") -> Loss:
    """Mean squared error."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            difference = z - y
            return reduce(op, difference * difference, reduction)

    return Loss("mse", compute, settings={"reduction": reduction})


def l1(reduction: str = "mean") -> Loss:
    """Mean absolute error."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            return reduce(op, op.Abs(z - y), reduction)

    return Loss("l1", compute, settings={"reduction": reduction})


def huber(delta: float = 1.0, reduction: str = "mean") -> Loss:
    """Quadratic within `delta`, linear outside."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            size = op.Abs(z - y)
            inside = op.Min(size, delta)
            return reduce(op, 0.5 * inside * inside + delta * (size - inside), reduction)

    return Loss("huber", compute, settings={"delta": delta, "reduction": reduction})
