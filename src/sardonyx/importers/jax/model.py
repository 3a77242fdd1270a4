"""`from_jax`: a function of JAX and its parameters as an ONNX model, with its training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from sardonyx.errors import ArgumentError, ImportDiffers, quote
from sardonyx.importers.jax.finish import forward
from sardonyx.importers.jax.purity import pure, require_repeatable
from sardonyx.importers.jax.trace import trace
from sardonyx.importers.jax.training import label_count, with_training
from sardonyx.model import Model


def from_jax(
    function: Callable[..., Any],
    params: Any,
    *example: Any,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    state: Any = None,
    how: str = "record",
) -> Model:
    """Import a function of JAX, with its parameters and its training, as an ONNX model.

    The result is compared with `jax.jit(function)`, and two steps of its training with those of
    JAX, before it is returned.

    function  -- `function(params, *inputs)`: Flax's or Haiku's `apply`, a function of an Equinox
                 module's arrays, any other that can be traced
    params    -- a tree of arrays; each becomes an initializer, named by its path
    example   -- arrays (or trees of them) like those that it will be called with, then those of
                 the labels; a size is free where a `jax.ShapeDtypeStruct` has a symbol of
                 `jax.export.symbolic_shape`
    loss      -- `loss(outputs, *labels)`, one number
    optimizer -- of optax
    state     -- the optimizer's state, to continue a run; `optimizer.init(params)` if not given
    how       -- "record": the loss is differentiated by sardonyx and can be edited like any other
                 record; "step": the whole step as JAX computes it

    >>> import jax.numpy as jnp, sardonyx as sx
    >>> def predict(params, x):
    ...     return jnp.tanh(x @ params["kernel"] + params["bias"])
    >>> params = {"kernel": jnp.ones((4, 3)), "bias": jnp.zeros(3)}
    >>> model = sx.from_jax(predict, params, jnp.ones((2, 4)))
    >>> [weight.name for weight in sx.weights(model) if weight.kind == "weight"]
    ['bias', 'kernel']
    """
    if not callable(function):
        raise ArgumentError(f"{quote(type(function).__name__)} is not a function")
    if how not in ("record", "step"):
        raise ArgumentError(f'how is "record" or "step", not {quote(how)}')
    if (loss is None) != (optimizer is None):
        raise ArgumentError("training needs a loss and an optimizer", hint="give both, or neither")
    if loss is None and state is not None:
        raise ArgumentError("`state` is the state of an optimizer, and none is given")
    with pure(function, *([] if loss is None else [loss])):
        try:
            if loss is None:
                return forward(function, params, example)
            return with_training(function, params, example, loss, optimizer, state, how)
        except ImportDiffers:
            _require_repeatable(function, params, example, loss)
            raise


def _require_repeatable(function: Any, params: Any, example: tuple[Any, ...], loss: Any) -> None:
    count = len(example) - (0 if loss is None else label_count(loss, len(example)))
    inputs, labels = example[:count], example[count:]
    require_repeatable(
        lambda: trace(lambda p, *x: function(p, *x), params, *inputs), "the function"
    )
    if loss is not None:
        outputs = jax.eval_shape(function, params, *inputs)
        require_repeatable(lambda: trace(lambda y, *z: loss(y, *z), outputs, *labels), "the loss")
