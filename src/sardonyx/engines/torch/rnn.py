"""torch's own recurrent layers, for what they have: standard activations, whole sequences."""

from __future__ import annotations

import torch

from sardonyx.lower import rnn
from sardonyx.lower.engine import lower

# Where torch's gates are in ONNX's order: LSTM i, f, g, o in i, o, f, c; GRU r, z, n in z, r, h.
ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}


def is_standard(op, names, x, lengths, given):
    """Whether torch's layer computes the same."""
    per = len(rnn.DEFAULTS[op])
    defaults = list(rnn.DEFAULTS[op]) * (len(names) // per)
    return names == defaults and lengths is None and not given["clip"] and x.numel() > 0


def weights_of(op, w, r, b):
    """The weights of all directions, as torch lists them."""
    hidden, gates = r.shape[2], len(ORDER[op])

    def sorted_rows(value):
        parts = value.split(hidden)
        return torch.cat([parts[i] for i in ORDER[op]]) if gates > 1 else value

    found = []
    for d in range(w.shape[0]):
        found += [sorted_rows(w[d]), sorted_rows(r[d])]
        if b is not None:
            found += [sorted_rows(part) for part in b[d].split(gates * hidden)]
    return found


def run(function, op, x, w, r, b, initial, given):
    """One layer of torch: outputs and last states in ONNX's layouts."""
    batchwise = bool(given["layout"])
    if batchwise:
        x = x.transpose(0, 1)
        initial = [v if v is None else v.transpose(0, 1) for v in initial]
    backwards = given["direction"] == "reverse"
    x = x.flip(0) if backwards else x
    directions, hidden = w.shape[0], r.shape[2]
    none = x.new_zeros((directions, x.shape[1], hidden))
    states = [none if v is None else v.contiguous() for v in initial]
    start = states if op == "LSTM" else states[0]
    settings = (b is not None, 1, 0.0, False, directions == 2, False)
    y, *last = function(x.contiguous(), start, weights_of(op, w, r, b), *settings)
    y = y.reshape(*y.shape[:2], directions, hidden).transpose(1, 2)
    y = y.flip(0) if backwards else y
    if batchwise:
        return (y.permute(2, 0, 1, 3), *(v.transpose(0, 1) for v in last))
    return (y, *last)


@lower("LSTM", only="torch")
def lstm(xp, x, w, r, b=None, sequence_lens=None, initial_h=None, initial_c=None, p=None, **given):
    names = rnn.activation_names("LSTM", given["activations"], w.shape[0])
    plain = p is None and not given["input_forget"]
    if not (plain and is_standard("LSTM", names, x, sequence_lens, given)):
        return rnn.lstm(xp, x, w, r, b, sequence_lens, initial_h, initial_c, p, **given)
    return run(torch.lstm, "LSTM", x, w, r, b, [initial_h, initial_c], given)


@lower("GRU", only="torch")
def gru(xp, x, w, r, b=None, sequence_lens=None, initial_h=None, **given):
    names = rnn.activation_names("GRU", given["activations"], w.shape[0])
    standard = is_standard("GRU", names, x, sequence_lens, given)
    if not (standard and given["linear_before_reset"]):
        return rnn.gru(xp, x, w, r, b, sequence_lens, initial_h, **given)
    return run(torch.gru, "GRU", x, w, r, b, [initial_h], given)


@lower("RNN", only="torch")
def plain_rnn(xp, x, w, r, b=None, sequence_lens=None, initial_h=None, **given):
    names = rnn.activation_names("RNN", given["activations"], w.shape[0])
    if not is_standard("RNN", names, x, sequence_lens, given):
        return rnn.rnn(xp, x, w, r, b, sequence_lens, initial_h, **given)
    return run(torch.rnn_tanh, "RNN", x, w, r, b, [initial_h], given)
