"""ONNX's `logical` family: truth values and bits, through which no gradient flows."""

from __future__ import annotations

from sardonyx.grad.driver import no_gradient

no_gradient("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
no_gradient("And", "Not", "Or", "Xor")
no_gradient("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")
