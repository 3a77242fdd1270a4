"""The order of rows as a hash: the same in every language, in NumPy here and in a graph.

NumPy's permutations exist in no other language. Here, every row gets a 32-bit key, and the order is
that of the keys. All arithmetic is modulo 2**32:

    mix(x):  x ^= x >> 16;  x *= 0x7FEB352D;  x ^= x >> 15;  x *= 0x846CA68B;  x ^= x >> 16
    start  = mix(seed * 0x9E3779B9 + epoch)
    start  = mix(start ^ draw)
    key[i] = mix((i * 0x9E3779B9) ^ start)          for the rows i = 0, 1, 2, …

`seed` counts modulo 2**32, the first epoch is 0, and `draw` is the CRC-32 of the purpose: of
"order" for the order of an epoch, of "validation" for the rows that are held back. Different rows
have different keys, because every operation on i can be undone, so that the order never depends
on how a sort treats equal keys.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.record.hash_random import GOLDEN, LAST_SHIFT, ROUNDS, UINT32, mix

ORDER, VALIDATION = (zlib.crc32(name) for name in (b"order", b"validation"))


def hash_order(seed: int, epoch: int, count: int, draw: int = ORDER) -> np.ndarray:
    """The rows 0 … count - 1 in the order of their keys."""
    with np.errstate(over="ignore"):
        start = _mixed(np.uint32(seed % 2**32) * np.uint32(GOLDEN) + np.uint32(epoch % 2**32))
        start = _mixed(start ^ np.uint32(draw))
        keys = _mixed(np.arange(count, dtype=np.uint32) * np.uint32(GOLDEN) ^ start)
    return np.argsort(keys)


def _mixed(x: Any) -> Any:
    for shift, factor in ROUNDS:
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(LAST_SHIFT))


def ordered(
    op: Builder, seed: ir.Value, epoch: ir.Value, count: ir.Value, draw: int = ORDER
) -> ir.Value:
    """The same as nodes: `seed` and `epoch` are int64 scalars, `count` an int64 vector of one
    element.
    """
    with op:
        # NOTE [wrapping]: a cast of what does not fit is defined nowhere, the remainder is.
        low, number = (op.cast(op.Mod(x, 1 << 32), UINT32) for x in (seed, epoch))
        start = mix(op, low * op.const(GOLDEN, UINT32) + number)
        start = mix(op, op.BitwiseXor(start, op.const(draw, UINT32)))
        rows = op.cast(op.Range(0, op.Squeeze(count), 1), UINT32)
        keys = mix(op, op.BitwiseXor(rows * op.const(GOLDEN, UINT32), start))
    wide = op.cast(keys, ir.DataType.INT64)
    return op.TopK(wide, count, largest=0, sorted=1, outputs=2)[1]
