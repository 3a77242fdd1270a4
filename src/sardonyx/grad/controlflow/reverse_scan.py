"""The gradient of a Loop or Scan as a Scan over the iterations, the last one first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant, is_static, rank
from sardonyx.grad.controlflow.body import (
    body_of,
    like,
    own,
    read_inside,
    reread,
    results_of,
)
from sardonyx.grad.controlflow.recurrence import (
    Flow,
    Recurrence,
    Slices,
    State,
)
from sardonyx.grad.driver import add
from sardonyx.passes.functions import copy_nodes


class Reverse:
    """Builds the Scan that runs the iterations backwards."""

    def __init__(self, op: Builder, inner: Builder, it: Recurrence, flow: Flow):
        self.op, self.inner, self.it, self.flow = op, inner, it, flow
        self.initial: list[ir.Value] = []  # of the states of the backward Scan
        self.state_inputs: list[ir.Value] = []
        self.reads: list[Slices] = []  # what it reads per iteration
        self.known: dict[ir.Value, Any] = {}  # a value of the forward body, as it reads it
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

    def finish(self, gradients: Sequence[ir.Value | None]) -> dict[ir.Value, ir.Value]:
        inner, flow = self.inner, self.flow
        count = len(flow.states)
        carried = [
            g if g is not None else inner.zeros_like(s.inside)
            for s, g in zip(flow.states, gradients, strict=False)
        ]
        rest = gradients[count:]
        elements = [(e, g) for e, g in zip(flow.elements, rest, strict=False) if g is not None]
        rest = rest[len(flow.elements) :]
        sums = [(v, g) for v, g in zip(flow.outside, rest, strict=True) if g is not None]
        carried += [self._accumulate(v, g) for v, g in sums]
        results = results_of(inner, [*carried, *(g for _, g in elements)])
        # onnxruntime's Scan wants the rank of everything that its body returns.
        for value, start in zip(results, self.state_inputs, strict=False):
            if value.shape is None and start.shape is not None:
                value.shape = ir.Shape(start.shape)
        self._read_forward()
        outputs = list(self._emit(results, [e for e, _ in elements]))
        for i, (element, _) in enumerate(elements, len(carried)):
            if element in self.it.indexed:
                outputs[i] = self._filled_up(outputs[i], element.outside)
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

    def _filled_up(self, stack: ir.Value, source: ir.Value) -> ir.Value:
        """The slices that were read, followed by zeros for those of `source` that were not."""
        assert source.shape is not None
        op, n = self.op, rank(source)
        stack.type, stack.shape = source.type, ir.Shape([None, *list(source.shape)[1:]])
        unread = op.Sub(op.Shape(source, start=0, end=1), op.Shape(stack, start=0, end=1))
        before, after = (op.const([0] * k, ir.DataType.INT64) for k in (n, n - 1))
        return op.Pad(stack, op.Concat(before, unread, after, axis=0))

    # -- what the forward iteration knew ------------------------------------------------

    def _read_forward(self) -> None:
        nodes = self.inner.nodes
        reread(nodes, {v: self._forward(v) for v in read_inside(nodes, self.it.body)})
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
            missing = [v for v in read_inside([producer], self.it.body) if v not in self.known]
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
            return self._guarded(inputs, settings, written)
        return self.op.call("Scan", inputs, settings, outputs=len(results))

    def _guarded(
        self, inputs: list[ir.Value], settings: dict[str, Any], written: list[Slices]
    ) -> Sequence[ir.Value]:
        """The Scan unless the Loop did not iterate: onnxruntime's Scan refuses an empty tensor."""
        op = self.op
        some = op.Greater(op.Shape(self.reads[0].outside, start=0, end=1), 0)
        condition = op.Squeeze(some, [0])
        then, otherwise = Builder(op.prefix, parent=op), Builder(op.prefix, parent=op)
        none = [own(otherwise, v) for v in self.initial]
        none += [_no_slices(otherwise, w.outside) for w in written]
        outputs = then.call("Scan", inputs, settings, outputs=len(none))
        for out, other in zip(outputs, none, strict=True):
            out.type = other.type
            out.shape = None if other.shape is None else ir.Shape(other.shape)
        for out, _ in zip(outputs[len(self.initial) :], written, strict=True):
            out.shape = ir.Shape([None, *list(out.shape)[1:]])
        branches = {
            "then_branch": ir.AttrGraph("then_branch", body_of(then, "some", [], outputs)),
            "else_branch": ir.AttrGraph("else_branch", body_of(otherwise, "none", [], none)),
        }
        return op.call("If", [condition], branches, outputs=len(none))


def _no_slices(op: Builder, source: ir.Value) -> ir.Value:
    assert source.dtype is not None and source.shape is not None
    dims = op.join([0, *op.dims(source, 1)])
    out = op.ConstantOfShape(dims, value=ir.tensor(np.zeros(1, source.dtype.numpy())))
    out.shape = ir.Shape([0, *list(source.shape)[1:]])
    return out


def _runs(node: ir.Node) -> bool:
    """Whether a Loop is known to iterate at least once."""
    trip, condition = [*node.inputs, None, None][:2]
    count = constant(trip) if trip is not None and not trip.is_graph_input() else None
    if condition is not None:
        first = None if condition.is_graph_input() else constant(condition)
        if first is None or not bool(first):
            return False
    return trip is None or (count is not None and int(count.reshape(-1)[0]) > 0)
