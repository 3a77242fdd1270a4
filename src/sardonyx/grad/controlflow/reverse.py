"""The gradients of Loop and Scan: what flows through them, and what runs them backwards."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import UnsupportedOp, quote
from sardonyx.grad.controlflow.body import Gradients, seeds_of
from sardonyx.grad.controlflow.growing import GrowingReverse, keep_states, kept_states
from sardonyx.grad.controlflow.recurrence import (
    Flow,
    Recurrence,
    flow_through,
    take_apart_loop,
    take_apart_scan,
)
from sardonyx.grad.controlflow.reverse_scan import Reverse
from sardonyx.grad.controlflow.unroll import growing
from sardonyx.grad.driver import Path, add, backward, gradient_rule


def _recurrent_paths(node: ir.Node, values: set[ir.Value]) -> list[Path]:
    it = take_apart_loop(node) if node.op_type == "Loop" else take_apart_scan(node)
    it.simplify()
    flow = flow_through(it, values, values)
    return [(flow.nodes, flow.values)]


@gradient_rule("Loop", structural=True, inside=_recurrent_paths)
def loop(op, gs, node, targets):
    it, flow, cotangents = _flow(take_apart_loop(node), gs, targets)
    resized = [v for v in growing(node) if v in {s.inside for s in flow.states}]
    if resized:
        # The sequences stand between the states and the stacked outputs.
        count = len(node.attributes["body"].as_graph().inputs) - 2
        gs = [*gs[:count], *[None] * len(resized), *gs[count:]]
        it, flow, cotangents = _flow(take_apart_loop(keep_states(op, node, resized)), gs, targets)
    return _recur(op, it, flow, cotangents)


@gradient_rule("Scan", structural=True, inside=_recurrent_paths)
def scan(op, gs, node, targets):
    return _recur(op, *_flow(take_apart_scan(node), gs, targets))


def _flow(
    it: Recurrence, gs: Gradients, targets: set[ir.Value]
) -> tuple[Recurrence, Flow, dict[ir.Value, ir.Value]]:
    cotangents = {out: g for out, g in zip(it.node.outputs, gs, strict=False) if g is not None}
    it.simplify()
    return it, flow_through(it, targets, set(cotangents)), cotangents


def _recur(
    op: Builder, it: Recurrence, flow: Flow, cotangents: dict[ir.Value, ir.Value]
) -> dict[ir.Value, ir.Value]:
    _refuse_sequences(it.node, flow)
    inner, kept = Builder(op.prefix, parent=op), kept_states(it)
    reverse = GrowingReverse(op, inner, it, flow, kept) if kept else Reverse(op, inner, it, flow)
    ends = [(s.after, reverse.state(s, cotangents.get(s.final))) for s in flow.states]
    ends += [(s.inside, reverse.element(s, cotangents[s.outside])) for s in flow.stacked]
    gradients = backward(inner, list(it.body), seeds_of(inner, ends), flow.starts)
    pulled = reverse.finish(gradients) if ends else {}
    for state in it.constant:
        if state.final in cotangents:
            parts = [cotangents[state.final]] + (
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
