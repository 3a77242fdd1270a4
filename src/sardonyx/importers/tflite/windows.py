"""Operators of TensorFlow Lite that spread elements out, and that reduce windows of them."""

from __future__ import annotations

import numpy as np

from sardonyx.importers.tflite.indexing import static
from sardonyx.importers.tflite.rules import Unsupported, known, rank, rule

# By the number of the function in the schema, and by the operator in a body.
REDUCTIONS = {1: "Sum", 2: "Prod", 3: "Min", 4: "Max"}
BODIES = {"ADD": "Sum", "MUL": "Prod", "MULTIPLY": "Prod", "MINIMUM": "Min", "MAXIMUM": "Max"}
PAIRS = {"Sum": "Add", "Prod": "Mul", "Min": "Min", "Max": "Max"}


@rule("DILATE", raw=True)
def dilate(op, node, x, steps, value):
    none = [0] * rank(x)
    return _spread(op, x, value, none, none, known(steps, "the distances").tolist())


@rule("STABLEHLO_PAD", raw=True)
def stablehlo_pad(op, node, x, value):
    steps = [inner + 1 for inner in node["interior_padding"]]
    return _spread(op, x, value, node["edge_padding_low"], node["edge_padding_high"], steps)


@rule("REDUCE_WINDOW", raw=True)
def reduce_window(op, node, x, start, shape, strides, dilations):
    kind = REDUCTIONS.get(node["reduce_function"])
    settings = (known(v, "a window").tolist() for v in (shape, strides, dilations))
    return _reduced(op, x, start, kind, *settings)


@rule("STABLEHLO_REDUCE_WINDOW", raw=True)
def stablehlo_reduce_window(op, node, x, start):
    ones = [1] * rank(x)
    pads = node["padding"] or [0] * 2 * rank(x)
    x = _spread(op, x, start, pads[::2], pads[1::2], node["base_dilations"] or ones)
    body = node.operators(node["body_subgraph_index"])
    kind = BODIES.get(body[0].removeprefix("STABLEHLO_")) if len(body) == 1 else None
    strides, dilations = (node[f"window_{name}"] or ones for name in ("strides", "dilations"))
    return _reduced(op, x, start, kind, node["window_dimensions"], strides, dilations)


def _spread(op, x, value, low, high, steps):
    """Elements `steps` apart, with `value` between them, before and after; less than 0 cuts off."""
    lengths = static(x, "the array")
    places = [
        _places(length, *setting)
        for length, *setting in zip(lengths, low, high, steps, strict=True)
    ]
    axes = [a for a, p in enumerate(places) if p.tolist() != list(range(lengths[a]))]
    if not axes:
        return op.Identity(x)
    after = [int(axis in axes) for axis in range(len(lengths))]
    x = op.Pad(x, np.array([0] * len(after) + after), op.Reshape(value, np.zeros(0, np.int64)))
    for axis in axes:
        x = op.Gather(x, places[axis], axis=axis)
    return x


def _places(length, low, high, step):
    """For each place of the result the one in the array; `length`, behind its end, is the value."""
    at = np.arange(-low, (length - 1) * step + 1 + high) if length else np.arange(-low, high)
    inside = (at % step == 0) & (at >= 0) & (at < length * step)
    return np.where(inside, at // step, length).astype(np.int64)


def _reduced(op, x, start, kind, shape, strides, dilations):
    if kind is None:
        raise Unsupported("windows that are not added, multiplied or searched for an extreme")
    axes: list[int] = []
    settings = zip(static(x, "the array"), shape, strides, dilations, strict=True)
    for axis, (length, size, stride, step) in reversed(list(enumerate(settings))):
        if size == stride == 1:
            continue
        count = (length - (size - 1) * step - 1) // stride + 1
        if count < 1:
            raise Unsupported("windows that are larger than the array")
        first = np.arange(count)[:, None] * stride
        x = op.Gather(x, first + np.arange(size) * step, axis=axis)
        axes = [axis + 1, *(a + 1 for a in axes)]
    if axes:
        x = op.call(f"Reduce{kind}", [x, op.const(np.array(axes))], {"keepdims": 0})
    return op.call(PAIRS[kind], [x, start])
