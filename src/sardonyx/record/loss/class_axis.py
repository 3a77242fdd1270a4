"""Which axis of a prediction holds the scores of the classes: what has computed it shows that.

Products write their results along the last axis, convolutions along axis 1. Between them and the
prediction the axis is followed through transpositions and the like.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from sardonyx.build import constant, rank
from sardonyx.errors import quote

LAST = (
    "MatMul", "Gemm", "Gather", "Attention", "MultiHeadAttention", "RNN", "LSTM", "GRU",
    "LayerNormalization", "RMSNormalization",
)  # fmt: skip
SECOND = (
    "Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
    "GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool",
)  # fmt: skip
ACTIVATIONS = ("Softmax", "LogSoftmax")
FARTHEST = 64  # nodes
DEFAULT = 1

Follow = Callable[[int], int | None]  # the axis of a node's input → the axis of its output


def class_axis(prediction: ir.Value) -> tuple[int, str]:
    """The axis of the classes in a prediction, and how that is known."""
    if prediction.shape is None or rank(prediction) < 3:
        return DEFAULT, "scores of rows"
    value = prediction
    followed: list[Follow] = []
    for _ in range(FARTHEST):
        node = value.producer()
        start = None if node is None else _start(node, value)
        if node is not None and start is not None:
            axis: int | None = start
            for follow in reversed(followed):
                axis = None if axis is None else follow(axis)
            if axis is not None:
                return axis, f"computed by {node.op_type} {quote(node.name)}"
        step = None if node is None else _back(node)
        if step is None or start is not None:
            break
        value = step[0]
        followed.append(step[1])
    return DEFAULT, "as torch has it: the graph does not show which axis it is"


def _start(node: ir.Node, value: ir.Value) -> int | None:
    """The axis along which a node writes its results, where the operator says so."""
    if node.op_type in ACTIVATIONS:
        return node.attributes.get_int("axis", -1) % rank(value)
    if node.op_type in LAST:
        return rank(value) - 1
    return DEFAULT if node.op_type in SECOND else None


def _back(node: ir.Node) -> tuple[ir.Value, Follow] | None:
    """The input that a node passes on, and where its axes are in the output."""
    out, kind = node.outputs[0], node.op_type
    inputs = [v for v in node.inputs if v is not None and v.shape is not None]
    sources = [v for v in inputs if v.producer() is not None and constant(v) is None]
    if not sources or out.shape is None:
        return None
    source = sources[0]
    if kind == "Transpose":
        perm = list(node.attributes.get_ints("perm") or reversed(range(rank(source))))
        return source, perm.index
    if kind in ("Squeeze", "Unsqueeze"):
        return source, _resized(kind, node, rank(source), rank(out))
    if kind in ("Reshape", "Flatten"):
        return source, lambda axis: _reshaped(axis, source, out)
    same = [v for v in sources if rank(v) == rank(out)]  # elementwise, Concat, Resize, Dropout, …
    return (same[0], lambda axis: axis) if same else None


def _resized(kind: str, node: ir.Node, before: int, after: int) -> Follow:
    axes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None:
        return lambda axis: None
    changed = {int(a) % max(before, after) for a in axes.reshape(-1)}
    inner = [a for a in range(max(before, after)) if a not in changed]
    if kind == "Squeeze":
        return lambda axis: inner.index(axis) if axis in inner else None
    return lambda axis: inner[axis]


def _reshaped(axis: int, source: ir.Value, out: ir.Value) -> int | None:
    """The last axis stays the last and the second the second, where their sizes are the same."""
    before, after = list(source.shape or ()), list(out.shape or ())
    if axis == len(before) - 1 and isinstance(before[-1], int) and before[-1] == after[-1]:
        return len(after) - 1
    second = len(after) > 1 and axis == 1 and isinstance(before[1], int) and before[1] == after[1]
    return 1 if second else None
