"""Means, layer normalization, softmax and GELU of Keras as the operators of ONNX."""

from __future__ import annotations

import contextlib
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

MEAN, VARIANCE, LAYER_NORM = "keras_mean", "keras_variance", "keras_layer_normalization"
SOFTMAX, LOG_SOFTMAX, GELU = "keras_softmax", "keras_log_softmax", "keras_gelu"


@contextlib.contextmanager
def norm_marks() -> Iterator[None]:
    """Within this, these functions are traced as calls with a mark."""
    layer = keras.layers.LayerNormalization
    with (
        replaced(jnp, "mean", _reduced_or(jnp.mean, MEAN)),
        replaced(jnp, "var", _reduced_or(jnp.var, VARIANCE)),
        replaced(jax.nn, "softmax", _softmax_or(jax.nn.softmax, SOFTMAX)),
        replaced(jax.nn, "log_softmax", _softmax_or(jax.nn.log_softmax, LOG_SOFTMAX)),
        replaced(jax.nn, "gelu", _gelu_or(jax.nn.gelu)),
        replaced(layer, "call", _layer_norm_or(layer.call)),
    ):
        yield


def _is_single(x: Any) -> bool:
    return getattr(x, "dtype", None) == jnp.float32


def _reduced_or(original: Callable[..., Any], mark: str) -> Callable[..., Any]:
    def reduced(
        x: Any, axis: Any = None, dtype: Any = None, out: Any = None, *rest: Any, **options: Any
    ) -> Any:
        from sardonyx.importers.keras.marks import marked

        keepdims = bool(options.get("keepdims", False))
        plain = not rest and out is None and set(options) <= {"keepdims"}
        plain = (
            plain
            and (dtype is None or np.dtype(dtype) == np.float32)
            and _is_single(x)
            and x.ndim > 0
        )
        if not plain:
            return original(x, axis, dtype, out, *rest, **options)
        axes = range(x.ndim) if axis is None else np.atleast_1d(axis).tolist()
        flags = {f"axis{int(a) % x.ndim}": 1 for a in axes}

        def function(x: Any) -> Any:
            return original(x, axis, keepdims=keepdims)

        return marked(mark, function, keepdims=int(keepdims), **flags)(x)

    return reduced


def _softmax_or(original: Callable[..., Any], mark: str) -> Callable[..., Any]:
    def softmax(x: Any, axis: Any = -1, **options: Any) -> Any:
        from sardonyx.importers.keras.marks import marked

        if not isinstance(axis, int) or options or not _is_single(x) or not x.ndim:
            return original(x, axis, **options)
        return marked(mark, lambda x: original(x, axis), axis=axis % x.ndim)(x)

    return softmax


def _gelu_or(original: Callable[..., Any]) -> Callable[..., Any]:
    def gelu(x: Any, approximate: bool = True) -> Any:
        from sardonyx.importers.keras.marks import marked

        if not _is_single(x):
            return original(x, approximate)
        return marked(GELU, lambda x: original(x, approximate), tanh=int(approximate))(x)

    return gelu


def _layer_norm_or(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, inputs: Any) -> Any:
        from sardonyx.importers.keras.marks import marked

        axes = sorted(a % inputs.ndim for a in np.atleast_1d(self.axis).tolist())
        single = _is_single(inputs) and self.compute_dtype == "float32"
        trailing = axes == list(range(axes[0], inputs.ndim))
        sizes = tuple(inputs.shape[axes[0] :])
        fixed = all(isinstance(n, int) for n in sizes)
        if not (single and trailing and fixed) or self.rms_scaling:
            return original(self, inputs)
        gamma = jnp.ones(sizes, inputs.dtype) if self.gamma is None else self.gamma.value
        beta = jnp.zeros(sizes, inputs.dtype) if self.beta is None else self.beta.value

        def function(x: Any, gamma: Any, beta: Any) -> Any:
            # Keras before 3.12 has no keras.ops.layer_normalization.
            rest = x - x.mean(tuple(axes), keepdims=True)
            variance = (rest * rest).mean(tuple(axes), keepdims=True)
            return rest * jax.lax.rsqrt(variance + self.epsilon) * gamma + beta

        settings = {"axis": axes[0], "epsilon": float(self.epsilon)}
        return marked(LAYER_NORM, function, **settings)(inputs, gamma, beta)

    return call


def _axes(settings: dict[str, float]) -> list[int]:
    return sorted(int(key.removeprefix("axis")) for key in settings)


def mean(op: Writer, x: ir.Value, *, keepdims: float, **settings: float) -> ir.Value:
    y: ir.Value = op.ReduceMean(x, _axes(settings), keepdims=int(keepdims))
    return y


def variance(op: Writer, x: ir.Value, *, keepdims: float, **settings: float) -> ir.Value:
    axes = _axes(settings)
    rest = op.Sub(x, op.ReduceMean(x, axes))
    y: ir.Value = op.ReduceMean(op.Mul(rest, rest), axes, keepdims=int(keepdims))
    return y


def softmax(op: Writer, x: ir.Value, *, axis: float) -> ir.Value:
    y: ir.Value = op.Softmax(x, axis=int(axis))
    return y


def log_softmax(op: Writer, x: ir.Value, *, axis: float) -> ir.Value:
    y: ir.Value = op.LogSoftmax(x, axis=int(axis))
    return y


def gelu(op: Writer, x: ir.Value, *, tanh: float) -> ir.Value:
    y: ir.Value = op.Gelu(x, approximate="tanh" if tanh else "none")
    return y


def layer_normalization(
    op: Writer, x: ir.Value, gamma: ir.Value, beta: ir.Value, *, axis: float, epsilon: float
) -> ir.Value:
    y: ir.Value = op.LayerNormalization(x, gamma, beta, axis=int(axis), epsilon=epsilon)
    return y


MARKED.update({
    MEAN: mean, VARIANCE: variance, SOFTMAX: softmax, LOG_SOFTMAX: log_softmax, GELU: gelu,
    LAYER_NORM: layer_normalization,
})  # fmt: skip
