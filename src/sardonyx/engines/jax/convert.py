"""`to_jax`: an ONNX model as a pure function and its weights; `from_jax`: the weights back in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.engines.jax import backend  # noqa: F401  (registers the kernels)
from sardonyx.engines.jax.xp import arrays, jax
from sardonyx.engines.native import bind, native, written_back
from sardonyx.lower.program import Program, element_type
from sardonyx.lower.xp import is_integer
from sardonyx.model import Model


def to_jax(model: Model | str | Path) -> tuple[Callable[..., Any], dict[str, Any]]:
    """An ONNX model as `(apply, params)`: a pure function, and its weights by the model's own names.

    `apply(params, *inputs)` takes the inputs in order or by name; it is for `jax.jit`, `grad`, `vmap` and
    `jax.export`. Statistics of BatchNormalization are not among the params: they stay as they are.

    >>> import jax, numpy as np, sardonyx as sx
    >>> apply, params = sx.to_jax("model.onnx")
    >>> sorted(params)
    ['body.bias', 'body.weight', 'head.bias', 'head.weight']
    >>> jax.jit(apply)(params, np.zeros((2, 8), np.float32)).shape
    (2, 3)
    """
    parts = native(model)
    names = [n for n, kind in parts.kinds.items() if kind == "weight"]
    xp = arrays()
    # In its own mode for 64 bits: ONNX's indices have them, whatever the caller's mode is.
    with jax.enable_x64(True):
        program = Program(parts.served, xp, parameters=names)
        params = {name: xp.asarray(np.array(parts.array(name))) for name in names}
    inputs = [v.name or "" for v in parts.inputs]
    types = {v.name: element_type(v) for v in parts.inputs}

    def apply(params: Mapping[str, Any], *given: Any, **named: Any) -> Any:
        with jax.enable_x64(True):
            feeds = bind(inputs, given, named)
            feeds = {n: _of_type(xp, program.convert(v), types[n]) for n, v in feeds.items()}
            found = [program.convert(v) for v in program(feeds, params)]
        return found[0] if len(found) == 1 else tuple(found)

    return apply, params


def _of_type(xp: Any, value: Any, dtype: np.dtype | None) -> Any:
    """Integers as the model has them: outside of jax's mode for 64 bits, int64 arrives as int32."""
    if dtype is None or not is_integer(dtype) or not hasattr(value, "dtype"):
        return value
    return xp.cast(value, dtype) if is_integer(np.dtype(value.dtype)) else value


def from_jax(params: Mapping[str, Any], onto: Model | str | Path, *, cast: bool = False) -> Model:
    """The model `onto` with the weights in `params`, bit for bit.

    cast -- weights of another type are converted to the model's

    >>> import jax, sardonyx as sx
    >>> apply, params = sx.to_jax("model.onnx")
    >>> params = jax.tree.map(lambda w: 0 * w, params)
    >>> sx.from_jax(params, onto="model.onnx").initializer("head.bias").numpy()
    array([0., 0., 0.], dtype=float32)
    """
    found = {name: np.array(value) for name, value in params.items()}
    return written_back(onto, found, cast=cast, source="the params")
