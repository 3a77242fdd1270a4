"""Rules of gather, scatter and dynamic slices, in all modes.

The axes of an operand that are indexed go first, in the order of the indices; what an equation
reads or writes is then GatherND or ScatterND of one tensor of positions. A window that is longer
than one element along an indexed axis becomes more positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from jax.lax import GatherScatterMode

from sardonyx.build import constant
from sardonyx.importers.jax.driver import importer
from sardonyx.importers.jax.writer import Refusal, Writer, is_static

T = ir.DataType


@dataclass
class Windows:
    """Where the windows of an equation start, and what they cover.

    starts  -- int64 [batch…, number of indexed axes]
    shape   -- of the operand
    sizes   -- of a window, along every axis of the operand
    indexed -- the axes of the operand that the columns of `starts` belong to
    batched -- (axis of the operand, axis of `starts`) pairs that run together
    """

    op: Writer
    starts: ir.Value
    shape: Sequence[Any]
    sizes: Sequence[Any]
    indexed: list[int]
    batched: list[tuple[int, int]]

    @property
    def batch_shape(self) -> Sequence[Any]:
        return self.starts.meta["aval"].shape[:-1]

    @property
    def wide(self) -> list[int]:
        """Indexed axes along which a window has more than one element."""
        return [a for a in self.indexed if not _is_one(self.sizes[a])]

    @property
    def order(self) -> list[int]:
        """The axes of the operand: batched, indexed, then the rest."""
        first = [a for a, _ in self.batched] + self.indexed
        return first + [a for a in range(len(self.shape)) if a not in first]

    @property
    def rest(self) -> list[int]:
        return self.order[len(self.batched) + len(self.indexed) :]

    def last(self) -> ir.Value:
        """The last starts at which a window fits."""
        return self.op.vector([self.shape[a] - self.sizes[a] for a in self.indexed])

    def inside(self) -> ir.Value | None:
        """Whether each window fits into the operand, [batch…]; None where all do."""
        op, constants = self.op, constant(self.starts)
        limits = [self.shape[a] - self.sizes[a] for a in self.indexed]
        if constants is not None and is_static(limits):
            bounds = np.array(limits, np.int64)
            if ((constants >= 0) & (constants <= bounds)).all():
                return None
        fits = op.And(
            op.GreaterOrEqual(self.starts, op.const(np.int64(0))),
            op.LessOrEqual(self.starts, self.last()),
        )
        return op.ReduceMin(fits, [-1], keepdims=0)

    def clip(self) -> None:
        """Move windows that do not fit to where they do."""
        op, constants = self.op, constant(self.starts)
        if constants is not None and self.inside() is None:
            return
        aval = self.starts.meta["aval"]
        self.starts = op.Max(op.Min(self.starts, self.last()), op.const(np.int64(0)))
        self.starts.meta["aval"] = aval

    def positions(self) -> ir.Value:
        """The index of every element: [batch…, wide windows…, batched and indexed axes]."""
        op = self.op
        if not self.wide and not self.batched:
            return self.starts
        batch, wide = len(self.batch_shape), self.wide
        shape = [*self.batch_shape, *(self.sizes[a] for a in wide)]
        columns = []
        for _, axis in self.batched:
            columns.append(_along(op, op.iota(self.batch_shape[axis]), axis, len(shape)))
        for number, axis in enumerate(self.indexed):
            column = op.Gather(self.starts, op.const(np.int64(number)), axis=-1)
            column = op.unsqueezed(column, list(range(batch, len(shape))))
            if axis in wide:
                steps = _along(op, op.iota(self.sizes[axis]), batch + wide.index(axis), len(shape))
                column = op.Add(column, steps)
            columns.append(column)
        spread = [op.unsqueezed(op.expanded(c, shape), [len(shape)]) for c in columns]
        return op.Concat(*spread, axis=-1) if len(spread) > 1 else spread[0]


def _is_one(size: Any) -> bool:
    return isinstance(size, (int, np.integer)) and int(size) == 1


def _along(op: Writer, line: ir.Value, axis: int, rank: int) -> ir.Value:
    """A vector along one axis of `rank`."""
    return op.unsqueezed(line, [a for a in range(rank) if a != axis])


def _int64(op: Writer, indices: ir.Value) -> ir.Value:
    array = constant(indices)
    wide = op.const(array.astype(np.int64)) if array is not None else op.cast(indices, T.INT64)
    wide.meta["aval"] = indices.meta["aval"]
    return wide


def _arranged(op: Writer, x: ir.Value, labels: list[Any], order: list[Any]) -> ir.Value:
    """`x`, whose axes are called `labels`, with the axes `wanted`: new ones have size one."""
    axes = [i for i, label in enumerate(labels) if label not in order]
    x = op.squeezed(x, axes)
    labels = [label for label in labels if label in order]
    present = [label for label in order if label in labels]
    x = op.transpose(x, [labels.index(label) for label in present])
    return op.unsqueezed(x, [i for i, label in enumerate(order) if label not in labels])


@importer("gather")
def gather(
    op: Writer,
    x: ir.Value,
    indices: ir.Value,
    *,
    dimension_numbers: Any,
    slice_sizes: Any,
    mode: Any,
    fill_value: Any,
    out: Sequence[Any],
) -> ir.Value:
    numbers, shape = dimension_numbers, x.meta["aval"].shape
    mode = GatherScatterMode.from_any(mode)
    result = out[0].shape
    pairs = list(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    windows = Windows(
        op, _int64(op, indices), shape, slice_sizes, list(numbers.start_index_map), pairs
    )
    fill = mode == GatherScatterMode.FILL_OR_DROP
    inside = windows.inside() if fill and windows.indexed else None
    if is_static(shape) and 0 in shape:
        return op.expanded(_fill(op, x, fill_value), result)
    if windows.indexed:
        windows.clip()
    y, labels = _read(op, x, windows)
    offsets = [
        a for a in range(len(shape))
        if a not in numbers.collapsed_slice_dims and a not in numbers.operand_batching_dims
    ]  # fmt: skip
    batch = iter(f"batch{i}" for i in range(len(windows.batch_shape)))
    window = iter(offsets)
    order = [next(window) if d in numbers.offset_dims else next(batch) for d in range(len(result))]
    y = _arranged(op, y, labels, order)
    if inside is None:
        return y
    places = [d for d in range(len(result)) if d in numbers.offset_dims]
    return op.where(
        op.unsqueezed(inside, places), y, op.expanded(_fill(op, x, fill_value), [1] * len(result))
    )


def _read(op: Writer, x: ir.Value, windows: Windows) -> tuple[ir.Value, list[Any]]:
    """What the windows contain, and names for its axes."""
    for axis in windows.rest:
        if (
            windows.sizes[axis] is not windows.shape[axis]
            and windows.sizes[axis] != windows.shape[axis]
        ):
            x = op.part(x, axis, 0, op.size(windows.sizes[axis]))
    batch = [f"batch{i}" for i in range(len(windows.batch_shape))]
    if not windows.batched and not windows.indexed:
        y = op.expanded(
            op.unsqueezed(x, list(range(len(batch)))), [*windows.batch_shape, *windows.sizes]
        )
        return y, [*batch, *windows.rest]
    if len(windows.indexed) == 1 and not windows.batched and not windows.wide:
        (axis,) = windows.indexed
        line = op.squeezed(windows.starts, [len(batch)])
        before = [a for a in windows.rest if a < axis]
        after = [a for a in windows.rest if a > axis]
        return op.Gather(x, line, axis=axis), [*before, *batch, *after]
    y = op.GatherND(op.transpose(x, windows.order), windows.positions())
    return y, [*batch, *windows.wide, *windows.rest]


def _fill(op: Writer, x: ir.Value, value: Any) -> ir.Value:
    """What a window outside of the operand contains: NaN, or the most extreme integer."""
    kind = x.dtype
    assert kind is not None
    if value is None:
        if kind.is_floating_point():
            value = np.nan
        elif kind == T.BOOL:
            value = True
        else:
            limits = np.iinfo(kind.numpy())
            value = limits.min if limits.min < 0 else limits.max
    return op.const(np.asarray(value).astype(kind.numpy()))


# -- writing ------------------------------------------------------------------------------


@importer("scatter-add", "scatter_add")
def scatter_add(op: Writer, *operands: ir.Value, dimension_numbers: Any, mode: Any) -> ir.Value:
    return _write(op, *operands, numbers=dimension_numbers, mode=mode, how="add")


@importer("scatter-sub", "scatter_sub")
def scatter_sub(
    op: Writer,
    x: ir.Value,
    indices: ir.Value,
    updates: ir.Value,
    *,
    dimension_numbers: Any,
    mode: Any,
) -> ir.Value:
    aval = updates.meta["aval"]
    updates = op.Neg(updates)
    updates.meta["aval"] = aval
    return _write(op, x, indices, updates, numbers=dimension_numbers, mode=mode, how="add")


@importer("scatter-mul", "scatter_mul")
def scatter_mul(op: Writer, *operands: ir.Value, dimension_numbers: Any, mode: Any) -> ir.Value:
    return _write(op, *operands, numbers=dimension_numbers, mode=mode, how="mul")


@importer("scatter-max", "scatter_max")
def scatter_max(op: Writer, *operands: ir.Value, dimension_numbers: Any, mode: Any) -> ir.Value:
    return _write(op, *operands, numbers=dimension_numbers, mode=mode, how="max")


@importer("scatter-min", "scatter_min")
def scatter_min(op: Writer, *operands: ir.Value, dimension_numbers: Any, mode: Any) -> ir.Value:
    return _write(op, *operands, numbers=dimension_numbers, mode=mode, how="min")


@importer("scatter")
def scatter(
    op: Writer, *operands: ir.Value, dimension_numbers: Any, mode: Any, update_jaxpr: Any
) -> ir.Value:
    if update_jaxpr is not None and update_jaxpr.outvars != [update_jaxpr.invars[1]]:
        raise Refusal("a scatter by a function")
    return _write(op, *operands, numbers=dimension_numbers, mode=mode, how="none")


def _write(
    op: Writer,
    x: ir.Value,
    indices: ir.Value,
    updates: ir.Value,
    *,
    numbers: Any,
    mode: Any,
    how: str,
) -> ir.Value:
    shape, update_shape = x.meta["aval"].shape, updates.meta["aval"].shape
    if is_static((*shape, *update_shape)) and 0 in (*shape, *update_shape):
        return x
    if x.dtype == T.BOOL and how != "none":
        return op.cast(_write(
            op, _retyped(op, x, T.INT32), indices, _retyped(op, updates, T.INT32),
            numbers=numbers, mode=mode, how={"add": "max", "mul": "min"}.get(how, how),
        ), T.BOOL)  # fmt: skip
    hidden = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windowed = [a for a in range(len(shape)) if a not in hidden]
    sizes: list[Any] = [1] * len(shape)
    for axis, place in zip(windowed, numbers.update_window_dims, strict=True):
        sizes[axis] = update_shape[place]
    pairs = list(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    indexed = list(numbers.scatter_dims_to_operand_dims)
    windows = Windows(op, _int64(op, indices), shape, sizes, indexed, pairs)
    _index_partial(op, windows)
    batch = (f"batch{i}" for i in range(len(windows.batch_shape)))
    window = iter(windowed)
    labels: list[Any] = [
        next(window) if d in numbers.update_window_dims else next(batch)
        for d in range(len(update_shape))
    ]
    names = [f"batch{i}" for i in range(len(windows.batch_shape))]
    updates = _arranged(op, updates, labels, [*names, *windows.wide, *windows.rest])
    y = _scattered(op, op.transpose(x, windows.order), updates, windows, mode, how)
    return op.transpose(y, np.argsort(windows.order).tolist())


def _retyped(op: Writer, x: ir.Value, kind: ir.DataType) -> ir.Value:
    aval = x.meta["aval"]
    y = op.cast(x, kind)
    y.meta["aval"] = aval
    return y


def _index_partial(op: Writer, windows: Windows) -> None:
    """Index every axis that a window covers in part: such a window starts at 0."""
    partial = [
        a for a in windows.rest
        if windows.sizes[a] is not windows.shape[a] and windows.sizes[a] != windows.shape[a]
    ]  # fmt: skip
    if not windows.indexed and not partial and windows.rest:
        partial = windows.rest[:1]
    if not partial:
        return
    aval = windows.starts.meta["aval"]
    zeros = op.expanded(op.const(np.int64(0)), [*aval.shape[:-1], len(partial)])
    windows.starts = op.Concat(windows.starts, zeros, axis=-1) if windows.indexed else zeros
    windows.starts.meta["aval"] = aval.update(
        shape=(*aval.shape[:-1], len(windows.indexed) + len(partial))
    )
    windows.indexed = windows.indexed + partial


NEUTRAL = {
    "add": lambda kind: 0,
    "mul": lambda kind: 1,
    "max": lambda kind: _lowest(kind),
    "min": lambda kind: _highest(kind),
}


def _lowest(kind: Any) -> Any:
    return -np.inf if np.dtype(kind).kind not in "iu" else np.iinfo(kind).min


def _highest(kind: Any) -> Any:
    return np.inf if np.dtype(kind).kind not in "iu" else np.iinfo(kind).max


def _scattered(
    op: Writer, x: ir.Value, updates: ir.Value, windows: Windows, mode: Any, how: str
) -> ir.Value:
    """ScatterND; a window that does not fit is dropped, or moved to where it does."""
    mode = GatherScatterMode.from_any(mode)
    # XLA drops what is out of bounds also where the code has promised that nothing is.
    inside = windows.inside() if mode != GatherScatterMode.CLIP else None
    windows.clip()
    positions = windows.positions()
    if inside is None:
        return op.ScatterND(x, positions, updates, reduction=how)
    places = list(range(len(windows.batch_shape), len(updates.shape)))  # type: ignore[arg-type]
    if how != "none":
        neutral = op.const(np.asarray(NEUTRAL[how](x.dtype.numpy())).astype(x.dtype.numpy()))  # type: ignore[union-attr]
        updates = op.where(op.unsqueezed(inside, places), updates, neutral)
        return op.ScatterND(x, positions, updates, reduction=how)
    # A row behind the operand takes what is dropped.
    axis = len(windows.batched)
    row = op.part(x, axis, 0, 1)
    size = op.dim(x, axis)
    behind = op.const(np.array([size], np.int64)) if isinstance(size, int) else size
    wide = list(range(len(windows.batch_shape), len(windows.batch_shape) + len(windows.wide) + 1))
    outside = op.unsqueezed(op.Not(inside), wide)
    column = np.zeros(len(windows.batched) + len(windows.indexed), bool)
    column[axis] = True
    positions = op.Where(op.And(outside, op.const(column)), behind, positions)
    longer = op.ScatterND(op.Concat(x, row, axis=axis), positions, updates)
    return op.part(longer, axis, 0, size)


# -- dynamic slices -----------------------------------------------------------------------


def _start(op: Writer, start: ir.Value, size: Any, length: Any) -> ir.Value:
    """A scalar start, moved to where a slice of `length` fits, as a vector of one."""
    line = op.Reshape(op.cast(start, T.INT64), [1])
    last = op.vector([size - length])
    return op.Max(op.Min(line, last), op.const(np.array([0], np.int64)))


@importer("dynamic_slice")
def dynamic_slice(op: Writer, x: ir.Value, *starts: ir.Value, slice_sizes: Any) -> ir.Value:
    shape = x.meta["aval"].shape
    axes = [a for a, s in enumerate(slice_sizes) if s is not shape[a] and s != shape[a]]
    if not axes:
        return x
    begins = [_start(op, starts[a], shape[a], slice_sizes[a]) for a in axes]
    begin = op.Concat(*begins, axis=0) if len(begins) > 1 else begins[0]
    end = op.Add(begin, op.vector([slice_sizes[a] for a in axes]))
    return op.Slice(x, begin, end, axes, [1] * len(axes))


@importer("dynamic_update_slice")
def dynamic_update_slice(op: Writer, x: ir.Value, update: ir.Value, *starts: ir.Value) -> ir.Value:
    shape, sizes = x.meta["aval"].shape, update.meta["aval"].shape
    if is_static(sizes) and 0 in sizes:
        return x
    axes = [a for a, s in enumerate(sizes) if s is not shape[a] and s != shape[a]]
    begins = {a: _start(op, starts[a], shape[a], sizes[a]) for a in axes}
    return _replaced(op, x, update, sizes, begins, axes)


def _replaced(
    op: Writer,
    x: ir.Value,
    update: ir.Value,
    sizes: Any,
    begins: dict[int, ir.Value],
    axes: list[int],
) -> ir.Value:
    if not axes:
        return update
    axis, *others = axes
    begin = begins[axis]
    end = op.Add(begin, op.vector([sizes[axis]]))
    middle = update
    if others:
        middle = _replaced(op, op.part(x, axis, begin, end), update, sizes, begins, others)
    before = op.part(x, axis, 0, begin)
    after = op.part(x, axis, end, np.iinfo(np.int64).max)
    return op.Concat(before, middle, after, axis=axis)
