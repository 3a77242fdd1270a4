"""Recurrent layers: torch's weights, under their names, in the order that ONNX's operators have.

The reordering is part of the graph, so that the weights of the file are those of the module and
stay trainable; onnxruntime computes it once, when it loads a model for inference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import opset18 as op
from torch.onnx._internal.exporter import _core

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
    directions = 2 if bidirectional else 1
    is_projected = len(params) // (num_layers * directions) == (5 if has_biases else 3)
    kind = _Projected if is_projected else _Layers
    layers = kind("LSTM", params, has_biases, num_layers, bidirectional, dropout)
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


class _Projected(_Layers):
    """An LSTM whose state is projected (`proj_size`): a Scan, for which ONNX has no operator."""

    def _layer(self, x: Any, states: Sequence[Any], layer: int) -> tuple[Any, ...]:
        rows: list[list[Any]] = [[], [], []]
        first = op.Constant(value_ints=[0])
        for direction in range(self.directions):
            start = (layer * self.directions + direction) * self.stride
            weights = self.params[start : start + self.stride]
            if self.directions > 1:
                place = op.Constant(value_int=direction)
                begins = [op.Gather(s, place, axis=0) for s in states]
            else:
                begins = [op.Squeeze(s, first) for s in states]
            h, c, y = self._scan(x, begins, weights, is_reverse=direction == 1)
            rows[0].append(y)
            rows[1].append(op.Unsqueeze(h, first))
            rows[2].append(op.Unsqueeze(c, first))
        y, h, c = (
            row[0] if len(row) == 1 else op.Concat(*row, axis=axis)
            for row, axis in zip(rows, (2, 0, 0), strict=True)
        )
        return y, h, c

    def _scan(
        self, x: Any, begins: Sequence[Any], weights: Sequence[Any], is_reverse: bool
    ) -> Sequence[Any]:
        w, r, *biases, projection = weights
        gates = op.MatMul(x, op.Transpose(w, perm=[1, 0]))
        for bias in biases:
            gates = op.Add(gates, bias)
        turned = [op.Transpose(m, perm=[1, 0]) for m in (r, projection)]
        kind = ir.TensorType(projection.dtype)
        size, width = int(r.shape[0]) // 4, int(projection.shape[0])
        h = ir.Value(name="h", type=kind, shape=ir.Shape([None, width]))
        c = ir.Value(name="c", type=kind, shape=ir.Shape([None, size]))
        part = ir.Value(name="gates", type=kind, shape=ir.Shape([None, 4 * size]))
        body = _step_of_lstm(h, c, part, *turned)
        way = [1 if is_reverse else 0]
        attributes: dict[str, Any] = {
            "body": body, "num_scan_inputs": 1, "scan_input_directions": way,
            "scan_output_directions": way,
        }  # fmt: skip
        node = ir.node("Scan", [*begins, gates], attributes=attributes, num_outputs=3)
        assert _core.current_tracer is not None
        _core.current_tracer.nodes.append(node)
        for value, like in zip(node.outputs, (h, c), strict=False):
            value.type, value.shape = like.type, like.shape
        node.outputs[2].type = kind
        node.outputs[2].shape = ir.Shape([None, None, width])
        return node.outputs


def _step_of_lstm(h: Any, c: Any, gates: Any, recurrent: Any, projection: Any) -> ir.Graph:
    """One step: torch's gates are i f g o, and the new state is projected."""
    nodes: list[ir.Node] = []

    def add(kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        nodes.append(ir.node(kind, inputs, attributes=attributes, num_outputs=outputs))
        for number, value in enumerate(nodes[-1].outputs):
            value.name = f"{kind.lower()}_{len(nodes)}_{number}"
        values = nodes[-1].outputs
        return values[0] if outputs == 1 else values

    whole = add("Add", gates, add("MatMul", h, recurrent))
    i, f, g, o = add("Split", whole, outputs=4, axis=-1, num_outputs=4)
    kept = add("Mul", add("Sigmoid", f), c)
    new = add("Add", kept, add("Mul", add("Sigmoid", i), add("Tanh", g)))
    y = add("MatMul", add("Mul", add("Sigmoid", o), add("Tanh", new)), projection)
    result = add("Identity", y)
    for value, like in ((y, h), (new, c), (result, h)):
        value.type, value.shape = like.type, like.shape
    return ir.Graph([h, c, gates], [y, new, result], nodes=nodes, name="lstm_step")


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
