"""Loops whose state grows, written out iteration by iteration before they are differentiated.

The gradient of a Loop is a Scan over tensors that were stacked, one slice per iteration. A state
that grows, such as the key-value cache of a decoder, has another shape in each iteration and cannot
be stacked. Where the number of iterations is a constant, the iterations become ordinary nodes.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from sardonyx.build import FLOATS, Builder, constant, infer
from sardonyx.errors import UnsupportedOp, quote
from sardonyx.model import Model
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import names

MOST_NODES = 10_000
GROWING = ("Concat", "Pad")


def unroll_growing_loops(model: Model) -> None:
    """Write out the Loops of a regular graph that carry a growing state; refuses unknown counts."""
    loops = [n for n in model.graph if n.op_type == "Loop" and n.domain == "" and _growing(n)]
    if not loops:
        return
    op = Builder("unroll")
    op.reserve(names(model.graph))
    for node in loops:
        count = _count(node)
        if count and count * len(node.attributes["body"].as_graph()) <= MOST_NODES:
            _unroll(model.graph, op, node, count)
    for value in op.constants.values():
        model.graph.register_initializer(value)


def refuse_growing(node: ir.Node, states: Collection[ir.Value]) -> None:
    """An error for a Loop that was not written out although one of `states` grows."""
    growing = [v for v in _growing(node) if v in states] if node.op_type == "Loop" else []
    if growing:
        raise UnsupportedOp(
            f"Loop {quote(node.name)} carries a state that grows from one iteration to the next",
            [[quote(v.name), str(v.shape)] for v in growing],
            hint="its gradient needs a constant number of iterations and no other end",
        )


def _growing(node: ir.Node) -> list[ir.Value]:
    """The floating-point states of a Loop that are longer after an iteration than before."""
    body = node.attributes["body"].as_graph()
    states = zip(list(body.inputs)[2:], list(body.outputs)[1:], strict=False)
    return [v for v, after in states if v.dtype in FLOATS and _is_extended(v, after)]


def _is_extended(before: ir.Value, after: ir.Value) -> bool:
    """Whether `after` is `before` with something appended: a Concat or Pad that reads it."""
    node = after.producer()
    while node is not None and node.op_type in ("Identity", "Cast"):
        source = node.inputs[0]
        node = source.producer() if source is not None else None
    return node is not None and node.op_type in GROWING and before in node.inputs


def _count(node: ir.Node) -> int | None:
    """The number of iterations, where nothing but a constant decides it."""
    body = node.attributes["body"].as_graph()
    count, go_on = constant(node.inputs[0]), node.inputs[1]
    if count is None or (go_on is not None and not _is_true(go_on)):
        return None
    end = body.outputs[0]
    while (producer := end.producer()) is not None and producer.op_type == "Identity":
        end = producer.inputs[0]  # type: ignore[assignment]
    return int(count.reshape(-1)[0]) if end is body.inputs[1] or _is_true(end) else None


def _is_true(value: ir.Value) -> bool:
    array = constant(value)
    return array is not None and bool(array.all())


def _unroll(graph: ir.Graph, op: Builder, node: ir.Node, count: int) -> None:
    body = node.attributes["body"].as_graph()
    states = list(node.inputs)[2:]
    kept = len(states)
    stacks: list[list[ir.Value]] = [[] for _ in list(body.outputs)[1 + kept :]]
    for iteration in range(count):
        values: dict[ir.Value, ir.Value | None] = {
            v: op.const(array)
            for v in body.initializers.values()
            if (array := constant(v)) is not None
        }
        values[body.inputs[0]] = op.const(iteration, ir.DataType.INT64)
        values[body.inputs[1]] = op.const(True, ir.DataType.BOOL)
        values.update(zip(list(body.inputs)[2:], states, strict=True))
        copies = copy_nodes(body, values, {}, lambda name: op.fresh(f"unroll/{name}"))
        for copy in copies:
            for value in copy.outputs:
                value.shape = None  # that of the body is the same in every iteration
            infer(copy)
        op.nodes.extend(copies)
        results = [values.get(v, v) for v in list(body.outputs)[1:]]
        states = results[:kept]
        for stack, element in zip(stacks, results[kept:], strict=True):
            stack.append(op.Unsqueeze(element, [0]))
    finals = [*states, *(op.Concat(*stack, axis=0) for stack in stacks)]
    for old, new in zip(node.outputs, finals, strict=False):
        if not old.uses() and not old.is_graph_output():
            continue
        final = op.Identity(new)
        name, old.name = old.name, op.fresh(f"{old.name}/loop")
        final.name = name
        old.replace_all_uses_with(final, replace_graph_outputs=True)
    graph.insert_before(node, op.nodes)
    op.nodes = []
    graph.remove(node, safe=True)
