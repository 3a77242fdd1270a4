"""What stops Keras or JAX while a model is traced, as a refusal that names the layer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from sardonyx.errors import ArgumentError, ImportRefused, SardonyxError, counted, quote

# Layers that Keras computes with TensorFlow, whatever its backend is.
BY_TENSORFLOW = (
    keras.layers.StringLookup,
    keras.layers.IntegerLookup,
    keras.layers.TextVectorization,
    keras.layers.Hashing,
    keras.layers.HashedCrossing,
)
ON_TENSORFLOW = (
    "with KERAS_BACKEND=tensorflow, sx.from_keras(model, training=False) reads the graph of "
    "TensorFlow; or leave these layers out of the model, and apply them to the data before"
)
HINT = (
    "write the layer with keras.ops, without looking at values or sizes in Python; example=, "
    "arrays that the model takes, fixes all sizes but the batch; " + ON_TENSORFLOW.partition(";")[0]
)


def refuse_layers(model: keras.Model, tensors: list[Any]) -> None:
    """Refuse the layers and inputs that JAX has nothing for, all of them."""
    rows = [
        [quote(layer.name), type(layer).__name__, "computes with TensorFlow"]
        for layer in model._flatten_layers()
        if isinstance(layer, BY_TENSORFLOW)
    ]
    rows += [
        [quote(layer.name), type(layer).__name__, "computes in float64, and JAX in 32 bits"]
        for layer in model._flatten_layers(include_self=False)
        if layer.dtype_policy.compute_dtype == "float64"
    ]
    texts = [t for t in tensors if keras.backend.standardize_dtype(t.dtype) == "string"]
    rows += [[quote(t.name), "input", "texts: JAX has no type for them"] for t in texts]
    for tensor in tensors:
        kind = [word for word in ("sparse", "ragged") if getattr(tensor, word, False)]
        rows += [[quote(tensor.name), "input", f"a {word} tensor"] for word in kind]
    if rows:
        raise ImportRefused(
            f"{counted(len(rows), 'part')} of this model cannot be traced on JAX",
            rows,
            hint=ON_TENSORFLOW,
        )


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Within this, what Keras and JAX raise becomes one refusal, with the layer that raised it."""
    is_filtered = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()  # the filter loses what JAX says
    try:
        yield
    except ImportRefused as refusal:
        layer = _layer(refusal.__cause__)
        if layer is None:
            raise
        where: list[list[object]] = [list(_row(layer)), *refusal.where]
        raise ImportRefused(refusal.what, where, hint=HINT) from refusal.__cause__
    except (SardonyxError, ArgumentError):
        raise
    except Exception as error:
        layer = _layer(error)
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        reason = [type(error).__name__, *lines[:1]]
        raise ImportRefused(
            "Keras cannot compute this model on its JAX backend",
            [*([_row(layer)] if layer is not None else []), reason],
            hint=HINT,
        ) from error
    finally:
        if is_filtered:
            keras.config.enable_traceback_filtering()


def _row(layer: Any) -> list[str]:
    return [quote(layer.name), type(layer).__name__]


def _layer(error: BaseException | None) -> Any:
    """The innermost layer on the way to an error, the model apart."""
    layer, trace = None, error.__traceback__ if error is not None else None
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, keras.layers.Layer) and not isinstance(owner, keras.Model):
            layer = owner
        trace = trace.tb_next
    return layer
