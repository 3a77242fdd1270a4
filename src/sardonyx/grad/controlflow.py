"""If, Loop and Scan: the gradient of a body is a body again.

If      each branch gets a backward branch in an If with the same condition
Loop    iterations backwards are a Scan over what the forward iterations left on the tape
Scan    likewise; what it read is read again, in the other direction

The tape is made of additional outputs of the forward node. Captured tensors (weights) collect their
cotangents in the state of the backward Scan, so that their cost does not grow with its length.

NOTE [tape or replay] A value of the forward body that the backward body reads comes from the tape if its
size is the same in every iteration for certain; else its node runs again, from the states on the tape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant, is_static, rank, static
from sardonyx.errors import UnsupportedOp, quote
from sardonyx.grad.engine import (
    add,
    attributes,
    backward,
    bodies,
    captured,
    is_differentiable,
    path,
    reads,
    vjp,
)
from sardonyx.passes.functions import copy_nodes

Gradients = Sequence[ir.Value | None]
Inner = tuple[list[ir.Node], set[ir.Value]]


# -- what both kinds share ------------------------------------------------------------


def like(op: Builder, value: ir.Value, stem: str, shape: Any = None) -> ir.Value:
    """A new value of the type of `value`, and of its shape if no other is given."""
    dims = value.shape if shape is None else shape
    return ir.Value(
        name=op.fresh(f"{op.prefix}/{stem}"),
        type=value.type,
        shape=None if dims is None else ir.Shape(list(dims)),
    )


def _seeds(op: Builder, ends: Iterable[tuple[ir.Value, ir.Value]]) -> dict[ir.Value, ir.Value]:
    """Cotangents by value: a body may list one value as several outputs."""
    parts: dict[ir.Value, list[ir.Value]] = {}
    for value, g in ends:
        parts.setdefault(value, []).append(g)
    return {value: gs[0] if len(gs) == 1 else add(op, gs) for value, gs in parts.items()}


def own(op: Builder, value: ir.Value) -> ir.Value:
    """`value` as the result of a node of its own: a body may not return what it did not make."""
    out = op.Identity(value)
    out.type, out.shape = value.type, value.shape
    return out


def results_of(op: Builder, values: Sequence[ir.Value]) -> list[ir.Value]:
    made = {v for node in op.nodes for v in node.outputs}
    results: list[ir.Value] = []
    for value in values:
        results.append(value if value in made and value not in results else own(op, value))
    return results


def body_of(
    op: Builder, stem: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> ir.Graph:
    return ir.Graph(inputs, outputs, nodes=op.nodes, name=op.fresh(f"{op.prefix}/{stem}"))


def _is_inside(value: ir.Value, body: ir.Graph) -> bool:
    """Whether `value` belongs to `body`, as an input, an initializer or the result of a node."""
    producer = value.producer()
    if producer is not None:
        return producer.graph is body
    return value.graph is body


def _read_inside(nodes: Iterable[ir.Node], body: ir.Graph) -> list[ir.Value]:
    """The values of `body` that `nodes` read, in order of first use."""
    found: dict[ir.Value, None] = {}
    for node in nodes:
        for value in reads(node):
            if _is_inside(value, body):
                found.setdefault(value)
    return list(found)


def _reread(nodes: Iterable[ir.Node], new: dict[ir.Value, ir.Value]) -> None:
    """Let `nodes`, and the nodes inside them, read other values."""
    for node in nodes:
        for i, value in enumerate(node.inputs):
            if value is not None and value in new:
                node.replace_input_with(i, new[value])
        for body in bodies(node):
            _reread(body, new)


# -- If -------------------------------------------------------------------------------


def _branches(node: ir.Node) -> list[ir.Graph]:
    return [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]


def _if_paths(node: ir.Node, values: set[ir.Value]) -> list[Inner]:
    starts = [v for v in captured(node) if v in values]
    found = []
    for body in _branches(node):
        ends = [y for y, out in zip(body.outputs, node.outputs, strict=True) if out in values]
        found.append(path(list(body), starts, ends, ()))
    return found


@vjp("If", structural=True, inside=_if_paths)
def if_(
    op: Builder, gs: Gradients, node: ir.Node, wanted: set[ir.Value]
) -> dict[ir.Value, ir.Value]:
    starts = [v for v in captured(node) if v in wanted]
    forward = _branches(node)
    builders = [Builder(op.prefix, parent=op) for _ in forward]
    found = []
    for inner, body in zip(builders, forward, strict=True):
        pairs = zip(body.outputs, gs, strict=False)
        seeds = _seeds(inner, [(y, g) for y, g in pairs if g is not None])
        found.append(backward(inner, list(body), seeds, starts))
    reached = [i for i in range(len(starts)) if any(f[i] is not None for f in found)]
    if not reached:
        return {}
    grads = []
    for inner, body, gradients in zip(builders, forward, found, strict=True):
        given = [gradients[i] or inner.zeros_like(starts[i]) for i in reached]
        outputs = results_of(inner, given)
        _tape_branch(op, node, body, inner.nodes)
        grads.append(body_of(inner, "branch", [], outputs))
    branches = {
        "then_branch": ir.AttrGraph("then_branch", grads[0]),
        "else_branch": ir.AttrGraph("else_branch", grads[1]),
    }
    outputs = op.call("If", [node.inputs[0]], branches, outputs=len(reached))
    for out, i in zip(outputs, reached, strict=True):
        out.type, out.shape = starts[i].type, starts[i].shape
    return {starts[i]: out for i, out in zip(reached, outputs, strict=True)}


def _tape_branch(op: Builder, node: ir.Node, body: ir.Graph, backward_nodes: list[ir.Node]) -> None:
    """Make what a backward branch reads from its forward branch outputs of the forward If."""
    new: dict[ir.Value, ir.Value] = {}
    for value in _read_inside(backward_nodes, body):
        fixed = constant(value)
        if fixed is not None and value.producer() is None:
            new[value] = op.const(fixed)
            continue
        node.resize_outputs(len(node.outputs) + 1)
        out = node.outputs[-1]
        out.name = op.fresh(f"{node.name or node.op_type}/{value.name}")
        out.type = value.type
        # The other branch gives an empty tensor here: no size is certain.
        out.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
        for branch in _branches(node):
            inner = Builder(op.prefix, parent=op)
            if branch is not body:
                result = _nothing_like(inner, value)
            else:
                result = value if value not in body.outputs else own(inner, value)
            branch.extend(inner.nodes)
            branch.outputs.append(result)
        new[value] = out
    _reread(backward_nodes, new)


def _nothing_like(op: Builder, value: ir.Value) -> ir.Value:
    """What the other branch gives for `value`: as little as possible, of the same type and rank.

    A condition keeps its one element: onnxruntime folds an If even in a branch that never runs.
    """
    if isinstance(value.type, ir.SequenceType):
        return op.SequenceEmpty(dtype=int(value.type.elem_type.dtype))
    assert value.dtype is not None
    if is_static(value) and np.prod(static(value)) == 1:
        dims = list(static(value))
    else:
        dims = [int(value.dtype == ir.DataType.BOOL)] * (1 if value.shape is None else rank(value))
    return op.Identity(op.const(np.zeros(dims, value.dtype.numpy())))


# -- Loop and Scan --------------------------------------------------------------------


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

    def release_constants(self) -> None:
        """Let the body read a state that it never changes from outside: nothing to carry or to tape."""
        for state in self.states:
            if _origin(state.after, self.body) in (state.inside, state.initial):
                self.constant.append(state)
                for use in list(state.inside.uses()):
                    use.node.replace_input_with(use.idx, state.initial)
        self.states = [s for s in self.states if s not in self.constant]


def _origin(value: ir.Value, body: ir.Graph) -> ir.Value:
    """What a value of `body` is a copy of."""
    producer = value.producer()
    while producer is not None and producer.op_type == "Identity" and producer.graph is body:
        value = producer.inputs[0]  # type: ignore[assignment]
        producer = value.producer()
    return value


def _loop(node: ir.Node) -> Recurrence:
    body = node.attributes["body"].as_graph()
    count = len(body.inputs) - 2
    initial = list(node.inputs)[2:]
    outputs = list(body.outputs)[1:]
    states = _states(initial, body.inputs[2:], outputs, node.outputs)
    stacked = zip(outputs[count:], list(node.outputs)[count:], strict=False)
    return Recurrence(node, body, states, [], [Slices(y, out) for y, out in stacked])


def _scan(node: ir.Node) -> Recurrence:
    body = node.attributes["body"].as_graph()
    given = attributes(node)
    read = int(given["num_scan_inputs"])
    count = len(node.inputs) - read
    outputs = list(body.outputs)
    written = len(outputs) - count

    def settings(name: str, size: int) -> list[int]:
        return list(given[name]) if given[name] else [0] * size

    states = _states(node.inputs, body.inputs, outputs[:count], node.outputs)
    elements = [
        Slices(inside, outside, axis, direction)
        for inside, outside, axis, direction in zip(
            list(body.inputs)[count:],
            list(node.inputs)[count:],
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
            strict=False,
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
        return [s.inside for s in (*self.states, *self.elements)] + self.outside


def _flow(it: Recurrence, wanted: set[ir.Value], ends: set[ir.Value]) -> Flow:
    """What lies between the `wanted` values and the outputs in `ends`, over any number of iterations."""
    nodes = list(it.body)
    outside = [v for v in captured(it.node) if v in wanted]
    elements = [e for e in it.elements if e.outside in wanted]
    fixed = [e.inside for e in elements] + outside
    every = [s.after for s in it.states] + [s.inside for s in it.stacked]
    varying = [s for s in it.states if s.initial in wanted]
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
        targets = [s.inside for s in stacked] + [s.after for s in needed]
        between, values = path(nodes, starts, targets, ())
        more = [s for s in varying if s in needed or s.inside in values]
        if more == needed:
            return Flow(needed, elements, outside, stacked, between, values)
        needed = more


def _recurrent_paths(node: ir.Node, values: set[ir.Value]) -> list[Inner]:
    it = _loop(node) if node.op_type == "Loop" else _scan(node)
    it.release_constants()
    flow = _flow(it, values, values)
    return [(flow.nodes, flow.values)]


@vjp("Loop", structural=True, inside=_recurrent_paths)
def loop(
    op: Builder, gs: Gradients, node: ir.Node, wanted: set[ir.Value]
) -> dict[ir.Value, ir.Value]:
    return _recur(op, gs, _loop(node), wanted)


@vjp("Scan", structural=True, inside=_recurrent_paths)
def scan(
    op: Builder, gs: Gradients, node: ir.Node, wanted: set[ir.Value]
) -> dict[ir.Value, ir.Value]:
    return _recur(op, gs, _scan(node), wanted)


def _recur(
    op: Builder, gs: Gradients, it: Recurrence, wanted: set[ir.Value]
) -> dict[ir.Value, ir.Value]:
    given = {out: g for out, g in zip(it.node.outputs, gs, strict=False) if g is not None}
    it.release_constants()
    flow = _flow(it, wanted, set(given))
    _refuse_sequences(it.node, flow)
    inner = Builder(op.prefix, parent=op)
    reverse = Reverse(op, inner, it, flow)
    ends = [(s.after, reverse.state(s, given.get(s.final))) for s in flow.states]
    ends += [(s.inside, reverse.element(s, given[s.outside])) for s in flow.stacked]
    found = backward(inner, list(it.body), _seeds(inner, ends), flow.starts)
    pulled = reverse.finish(found) if ends else {}
    for state in it.constant:
        if state.final in given:
            parts = [given[state.final]] + (
                [pulled[state.initial]] if state.initial in pulled else []
            )
            pulled[state.initial] = parts[0] if len(parts) == 1 else add(op, parts)
    return pulled


def _refuse_sequences(node: ir.Node, flow: Flow) -> None:
    odd = [
        s.inside for s in flow.states if not isinstance(s.inside.type, (ir.TensorType, type(None)))
    ]
    if odd:
        raise UnsupportedOp(
            f"{node.op_type} {quote(node.name)} carries sequences from one iteration to the next",
            [[quote(v.name), str(v.type)] for v in odd],
            hint="collect the elements as a scan output instead",
        )


class Reverse:
    """Builds the Scan that runs the iterations backwards."""

    def __init__(self, op: Builder, inner: Builder, it: Recurrence, flow: Flow):
        self.op, self.inner, self.it, self.flow = op, inner, it, flow
        self.initial: list[ir.Value] = []  # of the states of the backward Scan
        self.state_inputs: list[ir.Value] = []
        self.reads: list[Slices] = []  # what it reads per iteration
        self.known: dict[ir.Value, ir.Value] = {}  # a value of the forward body, as it reads it
        self.replayed: list[ir.Node] = []

    def state(self, state: State, g: ir.Value | None) -> ir.Value:
        """The cotangent that one iteration hands to the one before it."""
        shape = state.inside.shape if state.inside.shape is not None else state.after.shape
        self.initial.append(g if g is not None else self.op.zeros_like(state.final))
        self.state_inputs.append(like(self.op, state.after, "carried", shape))
        return self.state_inputs[-1]

    def element(self, slices: Slices, source: ir.Value) -> ir.Value:
        """What one iteration reads of `source`, which is sliced like `slices`, other way round."""
        value = like(self.op, slices.inside, "element")
        self.reads.append(Slices(value, source, slices.axis, 1 - slices.backwards))
        return value

    def finish(self, found: Sequence[ir.Value | None]) -> dict[ir.Value, ir.Value]:
        inner, flow = self.inner, self.flow
        count = len(flow.states)
        carried = [
            g if g is not None else inner.zeros_like(s.inside)
            for s, g in zip(flow.states, found, strict=False)
        ]
        rest = found[count:]
        elements = [(e, g) for e, g in zip(flow.elements, rest, strict=False) if g is not None]
        rest = rest[len(flow.elements) :]
        sums = [(v, g) for v, g in zip(flow.outside, rest, strict=True) if g is not None]
        carried += [self._accumulate(v, g) for v, g in sums]
        results = results_of(inner, [*carried, *(g for _, g in elements)])
        # onnxruntime's Scan wants the rank of everything that its body returns.
        for value, given in zip(results, self.state_inputs, strict=False):
            if value.shape is None and given.shape is not None:
                value.shape = ir.Shape(given.shape)
        self._read_forward()
        outputs = self._emit(results, [e for e, _ in elements])
        pulled: dict[ir.Value, ir.Value] = {}
        sources = [s.initial for s in flow.states] + [v for v, _ in sums]
        sources += [e.outside for e, _ in elements]
        for value, g in zip(sources, outputs, strict=True):
            g.type = value.type
            g.shape = None if value.shape is None else ir.Shape(value.shape)
            pulled[value] = g if value not in pulled else add(self.op, [pulled[value], g])
        return pulled

    def _accumulate(self, value: ir.Value, g: ir.Value) -> ir.Value:
        self.initial.append(self.op.zeros_like(value))
        before = like(self.op, value, "sum")
        self.state_inputs.append(before)
        return self.inner.Add(before, g)

    # -- what the forward iteration knew ------------------------------------------------

    def _read_forward(self) -> None:
        nodes = self.inner.nodes
        _reread(nodes, {v: self._forward(v) for v in _read_inside(nodes, self.it.body)})
        self.inner.nodes = self.replayed + nodes

    def _forward(self, value: ir.Value) -> ir.Value:
        """A value of the forward body, as the backward body reads it."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self.known:
                pending.pop()
                continue
            producer = current.producer()
            if producer is None or is_static(current):
                self.known[current] = self._recall(current)
                continue
            missing = [v for v in _read_inside([producer], self.it.body) if v not in self.known]
            if missing:
                pending.extend(missing)
            else:
                self.replayed += copy_nodes([producer], self.known, {}, self.op.fresh)
        return self.known[value]

    def _recall(self, value: ir.Value) -> ir.Value:
        """A value of the forward body from the tape, or from where the body had it."""
        fixed = constant(value)
        if fixed is not None and value.producer() is None:
            return self.op.const(fixed)
        for element in self.it.elements:
            if element.inside is value:
                return self.element(element, element.outside)
        for slices in self.it.stacked:
            if slices.inside is value:
                return self.element(slices, slices.outside)
        slices = self._tape(value)
        self.it.stacked.append(slices)
        return self.element(slices, slices.outside)

    def _tape(self, value: ir.Value) -> Slices:
        """Make `value` of each iteration an output of the forward node."""
        node, body = self.it.node, self.it.body
        forward = Builder(self.op.prefix, parent=self.op)
        direct = value.producer() is not None and value not in body.outputs
        body_output = value if direct else own(forward, value)
        body.extend(forward.nodes)
        body.outputs.append(body_output)
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in node.attributes:
                settings = list(node.attributes[name].as_ints())
                node.attributes.add(ir.AttrInt64s(name, [*settings, 0]))
        node.resize_outputs(len(body.outputs) - (node.op_type == "Loop"))
        out = node.outputs[-1]
        out.name = self.op.fresh(f"{node.name or node.op_type}/{value.name}")
        out.type = value.type
        out.shape = None if value.shape is None else ir.Shape([None, *value.shape])
        return Slices(value, out)

    # -- the node itself ----------------------------------------------------------------

    def _emit(self, results: list[ir.Value], written: list[Slices]) -> Sequence[ir.Value]:
        if not self.reads:
            driver = self.it.elements[0] if self.it.elements else self._tape(self.it.body.inputs[0])
            self.element(driver, driver.outside)
        body = body_of(
            self.inner, "body", self.state_inputs + [r.inside for r in self.reads], results
        )
        inputs = self.initial + [r.outside for r in self.reads]
        settings: dict[str, Any] = {
            "body": ir.AttrGraph("body", body),
            "num_scan_inputs": len(self.reads),
            "scan_input_axes": [r.axis for r in self.reads],
            "scan_input_directions": [r.backwards for r in self.reads],
        }
        if written:
            settings["scan_output_axes"] = [w.axis for w in written]
            settings["scan_output_directions"] = [1 - w.backwards for w in written]
        if self.it.node.op_type == "Loop" and not _runs(self.it.node):
            return self._guarded(inputs, settings, len(results))
        return self.op.call("Scan", inputs, settings, outputs=len(results))

    def _guarded(
        self, inputs: list[ir.Value], settings: dict[str, Any], count: int
    ) -> Sequence[ir.Value]:
        """The Scan unless the Loop did not iterate: onnxruntime's Scan refuses an empty tensor."""
        op = self.op
        some = op.Greater(op.Shape(self.reads[0].outside, start=0, end=1), 0)
        condition = op.Squeeze(some, [0])
        then, otherwise = Builder(op.prefix, parent=op), Builder(op.prefix, parent=op)
        outputs = then.call("Scan", inputs, settings, outputs=count)
        for out, initial in zip(outputs, self.initial, strict=True):
            out.type, out.shape = initial.type, initial.shape
        unchanged = [own(otherwise, v) for v in self.initial]
        branches = {
            "then_branch": ir.AttrGraph("then_branch", body_of(then, "some", [], outputs)),
            "else_branch": ir.AttrGraph("else_branch", body_of(otherwise, "none", [], unchanged)),
        }
        return op.call("If", [condition], branches, outputs=count)


def _runs(node: ir.Node) -> bool:
    """Whether a Loop is known to iterate at least once."""
    trip, condition = (list(node.inputs) + [None, None])[:2]
    count = constant(trip) if trip is not None and not trip.is_graph_input() else None
    if condition is not None:
        first = None if condition.is_graph_input() else constant(condition)
        if first is None or not bool(first):
            return False
    return trip is None or (count is not None and int(count.reshape(-1)[0]) > 0)
