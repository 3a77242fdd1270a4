"""The gradient of a Loop that carries a growing state an unknown number of times.

A state of another shape in each iteration cannot be stacked, as the tape of other loops is. The
forward Loop keeps such states in a sequence, and a Loop reads them backwards: the cotangent of the
state shrinks from one iteration to the next, which a Scan does not allow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.grad.controlflow.body import body_of, like
from sardonyx.grad.controlflow.recurrence import Flow, Recurrence, Slices, State
from sardonyx.grad.controlflow.reverse_scan import Reverse

INT64 = ir.DataType.INT64
FIRST = np.iinfo(np.int64).min + 1  # where a slice that runs backwards ends: before the first


def keep_states(op: Builder, node: ir.Node, states: Sequence[ir.Value]) -> ir.Node:
    """A Loop in the place of `node` that also carries a sequence of what each of `states` was."""
    graph, body = node.graph, node.attributes["body"].as_graph()
    assert isinstance(graph, ir.Graph)
    forward, count, size = Builder(op.prefix, parent=op), len(body.inputs) - 2, len(states)
    empty = [forward.SequenceEmpty(dtype=int(v.dtype)) for v in states]  # type: ignore[arg-type]
    kept = [_insert(op, body, value) for value in states]
    outputs = list(body.outputs)
    body.outputs.clear()
    body.outputs.extend([*outputs[: 1 + count], *kept, *outputs[1 + count :]])
    attributes = [node.attributes.pop("body")]
    new = ir.Node(
        "", "Loop", [*node.inputs, *empty], attributes, num_outputs=len(outputs) - 1 + size,
        name=node.name,
    )  # fmt: skip
    for sequence, inside in zip(new.outputs[count : count + size], kept, strict=True):
        sequence.name, sequence.type = op.fresh(f"{node.name or 'Loop'}/kept"), inside.type
    others = [*new.outputs[:count], *new.outputs[count + size :]]
    for old, other in zip(node.outputs, others, strict=False):
        other.type, other.shape, name = old.type, old.shape, old.name
        old.replace_all_uses_with(other, replace_graph_outputs=True)
        old.name = op.fresh(f"{name}/loop")
        other.name = name
    graph.insert_before(node, [*forward.nodes, new])
    graph.remove(node, safe=True)
    return new


def _insert(op: Builder, body: ir.Graph, value: ir.Value) -> ir.Value:
    """`value` at the end of a sequence that a body carries from one iteration to the next."""
    assert value.dtype is not None
    kind = ir.SequenceType(ir.TensorType(value.dtype))
    before = ir.Value(name=op.fresh(f"{value.name}/kept"), type=kind)
    body.inputs.append(before)
    name = op.fresh(f"{op.prefix}/SequenceInsert")
    node = ir.Node("", "SequenceInsert", [before, value], name=name)
    node.outputs[0].name, node.outputs[0].type = name, kind
    body.append(node)
    return node.outputs[0]


def kept_states(it: Recurrence) -> dict[ir.Value, ir.Value]:
    """The sequence, after the Loop, of each state that it keeps."""
    sequences: dict[ir.Value, ir.Value] = {}
    for state in it.states:
        node = state.after.producer()
        if node is not None and node.op_type == "SequenceInsert" and node.inputs[0] is state.inside:
            value = node.inputs[1]
            assert value is not None
            sequences[value] = state.final
    return sequences


class GrowingReverse(Reverse):
    """Builds the Loop that runs the iterations backwards."""

    def __init__(
        self,
        op: Builder,
        inner: Builder,
        it: Recurrence,
        flow: Flow,
        kept: dict[ir.Value, ir.Value],
    ):
        super().__init__(op, inner, it, flow)
        self.kept = kept
        self.index = ir.Value(name=op.fresh(f"{op.prefix}/index"), type=ir.TensorType(INT64))
        self.index.shape = ir.Shape([])
        self.heads: list[ir.Node] = []  # what reads the tape in an iteration

    def state(self, state: State, g: ir.Value | None) -> ir.Value:
        value = super().state(state, g)
        if state.inside in self.kept and value.shape is not None:
            value.shape = ir.Shape([None] * len(value.shape))
        return value

    def _recall(self, value: ir.Value) -> ir.Value:
        if value not in self.kept:
            return super()._recall(value)
        out = like(self.op, value, "kept", [None] * len(value.shape or ()))
        out.shape = None if value.shape is None else out.shape
        self._read("SequenceAt", [self.kept[value], self.index], out)
        return out

    def _read(
        self,
        op_type: str,
        inputs: list[ir.Value],
        out: ir.Value,
        attributes: Sequence[ir.Attr] = (),
    ) -> None:
        name = self.op.fresh(f"{self.op.prefix}/{op_type}")
        self.heads.append(ir.Node("", op_type, inputs, attributes, outputs=[out], name=name))

    def _emit(self, results: list[ir.Value], written: list[Slices]) -> Sequence[ir.Value]:
        op, head = self.op, Builder(self.op.prefix, parent=self.op)
        count = op.SequenceLength(next(iter(self.kept.values())))
        count.type, count.shape = ir.TensorType(INT64), ir.Shape([])
        last = op.Sub(count, op.const(1, INT64))
        number = ir.Value(name=op.fresh(f"{op.prefix}/i"), type=ir.TensorType(INT64))
        go_on = ir.Value(name=op.fresh(f"{op.prefix}/more"), type=ir.TensorType(ir.DataType.BOOL))
        number.shape, go_on.shape = ir.Shape([]), ir.Shape([])
        self._read("Sub", [last, number], self.index)
        first = self.heads.pop()
        for read in self.reads:
            axis = ir.AttrInt64("axis", read.axis)
            self._read("Gather", [read.outside, self.index], read.inside, [axis])
        more = head.Identity(go_on)
        self.inner.nodes = [first, *self.heads, *head.nodes, *self.inner.nodes]
        inputs = [number, go_on, *self.state_inputs]
        body = body_of(self.inner, "body", inputs, [more, *results])
        true = op.const(True, ir.DataType.BOOL)
        attributes = {"body": ir.AttrGraph("body", body)}
        outputs = list(
            op.call("Loop", [count, true, *self.initial], attributes, outputs=len(results))
        )
        for i in range(len(outputs) - len(written), len(outputs)):  # the last iteration comes first
            outputs[i].type = results[i].type
            outputs[i] = op.Slice(outputs[i], [-1], [FIRST], [0], [-1])
        return outputs
