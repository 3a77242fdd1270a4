"""`from_jax`: a function of JAX and its parameters as an ONNX model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import onnx_ir as ir

from sardonyx import opset
from sardonyx.errors import ArgumentError, quote
from sardonyx.importers.assembly import IR_VERSION
from sardonyx.importers.jax import trees
from sardonyx.importers.jax.check import require_same
from sardonyx.importers.jax.trace import Tracer, flat, settle_weights, trace
from sardonyx.model import Model
from sardonyx.versions import fit


def from_jax(
    function: Callable[..., Any],
    params: Any,
    *example: Any,
) -> Model:
    """Import a function of JAX, with its parameters, as an ONNX model.

    The result is compared with `jax.jit(function)` before it is returned.

    function  -- `function(params, *example)`: Flax's or Haiku's `apply`, a function of an Equinox
                 module's arrays, any other that can be traced
    params    -- a tree of arrays; each becomes an initializer, named by its path
    example   -- arrays (or trees of them) like those that it will be called with; a size is free
                 where a `jax.ShapeDtypeStruct` has a symbol of `jax.export.symbolic_shape`

    >>> import jax.numpy as jnp, sardonyx as sx
    >>> def predict(params, x):
    ...     return jnp.tanh(x @ params["kernel"] + params["bias"])
    >>> params = {"kernel": jnp.ones((4, 3)), "bias": jnp.zeros(3)}
    >>> model = sx.from_jax(predict, params, jnp.ones((2, 4)))
    >>> sorted(model.graph.initializers)
    ['bias', 'kernel']
    """
    if not callable(function):
        raise ArgumentError(f"{quote(type(function).__name__)} is not a function")
    return forward(function, params, example)


def forward(function: Callable[..., Any], params: Any, example: tuple[Any, ...]) -> Model:
    """The model of `function(params, *example)`, compared with JAX."""
    weights = trees.named_leaves(params)
    names = trees.argument_names(function, len(example), 1)
    inputs = trees.input_leaves(names, example)
    inputs = {_free_name(name, weights): leaf for name, leaf in inputs.items()}
    trees.require_arrays(weights, "params")
    trees.require_arrays(inputs, "the example")
    traced = trace(function, params, *example)
    tracer = Tracer()
    operands = [tracer.input(n, leaf) for n, leaf in {**weights, **inputs}.items()]
    outputs = trees.output_names(traced.result, {*weights, *inputs})
    tracer.op.reserve(outputs)
    results = tracer.read(traced, operands)
    graph = tracer.finish(results, outputs, _name(function))
    settle_weights(graph, {n: trees.array(leaf) for n, leaf in weights.items()})
    model = as_model(graph)
    require_same(model, jax.jit(flat(function, params, *example)), weights, inputs)
    return model


def as_model(graph: ir.Graph) -> Model:
    """The model of a finished graph, at versions that onnxruntime takes."""
    graph.opset_imports[""] = opset.OPSET
    return fit(Model(ir.Model(graph, ir_version=IR_VERSION, producer_name="sardonyx")))


def _free_name(name: str, taken: Any) -> str:
    while name in taken:
        name = f"input.{name}"
    return name


def _name(function: Callable[..., Any]) -> str:
    inner = getattr(function, "__wrapped__", function)
    return getattr(inner, "__name__", type(inner).__name__).strip("<>")
