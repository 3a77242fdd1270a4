"""LSTM, GRU and RNN: the forward becomes a Scan that keeps its gates, the gradient a second Scan.

The input projection of all steps is one product ahead of the forward Scan; the gradients of X,
W, R and B are one product each after the backward Scan. Whatever does not depend on the
cotangents (slopes of the activations, peepholes, masks of shorter sequences) is folded into
factors for all steps at once: a step backwards is one product with R and a few elementwise
operators, whatever the variant. The forward node is replaced in its graph; its outputs keep
their names.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.grad.driver import gradient_rule
from sardonyx.grad.rnn.cell import Cell, Gru, Lstm, Rnn
from sardonyx.grad.rnn.layer import Gradients, Layer
from sardonyx.passes.functions import replace


def _differentiate(
    op: Builder, gs: Gradients, node: ir.Node, cell: Cell
) -> dict[ir.Value, ir.Value]:
    layer = Layer(node, cell)
    forward = Builder(node.name or node.op_type, parent=op)
    with forward:
        outputs = layer.forward(forward)
    replace(node, forward.nodes, [*outputs[: len(node.outputs)]])
    return layer.backward(op, gs)


@gradient_rule("LSTM", structural=True)
def lstm(op, gs, node, targets):
    return _differentiate(op, gs, node, Lstm())


@gradient_rule("GRU", structural=True)
def gru(op, gs, node, targets):
    return _differentiate(op, gs, node, Gru())


@gradient_rule("RNN", structural=True)
def rnn(op, gs, node, targets):
    return _differentiate(op, gs, node, Rnn())
