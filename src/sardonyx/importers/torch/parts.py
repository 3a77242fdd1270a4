"""Parts of an axis of free size as slices.

Torch's exporter writes them as a sequence whose length nothing says (`torch.cat([a, b]).chunk(2)`).
"""

from __future__ import annotations

import operator

import torch

aten = torch.ops.aten


def write_slices(node: torch.fx.Node) -> None:
    """Replace the parts that `chunk` or `split` returns by slices, where the axis is free."""
    x, count, *rest = node.args
    axis = node.kwargs.get("dim", rest[0] if rest else 0)
    size = x.meta["val"].shape[axis]  # type: ignore[union-attr]
    if isinstance(size, int) and isinstance(count, int):
        return
    with node.graph.inserting_before(node):
        if node.target is aten.chunk.default:
            whole = _call(node, aten.sym_size.int, x, axis)
            rounded_up = _call(node, operator.add, whole, count - 1)  # type: ignore[operator]
            count = _call(node, operator.floordiv, rounded_up, count)
        for part in [user for user in node.users if user.target is operator.getitem]:
            place = part.args[1]
            start = _call(node, operator.mul, count, place)
            end = _call(node, operator.mul, count, place + 1)  # type: ignore[operator]
            piece = _call(node, aten.slice.Tensor, x, axis, start, end)
            piece.meta = {**node.meta, "val": part.meta["val"]}
            part.replace_all_uses_with(piece)


def _call(node: torch.fx.Node, target: object, *arguments: object) -> torch.fx.Node:
    """A call before a node, at the same line of the user."""
    call = node.graph.call_function(target, arguments)  # type: ignore[arg-type]
    values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in arguments]
    call.meta = {**node.meta, "val": None if target is aten.slice.Tensor else target(*values)}  # type: ignore[operator]
    return call
