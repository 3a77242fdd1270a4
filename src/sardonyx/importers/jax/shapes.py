"""Rules of primitives that move elements without looking at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from sardonyx.importers.jax.driver import importer
from sardonyx.importers.jax.writer import Refusal, Writer, is_static

T = ir.DataType
END = np.iinfo(np.int64).max


@importer("reshape")
def reshape(op: Writer, x: ir.Value, *, new_sizes: Any, dimensions: Any = None) -> ir.Value:
    if dimensions is not None:
        x = op.transpose(x, dimensions)
    return op.shaped(x, new_sizes)


@importer("squeeze")
def squeeze(op: Writer, x: ir.Value, *, dimensions: Sequence[int]) -> ir.Value:
    return op.squeezed(x, dimensions)


@importer("expand_dims")
def expand_dims(op: Writer, x: ir.Value, *, dimensions: Sequence[int]) -> ir.Value:
    return op.unsqueezed(x, dimensions)


@importer("broadcast_in_dim")
def broadcast_in_dim(
    op: Writer, x: ir.Value, *_: ir.Value, shape: Any, broadcast_dimensions: Sequence[int]
) -> ir.Value:
    missing = [d for d in range(len(shape)) if d not in broadcast_dimensions]
    y = op.unsqueezed(x, missing) if len(missing) < len(shape) or not shape else x
    return op.expanded(y, shape)


@importer("transpose")
def transpose(op: Writer, x: ir.Value, *, permutation: Sequence[int]) -> ir.Value:
    return op.transpose(x, permutation)


@importer("concatenate")
def concatenate(op: Writer, *operands: ir.Value, dimension: int) -> ir.Value:
    return op.Concat(*operands, axis=dimension) if len(operands) > 1 else operands[0]


@importer("stack")
def stack(op: Writer, *operands: ir.Value, axis: int) -> ir.Value:
    return op.Concat(*(op.unsqueezed(x, [axis]) for x in operands), axis=axis)


@importer("unstack")
def unstack(op: Writer, x: ir.Value, *, axis: int, out: Sequence[Any]) -> Sequence[ir.Value]:
    parts = [op.part(x, axis, i, i + 1) for i in range(len(out))]
    return [op.squeezed(part, [axis]) for part in parts]


@importer("split")
def split(op: Writer, x: ir.Value, *, sizes: Sequence[int], axis: int) -> Sequence[ir.Value]:
    if not is_static(sizes):
        return op.Split(x, op.vector(sizes), axis=axis, outputs=len(sizes))
    return op.Split(x, [int(s) for s in sizes], axis=axis, outputs=len(sizes))


@importer("tile")
def tile(op: Writer, x: ir.Value, *, reps: Sequence[int]) -> ir.Value:
    return op.Tile(x, op.vector(reps))


@importer("rev")
def rev(op: Writer, x: ir.Value, *, dimensions: Sequence[int]) -> ir.Value:
    if not len(dimensions):
        return x
    count = len(dimensions)
    return op.Slice(x, [-1] * count, [-END] * count, list(dimensions), [-1] * count)


@importer("slice")
def slice_(
    op: Writer, x: ir.Value, *, start_indices: Any, limit_indices: Any, strides: Any
) -> ir.Value:
    steps = strides or [1] * len(start_indices)
    sizes = x.meta["aval"].shape
    axes = [
        a
        for a, (start, end, step) in enumerate(
            zip(start_indices, limit_indices, steps, strict=True)
        )
        if not (
            (_is(start, 0) and _is(step, 1) and end is sizes[a])
            or (start, end, step) == (0, sizes[a], 1)
        )
    ]
    if not axes:
        return x
    starts, ends = ([part[a] for a in axes] for part in (start_indices, limit_indices))
    if not is_static([steps[a] for a in axes]):
        raise Refusal("a free stride")
    return op.Slice(x, op.vector(starts), op.vector(ends), axes, [int(steps[a]) for a in axes])


def _is(value: Any, number: int) -> bool:
    return isinstance(value, (int, np.integer)) and int(value) == number


@importer("iota")
def iota(op: Writer, *_: ir.Value, dtype: Any, shape: Any, dimension: int) -> ir.Value:
    kind = ir.DataType.from_numpy(np.dtype(dtype))
    line = op.cast(op.iota(shape[dimension]), kind)
    after = list(range(1, len(shape) - dimension))
    return op.expanded(op.unsqueezed(line, after), shape)


@importer("empty", "empty2")
def empty(op: Writer, *_: ir.Value, out: Sequence[Any]) -> ir.Value:
    """What nobody reads before it is written: the other branch of a gradient of `cond`."""
    return op.expanded(op.const(np.zeros((), out[0].dtype)), out[0].shape)


@importer("dim_as_value")
def dim_as_value(op: Writer, *, dim: Any, out: Sequence[Any]) -> ir.Value:
    size = op.size(dim)
    value = op.const(np.int64(size)) if isinstance(size, int) else op.Squeeze(size, [0])
    return op.cast(value, ir.DataType.from_numpy(np.dtype(out[0].dtype)))


@importer("pad")
def pad(op: Writer, x: ir.Value, value: ir.Value, *, padding_config: Any) -> ir.Value:
    for axis, (_, _, interior) in enumerate(padding_config):
        if not isinstance(interior, (int, np.integer)):
            raise Refusal("a free number of elements between elements")
        if interior:
            x = dilated(op, x, axis, int(interior) + 1, value)
    return padded(op, x, [(low, high) for low, high, _ in padding_config], value)


def is_same(sizes: Any, windows: Any, strides: Any, padding: Any) -> bool:
    """Whether padding that depends on free sizes is what JAX and ONNX call SAME.

    windows -- the reach of a window along each axis, its gaps included
    """
    expected = jax.lax.padtype_to_pads(list(sizes), list(windows), list(strides), "SAME")
    pairs = zip(expected, padding, strict=True)
    return all(low == begin and high == end for (low, high), (begin, end) in pairs)


def padded(op: Writer, x: ir.Value, pads: Sequence[tuple[Any, Any]], value: ir.Value) -> ir.Value:
    """`x` with `pads` elements of `value` before and after each axis; negative ones cut."""
    lows, highs = [low for low, _ in pads], [high for _, high in pads]
    if not is_static([*lows, *highs]):
        return _pad(op, x, op.vector([*lows, *highs]), value)
    # Cutting and padding one axis at once may leave fewer than no elements in between.
    if any(v < 0 for v in (*lows, *highs)):
        cut = [a for a, (low, high) in enumerate(pads) if low < 0 or high < 0]
        for axis in cut:
            low, high = (int(v) for v in pads[axis])
            size = x.shape[axis] if x.shape is not None else None
            if isinstance(size, int):
                begin, end = max(0, -low), size + min(0, high)
                if end - begin < 0 or low > 0 or high > 0:
                    x = _cut_and_pad(op, x, axis, low, high, value)
                else:
                    x = op.part(x, axis, begin, end)
            elif low > 0 or high > 0:
                raise Refusal("a free size both cut and padded")
            else:
                x = op.part(x, axis, max(0, -low), high if high < 0 else END)
        lows = [0 if a in cut else low for a, low in enumerate(lows)]
        highs = [0 if a in cut else high for a, high in enumerate(highs)]
    if not any((*lows, *highs)):
        return x
    return _pad(op, x, op.const(np.array([*lows, *highs], np.int64)), value)


def _cut_and_pad(
    op: Writer, x: ir.Value, axis: int, low: int, high: int, value: ir.Value
) -> ir.Value:
    """One axis padded on one side, then cut on the other."""
    rank = len(x.shape)  # type: ignore[arg-type]
    pads = np.zeros(2 * rank, np.int64)
    pads[axis], pads[rank + axis] = max(low, 0), max(high, 0)
    x = _pad(op, x, op.const(pads), value)
    size = int(x.shape[axis])  # type: ignore[index,arg-type]
    begin = max(0, -low)
    return op.part(x, axis, begin, max(size + min(0, high), begin))


def _pad(op: Writer, x: ir.Value, pads: ir.Value, value: ir.Value) -> ir.Value:
    if x.dtype == T.BOOL:
        return op.cast(op.Pad(op.cast(x, T.UINT8), pads, op.cast(value, T.UINT8)), T.BOOL)
    return op.Pad(x, pads, value)


def dilated(op: Writer, x: ir.Value, axis: int, factor: int, value: ir.Value) -> ir.Value:
    """`factor` - 1 elements of `value` between neighbours along an axis."""
    rank = len(x.shape)  # type: ignore[arg-type]
    size = op.dim(x, axis)
    if size == 0:
        return x
    wide = op.unsqueezed(x, [axis + 1])
    pads = np.zeros(2 * (rank + 1), np.int64)
    pads[rank + 1 + axis + 1] = factor - 1
    wide = _pad(op, wide, op.const(pads), value)
    dims = op.dims(x)
    if isinstance(size, int):
        dims[axis], end = size * factor, op.const(np.array([(size - 1) * factor + 1], np.int64))
    else:
        dims[axis] = op.Mul(size, [factor])
        end = op.Sub(dims[axis], [factor - 1])
    merged = op.reshape(wide, dims, allowzero=int(0 in [d for d in dims if isinstance(d, int)]))
    return op.part(merged, axis, 0, end)
