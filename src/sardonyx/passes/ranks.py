"""Ranks that readers imply: what Conv reads has the rank of its weights, what LSTM reads has rank 3.

Shape inference goes forwards and loses the rank where the branches of an If disagree on it. One sweep
backwards finds it again from those who read the value. Only values of the same graph are refined: a branch
tells nothing about what it reads from outside, for it may never run.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.build import constant, infer
from sardonyx.passes.nesting import graphs

SAME_RANK = frozenset(
    "Abs Cast Ceil Clip Cos Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log "
    "LogSoftmax Neg Reciprocal Relu Sigmoid Sign Sin Softmax Softplus Softsign Sqrt Tanh".split()
)
RECURRENT = {0: 3, 5: 3, 6: 3}


def imply_ranks(graph: ir.Graph) -> None:
    """Refine values of unknown rank, in the graph and its bodies, until nothing new is found."""
    for part in graphs(graph):
        while _sweep(part):
            for node in part:
                if any(v.shape is None for v in node.outputs):
                    infer(node)


def _sweep(graph: ir.Graph) -> bool:
    found = False
    for node in reversed(graph):
        for value, rank in _demands(node):
            producer = value.producer()
            if value.shape is None and rank >= 0 and producer is not None and producer.graph is graph:
                value.shape = ir.Shape([None] * rank)
                found = True
    return found


def _demands(node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
    """The inputs of `node` whose rank the node itself tells, and that rank."""
    if node.domain != "":
        return
    inputs = list(node.inputs)
    out = node.outputs[0].shape if node.outputs else None
    if node.op_type in ("Conv", "ConvTranspose") and inputs[1].shape is not None:
        yield inputs[0], len(inputs[1].shape)
    elif node.op_type in ("LSTM", "GRU", "RNN"):
        for i, rank in RECURRENT.items():
            if i < len(inputs) and inputs[i] is not None:
                yield inputs[i], rank
    elif node.op_type == "Gemm":
        yield from ((v, 2) for v in inputs[:2])
    elif out is None or not inputs or inputs[0] is None:
        return
    elif node.op_type in SAME_RANK:
        yield inputs[0], len(out)
    elif node.op_type == "Concat":
        yield from ((v, len(out)) for v in inputs)
    elif node.op_type in ("Unsqueeze", "Squeeze") and len(inputs) > 1:
        axes = constant(inputs[1])
        if axes is not None and not inputs[1].is_graph_input():
            sign = -1 if node.op_type == "Unsqueeze" else 1
            yield inputs[0], len(out) + sign * axes.size
