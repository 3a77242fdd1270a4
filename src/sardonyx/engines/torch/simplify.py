"""A traced graph without work that undoes itself or never changes.

Exporters cut the weights of recurrent layers into gates and join them in ONNX's order; torch's
layers want them joined in torch's: what is left of both is the weight. Small results that depend on
constants alone are constants.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from sardonyx.engines.torch.xp import torch

aten = torch.ops.aten
Node = Any  # torch.fx.Node
CONSTANT = "_tensor_constant"  # how torch calls tensors that it met while tracing
SMALL = 1 << 10  # elements of a result that is kept rather than computed
MANY = 64  # pieces: layers have eight, and what is doubled again and again has no end

# Rows `start` to `stop` of what a node gives, along its first axis.
Piece = tuple[Node, int, int]


def simplify(module: torch.fx.GraphModule, is_inner: bool = False) -> None:
    """Take both kinds of work out of `module`, whose nodes still know what they give.

    is_inner -- a body of a branch or loop, which has no constants of its own
    """
    _put_rows_back(module.graph)
    if not is_inner:
        _compute_constants(module)
    module.graph.eliminate_dead_code()


# -- rows -------------------------------------------------------------------------


def _put_rows_back(graph: torch.fx.Graph) -> None:
    known: dict[Node, list[Piece]] = {}
    for node in graph.nodes:
        if _rows(node) is None:
            continue
        known[node] = _pieces(node, known)
        if len(known[node]) == 1 and known[node][0][0] is not node:
            source, start, stop = known[node][0]
            if (start, stop) == (0, _rows(source)):
                node.replace_all_uses_with(source)


def _rows(node: Any) -> int | None:
    """The size of the first axis, where it is a number."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.ndim or not isinstance(value.shape[0], int):
        return None
    return value.shape[0]


def _pieces(node: Node, known: dict[Node, list[Piece]]) -> list[Piece]:
    """What the rows of `node` are, in order: parts of others, or itself."""
    found = None
    if node.op == "call_function" and node.target in _PIECES:
        found = _PIECES[node.target](node, known)
    return [(node, 0, _rows(node) or 0)] if found is None else _joined(found)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    found: list[Piece] = []
    for source, start, stop in pieces:
        if found and found[-1][0] is source and found[-1][2] == start:
            found[-1] = (source, found[-1][1], stop)
        else:
            found.append((source, start, stop))
    return found


def _cut(pieces: Sequence[Piece], start: int, stop: int) -> list[Piece]:
    found, at = [], 0
    for source, first, last in pieces:
        low, high = max(start - at, 0), min(stop - at, last - first)
        if low < high:
            found.append((source, first + low, first + high))
        at += last - first
    return found


def _of_cat(node: Node, known: dict[Node, list[Piece]]) -> list[Piece] | None:
    parts, axis = node.args[0], node.args[1] if len(node.args) > 1 else 0
    if axis != 0 or not all(p in known for p in parts):
        return None
    if sum(len(known[part]) for part in parts) > MANY:
        return None
    return [piece for part in parts for piece in known[part]]


def _of_slice(node: Node, known: dict[Node, list[Piece]]) -> list[Piece] | None:
    given: list[Any] = [*node.args, *(None, 0, None, None, 1)[len(node.args) :]]
    x, axis, start, stop, step = given
    rows = _rows(x)
    if x not in known or rows is None or axis != 0 or step != 1:
        return None
    ends: list[Any] = [0 if start is None else start, rows if stop is None else stop]
    if not all(isinstance(e, int) for e in ends):
        return None
    first, last, _ = slice(*ends).indices(rows)
    return _cut(known[x], first, last)


def _of_item(node: Node, known: dict[Node, list[Piece]]) -> list[Piece] | None:
    split, position = node.args
    if split.op != "call_function" or split.target not in (
        aten.split.Tensor,
        aten.split_with_sizes.default,
    ):
        return None
    x, sizes, axis = (*split.args, 0)[:3]
    if x not in known or axis != 0:
        return None
    if isinstance(sizes, int):
        return _cut(known[x], position * sizes, (position + 1) * sizes)
    if not all(isinstance(s, int) for s in sizes):
        return None
    start = sum(sizes[:position])
    return _cut(known[x], start, start + sizes[position])


def _of_select(node: Node, known: dict[Node, list[Piece]]) -> list[Piece] | None:
    x, axis, position = node.args
    rows = _rows(x)
    if x not in known or rows is None or axis != 0 or not isinstance(position, int):
        return None
    position += rows if position < 0 else 0
    ((source, _, _),) = _cut(known[x], position, position + 1)
    return _without_first_axis(source, known)


def _of_squeeze(node: Node, known: dict[Node, list[Piece]]) -> list[Piece] | None:
    x, axes = (*node.args, None)[:2]
    if x not in known or axes not in (0, [0], (0,)) or _rows(x) != 1:
        return None
    ((source, _, _),) = known[x]
    return _without_first_axis(source, known)


def _without_first_axis(source: Node, known: dict[Node, list[Piece]]) -> list[Piece] | None:
    if source.op != "call_function" or source.target is not aten.unsqueeze.default:
        return None
    inner, axis = source.args
    return known.get(inner) if axis == 0 else None


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
    """Keep what small functions of constants give; floats may yet change their type."""
    values: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            held = getattr(module, node.target, None)
            if isinstance(held, torch.Tensor):
                values[node] = held
        elif _is_pure(node) and all(n in values for n in node.all_input_nodes):
            given = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            with torch.no_grad():
                values[node] = node.target(*given[0], **given[1])
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
    drawn = torch.Tag.nondeterministic_seeded in target.tags
    return value.numel() <= SMALL and not drawn and not target._schema.is_mutable
