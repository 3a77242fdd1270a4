"""Rules of operators that move elements, and of sizes: those of whole tensors."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.engines.rows.work import (
    NeedsWhole,
    Work,
    after_output,
    axis_of,
    give,
    numbers,
    only_first,
    rank_of,
    replace,
)


def shape(work: Work, node: ir.Node) -> None:
    """The sizes of the whole tensor."""
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", rank)
    factors = [work.world.size if a == axis else 1 for a in range(rank)][start:end]
    if any(f > 1 for f in factors):
        times = work.op.const(np.array(factors, np.int64))
        after_output(work, node, lambda y: work.op.Mul(y, times))


def size(work: Work, node: ir.Node) -> None:
    only_first(work, node)
    times = work.op.const(np.int64(work.world.size))

    def change(value: ir.Value) -> ir.Value:
        result = work.op.Mul(value, times)
        work.counts.add(result)
        return result  # type: ignore[no-any-return]

    after_output(work, node, change)


def number_rows(work: Work, node: ir.Node) -> None:
    """Range over the elements of a parted tensor: those of this part."""
    start, limit, step = node.inputs
    if limit not in work.counts or numbers(start) != [0] or numbers(step) != [1]:
        raise NeedsWhole
    op, world = work.op, work.world
    each = op.Div(limit, op.const(np.int64(world.size)))
    first = op.Mul(each, op.const(np.int64(world.rank)))
    replace(work, node, 0, first)
    replace(work, node, 1, op.Add(first, each))
    work.insert(node)
    give(work, node, 0)


def reshape(work: Work, node: ir.Node) -> None:
    x, sizes = node.inputs
    axis, new = only_first(work, node), node.outputs[0]
    before, after = dims(x), dims(new)
    place = _reshaped_axis(before, axis, after, work.world.size)
    _local_size(work, node, 1, sizes, place, keeps_zero=place == axis)
    give(work, node, place)


def _reshaped_axis(
    before: list[int | str | None], axis: int, after: list[int | str | None], parts: int
) -> int:
    """Where the parts are in a tensor of another shape: they are of consecutive elements."""
    if any(d != 1 for d in before[:axis]):
        same = before[:axis] == after[:axis] and None not in before[:axis]
        if same and len(after) > axis and after[axis] == before[axis] is not None:
            return axis
        raise NeedsWhole
    for place, dim in enumerate(after):
        if dim == 1:
            continue
        if isinstance(dim, int) and dim % parts:
            raise NeedsWhole
        return place
    raise NeedsWhole


def _local_size(
    work: Work, node: ir.Node, place: int, sizes: ir.Value | None, axis: int, keeps_zero: bool
) -> None:
    """Divide one of the sizes that a node is given by the number of parts."""
    if sizes is None:
        raise NeedsWhole
    parts, array = work.world.size, constant(sizes)
    if array is not None:
        number = int(array[axis])
        if number == -1 or (number == 0 and keeps_zero):
            return
        if number <= 0 or number % parts:
            raise NeedsWhole
        local = array.copy()
        local[axis] = number // parts
        replace(work, node, place, work.op.const(local))
        return
    piece = _piece(sizes, axis)
    size = None if piece is None else constant(piece)
    if size is not None:
        number = int(size.reshape(-1)[0])
        if number == -1 or (number == 0 and keeps_zero):
            return
        if number <= 0 or number % parts:
            raise NeedsWhole
    elif piece is None and sizes.producer() is not None and not _has_sizes(sizes):
        raise NeedsWhole
    length = dims(sizes)[0]
    if not isinstance(length, int):
        raise NeedsWhole
    factors = np.ones(length, np.int64)
    factors[axis] = parts
    replace(work, node, place, work.op.Div(sizes, work.op.const(factors)))


def _piece(sizes: ir.Value, axis: int) -> ir.Value | None:
    """The part of a Concat that has the size of an axis, where each part has one."""
    node = sizes.producer()
    if node is None or node.op_type != "Concat":
        return None
    parts = list(node.inputs)
    if any(v is None or dims(v) != [1] for v in parts) or axis >= len(parts):
        return None
    return parts[axis]


def _has_sizes(sizes: ir.Value) -> bool:
    """Whether a vector is that of a shape, in which no number has another meaning."""
    node = sizes.producer()
    while node is not None and node.op_type in ("Mul", "Identity"):
        first = node.inputs[0]
        node = None if first is None else first.producer()
    return node is not None and node.op_type == "Shape"


def dims(value: ir.Value | None) -> list[int | str | None]:
    if value is None or value.shape is None:
        raise NeedsWhole
    return [d if isinstance(d, int) else d.value for d in value.shape]


def flatten(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    at = node.attributes.get_int("axis", 1) % (rank + 1)
    before = dims(node.inputs[0])
    if axis < at:
        if any(d != 1 for d in before[:axis]):
            raise NeedsWhole
        return give(work, node, 0)
    if any(d != 1 for d in before[at:axis]):
        raise NeedsWhole
    return give(work, node, 1)


def transpose(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    perm = node.attributes.get("perm")
    order = list(perm.value) if perm is not None else list(range(rank))[::-1]
    give(work, node, order.index(axis))


def unsqueeze(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.outputs[0])
    new = {a % rank for a in numbers(node.inputs[1])}
    give(work, node, [a for a in range(rank) if a not in new][axis])


def squeeze(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    removed_axes = {a % rank for a in numbers(node.inputs[1] if len(node.inputs) > 1 else None)}
    if axis in removed_axes:
        raise NeedsWhole
    give(work, node, axis - sum(a < axis for a in removed_axes))


def expand(work: Work, node: ir.Node) -> None:
    x, sizes = node.inputs
    axis, rank, out = only_first(work, node), rank_of(x), rank_of(node.outputs[0])
    place = axis - rank + out
    (length,) = dims(sizes)
    if not isinstance(length, int):
        raise NeedsWhole
    if place - out + length >= 0:
        shape = constant(sizes) if sizes is not None else None
        at = place - out + length
        if shape is None or int(shape[at]) != 1:
            _local_size(work, node, 1, sizes, at, keeps_zero=False)
    give(work, node, place)


def tile(work: Work, node: ir.Node) -> None:
    axis = only_first(work, node)
    if numbers(node.inputs[1])[axis] != 1:
        raise NeedsWhole
    give(work, node, axis)


def concat(work: Work, node: ir.Node) -> None:
    rank = rank_of(node.outputs[0])
    axes = {a for v in node.inputs if (a := axis_of(work, v)) is not None}
    if len(axes) != 1 or node.attributes.get_int("axis", 0) % rank in axes:
        raise NeedsWhole
    (axis,) = axes
    for place, value in enumerate(node.inputs):
        if value is not None and value not in work.axes:
            replace(work, node, place, work.own(value, axis))
    give(work, node, axis)


def split(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    if node.attributes.get_int("axis", 0) % rank == axis:
        raise NeedsWhole
    give(work, node, axis)


def slice_(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    axes_input = node.inputs[3] if len(node.inputs) > 3 else None
    axes = (
        numbers(axes_input) if axes_input is not None else list(range(len(numbers(node.inputs[1]))))
    )
    if axis in {a % rank for a in axes}:
        raise NeedsWhole
    give(work, node, axis)


def pad(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    axes_input = node.inputs[3] if len(node.inputs) > 3 else None
    axes = [a % rank for a in numbers(axes_input)] if axes_input is not None else list(range(rank))
    pads = numbers(node.inputs[1])
    if axis in axes and any(pads[axes.index(axis) + k * len(axes)] for k in (0, 1)):
        raise NeedsWhole
    give(work, node, axis)


def gather(work: Work, node: ir.Node) -> None:
    data, indices = node.inputs
    rank = rank_of(data)
    along = node.attributes.get_int("axis", 0) % rank
    of_data, of_indices = axis_of(work, data), axis_of(work, indices)
    if of_data is None and of_indices is not None:
        return give(work, node, along + of_indices)
    if of_indices is not None or of_data is None or of_data == along:
        raise NeedsWhole
    return give(work, node, of_data if of_data < along else of_data + rank_of(indices) - 1)


def gather_elements(work: Work, node: ir.Node) -> None:
    data, indices = node.inputs
    axes = {axis_of(work, data), axis_of(work, indices)}
    if len(axes) != 1 or None in axes:
        raise NeedsWhole
    (axis,) = axes
    assert axis is not None
    if node.attributes.get_int("axis", 0) % rank_of(data) == axis:
        raise NeedsWhole
    give(work, node, axis)
