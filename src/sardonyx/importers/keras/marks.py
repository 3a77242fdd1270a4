"""Layers and functions that become single operators.

Traced as they are, batch normalization in inference is plain arithmetic, and dropout is nothing at
all. While the served graph is traced, both compute inside a named call, which the reader of JAX
writes as BatchNormalization and Dropout. What `trainable` and other tools then switch is there.
Recurrent layers (recurrent.py), Fourier transforms (spectral.py), average pooling (pooling.py),
resized images (resizing.py), and means, layer normalization, softmax and GELU (norms.py) are marked
in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import onnx_ir as ir

from sardonyx.importers.jax.calls import MARKED, shapes_word
from sardonyx.importers.jax.writer import Writer
from sardonyx.importers.keras.replaced import replaced, replacements

BATCH_NORM, DROPOUT = "keras_batch_normalization", "keras_dropout"


@contextlib.contextmanager
def marks() -> Iterator[None]:
    """Within this, batch normalization and dropout are traced as calls with a mark."""
    from sardonyx.importers.keras.norms import norm_marks
    from sardonyx.importers.keras.pooling import pooling_marks
    from sardonyx.importers.keras.recurrent import recurrent_marks
    from sardonyx.importers.keras.resizing import resizing_marks
    from sardonyx.importers.keras.spectral import spectral_marks

    norm, dropout = keras.layers.BatchNormalization, keras.layers.Dropout
    plain_norm, plain_dropout = norm.call, dropout.call

    def norm_call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if not _is_plain(self, inputs) or (training and self.trainable):
            return plain_norm(self, inputs, training=training, mask=mask)
        return _normalized(self, inputs)

    def dropout_call(self: Any, inputs: Any, training: Any = False) -> Any:
        if training or not 0 < self.rate < 1 or self.noise_shape or inputs.dtype != jnp.float32:
            return plain_dropout(self, inputs, training=training)
        return marked(DROPOUT, jnp.copy, rate=float(self.rate))(inputs)

    with (
        replaced(norm, "call", norm_call),
        replaced(dropout, "call", dropout_call),
        recurrent_marks(),
        spectral_marks(),
        norm_marks(),
        pooling_marks(),
        resizing_marks(),
        replacements(),
    ):
        yield


def _is_plain(layer: Any, inputs: Any) -> bool:
    """Whether ONNX's operator computes what the layer does."""
    axis = layer.axis % inputs.ndim if isinstance(layer.axis, int) else 0
    single = inputs.dtype == jnp.float32 and layer.compute_dtype == "float32"
    return single and axis > 0 and not getattr(layer, "renorm", False)


def _normalized(layer: Any, x: Any) -> Any:
    axis = layer.axis % x.ndim
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]

    def normalize(x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        mean, variance, scale, bias = (v.reshape(shape) for v in (mean, variance, scale, bias))
        return (x - mean) * (scale / jnp.sqrt(variance + layer.epsilon)) + bias

    count = x.shape[axis]
    scale = layer.gamma.value if layer.scale else jnp.ones(count, x.dtype)
    bias = layer.beta.value if layer.center else jnp.zeros(count, x.dtype)
    settings = {"axis": axis, "epsilon": layer.epsilon, "momentum": layer.momentum}
    call = marked(BATCH_NORM, normalize, **settings)
    return call(x, scale, bias, layer.moving_mean.value, layer.moving_variance.value)


def marked(mark: str, function: Any, **settings: float) -> Any:
    """`function` as a call that a trace keeps; the name carries the settings.

    It also carries the shapes of the operands: a transformation of JAX keeps the name, and changes
    what the call takes.
    """

    def caller(*operands: Any) -> Any:
        def call(*operands: Any) -> Any:
            return function(*operands)

        words = [f"{k}={v!r}" for k, v in settings.items()]
        call.__name__ = " ".join([mark, f"shapes={shapes_word(operands)}", *words])
        return jax.jit(call)(*operands)

    return caller


def batch_normalization(
    op: Writer,
    x: ir.Value,
    *parameters: ir.Value,
    axis: float,
    epsilon: float,
    momentum: float,
) -> ir.Value:
    rank = len(x.shape or ())
    to_first = [0, int(axis), *(a for a in range(1, rank) if a != int(axis))]
    y = op.BatchNormalization(
        op.transpose(x, to_first), *parameters, epsilon=epsilon, momentum=momentum
    )
    return op.transpose(y, np.argsort(to_first).tolist())


def dropout(op: Writer, x: ir.Value, *, rate: float) -> ir.Value:
    y: ir.Value = op.Dropout(x, op.const(np.float32(rate)))
    return y


MARKED[BATCH_NORM] = batch_normalization
MARKED[DROPOUT] = dropout
