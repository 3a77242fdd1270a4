"""RNN, LSTM and GRU in numpy, sequence by sequence, as ONNX's documentation writes the equations.

onnxruntime has no float64 kernels for them, and ONNX's reference knows neither the activations,
nor sequence lengths, nor more than one direction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "relu": (lambda x: np.maximum(x, 0), ()),
    "leakyrelu": (lambda x, a: np.where(x > 0, x, a * x), (0.01,)),
    "thresholdedrelu": (lambda x, a: np.where(x > a, x, 0), (1.0,)),
    "tanh": (np.tanh, ()),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), (np.nan, np.nan)),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), ()),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
    "elu": (lambda x, a: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))), (1.0,)),
    "softsign": (lambda x: x / (1 + np.abs(x)), ()),
    "softplus": (lambda x: np.logaddexp(x, 0), ()),
}


def functions(names: Sequence[str], alphas: Any, betas: Any) -> Iterator[Callable[[Array], Array]]:
    """The activations in order; each takes the next alpha, and the next beta, if it has one."""
    alpha, beta = iter(alphas or ()), iter(betas or ())
    for name in names:
        function, default = FUNCTIONS[name.lower()]
        parameters = [next(source, d) for source, d in zip((alpha, beta), default, strict=False)]
        yield _applied(function, parameters)


def _applied(function: Callable[..., Any], parameters: Sequence[float]) -> Callable[[Array], Array]:
    return lambda x: function(x, *parameters)


class _Recurrent(OpRun):
    """The directions, sequences and layouts that all three share; a subclass knows one step."""

    defaults: tuple[str, ...]

    def _run(
        self, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None,
        **attributes: Any,
    ) -> Any:  # fmt: skip
        return self._all(x, [w, r, b], lengths, [h], attributes)

    def _all(
        self, x: Array, weights: list[Any], lengths: Any, initial: list[Any], attributes: Any
    ) -> Any:
        batchwise = bool(attributes.get("layout"))
        if batchwise:
            x, initial = (
                x.swapaxes(0, 1),
                [None if v is None else v.swapaxes(0, 1) for v in initial],
            )
        steps, batch, _ = x.shape
        directions, hidden = weights[1].shape[0], weights[1].shape[-1]
        per = len(self.defaults)
        names = list(attributes.get("activations") or self.defaults * directions)[
            : per * directions
        ]
        activations = list(
            functions(names, attributes.get("activation_alpha"), attributes.get("activation_beta"))
        )
        y = np.zeros((steps, directions, batch, hidden), x.dtype)
        last = [np.zeros((directions, batch, hidden), x.dtype) for _ in initial]
        for d, b in itertools.product(range(directions), range(batch)):
            acts = activations[d * per : (d + 1) * per]
            direction_weights = [None if w is None else w[d] for w in weights]
            state = [np.zeros(hidden, x.dtype) if v is None else v[d, b] for v in initial]
            order = range(steps if lengths is None else int(lengths[b]))
            if d == 1 or attributes.get("direction") == "reverse":
                order = order[::-1]
            for t in order:
                state = self._step(x[t, b], state, direction_weights, acts, attributes)
                y[t, d, b] = state[0]
            for final, value in zip(last, state, strict=True):
                final[d, b] = value
        if batchwise:
            y, last = y.transpose(2, 0, 1, 3), [v.swapaxes(0, 1) for v in last]
        return y, *last

    def _step(
        self, x: Array, state: list[Array], weights: Any, acts: Any, attributes: Any
    ) -> list[Array]:
        raise NotImplementedError


def _limited(attributes: Any, value: Array) -> Array:
    clip = attributes.get("clip")
    return value if not clip else np.clip(value, -clip, clip)


def _biases(b: Array | None, gates: int, hidden: int) -> tuple[list[Array], list[Array]]:
    both = np.zeros(2 * gates * hidden) if b is None else b
    return np.split(both[: gates * hidden], gates), np.split(both[gates * hidden :], gates)


class RNN(_Recurrent):
    defaults = ("Tanh",)

    def _step(
        self, x: Array, state: list[Array], weights: Any, acts: Any, attributes: Any
    ) -> list[Array]:
        w, r, b = weights
        (wb,), (rb,) = _biases(b, 1, len(state[0]))
        return [acts[0](_limited(attributes, w @ x + r @ state[0] + wb + rb))]


class GRU(_Recurrent):
    defaults = ("Sigmoid", "Tanh")

    def _step(
        self, x: Array, state: list[Array], weights: Any, acts: Any, attributes: Any
    ) -> list[Array]:
        (h,), (f, g), (w, r, b) = state, acts, weights
        (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
        (bz, br, bh), (cz, cr, ch) = _biases(b, 3, len(h))
        z = f(_limited(attributes, wz @ x + rz @ h + bz + cz))
        reset = f(_limited(attributes, wr @ x + rr @ h + br + cr))
        if attributes.get("linear_before_reset"):
            new = g(_limited(attributes, wh @ x + reset * (rh @ h + ch) + bh))
        else:
            new = g(_limited(attributes, wh @ x + rh @ (reset * h) + ch + bh))
        return [(1 - z) * new + z * h]


class LSTM(_Recurrent):
    defaults = ("Sigmoid", "Tanh", "Tanh")

    def _run(
        self, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None,
        c: Any = None, p: Any = None, **attributes: Any,
    ) -> Any:  # fmt: skip
        return self._all(x, [w, r, b, p], lengths, [h, c], attributes)

    def _step(
        self, x: Array, state: list[Array], weights: Any, acts: Any, attributes: Any
    ) -> list[Array]:
        (h, c), (f, g, out), (w, r, b, p) = state, acts, weights
        wb, rb = _biases(b, 4, len(h))
        parts = zip(np.split(w, 4), np.split(r, 4), wb, rb, strict=True)
        ai, ao, af, ac = (wg @ x + rg @ h + bg + cg for wg, rg, bg, cg in parts)
        pi, po, pf = np.split(np.zeros(3 * len(h)) if p is None else p, 3)
        i = f(_limited(attributes, ai + pi * c))
        forget = 1 - i if attributes.get("input_forget") else f(_limited(attributes, af + pf * c))
        c = forget * c + i * g(_limited(attributes, ac))
        o = f(_limited(attributes, ao + po * c))
        return [o * out(c), c]


KERNELS = [RNN, GRU, LSTM]
