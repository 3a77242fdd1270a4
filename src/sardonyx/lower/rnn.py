"""Lowerings of ONNX's family rnn: RNN, GRU and LSTM, each a step that `xp.scan` folds over time.

What does not depend on the state, the products of all inputs with W, is computed once for all
steps. A sequence that is over keeps its state, and its outputs are zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sardonyx.errors import ModelError, quote
from sardonyx.lower.driver import lowering
from sardonyx.lower.math.activation import elu, hard_sigmoid, leaky_relu, thresholded_relu

INT64 = np.dtype(np.int64)
REQUIRED = math.nan  # ONNX has no default for it

# name: (function of xp, x, alpha and beta; default alpha; default beta)
ACTIVATIONS: dict[str, tuple[Callable[..., Any], float | None, float | None]] = {
    "affine": (lambda xp, x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda xp, x, a, b: elu(xp, x, alpha=a), 1.0, None),
    "hardsigmoid": (lambda xp, x, a, b: hard_sigmoid(xp, x, alpha=a, beta=b), 0.2, 0.5),
    "leakyrelu": (lambda xp, x, a, b: leaky_relu(xp, x, alpha=a), 0.01, None),
    "relu": (lambda xp, x, a, b: xp.maximum(x, xp.scalar(0, x)), None, None),
    "scaledtanh": (lambda xp, x, a, b: a * xp.tanh(b * x), REQUIRED, REQUIRED),
    "sigmoid": (lambda xp, x, a, b: xp.sigmoid(x), None, None),
    "softplus": (lambda xp, x, a, b: xp.softplus(x), None, None),
    "softsign": (lambda xp, x, a, b: x / (1 + xp.abs(x)), None, None),
    "tanh": (lambda xp, x, a, b: xp.tanh(x), None, None),
    "thresholdedrelu": (lambda xp, x, a, b: thresholded_relu(xp, x, alpha=a), 1.0, None),
}
DEFAULTS = {
    "RNN": ("tanh",),
    "GRU": ("sigmoid", "tanh"),
    "LSTM": ("sigmoid", "tanh", "tanh"),
}


def activation_names(op: str, listed: Sequence[str] | None, directions: int) -> list[str]:
    """The names of the activations of all directions, in lower case."""
    defaults = DEFAULTS[op]
    count = len(defaults) * directions
    # RNN's default lists Tanh for two directions, also for a layer that has one.
    names = [n.lower() for n in listed or ()][:count] or list(defaults) * directions
    unknown = sorted({n for n in names if n not in ACTIVATIONS})
    if unknown or len(names) < count:
        raise ModelError(
            f"{op} needs {count} activations that ONNX defines",
            [[quote(n)] for n in unknown or names],
            hint=f"known: {', '.join(ACTIVATIONS)}",
        )
    return names


def activations(xp, names: Sequence[str], alphas, betas) -> list[Callable[[Any], Any]]:
    """The functions by name; each takes the next alpha, and the next beta, if it has one."""
    alpha, beta = iter(alphas or ()), iter(betas or ())
    functions: list[Callable[[Any], Any]] = []
    for name in names:
        function, a, b = ACTIVATIONS[name]
        a = None if a is None else next(alpha, a)
        b = None if b is None else next(beta, b)
        if any(v is not None and math.isnan(v) for v in (a, b)):
            raise ModelError(
                f"{name} has no default alpha and beta",
                hint="set the attributes activation_alpha and activation_beta",
            )
        functions.append(functools.partial(_activated, xp, function, a, b))
    return functions


def _activated(xp, function, alpha, beta, x):
    return function(xp, x, alpha, beta)


def limited(xp, acts, clip):
    """Activations of clipped inputs; the third is that of an LSTM's cell, which is not clipped."""
    if not clip:
        return acts
    return [functools.partial(clipped, xp, act, clip) for act in acts[:2]] + acts[2:]


def clipped(xp, function, clip, x):
    return function(xp.clip(x, xp.scalar(-clip, x), xp.scalar(clip, x)))


@dataclass
class Direction:
    """One direction of a layer: weights transposed, activations, whether it runs backwards.

    bias       -- of the inputs, (gates * hidden,)
    state_bias -- of the state; only a GRU computes with it alone, for others it is in `bias`
    one_product -- whether a step multiplies the state by `r`, adds that to the row, and reads no
                   other weight
    """

    w: Any
    r: Any
    bias: Any
    state_bias: Any
    peepholes: list[Any]
    acts: list[Callable[[Any], Any]]
    backwards: bool
    one_product: bool


def part_of(xp, x, d: int):
    """Row `d` of a tensor whose first axis counts directions."""
    return xp.squeeze(xp.index(x, 0, d, d + 1), (0,))


def direction_of(xp, op, d, w, r, b, p, acts, backwards) -> Direction:
    rows, hidden = xp.shape(r)[1:]
    own_w, own_r = xp.swap(part_of(xp, w, d)), xp.swap(part_of(xp, r, d))
    if b is None:
        bias = state_bias = xp.zeros([rows], xp.dtype(w))
    else:
        bias, state_bias = xp.split(part_of(xp, b, d), [rows, rows], 0)
        bias = bias if op == "GRU" else xp.add(bias, state_bias)
    peepholes = [] if p is None else xp.split(part_of(xp, p, d), [hidden] * 3, 0)
    one_product = op != "GRU" and p is None
    return Direction(own_w, own_r, bias, state_bias, peepholes, acts, backwards, one_product)


def layer(xp, op, step, x, w, r, b, lengths, initial, p, attributes):
    """All directions of a recurrent layer: (outputs, last states…) in the layout of the node."""
    batchwise = bool(attributes["layout"])
    if batchwise:
        x = xp.transpose(x, (1, 0, 2))
        initial = [v if v is None else xp.transpose(v, (1, 0, 2)) for v in initial]
    steps, batch = xp.shape(x)[:2]
    directions, hidden = xp.shape(w)[0], xp.shape(r)[2]
    names = activation_names(op, attributes["activations"], directions)
    acts = activations(xp, names, attributes["activation_alpha"], attributes["activation_beta"])
    per = len(acts) // directions
    mask = None if lengths is None else going_on(xp, steps, lengths)
    outputs, finals = [], []
    for d in range(directions):
        backwards = d == 1 or attributes["direction"] == "reverse"
        own_acts = limited(xp, acts[d * per : (d + 1) * per], attributes["clip"])
        weights = direction_of(xp, op, d, w, r, b, p, own_acts, backwards)
        state = tuple(
            xp.zeros([batch, hidden], xp.dtype(x)) if v is None else part_of(xp, v, d)
            for v in initial
        )
        last, y = fold(xp, weights, step, x, state, mask)
        outputs.append(y)
        finals.append(last)
    y = xp.stack(outputs, 1)
    lasts = [xp.stack(column, 0) for column in zip(*finals)]
    if batchwise:
        y = xp.transpose(y, (2, 0, 1, 3))
        lasts = [xp.transpose(v, (1, 0, 2)) for v in lasts]
    return (y, *lasts)


def going_on(xp, steps, lengths):
    """Whether each sequence has reached its end: (steps, batch, 1)."""
    at = xp.reshape(xp.arange(0, steps, 1, INT64), [steps, 1, 1])
    return xp.less(at, xp.reshape(xp.cast(lengths, INT64), [1, -1, 1]))


def fold(xp, weights: Direction, step, x, state, mask):
    """One direction over all steps: its last state, and the outputs (steps, batch, hidden)."""
    projection = xp.add(xp.matmul(x, weights.w), weights.bias)
    rows = (projection,) if mask is None else (projection, mask)
    if weights.backwards:
        rows = tuple(xp.flip(v, (0,)) for v in rows)

    def advance(r, states, row):
        new = step(xp, replace(weights, r=r), row[0], *states)
        if mask is None:
            return new, (new[0],)
        next_states = tuple(xp.where(row[1], n, h) for n, h in zip(new, states))
        return next_states, (xp.where(row[1], new[0], xp.scalar(0, new[0])),)

    if mask is None and weights.one_product:
        last, (y,) = xp.scan_product(advance, weights.r, state, rows, (xp.dtype(x),))
    else:
        last, (y,) = xp.scan(functools.partial(advance, weights.r), state, rows, (xp.dtype(x),))
    return last, xp.flip(y, (0,)) if weights.backwards else y


def gates_of(xp, x, count: int) -> list:
    size = xp.shape(x)[-1] // count
    return xp.split(x, [size] * count, xp.rank(x) - 1)


# -- the operators ------------------------------------------------------------------


def rnn_step(xp, weights: Direction, projection, h):
    return (weights.acts[0](projection + xp.matmul(h, weights.r)),)


def gru_step(xp, weights: Direction, projection, h, linear_before_reset):
    hidden = xp.shape(h)[-1]
    first, last = xp.split(projection, [2 * hidden, hidden], 1)
    r_first, r_last = xp.split(weights.r, [2 * hidden, hidden], 1)
    b_first, b_last = xp.split(weights.state_bias, [2 * hidden, hidden], 0)
    update, reset = gates_of(xp, weights.acts[0](first + xp.matmul(h, r_first) + b_first), 2)
    if linear_before_reset:
        new = weights.acts[1](last + reset * (xp.matmul(h, r_last) + b_last))
    else:
        new = weights.acts[1](last + xp.matmul(reset * h, r_last) + b_last)
    return ((1 - update) * new + update * h,)


def lstm_step(xp, weights: Direction, projection, h, c, input_forget):
    i, o, f, g = gates_of(xp, projection + xp.matmul(h, weights.r), 4)
    gate, inner, outer = weights.acts
    if weights.peepholes:
        i, f = i + weights.peepholes[0] * c, f + weights.peepholes[2] * c
    i = gate(i)
    f = 1 - i if input_forget else gate(f)
    c = f * c + i * inner(g)
    o = gate(o + weights.peepholes[1] * c if weights.peepholes else o)
    return o * outer(c), c


@lowering("RNN")
def rnn(xp, x, w, r, b=None, sequence_lens=None, initial_h=None, **attributes):
    return layer(xp, "RNN", rnn_step, x, w, r, b, sequence_lens, [initial_h], None, attributes)


@lowering("GRU")
def gru(xp, x, w, r, b=None, sequence_lens=None, initial_h=None, **attributes):
    step = functools.partial(gru_step, linear_before_reset=attributes["linear_before_reset"])
    return layer(xp, "GRU", step, x, w, r, b, sequence_lens, [initial_h], None, attributes)


@lowering("LSTM")
def lstm(
    xp, x, w, r, b=None, sequence_lens=None, initial_h=None, initial_c=None, p=None, **attributes
):
    step = functools.partial(lstm_step, input_forget=attributes["input_forget"])
    initial = [initial_h, initial_c]
    return layer(xp, "LSTM", step, x, w, r, b, sequence_lens, initial, p, attributes)
