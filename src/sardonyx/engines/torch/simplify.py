"""Removes work from a traced graph that undoes itself or has a constant result.

Exporters cut the weights of recurrent layers into gates and join them in ONNX's order, and torch's
layers need them in torch's order: both steps together often give the original weight. Small results
that depend on constants alone become constants.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from sardonyx.engines.torch.xp import torch

aten = torch.ops.aten
Node = Any  # torch.fx.Node
CONSTANT = "_tensor_constant"  # the prefix of torch's names for tensors met while tracing
STORED_ELEMENTS = 1 << 10  # the most elements of a result that is stored rather than computed
MANY = 64  # the most pieces to track: layers have eight, repeated doubling has no end

# Rows `start` to `stop` of a node's result, along its first axis.
Piece = tuple[Node, int, int]


def simplify(module: torch.fx.GraphModule, is_inner: bool = False) -> None:
    """Remove both kinds of work from `module`, whose nodes still have the trace's metadata.

    is_inner -- a body of a branch or loop, which has no constants of its own
    """
    _put_rows_back(module.graph)
    if not is_inner:
        _compute_constants(module)
    module.graph.eliminate_dead_code()


# -- rows -------------------------------------------------------------------------


def _put_rows_back(graph: torch.fx.Graph) -> None:
    pieces: dict[Node, list[Piece]] = {}
    for node in graph.nodes:
        if _rows(node) is None:
            continue
        pieces[node] = _pieces(node, pieces)
        if len(pieces[node]) == 1 and pieces[node][0][0] is not node:
            source, start, stop = pieces[node][0]
            if (start, stop) == (0, _rows(source)):
                node.replace_all_uses_with(source)


def _rows(node: Any) -> int | None:
    """The size of the first axis, where it is a number."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.ndim or not isinstance(value.shape[0], int):
        return None
    return value.shape[0]


def _pieces(node: Node, pieces: dict[Node, list[Piece]]) -> list[Piece]:
    """The rows of `node` in order: parts of other nodes, or itself."""
    parts = None
    if node.op == "call_function" and node.target in _PIECES:
        parts = _PIECES[node.target](node, pieces)
    return [(node, 0, _rows(node) or 0)] if parts is None else _joined(parts)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for source, start, stop in pieces:
        if joined and joined[-1][0] is source and joined[-1][2] == start:
            joined[-1] = (source, joined[-1][1], stop)
        else:
            joined.append((source, start, stop))
    return joined


def _cut(pieces: Sequence[Piece], start: int, stop: int) -> list[Piece]:
    parts, at = [], 0
    for source, first, last in pieces:
        low, high = max(start - at, 0), min(stop - at, last - first)
        if low < high:
            parts.append((source, first + low, first + high))
        at += last - first
    return parts


def _of_cat(node: Node, pieces: dict[Node, list[Piece]]) -> list[Piece] | None:
    parts, axis = node.args[0], node.args[1] if len(node.args) > 1 else 0
    if axis != 0 or not all(p in pieces for p in parts):
        return None
    if sum(len(pieces[part]) for part in parts) > MANY:
        return None
    return [piece for part in parts for piece in pieces[part]]


def _of_slice(node: Node, pieces: dict[Node, list[Piece]]) -> list[Piece] | None:
    arguments: list[Any] = [*node.args, *(None, 0, None, None, 1)[len(node.args) :]]
    x, axis, start, stop, step = arguments
    rows = _rows(x)
    if x not in pieces or rows is None or axis != 0 or step != 1:
        return None
    ends: list[Any] = [0 if start is None else start, rows if stop is None else stop]
    if not all(isinstance(e, int) for e in ends):
        return None
    first, last, _ = slice(*ends).indices(rows)
    return _cut(pieces[x], first, last)


def _of_item(node: Node, pieces: dict[Node, list[Piece]]) -> list[Piece] | None:
    split, position = node.args
    if split.op != "call_function" or split.target not in (
        aten.split.Tensor,
        aten.split_with_sizes.default,
    ):
        return None
    x, sizes, axis = (*split.args, 0)[:3]
    if x not in pieces or axis != 0:
        return None
    if isinstance(sizes, int):
        return _cut(pieces[x], position * sizes, (position + 1) * sizes)
    if not all(isinstance(s, int) for s in sizes):
        return None
    start = sum(sizes[:position])
    return _cut(pieces[x], start, start + sizes[position])


def _of_select(node: Node, pieces: dict[Node, list[Piece]]) -> list[Piece] | None:
    x, axis, position = node.args
    rows = _rows(x)
    if x not in pieces or rows is None or axis != 0 or not isinstance(position, int):
        return None
    position += rows if position < 0 else 0
    ((source, _, _),) = _cut(pieces[x], position, position + 1)
    return _without_first_axis(source, pieces)


def _of_squeeze(node: Node, pieces: dict[Node, list[Piece]]) -> list[Piece] | None:
    x, axes = (*node.args, None)[:2]
    if x not in pieces or axes not in (0, [0], (0,)) or _rows(x) != 1:
        return None
    ((source, _, _),) = pieces[x]
    return _without_first_axis(source, pieces)


def _without_first_axis(source: Node, pieces: dict[Node, list[Piece]]) -> list[Piece] | None:
    if source.op != "call_function" or source.target is not aten.unsqueeze.default:
        return None
    inner, axis = source.args
    return pieces.get(inner) if axis == 0 else None


_PIECES = {
    aten.cat.default: _of_cat,
    aten.slice.Tensor: _of_slice,
    operator.getitem: _of_item,
    aten.select.int: _of_select,
    aten.squeeze.dim: _of_squeeze,
    aten.squeeze.dims: _of_squeeze,
}


# -- constants --------------------------------------------------------------------


def _compute_constants(module: torch.fx.GraphModule) -> None:
    """Store small results of constants; not floats, which may still change their type."""
    values: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            tensor = getattr(module, node.target, None)
            if isinstance(tensor, torch.Tensor):
                values[node] = tensor
        elif _is_pure(node) and all(n in values for n in node.all_input_nodes):
            arguments = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            with torch.no_grad():
                values[node] = node.target(*arguments[0], **arguments[1])
    graph = module.graph
    for node, value in values.items():
        read_later = any(user not in values for user in node.users)
        if node.op == "get_attr" or not read_later or not isinstance(value, torch.Tensor):
            continue
        name = f"{CONSTANT}_computed{len(module._buffers)}"
        module.register_buffer(name, value.clone(), persistent=False)
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.get_attr(name))


def _is_pure(node: Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(d, int) for d in value.shape):
        return False
    target = node.target
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return False
    is_random = torch.Tag.nondeterministic_seeded in target.tags
    return value.numel() <= STORED_ELEMENTS and not is_random and not target._schema.is_mutable
