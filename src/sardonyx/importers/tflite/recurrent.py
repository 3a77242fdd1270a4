"""Recurrent layers of TensorFlow Lite.

Their states are variables of the file, which keep their values from call to call.
"""

from __future__ import annotations

import numpy as np

from sardonyx.importers.tflite.elementwise import activated
from sardonyx.importers.tflite.rules import Unsupported, rule, sizes

# The fused activations, by number, as ONNX's recurrent operators have them: name, alpha, and the
# bounds of what goes in.
ACTIVATIONS = {0: ("Affine", 1.0, None), 1: ("Relu", 0.0, None), 2: ("Affine", 1.0, 1.0)}
ACTIVATIONS |= {3: ("Relu", 0.0, 6.0), 4: ("Tanh", 0.0, None)}
ORDER = [0, 3, 1, 2]  # ONNX has input, output, forget, cell; here it is input, forget, cell, output


@rule("RNN", own_activation=True)
def rnn(op, node, x, w, r, b, state):
    y = op.Add(op.Add(op.MatMul(x, op.swap(w)), op.MatMul(state, op.swap(r))), b)
    y = activated(op, y, node["fused_activation_function"])
    node.assign(4, y)
    return y


@rule("UNIDIRECTIONAL_SEQUENCE_RNN", own_activation=True)
def unidirectional_sequence_rnn(op, node, x, w, r, b, state):
    y, last = _rnn(op, node, x, [w, r, b, state], "forward")
    node.assign(4, last)
    return y


@rule("BIDIRECTIONAL_SEQUENCE_RNN", own_activation=True)
def bidirectional_sequence_rnn(op, node, x, *rest):
    if any(v is not None for v in rest[8:]):
        raise Unsupported("a second input")
    forward, first = _rnn(op, node, x, rest[:4], "forward")
    backward, second = _rnn(op, node, x, rest[4:8], "reverse")
    node.assign(4, first)
    node.assign(8, second)
    return _merged(op, node, forward, backward)


@rule("LSTM", own_activation=True)
def lstm(op, node, x, *tensors):
    if node.get("kernel_type") == 1:
        return _basic_lstm(op, node, x, *tensors)
    rest = [*tensors, *[None] * (23 - len(tensors))]
    y, *last = _lstm(op, node, op.Unsqueeze(x, [0]), rest[:17], rest[17:19], rest[19:])
    for place, value in zip((18, 19), last, strict=True):
        node.assign(place, value)
    return op.Squeeze(y, [0])


def _basic_lstm(op, node, x, y, w, b, c):
    """One step with all gates in one matrix: input, cell, forget, output."""
    joined = op.Concat(x, y, axis=1)
    gates = op.Add(op.MatMul(joined, op.swap(w)), b)
    i, g, f, o = op.Split(gates, axis=1, num_outputs=4, outputs=4)
    c = op.Add(op.Mul(op.Sigmoid(i), op.Tanh(g)), op.Mul(op.Sigmoid(f), c))
    return op.Mul(op.Sigmoid(o), op.Tanh(c)), c, joined, gates


@rule("UNIDIRECTIONAL_SEQUENCE_LSTM", own_activation=True)
def unidirectional_sequence_lstm(op, node, x, *tensors):
    rest = [*tensors, *[None] * (23 - len(tensors))]
    y, *last = _in_time(op, node, x, rest[:17], rest[17:19], rest[19:])
    for place, value in zip((18, 19), last, strict=True):
        node.assign(place, value)
    return y


@rule("BIDIRECTIONAL_SEQUENCE_LSTM", own_activation=True)
def bidirectional_sequence_lstm(op, node, x, *rest):
    if any(v is not None for v in rest[38:]):
        raise Unsupported("a second input")
    forward, *first = _in_time(op, node, x, rest[:17], rest[34:36], [])
    backward, *second = _in_time(op, node, x, rest[17:34], rest[36:38], [], "reverse")
    for place, value in zip((35, 36, 37, 38), (*first, *second), strict=True):
        node.assign(place, value)
    return _merged(op, node, forward, backward)


@rule("SVDF", own_activation=True)
def svdf(op, node, x, features, time, b, state):
    """Filters over time: each keeps the last numbers that it made of the features."""
    filters, memory = sizes(time)
    count = node["rank"]
    kept = op.Reshape(state, np.array([-1, filters, memory]))
    new = op.Unsqueeze(op.MatMul(x, op.swap(features)), [2])
    kept = op.Concat(op.Slice(kept, [1], [memory], [2]), new, axis=2)
    node.assign(4, op.Reshape(kept, np.array([-1, filters * memory])))
    y = op.Reshape(op.ReduceSum(op.Mul(kept, time), [2]), np.array([-1, filters // count, count]))
    y = op.ReduceSum(y, [2], keepdims=0)
    y = y if b is None else op.Add(y, b)
    return activated(op, y, node["fused_activation_function"])


def _rnn(op, node, x, tensors, direction):
    w, r, b, state = tensors
    name, alpha, clip = _activation(node)
    settings = {"activations": [name], "activation_alpha": [alpha], "activation_beta": [0.0]}
    if clip is not None:
        settings["clip"] = clip
    bias = op.Concat(b, np.zeros(sizes(w)[0], np.float32), axis=0)
    w, r, bias, state = (op.Unsqueeze(v, [0]) for v in (w, r, bias, state))
    x = _by_time(op, node, x)
    y, last = op.RNN(
        x, w, r, bias, None, state, hidden_size=sizes(w)[1], direction=direction, outputs=2,
        **settings,
    )  # fmt: skip
    return _by_time(op, node, op.Squeeze(y, [1])), op.Squeeze(last, [0])


def _in_time(op, node, x, weights, state, norms, direction="forward"):
    y, *last = _lstm(op, node, _by_time(op, node, x), weights, state, norms, direction)
    return _by_time(op, node, y), *last


def _lstm(op, node, x, weights, state, norms, direction="forward"):
    """A layer over sequences in order of time: all outputs, the last one, the last cell."""
    inputs, recurrent, peepholes, biases = weights[:4], weights[4:8], weights[8:11], weights[11:15]
    if any(v is not None for v in (*weights[15:], *norms)) or node["cell_clip"]:
        raise Unsupported("projections, clipping or layer norms")
    name, alpha, clip = _activation(node)
    if clip is not None:
        raise Unsupported("an activation with bounds")
    if inputs[0] is None:  # what is not forgotten is taken in: 1 - sigmoid(z) = sigmoid(-z)
        inputs, recurrent, biases = (
            [op.Neg(group[1]), *group[1:]] for group in (inputs, recurrent, biases)
        )
        peepholes = [None if peepholes[1] is None else op.Neg(peepholes[1]), *peepholes[1:]]
    w, r = (op.Concat(*(group[i] for i in ORDER), axis=0) for group in (inputs, recurrent))
    units = sizes(recurrent[1])[1]
    bias = op.Concat(*(biases[i] for i in ORDER), np.zeros(4 * units, np.float32), axis=0)
    peephole = None
    if peepholes[1] is not None:
        peephole = op.Unsqueeze(op.Concat(*(peepholes[i] for i in (0, 2, 1)), axis=0), [0])
    w, r, bias, *state = (op.Unsqueeze(v, [0]) for v in (w, r, bias, *state))
    y, *last = op.LSTM(
        x, w, r, bias, None, *state, peephole, hidden_size=units, direction=direction, outputs=3,
        activations=["Sigmoid", name, name], activation_alpha=[0.0, alpha, alpha],
        activation_beta=[0.0] * 3,
    )  # fmt: skip
    return op.Squeeze(y, [1]), *(op.Squeeze(v, [0]) for v in last)


def _activation(node):
    kind = node["fused_activation_function"]
    if kind not in ACTIVATIONS:
        raise Unsupported(f"the activation {kind}")
    return ACTIVATIONS[kind]


def _by_time(op, node, x):
    """A sequence in ONNX's order of axes, or one of ONNX's in the order of the file."""
    return x if node.get("time_major") else op.Transpose(x, perm=[1, 0, 2])


def _merged(op, node, forward, backward):
    return op.Concat(forward, backward, axis=2) if node["merge_outputs"] else (forward, backward)
