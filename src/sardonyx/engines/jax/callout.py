"""Regions as callbacks of jax: under jit, with their gradients, as pure functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.engines import callout
from sardonyx.engines.jax.xp import enable_x64, jax
from sardonyx.errors import EngineError, quote
from sardonyx.lower.partition import Region


def call_out(region: Region, values: list[Any]) -> tuple[Any, ...]:
    """The outputs of a region as part of jax's graph."""
    if "jax" not in region.cache:
        region.cache["jax"] = _differentiable(region)
    return tuple(region.cache["jax"](*values))


def _differentiable(region: Region) -> Any:
    graph = region.model.graph
    starts, ends = region.floats(graph.inputs), region.floats(graph.outputs)

    @jax.custom_vjp
    def call(*xs: Any) -> tuple[Any, ...]:
        return _callback(region, xs)

    def forward(*xs: Any) -> tuple[Any, Any]:
        return call(*xs), xs

    def backward(xs: Any, cotangents: Any) -> tuple[Any, ...]:
        gradients: list[Any] = [None] * len(xs)
        pulled = callout.gradient(region)
        if pulled is not None:
            with enable_x64(True):  # gradients are computed outside of the program's own mode
                results = call_out(pulled, [*xs, *(cotangents[i] for i in ends)])
            for position, dx in zip(starts, results, strict=True):
                gradients[position] = dx
        return tuple(gradients)

    call.defvjp(forward, backward)
    return call


def _callback(region: Region, xs: tuple[Any, ...]) -> tuple[Any, ...]:
    sizes = region.sizes([x.shape for x in xs])
    specs = []
    for shape, dtype in zip(sizes, region.output_types, strict=True):
        if shape is None or dtype is None or None in shape:
            raise _undecided(region)
        wide = dtype.itemsize == 8
        specs.append(jax.ShapeDtypeStruct((*shape, *[2] * wide), np.int32 if wide else dtype))

    def run(*arrays: Any) -> tuple[np.ndarray, ...]:
        inputs = [_whole(a, t) for a, t in zip(arrays, region.input_types, strict=True)]
        results = callout.run(region, inputs)
        return tuple(_halves(v, t) for v, t in zip(results, region.output_types, strict=True))

    halved = [_split(x) if x.dtype.itemsize == 8 else x for x in xs]
    outputs = jax.pure_callback(run, tuple(specs), *halved, vmap_method="sequential")
    types = zip(outputs, region.output_types, strict=True)
    return tuple(v if v.dtype == t else jax.lax.bitcast_convert_type(v, t) for v, t in types)


def _undecided(region: Region) -> EngineError:
    names = ", ".join(quote(v.name) for v in region.model.graph.outputs)
    return EngineError(
        f"the shape of {names} depends on data: a function compiled by jax has no such array",
        [p.row for p in region.placements],
        hint="call it without jax.jit, or let the model go on to where sizes are known again",
    )


# NOTE [64 bits]: a callback runs outside of the mode for 64 bits in which the graph was made, and
# jax halves the precision of whatever passes there. The bits pass as pairs of 32.


def _split(x: Any) -> Any:
    return jax.lax.bitcast_convert_type(x, np.int32)


def _whole(array: Any, dtype: np.dtype | None) -> np.ndarray:
    if dtype is not None and dtype.itemsize == 8:
        bits = np.ascontiguousarray(array)
        return bits.view(dtype).reshape(bits.shape[:-1])
    return np.asarray(array, dtype)


def _halves(array: Any, dtype: np.dtype | None) -> np.ndarray:
    whole = np.ascontiguousarray(array, dtype)
    if whole.dtype.itemsize == 8:
        return whole.reshape(*np.shape(array), 1).view(np.int32)
    return whole.reshape(np.shape(array))
