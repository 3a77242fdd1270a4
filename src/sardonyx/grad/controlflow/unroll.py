"""Loops whose state changes its shape, written out iteration by iteration before they are
differentiated.

The gradient of a Loop is a Scan over tensors that were stacked, one slice per iteration. A state
that grows, such as the key-value cache of a decoder, has another shape in each iteration and cannot
be stacked. Where the number of iterations is a constant, the iterations become ordinary nodes;
otherwise the gradient lets the Loop keep what it carried (`growing.py`).
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import FLOATS, Builder, constant, infer
from sardonyx.model import Model
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import graphs, names, reads

MOST_NODES = 10_000
LARGE = 1009  # the size that the first name stands for
GROWING = ("Concat", "Pad")
RESIZING = (*GROWING, "Expand", "Reshape", "Resize", "Slice", "Tile", "Unsqueeze")


def unroll_growing_loops(model: Model) -> None:
    """Write out the Loops of a regular graph that carry a growing state a constant number of
    times.
    """
    loops = [
        node
        for part in graphs(model.graph)
        for node in part
        if node.op_type == "Loop" and node.domain == "" and growing(node)
    ]
    if not loops:
        return
    op = Builder("unroll")
    op.reserve(names(model.graph))
    for node in reversed(loops):  # a Loop inside another one is written out before it is copied
        count = _count(node)
        if count and count * len(node.attributes["body"].as_graph()) <= MOST_NODES:
            assert isinstance(node.graph, ir.Graph)
            _unroll(node.graph, op, node, count)
    for value in op.constants.values():
        model.graph.register_initializer(value)


def growing(node: ir.Node) -> list[ir.Value]:
    """The floating-point states of a Loop whose shape is another one after an iteration."""
    body = node.attributes["body"].as_graph()
    states = list(zip(list(body.inputs)[2:], list(body.outputs)[1:], strict=False))
    floats = [i for i, (before, _) in enumerate(states) if before.dtype in FLOATS]
    if not any(n.op_type in RESIZING for n in body) or not floats:
        return []
    shapes = _iteration(node)
    return [states[i][0] for i in floats if _is_extended(*states[i]) or _is_resized(*shapes[i])]


def _iteration(node: ir.Node) -> list[tuple[ir.Value | None, ir.Value | None]]:
    """Each state before and after one iteration, of which the shapes count.

    Every name of a size becomes a number, because ONNX does not add to a name. The nodes are copies
    that read stand-ins, so that no value of the model gets another reader.
    """
    body = node.attributes["body"].as_graph()
    op, sizes = Builder("try"), dict[str, int]()
    values = _constants(body, op)
    values[body.inputs[0]] = op.const(0, ir.DataType.INT64)
    values[body.inputs[1]] = op.const(True, ir.DataType.BOOL)
    initial = list(node.inputs)[2:]
    for value, source in zip(list(body.inputs)[2:], initial, strict=True):
        values[value] = None if source is None else _stand_in(source, sizes)
    inside = {*body.inputs, *body.initializers.values()}
    for value in (v for n in body for v in reads(n)):
        if value not in values and value not in inside and not _is_made_in(value, body):
            values[value] = _stand_in(value, sizes)
    before = [values[v] for v in list(body.inputs)[2:]]
    for copy in copy_nodes(body, values, {}, op.fresh):
        _infer_again(copy)
    after = [values.get(v) for v in list(body.outputs)[1:]]
    return list(zip(before, after, strict=False))


def _is_made_in(value: ir.Value, body: ir.Graph) -> bool:
    producer = value.producer()
    return producer is not None and producer.graph is body


def _stand_in(value: ir.Value, sizes: dict[str, int]) -> ir.Value:
    """A value of the same type and content whose sizes are numbers wherever they have names."""
    dims = None if value.shape is None else list(value.shape)
    for i, dim in enumerate(dims or ()):
        if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
            dims[i] = sizes.setdefault(str(dim.value), LARGE + len(sizes))  # type: ignore[index]
    shape = None if dims is None else ir.Shape(dims)
    return ir.Value(name=value.name, type=value.type, shape=shape, const_value=value.const_value)


def _is_resized(before: ir.Value | None, after: ir.Value | None) -> bool:
    """Whether two shapes differ in their rank or in sizes that are numbers."""
    if before is None or after is None or before.shape is None or after.shape is None:
        return False
    sizes = list(zip(before.shape, after.shape, strict=False))
    return len(before.shape) != len(after.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes
    )


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
    state_count = len(states)
    stacks: list[list[ir.Value]] = [[] for _ in list(body.outputs)[1 + state_count :]]
    for iteration in range(count):
        values = _constants(body, op)
        values[body.inputs[0]] = op.const(iteration, ir.DataType.INT64)
        values[body.inputs[1]] = op.const(True, ir.DataType.BOOL)
        values.update(zip(list(body.inputs)[2:], states, strict=True))
        copies = copy_nodes(body, values, {}, lambda name: op.fresh(f"unroll/{name}"))
        for copy in copies:
            _infer_again(copy)
        op.nodes.extend(copies)
        results = [values.get(v, v) for v in list(body.outputs)[1:]]
        states = results[:state_count]
        for stack, element in zip(stacks, results[state_count:], strict=True):
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


def _constants(body: ir.Graph, op: Builder) -> dict[ir.Value, ir.Value | None]:
    """The constants of a body, as values that `op` makes."""
    return {
        v: op.const(array) for v in body.initializers.values() if (array := constant(v)) is not None
    }


def _infer_again(node: ir.Node) -> None:
    """The shapes of a copied node: those of the body are the same in every iteration."""
    for value in node.outputs:
        value.shape = None
    infer(node)
