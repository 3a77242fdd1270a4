"""Average pooling of Keras as AveragePool: JAX adds up windows, and divides by their sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import onnx_ir as ir
from keras.src.backend.jax import nn

from sardonyx.importers.jax.calls import MARKED
from sardonyx.importers.jax.writer import Writer
from sardonyx.importers.keras.replaced import replaced

AVERAGE = "keras_average_pool"


@contextlib.contextmanager
def pooling_marks() -> Iterator[None]:
    """Within this, average pooling is traced as a call with a mark."""
    with replaced(nn, "average_pool", _average_or(nn.average_pool)):
        yield


def _average_or(original: Callable[..., Any]) -> Callable[..., Any]:
    def average_pool(
        inputs: Any,
        pool_size: Any,
        strides: Any = None,
        padding: str = "valid",
        data_format: str | None = None,
    ) -> Any:
        from sardonyx.importers.keras.marks import marked

        def function(x: Any) -> Any:
            return original(x, pool_size, strides, padding, data_format)

        count = inputs.ndim - 2
        if not 1 <= count <= 3 or inputs.dtype != jnp.float32:
            return function(inputs)
        window = _numbers(pool_size, count)
        steps = window if strides is None else _numbers(strides, count)
        settings = {f"size{a}": n for a, n in enumerate(window)}
        settings |= {f"stride{a}": n for a, n in enumerate(steps)}
        is_first = (data_format or keras.config.image_data_format()) == "channels_first"
        flags = {"same": int(padding == "same"), "first": int(is_first)}
        return marked(AVERAGE, function, **settings, **flags)(inputs)

    return average_pool


def _numbers(size: Any, count: int) -> list[int]:
    return [int(n) for n in size] if isinstance(size, (list, tuple)) else [int(size)] * count


def average_pool(
    op: Writer, x: ir.Value, *, same: float, first: float, **settings: float
) -> ir.Value:
    rank = len(x.meta["aval"].shape)
    order = list(range(rank)) if first else [0, rank - 1, *range(1, rank - 1)]
    y = op.AveragePool(
        op.transpose(x, order),
        kernel_shape=[int(settings[f"size{a}"]) for a in range(rank - 2)],
        strides=[int(settings[f"stride{a}"]) for a in range(rank - 2)],
        auto_pad="SAME_UPPER" if same else "VALID",
    )
    return op.transpose(y, np.argsort(order).tolist())


MARKED[AVERAGE] = average_pool
