"""Random numbers that are the same on every engine: a hash of (seed, step, draw, element).

The generators of runtimes differ, and so do their streams after a resume. Integer arithmetic does
not: a 32-bit integer hash (two rounds of xor-shift and multiply) in plain operators gives the same
bits everywhere.
"""

from __future__ import annotations

import zlib

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.record.builder import RecordBuilder

UINT32 = ir.DataType.UINT32
# Multipliers and shifts of a published low-bias 32-bit integer hash ("lowbias32").
ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B))
LAST_SHIFT = 16
GOLDEN = 0x9E3779B9


def keep_mask(builder: RecordBuilder, x: ir.Value, ratio: ir.Value, draw: str) -> ir.Value:
    """A bool tensor of the shape of `x`, true with probability 1 - `ratio`; `draw` names the
    site.
    """
    op = builder.op
    bits = _bits(builder, x, draw)
    # 24 bits: each count is exact in float32, so every engine compares the same numbers.
    high = op.BitShift(bits, op.const(8, UINT32), direction="RIGHT")
    threshold = op.Mul(op.cast(ratio, ir.DataType.FLOAT), float(1 << 24))
    return op.GreaterOrEqual(op.cast(high, ir.DataType.FLOAT), threshold)


def _bits(builder: RecordBuilder, x: ir.Value, draw: str) -> ir.Value:
    op = builder.op
    with op:
        key = op.cast(builder.seed(), UINT32) * op.const(GOLDEN, UINT32)
        key = mix(op, key + op.cast(builder.count(), UINT32))
        key = mix(op, op.BitwiseXor(key, op.const(zlib.crc32(draw.encode()), UINT32)))
        numbers = op.Range(0, op.Size(x), 1)
        index = op.reshape(op.cast(numbers, UINT32), op.shape(x))
        index.shape = ir.Shape(x.shape) if x.shape is not None else None
        return mix(op, op.BitwiseXor(index * op.const(GOLDEN, UINT32), key))


def mix(op: Builder, x: ir.Value) -> ir.Value:
    """Scramble 32-bit integers, one to one."""
    for shift, factor in ROUNDS:
        x = op.BitwiseXor(x, op.BitShift(x, op.const(shift, UINT32), direction="RIGHT"))
        x = op.Mul(x, op.const(np.uint32(factor), UINT32))
    return op.BitwiseXor(x, op.BitShift(x, op.const(LAST_SHIFT, UINT32), direction="RIGHT"))
