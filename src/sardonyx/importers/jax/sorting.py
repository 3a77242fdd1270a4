"""Rules of sort and top_k: TopK over integers that order as JAX orders floats.

JAX sorts NaN behind every number and takes -0.0 and 0.0 for equal. TopK keeps the order of equal
elements, so that sorting by several keys is sorting by one after the other, the last one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.jax.driver import importer
from sardonyx.importers.jax.elementwise import converted
from sardonyx.importers.jax.integers import signed_order
from sardonyx.importers.jax.writer import Refusal, Writer

T = ir.DataType


def rank_key(op: Writer, x: ir.Value, by_bits: bool = False) -> ir.Value:
    """Integers that order like the elements of `x`; `by_bits` tells zeros and NaNs apart."""
    if x.dtype in (T.FLOAT16, T.BFLOAT16):
        x = op.cast(x, T.FLOAT)
    if x.dtype in (T.FLOAT, T.DOUBLE):
        word, top = (
            (T.INT32, np.int32(0x7FFFFFFF))
            if x.dtype == T.FLOAT
            else (T.INT64, np.int64(2**63 - 1))
        )
        if not by_bits:
            x = op.Where(op.Equal(x, op.like(0, x)), op.like(0, x), x)
            x = op.Where(op.IsNaN(x), op.like(np.nan, x), x)
        bits = op.BitCast(x, to=int(word))
        return op.Where(op.Less(bits, op.like(0, bits)), op.BitwiseXor(bits, op.const(top)), bits)
    if x.dtype == T.UINT32:
        return op.cast(x, T.INT64)
    if x.dtype == T.UINT64:
        return signed_order(op, x)
    return x if x.dtype in (T.INT32, T.INT64) else op.cast(x, T.INT32)


@importer("lt_to")
def lt_to(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    """Less in the total order of floats: NaN behind infinity, -0.0 before 0.0."""
    return op.Less(rank_key(op, x, by_bits=True), rank_key(op, y, by_bits=True))


@importer("le_to")
def le_to(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    return op.LessOrEqual(rank_key(op, x, by_bits=True), rank_key(op, y, by_bits=True))


@importer("eq_to")
def eq_to(op: Writer, x: ir.Value, y: ir.Value) -> ir.Value:
    return op.Equal(rank_key(op, x, by_bits=True), rank_key(op, y, by_bits=True))


@importer("sort")
def sort(
    op: Writer, *operands: ir.Value, dimension: int, num_keys: int, is_stable: bool
) -> Sequence[ir.Value]:
    if not is_stable and num_keys < len(operands):
        raise Refusal("an order of equal keys that nothing defines: use is_stable=True")
    values = list(operands)
    for number in range(num_keys - 1, -1, -1):
        key = rank_key(op, values[number])
        _, order = op.TopK(
            key, _count(op, key, dimension), axis=dimension, largest=0, sorted=1, outputs=2
        )
        values = [op.GatherElements(v, order, axis=dimension) for v in values]
    return values


def _count(op: Writer, x: ir.Value, axis: int) -> Any:
    size = op.dim(x, axis)
    return [size] if isinstance(size, int) else size


@importer("top_k")
def top_k(op: Writer, x: ir.Value, *, k: Any, axis: int, out: Sequence[Any]) -> Sequence[ir.Value]:
    axis %= len(x.shape)  # type: ignore[arg-type]
    key = rank_key(op, x, by_bits=True)  # unlike sort, as XLA does it
    _, order = op.TopK(key, op.vector([k]), axis=axis, largest=1, sorted=1, outputs=2)
    kind = ir.DataType.from_numpy(np.dtype(out[1].dtype))
    return [op.GatherElements(x, order, axis=axis), converted(op, order, kind)]


@importer("approx_top_k")
def approx_top_k(
    op: Writer,
    x: ir.Value,
    *,
    k: int,
    reduction_dimension: int,
    is_max_k: bool,
    out: Sequence[Any],
) -> Sequence[ir.Value]:
    axis = reduction_dimension % len(x.shape)  # type: ignore[arg-type]
    if out[0].shape[axis] != k:
        raise Refusal("candidates that are not yet the k best")
    key = rank_key(op, x)
    _, order = op.TopK(key, [k], axis=axis, largest=int(is_max_k), sorted=1, outputs=2)
    kind = ir.DataType.from_numpy(np.dtype(out[1].dtype))
    return [op.GatherElements(x, order, axis=axis), converted(op, order, kind)]
