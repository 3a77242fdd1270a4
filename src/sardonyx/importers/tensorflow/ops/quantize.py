"""Rules of quantization that stays in floats."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


@importer("FakeQuantWithMinMaxArgs")
def fake_quant_with_min_max_args(
    op: Writer, x: ir.Value, *, min: float, max: float, num_bits: int, narrow_range: bool
) -> ir.Value:
    return _faked(op, x, np.asarray(min, "f"), np.asarray(max, "f"), num_bits, narrow_range)


@importer("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quant_with_min_max_vars(
    op: Writer, x: ir.Value, low: ir.Value, high: ir.Value, *, num_bits: int, narrow_range: bool
) -> ir.Value:
    a, b = op.known(low, "a range"), op.known(high, "a range")
    return _faked(op, x, a, b, num_bits, narrow_range)


def _faked(
    op: Writer, x: ir.Value, low: np.ndarray, high: np.ndarray, bits: int, narrow: bool
) -> ir.Value:
    """Rounded to levels of the range, moved so that zero is one of them, as TensorFlow does."""
    least, most = np.float32(narrow), np.float32(2**bits - 1)
    scale = ((high - low) / (most - least)).astype(np.float32)
    start = (least - low / scale).astype(np.float32)
    zero = np.where(start < least, least, np.where(start > most, most, np.floor(start + 0.5)))
    zero = zero.astype(np.float32)
    new_low = ((least - zero) * scale).astype(np.float32)
    new_high = ((most - zero) * scale).astype(np.float32)
    inverse = np.float32(1) / scale
    clamped = op.Min(op.Max(x, op.const(new_low)), op.const(new_high))
    shifted = op.Sub(clamped, op.const(new_low))
    level = op.Floor(op.Add(op.Mul(shifted, op.const(inverse)), op.const(np.float32(0.5))))
    return op.Add(op.Mul(level, op.const(scale)), op.const(new_low))


@importer("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV4")
def quantize_and_dequantize(
    op: Writer,
    x: ir.Value,
    low: ir.Value,
    high: ir.Value,
    *,
    signed_input: bool,
    num_bits: int,
    range_given: bool,
    round_mode: str,
    narrow_range: bool,
    axis: int,
) -> ir.Value:
    return _quantized(
        op, x, low, high, signed_input, num_bits, range_given, round_mode, narrow_range, axis
    )


@importer("QuantizeAndDequantizeV3")
def quantize_and_dequantize_v3(
    op: Writer,
    x: ir.Value,
    low: ir.Value,
    high: ir.Value,
    bits: ir.Value,
    *,
    signed_input: bool,
    range_given: bool,
    narrow_range: bool,
    axis: int,
) -> ir.Value:
    number = int(op.known(bits, "a number of bits").reshape(-1)[0])
    return _quantized(
        op, x, low, high, signed_input, number, range_given, "HALF_TO_EVEN", narrow_range, axis
    )


def _quantized(
    op: Writer,
    x: ir.Value,
    low: ir.Value,
    high: ir.Value,
    signed: bool,
    bits: int,
    range_given: bool,
    round_mode: str,
    narrow: bool,
    axis: int,
) -> ir.Value:
    """The scale is that of the larger side of the range, as TensorFlow chooses it."""
    n = rank(x)
    if not range_given:
        axes = [a for a in range(n) if axis < 0 or a != axis % n]
        low = op.ReduceMin(x, axes, keepdims=int(axis >= 0))
        high = op.ReduceMax(x, axes, keepdims=int(axis >= 0))
    elif axis >= 0:
        others = [a for a in range(n) if a != axis]
        low, high = (op.unsqueezed(v, others) for v in (low, high))
    least = -(2 ** (bits - 1)) + int(narrow) if signed else 0
    most = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    zero = op.like(0, x)
    top = op.Div(op.like(most, x), high)
    if signed:
        bottom = op.Div(op.like(least, x), low)
        huge = op.like(np.finfo(x.dtype.numpy()).max, x)  # type: ignore[union-attr]
        from_low = op.Where(op.Greater(op.Mul(op.like(least, x), low), zero), bottom, huge)
        from_high = op.Where(op.Greater(op.Mul(op.like(most, x), high), zero), top, huge)
        scale = op.Min(from_low, from_high)
    else:
        scale = top
    inverse = op.Reciprocal(scale)
    floor = op.Mul(op.like(least, x), inverse)
    ceiling = op.Mul(op.like(most, x), inverse)
    clamped = op.Min(op.Max(x, floor), ceiling)
    scaled = op.Mul(clamped, scale)
    if round_mode == "HALF_TO_EVEN":
        level = op.Round(scaled)
    elif round_mode == "HALF_UP":
        level = op.Floor(op.Add(scaled, op.like(0.5, x)))
    else:
        raise Refusal(f"the rounding {round_mode}")
    return op.Mul(level, inverse)
