"""Loop and Scan, taken apart: states, slices, and what of them takes part in a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.grad.controlflow.body import is_inside, name_outputs
from sardonyx.grad.driver import attributes, is_differentiable, path
from sardonyx.passes.nesting import captured, reads


@dataclass
class State:
    """A loop-carried value: before the first iteration, in and after one, after the last."""

    initial: ir.Value
    inside: ir.Value
    after: ir.Value
    final: ir.Value


@dataclass
class Slices:
    """A tensor that is read, or written, one slice per iteration."""

    inside: ir.Value
    outside: ir.Value
    axis: int = 0
    backwards: int = 0


@dataclass
class Recurrence:
    """A Loop or Scan, taken apart."""

    node: ir.Node
    body: ir.Graph
    states: list[State]
    elements: list[Slices] = field(default_factory=list)
    stacked: list[Slices] = field(default_factory=list)
    constant: list[State] = field(default_factory=list)  # states that no iteration changes
    indexed: list[Slices] = field(default_factory=list)  # read slice by slice, by the counter

    def simplify(self) -> None:
        """See what is written as a state or as a tensor from outside, and need not be."""
        self.release_constants()
        if self.node.op_type == "Loop":
            self.find_indexed()

    def release_constants(self) -> None:
        """Let the body read a state that it never changes from outside: nothing to carry."""
        for state in self.states:
            if _origin(state.after, self.body) in (state.inside, state.initial):
                self.constant.append(state)
                for use in list(state.inside.uses()):
                    use.node.replace_input_with(use.idx, state.initial)
        self.states = [s for s in self.states if s not in self.constant]

    def find_indexed(self) -> None:
        """A tensor of which iteration i reads slice i: so is its cotangent written."""
        counters = {self.body.inputs[0], *(s.inside for s in self.states if _counts(s))}
        readers_by_table: dict[ir.Value, list[ir.Node]] = {}
        for node in self.body:
            if node.op_type != "Gather" or attributes(node)["axis"] != 0:
                continue
            source, index = node.inputs
            if source is None or index is None or source.shape is None:
                continue
            scalar = index.shape is not None and not len(index.shape)
            if scalar and _origin(index, self.body, ("Identity", "Cast")) in counters:
                readers_by_table.setdefault(source, []).append(node)
        every = [v for node in self.body for v in reads(node)] + list(self.body.outputs)
        for source, nodes in readers_by_table.items():
            if not is_inside(source, self.body) and every.count(source) == len(nodes):
                self.indexed += [Slices(node.outputs[0], source) for node in nodes]


def _counts(state: State) -> bool:
    """Whether a state is the number of the iteration: it starts at 0 and grows by 1."""
    first, step = constant(state.initial), state.after.producer()
    if first is None or state.initial.is_graph_input() or first.size != 1 or first.any():
        return False
    if step is None or step.op_type != "Add" or state.inside not in step.inputs:
        return False
    other = step.inputs[1 if step.inputs[0] is state.inside else 0]
    by = constant(other)
    return by is not None and by.size == 1 and bool((by == 1).all())


def _origin(value: ir.Value, body: ir.Graph, copies: Sequence[str] = ("Identity",)) -> ir.Value:
    """What a value of `body` is a copy of."""
    producer = value.producer()
    while producer is not None and producer.op_type in copies and producer.graph is body:
        value = producer.inputs[0]  # type: ignore[assignment]
        producer = value.producer()
    return value


def take_apart_loop(node: ir.Node) -> Recurrence:
    body = node.attributes["body"].as_graph()
    count = len(body.inputs) - 2
    initial = list(node.inputs)[2:]
    outputs = list(body.outputs)[1:]
    name_outputs(node, outputs)
    states = _states(initial, body.inputs[2:], outputs, node.outputs)
    stacked = zip(outputs[count:], list(node.outputs)[count:], strict=True)
    return Recurrence(node, body, states, [], [Slices(y, out) for y, out in stacked])


def take_apart_scan(node: ir.Node) -> Recurrence:
    body = node.attributes["body"].as_graph()
    scan_attributes = attributes(node)
    read = int(scan_attributes["num_scan_inputs"])
    count = len(node.inputs) - read
    outputs = list(body.outputs)
    name_outputs(node, outputs)
    written = len(outputs) - count

    def settings(name: str, size: int) -> list[int]:
        return list(scan_attributes[name]) if scan_attributes[name] else [0] * size

    states = _states(node.inputs, body.inputs, outputs[:count], node.outputs)
    elements = [
        Slices(inside, outside, axis, direction)
        for inside, outside, axis, direction in zip(
            list(body.inputs)[count:],
            [v for v in list(node.inputs)[count:] if v is not None],
            settings("scan_input_axes", read),
            settings("scan_input_directions", read),
            strict=True,
        )
    ]
    stacked = [
        Slices(inside, outside, axis, direction)
        for inside, outside, axis, direction in zip(
            outputs[count:],
            list(node.outputs)[count:],
            settings("scan_output_axes", written),
            settings("scan_output_directions", written),
            strict=True,
        )
    ]
    return Recurrence(node, body, states, elements, stacked)


def _states(*parts: Sequence[Any]) -> list[State]:
    return [State(*values) for values in zip(*parts, strict=False)]


@dataclass
class Flow:
    """What of a recurrence takes part in a gradient."""

    states: list[State]
    elements: list[Slices]
    outside: list[ir.Value]
    stacked: list[Slices]
    nodes: list[ir.Node]
    values: set[ir.Value]

    @property
    def starts(self) -> list[ir.Value]:
        inside = [s.inside for s in self.states] + [e.inside for e in self.elements]
        return inside + self.outside


def flow_through(it: Recurrence, targets: set[ir.Value], ends: set[ir.Value]) -> Flow:
    """What lies between `targets` and the outputs in `ends`, over any number of iterations."""
    nodes = list(it.body)
    sliced = {e.outside for e in it.indexed}
    outside = [v for v in captured(it.node) if v in targets and v not in sliced]
    elements = [e for e in (*it.elements, *it.indexed) if e.outside in targets]
    fixed = [e.inside for e in elements] + outside
    every = [s.after for s in it.states] + [s.inside for s in it.stacked]
    varying = [s for s in it.states if s.initial in targets]
    while True:
        _, reached = path(nodes, fixed + [s.inside for s in varying], every, ())
        more = [s for s in it.states if s.after in reached and is_differentiable(s.inside)]
        more = [s for s in it.states if s in more or s in varying]
        if more == varying:
            break
        varying = more
    starts = fixed + [s.inside for s in varying]
    stacked = [s for s in it.stacked if s.outside in ends and s.inside in reached]
    needed = [s for s in varying if s.final in ends]
    while True:
        results = [s.inside for s in stacked] + [s.after for s in needed]
        between, values = path(nodes, starts, results, ())
        more = [s for s in varying if s in needed or s.inside in values]
        if more == needed:
            return Flow(needed, elements, outside, stacked, between, values)
        needed = more
