"""Call-outs from jax: regions that another engine runs, as differentiable callbacks under jit."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.engines import callout
from sardonyx.engines.jax.xp import enable_x64, jax
from sardonyx.errors import EngineError, quote
from sardonyx.lower.partition import Region


def call_out(region: Region, values: list[Any]) -> tuple[Any, ...]:
    """The outputs of a region, as values of jax's graph."""
    if "jax" not in region.cache:
        region.cache["jax"] = _differentiable(region)
    return tuple(region.cache["jax"](*values))


def _differentiable(region: Region) -> Any:
    graph = region.model.graph
    float_inputs, float_outputs = region.floats(graph.inputs), region.floats(graph.outputs)

    @jax.custom_vjp
    def call(*xs: Any) -> tuple[Any, ...]:
        return _callback(region, xs)

    def forward(*xs: Any) -> tuple[Any, Any]:
        return call(*xs), xs

    def backward(xs: Any, cotangents: Any) -> tuple[Any, ...]:
        gradients: list[Any] = [None] * len(xs)
        gradient_region = callout.gradient(region)
        if gradient_region is not None:
            with enable_x64(True):  # jax runs this after the program has left its 64-bit mode
                results = call_out(gradient_region, [*xs, *(cotangents[i] for i in float_outputs)])
            for position, dx in zip(float_inputs, results, strict=True):
                gradients[position] = dx
        return tuple(gradients)

    call.defvjp(forward, backward)
    return call


def _callback(region: Region, xs: tuple[Any, ...]) -> tuple[Any, ...]:
    sizes = region.sizes([x.shape for x in xs])
    specs = []
    for shape, dtype in zip(sizes, region.output_types, strict=True):
        if shape is None or dtype is None or None in shape:
            raise _data_dependent(region)
        is_64_bit = dtype.itemsize == 8
        spec_shape = (*shape, 2) if is_64_bit else tuple(shape)  # NOTE [64 bits]
        specs.append(jax.ShapeDtypeStruct(spec_shape, np.int32 if is_64_bit else dtype))

    def run(*arrays: Any) -> tuple[np.ndarray, ...]:
        inputs = [_from_int32_pairs(a, t) for a, t in zip(arrays, region.input_types, strict=True)]
        results = callout.run(region, inputs)
        return tuple(
            _as_int32_pairs(v, t) for v, t in zip(results, region.output_types, strict=True)
        )

    arguments = [
        jax.lax.bitcast_convert_type(x, np.int32) if x.dtype.itemsize == 8 else x for x in xs
    ]
    outputs = jax.pure_callback(run, tuple(specs), *arguments, vmap_method="sequential")
    types = zip(outputs, region.output_types, strict=True)
    return tuple(v if v.dtype == t else jax.lax.bitcast_convert_type(v, t) for v, t in types)


def _data_dependent(region: Region) -> EngineError:
    names = ", ".join(quote(v.name) for v in region.model.graph.outputs)
    return EngineError(
        f"the shape of {names} depends on data: jax.jit compiles static shapes only",
        [p.row for p in region.placements],
        hint="call it without jax.jit, or extend the model to where shapes are static again",
    )


# NOTE [64 bits]: a callback runs outside of the 64-bit mode in which the graph was built, and jax
# would convert its 64-bit arguments and results to 32 bits. They are passed as pairs of int32.


def _from_int32_pairs(array: Any, dtype: np.dtype | None) -> np.ndarray:
    if dtype is not None and dtype.itemsize == 8:
        bits = np.ascontiguousarray(array)
        return bits.view(dtype).reshape(bits.shape[:-1])
    return np.asarray(array, dtype)


def _as_int32_pairs(array: Any, dtype: np.dtype | None) -> np.ndarray:
    contiguous = np.ascontiguousarray(array, dtype)
    if contiguous.dtype.itemsize == 8:
        return contiguous.reshape(*np.shape(array), 1).view(np.int32)
    return contiguous.reshape(np.shape(array))
