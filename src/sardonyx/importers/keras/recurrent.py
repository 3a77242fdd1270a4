"""LSTM, GRU and SimpleRNN layers of Keras as the operators of ONNX.

Traced as they are, they are loops. Where ONNX's operator computes what the layer does, the layer is
a marked call instead; a mask, dropout while training or another activation leaves it a loop.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import onnx_ir as ir

from sardonyx.importers.jax.calls import MARKED
from sardonyx.importers.jax.writer import Writer
from sardonyx.importers.keras.replaced import replaced

LSTM, GRU, RNN = "keras_lstm", "keras_gru", "keras_rnn"
# Keras's name of an activation -> ONNX's; their places are the settings of a mark.
ACTIVATIONS = {
    "tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu", "softplus": "Softplus",
    "softsign": "Softsign",
}  # fmt: skip
NAMES = list(ACTIVATIONS.values())


@contextlib.contextmanager
def recurrent_marks() -> Iterator[None]:
    """Within this, recurrent layers are traced as calls with a mark."""
    layers = keras.layers
    kinds = (
        (layers.LSTM, layers.LSTMCell, LSTM),
        (layers.GRU, layers.GRUCell, GRU),
        (layers.SimpleRNN, layers.SimpleRNNCell, RNN),
    )
    with contextlib.ExitStack() as stack:
        for layer, cell, mark in kinds:
            loop = _loop(layer.inner_loop, cell, mark)
            stack.enter_context(replaced(layer, "inner_loop", loop))
        yield


def _loop(original: Callable[..., Any], kind: type, mark: str) -> Callable[..., Any]:
    """`inner_loop` of a layer: its last output, all outputs and last states, by one call."""

    def inner_loop(
        self: Any, sequences: Any, initial_state: Any, mask: Any, training: Any = False
    ) -> Any:
        from sardonyx.importers.keras.marks import marked

        states = list(initial_state) if keras.tree.is_nested(initial_state) else [initial_state]
        numbers = _activations(self.cell) or {}
        has_mask = any(m is not None for m in keras.tree.flatten([mask]))
        cell, single = self.cell, jnp.float32
        plain = type(cell) is kind and bool(numbers) and not has_mask
        plain = plain and not (training and (cell.dropout or cell.recurrent_dropout))
        if not plain or any(x.dtype != single for x in (sequences, cell.kernel.value, *states)):
            return original(self, sequences, initial_state, mask, training=training)

        weights = [cell.kernel.value, cell.recurrent_kernel.value]
        weights += [cell.bias.value] if cell.use_bias else []
        settings = {
            "units": cell.units, "bias": int(cell.use_bias),
            "after": int(getattr(cell, "reset_after", False)),
            "backwards": int(self.go_backwards), "every": int(self.return_sequences), **numbers,
        }  # fmt: skip
        function = functools.partial(_computed, STEPS[mark], settings)
        last, outputs, *new = marked(mark, function, **settings)(sequences, *weights, *states)
        return last, outputs, new

    return inner_loop


def _activations(cell: Any) -> dict[str, int] | None:
    """The activations of a cell as numbers, or None where ONNX has no such."""
    names = [getattr(cell.activation, "__name__", "")]
    names.append(getattr(getattr(cell, "recurrent_activation", None), "__name__", names[0]))
    if any(name not in ACTIVATIONS for name in names):
        return None
    inner, outer = (list(ACTIVATIONS).index(name) for name in names)
    return {"inner": inner, "outer": outer}


# -- in JAX ---------------------------------------------------------------------------------------


def _computed(step: Callable[..., Any], settings: dict[str, int], x: Any, *operands: Any) -> Any:
    """What the operator computes: the last output, all outputs, and the last states."""
    count = 2 + settings["bias"]
    kernel, recurrent, *rest = operands[:count]
    bias = rest[0] if rest else jnp.zeros(kernel.shape[-1:], x.dtype)
    inner, outer = (
        getattr(keras.activations, list(ACTIVATIONS)[settings[key]]) for key in ("inner", "outer")
    )

    def next_states(states: Any, x: Any) -> Any:
        states = step(x, states, kernel, recurrent, bias, inner, outer, settings["after"])
        return states, states[0]

    steps = jnp.swapaxes(jnp.flip(x, 1) if settings["backwards"] else x, 0, 1)
    states, outputs = jax.lax.scan(next_states, tuple(operands[count:]), steps)
    every = jnp.swapaxes(outputs, 0, 1) if settings["every"] else states[0][:, None]
    return states[0], every, *states


def _lstm_step(x: Any, states: Any, kernel: Any, recurrent: Any, bias: Any, *more: Any) -> Any:
    (h, c), (inner, outer, _) = states, more
    i, f, g, o = jnp.split(x @ kernel + h @ recurrent + bias, 4, axis=-1)
    c = outer(f) * c + outer(i) * inner(g)
    return outer(o) * inner(c), c


def _gru_step(x: Any, states: Any, kernel: Any, recurrent: Any, bias: Any, *more: Any) -> Any:
    (h,), (inner, outer, is_after) = states, more
    inputs, hidden = (bias[0], bias[1]) if is_after and bias.ndim == 2 else (bias, 0.0)
    xz, xr, xh = jnp.split(x @ kernel + inputs, 3, axis=-1)
    if is_after:
        hz, hr, hh = jnp.split(h @ recurrent + hidden, 3, axis=-1)
        z, r = outer(xz + hz), outer(xr + hr)
        hh = inner(xh + r * hh)
    else:
        rz, rr, rh = jnp.split(recurrent, 3, axis=-1)
        z, r = outer(xz + h @ rz), outer(xr + h @ rr)
        hh = inner(xh + (r * h) @ rh)
    return (z * h + (1 - z) * hh,)


def _rnn_step(x: Any, states: Any, kernel: Any, recurrent: Any, bias: Any, *more: Any) -> Any:
    (h,), (inner, *_) = states, more
    return (inner(x @ kernel + h @ recurrent + bias),)


STEPS = {LSTM: _lstm_step, GRU: _gru_step, RNN: _rnn_step}


# -- in ONNX --------------------------------------------------------------------------------------


def lstm(op: Writer, x: ir.Value, *operands: ir.Value, **settings: float) -> list[ir.Value]:
    """Keras has the gates in the order input, forget, cell, output; ONNX as i, o, f, c."""
    names = [NAMES[int(settings[k])] for k in ("outer", "inner", "inner")]
    weights = list(operands[:-2])
    order = [0, 3, 1, 2]
    w, r = (_turned(op, _gates(op, v, 4, order)) for v in weights[:2])
    units = int(settings["units"])
    bias = None
    if settings["bias"]:
        bias = _both(op, _gates(op, weights[2], 4, order), op.const(np.zeros(4 * units, "f4")))
    h, c = (op.unsqueezed(v, [0]) for v in operands[-2:])
    results = op.call(
        "LSTM", [_steps(op, x, settings), w, r, bias, None, h, c],
        {"hidden_size": units, "activations": names}, outputs=3,
    )  # fmt: skip
    return _results(op, results, settings)


def gru(op: Writer, x: ir.Value, *operands: ir.Value, **settings: float) -> list[ir.Value]:
    names = [NAMES[int(settings[k])] for k in ("outer", "inner")]
    weights, units = list(operands[:-1]), int(settings["units"])
    w, r = (_turned(op, v) for v in weights[:2])
    bias = None
    if settings["bias"] and settings["after"]:
        bias = op.shaped(weights[2], [1, 6 * units])
    elif settings["bias"]:
        bias = _both(op, weights[2], op.const(np.zeros(3 * units, "f4")))
    results = op.call(
        "GRU", [_steps(op, x, settings), w, r, bias, None, op.unsqueezed(operands[-1], [0])],
        {"hidden_size": units, "activations": names, "linear_before_reset": int(settings["after"])},
        outputs=2,
    )  # fmt: skip
    return _results(op, results, settings)


def rnn(op: Writer, x: ir.Value, *operands: ir.Value, **settings: float) -> list[ir.Value]:
    weights, units = list(operands[:-1]), int(settings["units"])
    w, r = (_turned(op, v) for v in weights[:2])
    bias = _both(op, weights[2], op.const(np.zeros(units, "f4"))) if settings["bias"] else None
    results = op.call(
        "RNN", [_steps(op, x, settings), w, r, bias, None, op.unsqueezed(operands[-1], [0])],
        {"hidden_size": units, "activations": [NAMES[int(settings["inner"])]]}, outputs=2,
    )  # fmt: skip
    return _results(op, results, settings)


def _steps(op: Writer, x: ir.Value, settings: dict[str, float]) -> ir.Value:
    """The sequences with time first, from the last step on where the layer goes backwards."""
    x = _reversed(op, x, 1) if settings["backwards"] else x
    return op.transpose(x, [1, 0, 2])


def _results(op: Writer, results: list[ir.Value], settings: dict[str, float]) -> list[ir.Value]:
    """The last output, all outputs (or the last one as a sequence), and the last states."""
    last, *others = [op.squeezed(state, [0]) for state in results[1:]]
    every = op.unsqueezed(last, [1])
    if settings["every"]:
        every = op.transpose(op.squeezed(results[0], [1]), [1, 0, 2])
    return [last, every, last, *others]


def _reversed(op: Writer, x: ir.Value, axis: int) -> ir.Value:
    y: ir.Value = op.Slice(x, [-1], [np.iinfo(np.int64).min], [axis], [-1])
    return y


def _gates(op: Writer, weight: ir.Value, count: int, order: list[int]) -> ir.Value:
    parts = op.call("Split", [weight], {"axis": -1, "num_outputs": count}, outputs=count)
    y: ir.Value = op.Concat(*(parts[i] for i in order), axis=-1)
    return y


def _turned(op: Writer, weight: ir.Value) -> ir.Value:
    return op.unsqueezed(op.transpose(weight, [1, 0]), [0])


def _both(op: Writer, bias: ir.Value, zeros: ir.Value) -> ir.Value:
    return op.unsqueezed(op.Concat(bias, zeros, axis=-1), [0])


MARKED[LSTM], MARKED[GRU], MARKED[RNN] = lstm, gru, rnn
