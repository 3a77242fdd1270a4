"""Patterns that would need a Transpose, rewritten so that a constant takes it over.

flatten   an image flattened for products with constant matrices: the rows of the matrices are
          permuted instead, and the image is flattened with its channels last
shuffle   channels reshaped into groups, transposed, and reshaped back: a Gather of channels
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.layout.axes import FIRST, rank_of, to_last, turns_freely, unknown_sizes
from sardonyx.passes.layout.roles import order_of
from sardonyx.passes.nesting import names
from sardonyx.values import constant

PRODUCTS = ("MatMul", "Gemm", "Linear")


def absorb_transposes(graph: ir.Graph, labels: Mapping[ir.Value, str]) -> int:
    """Rewrite both patterns where images have the label FIRST; how many there were."""
    op = Builder()
    op.reserve(names(graph))
    count = 0
    for node in list(graph):
        if node.op_type in ("Flatten", "Reshape") and labels.get(node.inputs[0]) == FIRST:  # type: ignore[arg-type]
            count += _flatten(op, graph, node) or _shuffle(op, graph, node)
    for value in op.constants.values():
        graph.register_initializer(value)
    if count:
        remove_dead(graph)
    return count


def _put(op: Builder, graph: ir.Graph, at: ir.Node, first: int) -> None:
    graph.insert_before(at, op.nodes[first:])


def _flatten(op: Builder, graph: ir.Graph, node: ir.Node) -> bool:
    x, (out,) = node.inputs[0], node.outputs
    assert x is not None and x.shape is not None
    dims = list(x.shape)
    inner = [d for d in dims[1:] if isinstance(d, int)]
    if rank_of(out) != 2 or len(inner) + 1 != len(dims) or unknown_sizes(out) > 1:
        return False
    if out.shape[1] != int(np.prod(inner)) or turns_freely(x, FIRST) or out.is_graph_output():  # type: ignore[index]
        return False
    readers = [(use.node, use.idx) for use in out.uses()]
    if not readers or not all(_takes_constant(n, i) and n.graph is graph for n, i in readers):
        return False
    order = np.arange(out.shape[1]).reshape(inner)  # type: ignore[index,arg-type]
    order = np.moveaxis(order, 0, -1).reshape(-1)
    first = len(op.nodes)
    with op.named(node.name or node.op_type):
        turned = op.Transpose(x, perm=to_last(len(dims)))
        sizes = [d if isinstance(d, int) else -1 for d in out.shape]  # type: ignore[union-attr]
        flat = op.Reshape(turned, np.array(sizes, np.int64))
        flat.shape = out.shape
        for reader, _ in readers:
            matrix = constant(reader.inputs[1])
            assert matrix is not None
            permuted = matrix[:, order] if _is_turned(reader) else matrix[order]
            name = reader.inputs[1].name or "weight"  # type: ignore[union-attr]
            reader.replace_input_with(1, op.weight(name, np.ascontiguousarray(permuted)))
            reader.replace_input_with(0, flat)
    _put(op, graph, node, first)
    return True


def _takes_constant(node: ir.Node, place: int) -> bool:
    """Whether a node multiplies a matrix of rows, at `place`, by a constant matrix."""
    if node.op_type not in PRODUCTS or place != 0 or len(node.inputs) < 2:
        return False
    matrix = node.inputs[1]
    is_plain = not node.attributes.get_int("transA", 0)
    return is_plain and matrix is not None and rank_of(matrix) == 2 and constant(matrix) is not None


def _is_turned(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("transB", 0) or node.attributes.get_int("transposed", 0))


def _shuffle(op: Builder, graph: ir.Graph, node: ir.Node) -> bool:
    """Channels in G groups of K become K groups of G."""
    x, (apart,) = node.inputs[0], node.outputs
    turn = _only_reader(apart)
    assert x is not None and x.shape is not None
    rank = rank_of(x)
    if turn is None or turn.op_type != "Transpose" or rank_of(apart) != rank + 1:
        return False
    back = _only_reader(turn.outputs[0])
    if order_of(turn) != [0, 2, 1, *range(3, rank + 1)] or back is None:
        return False
    (out,) = back.outputs
    channels = x.shape[1]
    same = out.shape is not None and list(out.shape) == list(x.shape)
    if back.op_type != "Reshape" or not same or not isinstance(channels, int):
        return False
    groups, size = apart.shape[1], apart.shape[2]  # type: ignore[index]
    if not isinstance(groups, int) or not isinstance(size, int) or groups * size != channels:
        return False
    if list(apart.shape)[3:] != list(x.shape)[2:]:  # type: ignore[arg-type]
        return False
    order = np.arange(channels).reshape(groups, size).T.reshape(-1)
    first = len(op.nodes)
    with op.named(back.name or "shuffle"):
        shuffled = op.Gather(x, order.astype(np.int64), axis=1)
    _put(op, graph, back, first)
    shuffled.type, shuffled.shape = out.type, out.shape
    out.replace_all_uses_with(shuffled, replace_graph_outputs=True)
    shuffled.name, out.name = out.name, None
    return True


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None
