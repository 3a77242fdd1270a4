"""Elements written by indices: ScatterElements, ScatterND, TensorScatter.

# NOTE [duplicate indices]
With reduction "none" ONNX leaves open which of several updates of one element wins. The update
that did not win has no influence, so no gradient. The rule lets the runtime that runs the model
decide: it scatters the numbers of the updates in the same way and sees which ones are still there.
Known indices without duplicates need none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.build import HALF, Builder, constant, is_static, rank, static
from sardonyx.errors import ArgumentError, quote
from sardonyx.grad.driver import gradient_rule
from sardonyx.grad.tensor.gather import counted, wide

Grads = tuple[ir.Value | None, ...]


@dataclass
class Places:
    """How one scatter node reads and writes at its indices."""

    op: Builder
    read: Callable[[ir.Value], ir.Value]  # a tensor like the data, at the indices
    write: Callable[..., ir.Value]  # (data, updates, reduction)
    winners: Callable[[], ir.Value | None]  # mask of the updates that survive; None: all


@gradient_rule("ScatterElements")
def scatter_elements(op, g, x, indices, updates, *, axis, reduction):
    def write(data: ir.Value, new: ir.Value, how: str) -> ir.Value:
        return op.ScatterElements(data, indices, new, axis=axis, reduction=how)

    def read(data: ir.Value) -> ir.Value:
        return op.GatherElements(data, indices, axis=axis)

    def winners() -> ir.Value | None:
        if _distinct_elements(indices, x, axis):
            return None
        shape = op.shape(indices)
        numbers = op.Reshape(counted(op, op.ReduceProd(shape, keepdims=1)), shape, allowzero=1)
        return op.Equal(read(write(op.fill(0, x, ir.DataType.INT64), numbers, "none")), numbers)

    return _scatter(Places(op, read, write, winners), g, x, updates, reduction)


@gradient_rule("ScatterND")
def scatter_nd(op, g, x, indices, updates, *, reduction):
    def write(data: ir.Value, new: ir.Value, how: str) -> ir.Value:
        return op.ScatterND(data, indices, new, reduction=how)

    def read(data: ir.Value) -> ir.Value:
        return op.GatherND(data, indices)

    def winners() -> ir.Value | None:
        if _distinct_tuples(indices, x):
            return None
        depth = _depth(indices)
        tuples = op.Shape(indices, end=-1)
        numbers = op.Reshape(counted(op, op.ReduceProd(tuples, keepdims=1)), tuples, allowzero=1)
        no_row = ir.tensor(np.zeros(1, np.int64))
        board = op.ConstantOfShape(op.Shape(x, end=depth), value=no_row)
        alive = op.Equal(read(write(board, numbers, "none")), numbers)
        return op.Unsqueeze(alive, list(range(-(rank(x) - depth), 0))) if rank(x) > depth else alive

    return _scatter(Places(op, read, write, winners), g, x, updates, reduction)


def _depth(indices: ir.Value) -> int:
    """How many axes of the data an index tuple names."""
    assert indices.shape is not None
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise ArgumentError(
            f"the last dimension of {quote(indices.name)}, indices of a ScatterND, is not known",
            hint="declare the shapes of the model's inputs",
        )
    return depth


def _distinct_elements(indices: ir.Value, x: ir.Value, axis: int) -> bool:
    positions = constant(indices)
    size = None if x.shape is None else x.shape[axis]
    if positions is None or not isinstance(size, int):
        return False
    along = np.sort(np.where(positions < 0, positions + size, positions), axis=axis)
    return not (np.diff(along, axis=axis) == 0).any()


def _distinct_tuples(indices: ir.Value, x: ir.Value) -> bool:
    positions = constant(indices)
    if positions is None or not is_static(x):
        return False
    tuples = positions.reshape(-1, positions.shape[-1])
    sizes = np.array(static(x)[: positions.shape[-1]])
    unique = np.unique(np.where(tuples < 0, tuples + sizes, tuples), axis=0)
    return len(unique) == len(tuples)


# -- one rule for both --------------------------------------------------------------


def _scatter(at: Places, g: ir.Value, x: ir.Value, updates: ir.Value, reduction: str) -> Grads:
    op = at.op
    if reduction == "add":
        return g, None, at.read(g)
    if reduction == "none":
        winners = at.winners()
        new = at.read(g)
        dx = at.write(g, op.fill(0, updates, g.dtype), "none")
        return dx, None, new if winners is None else op.Where(winners, new, 0.0)
    if x.dtype in HALF:
        g, x, updates = (wide(op, v) for v in (g, x, updates))
    if reduction == "mul":
        return _scatter_product(at, g, x, updates)
    return _scatter_extreme(at, g, x, updates, at.write(x, updates, reduction))


def _scatter_product(at: Places, g: ir.Value, x: ir.Value, updates: ir.Value) -> Grads:
    """Each factor gets the product of the others, exact where some are zero.

    A single zero among the others is a factor like any other: the product is 0, its derivative by
    that zero is not.
    """
    op = at.op
    is_zero = op.Equal(updates, 0.0)
    safe, zero = op.Where(is_zero, 1.0, updates), op.Where(is_zero, updates, 0.0)
    ones = op.cast(is_zero, x.dtype)  # type: ignore[arg-type]
    product = at.read(at.write(op.fill(1, x), safe, "mul"))
    count = at.read(at.write(op.zeros_like(x), ones, "add")) - ones
    lone = at.read(at.write(op.zeros_like(x), zero, "add")) - zero
    single = op.Where(op.Equal(count, 1.0), lone, 0.0)
    rest = product / safe * op.Where(op.Equal(count, 0.0), 1.0, single)
    return g * at.write(op.fill(1, x), updates, "mul"), None, at.read(g * x) * rest


def _scatter_extreme(at: Places, g: ir.Value, x: ir.Value, updates: ir.Value, y: ir.Value) -> Grads:
    """Equal shares among all that are the minimum or maximum, the data included."""
    op = at.op
    first = op.cast(op.Equal(x, y), x.dtype)  # type: ignore[arg-type]
    chosen = op.cast(op.Equal(updates, at.read(y)), x.dtype)  # type: ignore[arg-type]
    share = g / at.write(first, chosen, "add")
    return share * first, None, at.read(share) * chosen


# -- TensorScatter ----------------------------------------------------------------


@gradient_rule("TensorScatter")
def tensor_scatter(op, g, cache, update, write_indices, *, axis, mode):
    axis %= rank(cache)
    size, length = op.dim(cache, axis), op.dim(update, axis)
    steps = [1] * rank(cache)
    steps[axis] = -1
    index = op.Reshape(counted(op, length), steps)
    if write_indices is not None:
        batch = [-1, *([1] * (rank(cache) - 1))]
        index = op.Add(index, op.Reshape(write_indices, batch))
    if mode == "circular":
        index = op.Mod(index, size)
    index = op.Expand(index, op.shape(update))
    zeros = op.zeros_like(update)
    return (
        op.ScatterElements(g, index, zeros, axis=axis, reduction="none"),
        op.GatherElements(g, index, axis=axis),
        None,
    )
