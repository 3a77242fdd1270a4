"""Functions of Keras that are replaced while a model is traced: the same numbers, other equations.

Some of Keras's code for JAX unrolls what is one operator, or cannot work on free sizes. What is
written in its place here is compared with Keras's own code after the import, like everything else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras.src.backend.jax import nn

from sardonyx.errors import ImportRefused, quote

LOWEST = -0.7  # of the largest float: what JAX puts in the place of masked scores


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Within this, `owner.name` is `function`."""
    is_own = name in vars(owner)
    original = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def replacements() -> Iterator[None]:
    """Within this, attention and TimeDistributed are traced in a form that free sizes allow."""
    with (
        replaced(nn, "dot_product_attention", _attention_or(nn.dot_product_attention)),
        replaced(
            keras.layers.TimeDistributed, "call", _distributed_or(keras.layers.TimeDistributed.call)
        ),
    ):
        yield


@contextlib.contextmanager
def distribution() -> Iterator[None]:
    """Within this, TimeDistributed is traced in a form that free sizes allow, in training."""
    layer = keras.layers.TimeDistributed
    with replaced(layer, "call", _distributed_or(layer.call)):
        yield


@contextlib.contextmanager
def repairs() -> Iterator[None]:
    """Within this, Keras computes what its code for JAX fails at on a CPU.

    That is attention with values of another depth, or in halves.
    """
    original = nn.dot_product_attention
    ours = _attention_or(original)

    def dot_product_attention(query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        fails = key.shape[-1] != value.shape[-1] or query.dtype == jnp.float16
        function = ours if fails else original
        return function(query, key, value, *rest, **options)

    with replaced(nn, "dot_product_attention", dot_product_attention):
        yield


def _attention_or(original: Callable[..., Any]) -> Callable[..., Any]:
    def dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        bias: Any = None,
        mask: Any = None,
        scale: float | None = None,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        parts = (query, key, value)
        is_plain = all(len(x.shape) == 4 for x in parts) and len({x.dtype for x in parts}) == 1
        is_plain = is_plain and not any(v is not None for v in options.values())
        extra = [x for x in (bias, mask) if x is not None]
        if not is_plain or any(len(x.shape) != 4 for x in extra):
            return original(query, key, value, bias, mask, scale, is_causal, **options)
        return attention(query, key, value, bias, mask, scale, is_causal)

    return dot_product_attention


def attention(
    query: Any, key: Any, value: Any, bias: Any, mask: Any, scale: float | None, is_causal: bool
) -> Any:
    """Scaled dot-product attention of (batch, time, head, depth), the softmax in single."""
    groups = query.shape[2] // key.shape[2]
    if groups > 1:
        key, value = (jnp.repeat(x, groups, axis=2) for x in (key, value))
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("btnh,bsnh->bnts", query, key, preferred_element_type=wide)
    scores = scores * jnp.asarray(key.shape[-1] ** -0.5 if scale is None else scale, wide)
    if bias is not None:
        scores = (scores + bias).astype(wide)
    if is_causal:
        steps = jnp.arange(query.shape[1])[:, None] >= jnp.arange(key.shape[1])[None, :]
        mask = steps[None, None] if mask is None else jnp.logical_and(mask.astype(bool), steps)
    if mask is not None:
        lowest = jnp.asarray(LOWEST * jnp.finfo(wide).max, wide)
        scores = jnp.where(mask.astype(bool), scores, lowest)
    shares = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(key.dtype)
    return jnp.einsum("bnts,bsnh->btnh", shares, value)


def _distributed_or(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        is_free = not isinstance(inputs.shape[1], int)
        if training or not _is_by_row(self.layer):
            if not is_free:
                return original(self, inputs, training=training, mask=mask)
            if training and self.layer.non_trainable_variables:
                raise ImportRefused(
                    "a layer that draws numbers or keeps statistics sees each step of a sequence "
                    "by itself, and the number of steps is free",
                    [[quote(self.name), type(self.layer).__name__]],
                    hint="example=, arrays that the model takes, fixes the number of steps",
                )
            return _mapped(self, inputs, training, mask)
        rows = inputs.reshape(-1, *inputs.shape[2:])
        options = _options(self.layer, training, None if mask is None else mask.reshape(
            -1, *mask.shape[2:]))  # fmt: skip
        outputs = self.layer.call(rows, **options)
        sizes = inputs.shape[:2]
        return keras.tree.map_structure(lambda y: y.reshape(*sizes, *y.shape[1:]), outputs)

    return call


def _is_by_row(layer: Any) -> bool:
    """Whether each row of a batch is computed by itself, as layers of Keras without state do."""
    parts = list(layer._flatten_layers())
    is_of_keras = all(type(part).__module__.startswith("keras.") for part in parts)
    return is_of_keras and not any(
        getattr(part, "stateful", False) or isinstance(part, keras.layers.Lambda) for part in parts
    )


def _options(layer: Any, training: Any, mask: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if layer._call_has_mask_arg and mask is not None and mask.ndim == 1:
        options["mask"] = mask
    if layer._call_has_training_arg:
        options["training"] = training
    return options


def _mapped(self: Any, inputs: Any, training: Any, mask: Any) -> Any:
    """The layer on every step of a sequence of free length."""

    def step(x: Any, step_mask: Any = None) -> Any:
        return self.layer.call(x, **_options(self.layer, training, step_mask))

    operands = [inputs] if mask is None else [inputs, mask]
    return jax.vmap(step, in_axes=1, out_axes=1)(*operands)
