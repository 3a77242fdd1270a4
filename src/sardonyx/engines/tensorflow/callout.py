"""Regions as numpy functions of tensorflow: inside tf.function, with their gradients."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from sardonyx.engines import callout
from sardonyx.engines.tensorflow.xp import arrays, decoded, tf
from sardonyx.lower.partition import Region
from sardonyx.lower.xp import is_string

_numbers = itertools.count()


def call_out(region: Region, tensors: list[Any]) -> tuple[Any, ...]:
    """The outputs of a region as part of tensorflow's graph."""
    if tf.executing_eagerly():
        return tuple(_eagerly(region)(*tensors))
    outputs = _numpy_function(region, tensors)
    # NOTE [op, not closure]: a gradient that remembers tensors of this graph could not be
    # differentiated again. It reads them as inputs of an operation, in whatever graph that is.
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map({"IdentityN": _registered(region, len(outputs))}):
        copies = tf.identity_n([*outputs, *tensors])
    return tuple(copies[: len(outputs)])


def _pulled(region: Region, xs: list[Any], cotangents: list[Any]) -> list[Any]:
    """The cotangents of the inputs; None for those that have none."""
    gradients: list[Any] = [None] * len(xs)
    backward = callout.gradient(region)
    if backward is not None:
        graph = region.model.graph
        ends, starts = region.floats(graph.outputs), region.floats(graph.inputs)
        results = call_out(backward, [*xs, *(cotangents[i] for i in ends)])
        for position, dx in zip(starts, results, strict=True):
            gradients[position] = dx
    return gradients


def _eagerly(region: Region) -> Any:
    @tf.custom_gradient
    def call(*xs: Any) -> tuple[Any, Any]:
        return _numpy_function(region, list(xs)), lambda *gs: _pulled(region, list(xs), list(gs))

    return call


def _registered(region: Region, count: int) -> str:
    """The name of the registered gradient of a region with `count` outputs."""
    if "tensorflow" not in region.cache:
        name = f"SardonyxCallOut{next(_numbers)}"

        @tf.RegisterGradient(name)
        def pull(op: Any, *cotangents: Any) -> list[Any]:
            xs = list(op.inputs[count:])
            return [None] * count + _pulled(region, xs, list(cotangents[:count]))

        region.cache["tensorflow"] = name
    name = region.cache["tensorflow"]
    return name


def _numpy_function(region: Region, xs: list[Any]) -> list[Any]:
    xp = arrays()
    types = region.output_types
    dtypes = [tf.as_dtype(xp.storage(t)) for t in types if t is not None]

    def run(*values: Any) -> list[np.ndarray]:
        inputs = [
            decoded(a) if is_string(t) else np.asarray(a, t)
            for a, t in zip(values, region.input_types, strict=True)
        ]
        results = callout.run(region, inputs)
        return [
            np.asarray(np.asarray(v, t), s.as_numpy_dtype)
            for v, t, s in zip(results, types, dtypes, strict=True)
        ]

    outputs = tf.numpy_function(run, xs, dtypes, stateful=False)
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    shapes = region.sizes([[-1 if d is None else d for d in x.shape] for x in xs])
    for value, shape in zip(outputs, shapes, strict=True):
        if shape is not None:
            value.set_shape([d if isinstance(d, int) and d >= 0 else None for d in shape])
    return outputs
