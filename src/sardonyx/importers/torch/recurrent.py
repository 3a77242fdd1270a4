"""Recurrent layers: torch's weights, under their names, in the order that ONNX's operators have.

The reordering is part of the graph, so that the weights of the file are those of the module and
stay trainable; onnxruntime computes it once, when it loads a model for inference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnxscript import opset18 as op

# The gates of ONNX's operators as places among torch's: i f g o → i o f c, r z n → z r h.
ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


def lstm(
    input: Any,
    hx: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    layers = _Layers("LSTM", params, has_biases, num_layers, bidirectional, dropout)
    y, (h, c) = layers(input, hx, batch_first)
    return y, h, c


def gru(
    input: Any,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    layers = _Layers("GRU", params, has_biases, num_layers, bidirectional, dropout)
    y, (h,) = layers(input, [hx], batch_first)
    return y, h


def rnn_tanh(
    input: Any,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    layers = _Layers("RNN", params, has_biases, num_layers, bidirectional, dropout)
    y, (h,) = layers(input, [hx], batch_first)
    return y, h


def rnn_relu(
    input: Any,
    hx: Any,
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    layers = _Layers("RNN", params, has_biases, num_layers, bidirectional, dropout, "Relu")
    y, (h,) = layers(input, [hx], batch_first)
    return y, h


class _Layers:
    """The layers of one recurrent module."""

    def __init__(
        self,
        kind: str,
        params: Sequence[Any],
        has_biases: bool,
        count: int,
        bidirectional: bool,
        dropout: float,
        activation: str = "",
    ):
        self.kind, self.activation = kind, activation
        self.count, self.dropout = count, dropout
        self.directions = 2 if bidirectional else 1
        self.has_biases = has_biases
        self.stride = len(params) // (count * self.directions)
        if self.stride != (4 if has_biases else 2):
            raise NotImplementedError("an LSTM with a projection (proj_size) has no ONNX operator")
        self.params = params
        self.size = int(params[1].shape[-1])

    def __call__(self, x: Any, states: Sequence[Any], batch_first: bool) -> tuple[Any, list[Any]]:
        x = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
        finals: list[list[Any]] = [[] for _ in states]
        for layer in range(self.count):
            begin, end = layer * self.directions, (layer + 1) * self.directions
            slices = [self._slice(s, begin, end) for s in states]
            if layer and self.dropout:
                x = dropped(x, self.dropout)
            x, *last = self._layer(x, slices, layer)
            for final, state in zip(finals, last, strict=True):
                final.append(state)
        joined = [f[0] if self.count == 1 else op.Concat(*f, axis=0) for f in finals]
        return (op.Transpose(x, perm=[1, 0, 2]) if batch_first else x), joined

    def _slice(self, state: Any, begin: int, end: int) -> Any:
        if self.count == 1:
            return state
        bounds = [op.Constant(value_ints=[n]) for n in (begin, end, 0)]
        return op.Slice(state, *bounds)

    def _layer(self, x: Any, states: Sequence[Any], layer: int) -> tuple[Any, ...]:
        w, r, b = self._weights(layer)
        settings: dict[str, Any] = {
            "hidden_size": self.size,
            "direction": "bidirectional" if self.directions == 2 else "forward",
        }
        if self.kind == "GRU":
            settings["linear_before_reset"] = 1
        if self.activation:
            settings["activations"] = [self.activation] * self.directions
        y, *last = OPERATORS[self.kind](x, w, r, b, None, *states, **settings)
        merged = op.Transpose(y, perm=[0, 2, 1, 3])
        rows = op.Constant(value_ints=[0, 0, self.size * self.directions])
        return op.Reshape(merged, rows), *last

    def _weights(self, layer: int) -> tuple[Any, Any, Any]:
        """W, R and B of ONNX's operator, with one row for each direction."""
        rows: list[list[Any]] = [[], [], []]
        first = op.Constant(value_ints=[0])
        for direction in range(self.directions):
            start = (layer * self.directions + direction) * self.stride
            parts = [self._ordered(p) for p in self.params[start : start + self.stride]]
            rows[0].append(op.Unsqueeze(parts[0], first))
            rows[1].append(op.Unsqueeze(parts[1], first))
            if self.has_biases:
                rows[2].append(op.Unsqueeze(op.Concat(*parts[2:], axis=0), first))
        w, r, b = (
            None if not row else row[0] if len(row) == 1 else op.Concat(*row, axis=0)
            for row in rows
        )
        return w, r, b

    def _ordered(self, weight: Any) -> Any:
        order = ORDER[self.kind]
        if len(order) == 1:
            return weight
        gates = op.Split(weight, num_outputs=len(order), axis=0)
        return op.Concat(*(gates[place] for place in order), axis=0)


def dropped(x: Any, p: float) -> Any:
    """Dropout as a node that training can switch on; one that drops nothing is none."""
    if not p:
        return op.Identity(x)
    y, _ = op.Dropout(x, op.Constant(value_float=p))
    return y


STOP_SEED = 7_401  # marks a Dropout that stands for an identity without a gradient


def stopped(x: Any) -> Any:
    """The same value, through which no gradient flows; `translate.py` makes it an Identity."""
    y, _ = op.Dropout(x, op.Constant(value_float=0.0), seed=STOP_SEED)
    return y


OPERATORS: dict[str, Callable[..., Any]] = {"LSTM": op.LSTM, "GRU": op.GRU, "RNN": op.RNN}
