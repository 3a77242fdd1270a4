"""A graph rewritten to a plan of layouts: operators on their side, Transposes at the cut only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.passes.layout.axes import (
    LAST,
    keeps_order,
    other,
    permutation,
    rank_of,
    turn,
    turns_freely,
    unknown_sizes,
)
from sardonyx.passes.layout.plan import Plan
from sardonyx.passes.layout.roles import FREE, LINKED, ROLES
from sardonyx.passes.nesting import names
from sardonyx.values import constant


def apply_layout(graph: ir.Graph, plan: Plan, turned: Sequence[str] = ()) -> None:
    """Rewrite the graph that the plan was made for, in place."""
    _Rewriter(graph, plan).run(turned)


class _Rewriter:
    """What roles use to write a node (`inputs`, `axis`, `order`, …), and the walk over the graph.

    `forms` has the layouts in which each tensor exists so far; `keys` the tensor that a value is.
    """

    def __init__(self, graph: ir.Graph, plan: Plan):
        self.graph, self.plan, self.domain = graph, plan, plan.demands.domain
        self.labels = dict(plan.labels)
        self.keys = {v: plan.roots.get(v, v) for v in plan.labels}
        self.forms: dict[ir.Value, dict[str, ir.Value]] = {}
        self.broadcast: dict[tuple[ir.Value, int, str], ir.Value] = {}
        self.layouts = dict(plan.layouts)
        self.op = Builder()
        self.op.reserve(names(graph))
        self.node: ir.Node | None = None
        self.conversions: list[ir.Node] = []

    def run(self, turned: Sequence[str]) -> None:
        nodes = list(self.graph)
        self.node = nodes[0] if nodes else None
        results = {v.name: v for v in self.graph.outputs if v.name in turned}
        for value in self.graph.inputs:
            if value in self.labels:
                self._input(value, value.name in turned)
        for value in self.graph.initializers.values():
            if value in self.labels and not value.is_graph_input():
                self.forms[value] = {self.labels[value]: value}
        for node in nodes:
            self.node = node
            with self.op.named(node.name or node.op_type):
                self._visit(node)
        for name, value in results.items():
            self._output(str(name), value)
        for node in reversed(self.conversions):
            (value,) = node.outputs
            if not value.uses() and not value.is_graph_output():
                self.graph.remove(node, safe=True)
        for value in self.op.constants.values():
            if value.uses():
                self.graph.register_initializer(value)

    # -- what roles use

    def inputs(self, node: ir.Node) -> list[ir.Value | None]:
        """The inputs of a node in the layouts that its ports have."""
        ports = self.plan.ports[node]
        return [self._operand(node, i, ports) for i in range(len(node.inputs))]

    def axis(self, node: ir.Node, axis: int, rank: int, output: bool = False) -> int:
        """Where an axis of the first input, or output, is in the layout that it has now."""
        return self.order(node, rank, output).index(axis)

    def order(self, node: ir.Node, rank: int, output: bool = False) -> list[int]:
        """The axes, as the graph had them, in the order that they have now."""
        value = node.outputs[0] if output else node.inputs[0]
        kinds = self.plan.ports[node]
        kind = kinds.outputs.get(0) if output else kinds.inputs.get(0)
        if kind == LINKED:
            return permutation(rank, self.plan.written[node], self.plan.sides[node])
        if kind == FREE and value is not None and value in self.labels:
            return permutation(rank, self.labels[value], self.layouts[self.keys[value]])
        return list(range(rank))

    def const(self, array: np.ndarray) -> ir.Value:
        return self.op.const(array)

    def reordered(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """A vector with a number per axis, in another order."""
        array = constant(value)
        if array is not None:
            return self.op.const(array[list(order)])
        return self.build("Gather", [value, self.const(np.array(order, np.int64))], axis=0)

    def build(self, op_type: str, inputs: Sequence[Any], **attributes: Any) -> ir.Value:
        """A node before the one that is rewritten."""
        value = self.op.call(op_type, inputs, attributes)
        self._insert(self.op.nodes.pop())
        return value

    # -- operands

    def _operand(self, node: ir.Node, place: int, ports: Any) -> ir.Value | None:
        value = node.inputs[place]
        if value is None:
            return None
        kind = ports.inputs.get(place)
        if value not in self.keys:
            return self._unlabelled(node, place, value, kind, ports)
        key = self.keys[value]
        if kind == LINKED:
            return self.form(key, self.plan.sides[node])
        if kind == FREE:
            return self.form(key, self.layouts[key])
        if place in ports.broadcast:
            return self._unlabelled(node, place, value, kind, ports)
        return value

    def _unlabelled(
        self, node: ir.Node, place: int, value: ir.Value, kind: str | None, ports: Any
    ) -> ir.Value:
        """Constants, and operands of fewer axes: in the layout of the node."""
        if kind != LINKED and place not in ports.broadcast:
            return value
        layout = self.plan.sides[node]
        if layout == self.plan.written[node]:
            return value
        rank = rank_of(node.outputs[0]) if kind != LINKED else rank_of(value)
        perm = turn(rank, layout)
        array = None if value.name in self.plan.parameters else constant(value)
        if array is not None:
            wide_array = array.reshape((1,) * (rank - array.ndim) + array.shape)
            return self.op.const(np.ascontiguousarray(wide_array.transpose(perm)))
        if (value, rank, layout) not in self.broadcast:
            wide = value
            if rank > rank_of(value):
                axes = np.arange(rank - rank_of(value))
                wide = self.build("Unsqueeze", [value, self.const(axes)])
            dims = list(wide.shape or ())
            self.broadcast[value, rank, layout] = self._permuted(
                wide, perm, keeps_order(dims, perm)
            )
        return self.broadcast[value, rank, layout]

    # -- tensors

    def form(self, key: ir.Value, layout: str) -> ir.Value:
        """A tensor in a layout; converted before the current node where it does not exist yet."""
        forms = self.forms[key]
        if layout not in forms:
            forms[layout] = self._converted(forms[other(layout)], other(layout), layout)
            self.keys[forms[layout]], self.labels[forms[layout]] = key, layout
        return forms[layout]

    def _converted(self, value: ir.Value, before: str, after: str) -> ir.Value:
        perm = permutation(rank_of(value), before, after)
        result = self._permuted(value, perm, turns_freely(value, before))
        producer = result.producer()
        assert producer is not None
        self.conversions.append(producer)
        return result

    def _permuted(self, value: ir.Value, perm: Sequence[int], in_order: bool) -> ir.Value:
        """A tensor with its axes in another order, by a Reshape where no element moves.

        What is known of it needs no inference, which would take most of the time of a rewrite.
        """
        dims = [value.shape[a] for a in perm]  # type: ignore[index]
        if in_order and unknown_sizes(value) <= 1:
            sizes = np.array([d if isinstance(d, int) else -1 for d in dims], np.int64)
            node = ir.Node("", "Reshape", [value, self.const(sizes)])
        else:
            node = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", list(perm))])
        (result,) = node.outputs
        prefix = self.op.prefix
        node.name = self.op.fresh(f"{prefix}/{node.op_type}" if prefix else node.op_type)
        result.name, result.type, result.shape = node.name, value.type, ir.Shape(dims)
        self._insert(node)
        return result

    def _insert(self, node: ir.Node) -> None:
        if self.node is None:
            self.graph.append(node)
        else:
            self.graph.insert_before(self.node, node)

    def _input(self, value: ir.Value, turned: bool) -> None:
        label = self.labels[value]
        if not turned:
            self.forms[value] = {label: value}
            return
        uses = list(value.uses())
        layout = other(label)
        value.shape = ir.Shape([value.shape[a] for a in permutation(rank_of(value), label, layout)])  # type: ignore[index]
        back = self._converted(value, layout, label)
        for node, place in uses:
            node.replace_input_with(place, back)
        self.forms[value] = {layout: value, label: back}
        self.keys[back], self.labels[back] = value, label

    def _output(self, name: str, old: ir.Value) -> None:
        """The output of the graph that was `old`, in the other layout than it was written in."""
        (index,) = [i for i, v in enumerate(self.graph.outputs) if v.name == name]
        value = self.graph.outputs[index]
        if value not in self.keys:
            return
        self.node = None
        result = self.form(self.keys[value], other(self.labels[value]))
        if result.is_graph_output() or result.is_graph_input() or result.producer() is None:
            result = self.build("Identity", [result])
        value.name = self.op.fresh(f"{name}/written")
        result.name = name
        self.graph.outputs[index] = result

    # -- nodes

    def _visit(self, node: ir.Node) -> None:
        if node.op_type == "Transpose" and node.outputs[0] in self.plan.roots:
            self._between(node)
            return
        ports = self.plan.ports.get(node)
        if ports is not None and self._changes(node):
            self._rewrite(node)
            return
        for value in node.outputs:
            if value in self.labels:
                self.forms[value] = {self.labels[value]: value}

    def _changes(self, node: ir.Node) -> bool:
        """Whether some operand has another layout than it is written in."""
        ports = self.plan.ports[node]
        if node in self.plan.sides and self.plan.sides[node] != self.plan.written[node]:
            return True
        free = [node.inputs[i] for i, kind in ports.inputs.items() if kind == FREE]
        free += [node.outputs[i] for i, kind in ports.outputs.items() if kind == FREE]
        return any(v in self.keys and self.layouts[self.keys[v]] != self.labels[v] for v in free)

    def _between(self, node: ir.Node) -> None:
        """A Transpose between the layouts: stays only where nothing has given its result yet."""
        x, (y,) = node.inputs[0], node.outputs
        assert x is not None
        key, label = self.keys[x], self.labels[y]
        forms = self.forms[key]
        if label not in forms:
            forms[label] = y
            self.conversions.append(node)
            return
        result = forms[label]
        if y.is_graph_output():
            new = ir.Node("", "Identity", [result], name=node.name)
            self.graph.insert_before(node, new)
            _take_place(y, new.outputs[0])
            self.labels[new.outputs[0]], self.keys[new.outputs[0]] = label, key
        else:
            y.replace_all_uses_with(result)
        self.graph.remove(node, safe=True)

    def _rewrite(self, node: ir.Node) -> None:
        new = ROLES[node.op_type].turned(self, node)
        assert new is not None
        new.name = node.name
        new.metadata_props.update(node.metadata_props)
        self.graph.insert_before(node, new)
        outputs = self.plan.ports[node].outputs
        for place, (old, value) in enumerate(zip(node.outputs, new.outputs)):
            kind = outputs.get(place)
            label = self.labels.get(old)
            layout = label
            if label is not None and kind == LINKED:
                layout = self.plan.sides[node]
            elif label is not None and kind == FREE:
                layout = self.layouts[self.keys[old]]
            self._give(old, value, label, layout)
        self.graph.remove(node, safe=True)

    def _give(self, old: ir.Value, value: ir.Value, label: str | None, layout: str | None) -> None:
        value.type = old.type
        if label is None or layout is None or label == layout:
            value.shape = old.shape
            _take_place(old, value)
            if label is not None:
                self.keys[value], self.labels[value] = self.keys[old], label
                self.forms[self.keys[old]] = {label: value}
            return
        perm = permutation(rank_of(old), label, layout)
        value.name = self.op.fresh(f"{old.name}/{'last' if layout == LAST else 'first'}")
        value.shape = ir.Shape([old.shape[a] for a in perm])  # type: ignore[index]
        back = self._converted(value, layout, label)
        _take_place(old, back)
        key = self.keys[old]
        self.keys[back], self.labels[back] = key, label
        self.keys[value], self.labels[value] = key, layout
        self.forms[key] = {layout: value, label: back}


def _take_place(old: ir.Value, new: ir.Value) -> None:
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name, old.name = old.name, None
