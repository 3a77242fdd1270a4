"""torch's recurrent layers, for standard activations and whole sequences.

On export, torch unrolls a layer for the length of the example; over a free length, an exported
layer is therefore written as a scan.
"""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    track_tensor_tree,
)
from torch.utils._pytree import tree_map_only

from sardonyx.engines.torch.controlflow import fold
from sardonyx.lower import rnn
from sardonyx.lower.driver import lowering

# Where torch's gates are in ONNX's order: LSTM i, f, g, o in i, o, f, c; GRU r, z, n in z, r, h.
ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}


def is_standard(op, names, x, lengths, attributes):
    """Whether torch's layer computes the same."""
    per = len(rnn.DEFAULTS[op])
    defaults = list(rnn.DEFAULTS[op]) * (len(names) // per)
    return names == defaults and lengths is None and not attributes["clip"] and x.numel() > 0


def weights_of(op, w, r, b):
    """The weights of all directions, in torch's order."""
    hidden, gates = r.shape[2], len(ORDER[op])

    def sorted_rows(value):
        parts = value.split(hidden)
        return torch.cat([parts[i] for i in ORDER[op]]) if gates > 1 else value

    tensors = []
    for d in range(w.shape[0]):
        tensors += [sorted_rows(w[d]), sorted_rows(r[d])]
        if b is not None:
            tensors += [sorted_rows(part) for part in b[d].split(gates * hidden)]
    return tensors


def run(function, op, x, w, r, b, initial, attributes):
    """Run one layer of torch: outputs and last states in ONNX's layouts."""
    batchwise = bool(attributes["layout"])
    if batchwise:
        x = x.transpose(0, 1)
        initial = [v if v is None else v.transpose(0, 1) for v in initial]
    backwards = attributes["direction"] == "reverse"
    x = x.flip(0) if backwards else x
    directions, hidden = w.shape[0], r.shape[2]
    none = x.new_zeros((directions, x.shape[1], hidden))
    states = [none if v is None else v.contiguous() for v in initial]
    start = states if op == "LSTM" else states[0]
    settings = (b is not None, 1, 0.0, False, directions == 2, False)
    y, *last = called(function, x.contiguous(), start, weights_of(op, w, r, b), *settings)
    y = y.reshape(*y.shape[:2], directions, hidden).transpose(1, 2)
    y = y.flip(0) if backwards else y
    if batchwise:
        return (y.permute(2, 0, 1, 3), *(v.transpose(0, 1) for v in last))
    return (y, *last)


def called(function, x, start, *rest):
    """Call the layer; while a graph is traced, record it as one node.

    torch would compute the sizes of its results by running through it step by step.
    """
    mode = get_proxy_mode()
    if mode is None or not mode.pre_dispatch or torch.compiler.is_exporting():
        return function(x, start, *rest)
    states = start if isinstance(start, list) else [start]
    directions, _, hidden = states[0].shape
    with disable_proxy_modes_tracing():
        outputs = [x.new_empty((*x.shape[:2], directions * hidden)), *map(torch.empty_like, states)]
    arguments = tree_map_only(torch.Tensor, mode.tracer.unwrap_proxy, (x, start, *rest))
    node = mode.tracer.create_proxy("call_function", function, arguments, {})
    return track_tensor_tree(outputs, node, constant=None, tracer=mode.tracer)


@lowering("LSTM", only="torch")
def lstm(
    xp, x, w, r, b=None, sequence_lens=None, initial_h=None, initial_c=None, p=None, **attributes
):
    names = rnn.activation_names("LSTM", attributes["activations"], w.shape[0])
    plain = p is None and not attributes["input_forget"]
    if not (plain and is_standard("LSTM", names, x, sequence_lens, attributes)):
        return rnn.lstm(xp, x, w, r, b, sequence_lens, initial_h, initial_c, p, **attributes)
    return run(lstm_layer, "LSTM", x, w, r, b, [initial_h, initial_c], attributes)


@lowering("GRU", only="torch")
def gru(xp, x, w, r, b=None, sequence_lens=None, initial_h=None, **attributes):
    names = rnn.activation_names("GRU", attributes["activations"], w.shape[0])
    standard = is_standard("GRU", names, x, sequence_lens, attributes)
    if not (standard and attributes["linear_before_reset"]):
        return rnn.gru(xp, x, w, r, b, sequence_lens, initial_h, **attributes)
    return run(gru_layer, "GRU", x, w, r, b, [initial_h], attributes)


@lowering("RNN", only="torch")
def plain_rnn(xp, x, w, r, b=None, sequence_lens=None, initial_h=None, **attributes):
    names = rnn.activation_names("RNN", attributes["activations"], w.shape[0])
    if not is_standard("RNN", names, x, sequence_lens, attributes):
        return rnn.rnn(xp, x, w, r, b, sequence_lens, initial_h, **attributes)
    return run(rnn_layer, "RNN", x, w, r, b, [initial_h], attributes)


# -- exported over a free length -----------------------------------------------------


def lstm_step(h, c, projection, r, b):
    i, f, g, o = (projection + torch.nn.functional.linear(h, r, b)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return h, c, h.clone()


def gru_step(h, projection, r, b):
    inputs = projection.chunk(3, 1)
    states = torch.nn.functional.linear(h, r, b).chunk(3, 1)
    reset, update = ((x + s).sigmoid() for x, s in zip(inputs[:2], states[:2]))
    new = (inputs[2] + reset * states[2]).tanh()
    h = (1 - update) * new + update * h
    return h, h.clone()


def rnn_step(h, projection, r, b):
    h = (projection + torch.nn.functional.linear(h, r, b)).tanh()
    return h, h.clone()


def exportable(layer, step, x, start, weights, has_biases, *settings):
    """`layer` of torch, called as in `run` above; a scan where an export leaves its length free."""
    if not torch.compiler.is_exporting() or isinstance(x.shape[0], int):
        return layer(x, start, weights, has_biases, *settings)
    states = list(start) if isinstance(start, (list, tuple)) else [start]
    per = 4 if has_biases else 2
    outputs, lasts = [], []
    for d in range(len(weights) // per):
        w, r, *biases = weights[per * d : per * (d + 1)]
        b_in, b_state = biases or (None, w.new_zeros(w.shape[0]))
        projection = torch.nn.functional.linear(x.flip(0) if d else x, w, b_in)
        begin = [s[d].clone() for s in states]
        *last, y = fold(step, begin, [projection], (r, b_state))
        outputs.append(y.flip(0) if d else y)
        lasts.append(last)
    return (torch.cat(outputs, 2), *(torch.stack(column) for column in zip(*lasts)))


def lstm_layer(*arguments):
    return exportable(torch.lstm, lstm_step, *arguments)


def gru_layer(*arguments):
    return exportable(torch.gru, gru_step, *arguments)


def rnn_layer(*arguments):
    return exportable(torch.rnn_tanh, rnn_step, *arguments)
