"""Regularizers: what the size of the parameters adds to a loss."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.build import Builder


def l2_penalty(op: Builder, parameters: Sequence[ir.Value], weight: float) -> ir.Value:
    """`weight` times half the squared norm of the parameters."""
    return op.Mul(op.Sum(*(op.ReduceSumSquare(p, keepdims=0) for p in parameters)), weight / 2)


def l1_penalty(op: Builder, parameters: Sequence[ir.Value], weight: float) -> ir.Value:
    """`weight` times the sum of absolute values of the parameters."""
    return op.Mul(op.Sum(*(op.ReduceSum(op.Abs(p), keepdims=0) for p in parameters)), weight)
