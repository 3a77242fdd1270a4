"""Loops and branches as nodes, and other graphs as parts of their bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.model import Model
from sardonyx.passes.nesting import graphs

Values = dict[str, ir.Value]


@dataclass
class Body:
    """What one iteration gives: whether another follows, what it carries on, what it collects."""

    again: ir.Value
    carried: Values
    collected: Values = field(default_factory=dict)


class Writer(Builder):
    """A builder of one body; initializers of embedded graphs stay in the body, where a runtime
    treats them as it does in a graph of its own.
    """

    def __init__(self, prefix: str, parent: Builder | None = None):
        super().__init__(prefix, parent)
        self.initializers: list[ir.Value] = []

    def graph(self, name: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Graph:
        inside = {*inputs, *(v for node in self.nodes for v in node.outputs)}
        distinct: list[ir.Value] = []
        for value in outputs:  # an output is a value of the body, and no other output
            if value not in inside or value in distinct:
                value = self.typed(self.Identity(value), value)
            distinct.append(value)
        nodes, self.nodes = self.nodes, []
        body = ir.Graph(inputs, distinct, nodes=nodes, name=name)
        for value in self.initializers:
            body.register_initializer(value)
        return body

    def typed(self, value: ir.Value, like: ir.Value) -> ir.Value:
        value.type, value.shape = like.type, like.shape
        return value

    def parameter(self, name: str, like: ir.Value) -> ir.Value:
        shape = ir.Shape(like.shape) if like.shape is not None else None
        return ir.Value(name=self.fresh(name), type=like.type, shape=shape)


def loop(
    op: Builder,
    name: str,
    trips: ir.Value,
    going: ir.Value | None,
    carried: Mapping[str, ir.Value],
    write: Callable[[Writer, ir.Value, Values], Body],
) -> tuple[Values, Values]:
    """A Loop: what it carries after the last iteration, and what its iterations collected.

    write -- writes the body, given its builder, the number of the iteration and what is carried

    The condition is always given: ONNX's reference evaluator takes an omitted one for false.
    """
    going = op.const(True) if going is None else going
    body = Writer(f"{op.prefix}/{name}", op)
    number = ir.Value(
        name=body.fresh(f"{name}/number"),
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([]),
    )
    go = ir.Value(
        name=body.fresh(f"{name}/going"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([])
    )
    inputs = {n: body.parameter(f"{name}/{n}", v) for n, v in carried.items()}
    written = write(body, number, inputs)
    after = [written.carried[n] for n in carried]
    outputs = [written.again, *after, *written.collected.values()]
    graph = body.graph(name, [number, go, *inputs.values()], outputs)
    node = ir.Node(
        "",
        "Loop",
        [trips, going, *carried.values()],
        [ir.AttrGraph("body", graph)],
        num_outputs=len(outputs) - 1,
        name=op.fresh(f"{op.prefix}/{name}"),
    )
    names = [*carried, *written.collected]
    for label, value, result in zip(names, outputs[1:], node.outputs, strict=True):
        result.name = op.fresh(f"{name}/{label}/end")
        result.type, result.shape = value.type, value.shape
        if label not in carried:
            rest = value.shape if value.shape is not None else None
            result.shape = ir.Shape([None, *rest]) if rest is not None else None
    op.nodes.append(node)
    results = dict(zip(names, node.outputs, strict=True))
    return {n: results[n] for n in carried}, {n: results[n] for n in written.collected}


def branch(op: Builder, name: str, condition: ir.Value, then: Values, otherwise: Values) -> Values:
    """An If that gives the values of one of two dicts with the same keys, each a copy."""

    def body(label: str, values: Values) -> ir.Graph:
        return Writer(f"{op.prefix}/{name}/{label}", op).graph(label, [], list(values.values()))

    return chosen(op, name, condition, body("then", then), body("else", otherwise), list(then))


def chosen(
    op: Builder,
    name: str,
    condition: ir.Value,
    then: ir.Graph,
    otherwise: ir.Graph,
    names: Sequence[str],
) -> Values:
    """An If over two bodies whose outputs are called `names`."""
    attributes = [ir.AttrGraph("then_branch", then), ir.AttrGraph("else_branch", otherwise)]
    title = op.fresh(f"{op.prefix}/{name}")
    node = ir.Node("", "If", [condition], attributes, num_outputs=len(names), name=title)
    for label, value, result in zip(names, then.outputs, node.outputs, strict=True):
        result.name = op.fresh(f"{name}/{label}")
        result.type, result.shape = value.type, value.shape
    op.nodes.append(node)
    return dict(zip(names, node.outputs, strict=True))


def embed(body: Writer, name: str, model: Model, feeds: Mapping[str, ir.Value]) -> Values:
    """Write the nodes of a model into a body; its outputs by name.

    feeds -- for each input of the model, what it reads instead
    """
    graph = model.copy().graph
    inputs = {v: feeds[v.name or ""] for v in graph.inputs}
    outputs = {v.name or "": v for v in graph.outputs}
    for part in list(graphs(graph)):
        for node in part:
            node.name = body.fresh(f"{name}/{node.name or node.op_type}")
            for value in node.outputs:
                if value.name:
                    value.name = body.fresh(f"{name}/{value.name}")
        renamed = [*part.initializers.values()]
        part.initializers.clear()
        for value in renamed:
            value.name = body.fresh(f"{name}/{value.name}")
            if part is graph:
                body.initializers.append(value)
            else:
                part.register_initializer(value)
        if part is not graph:
            for value in part.inputs:
                value.name = body.fresh(f"{name}/{value.name}")
    graph.outputs.clear()
    graph.inputs.clear()
    nodes = list(graph)
    graph.remove(nodes)
    for value, source in inputs.items():
        if value.uses():
            value.replace_all_uses_with(source)
    body.nodes.extend(nodes)
    return {n: inputs.get(v, v) for n, v in outputs.items()}
