"""The forward function of JAX as an ONNX model, compared with JAX."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import onnx_ir as ir

from sardonyx import opset
from sardonyx.importers.assembly import IR_VERSION
from sardonyx.importers.channels import cancel_transposes
from sardonyx.importers.jax import trees
from sardonyx.importers.jax.check import fitting_size, require_same
from sardonyx.importers.jax.trace import Tracer, flat, settle_weights, trace
from sardonyx.model import Model, Record
from sardonyx.versions import fit


def forward(
    function: Callable[..., Any],
    params: Any,
    example: tuple[Any, ...],
    differentiated: bool = False,
    checked: bool = True,
    names: Sequence[str] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Model:
    """The model of `function(params, *example)`, compared with JAX if `checked`.

    names          -- of the arguments after `params`; those of the function, if not given
    differentiated -- whether the graph is to have the gradients that JAX gives the function
    reference      -- what the model is compared with; the function itself, if not given
    """
    weights = trees.named_leaves(params)
    names = names or trees.argument_names(function, len(example), 1)
    inputs = settle_names(trees.input_leaves(names, example), weights)
    trees.require_arrays(weights, "params")
    trees.require_arrays(inputs, "the example")
    traced = trace(function, params, *example)
    tracer = Tracer(differentiated=differentiated)
    operands = [tracer.input(n, leaf) for n, leaf in {**weights, **inputs}.items()]
    outputs = trees.output_names(traced.result, {*weights, *inputs})
    tracer.op.reserve(outputs)
    results = tracer.read(traced, operands)
    graph = tracer.finish(results, outputs, _name(function))
    settle_weights(graph, {n: trees.array(leaf) for n, leaf in weights.items()})
    cancel_transposes(graph, weights)
    model = as_model(graph)
    if checked:
        original = jax.jit(flat(reference or function, params, *example))
        require_same(model, original, weights, inputs, fitting_size(traced.jaxpr, inputs))
    return model


def as_model(graph: ir.Graph, records: Sequence[Record] = ()) -> Model:
    """The model of a finished graph, at versions that onnxruntime takes."""
    graph.opset_imports[""] = opset.OPSET
    return fit(Model(ir.Model(graph, ir_version=IR_VERSION, producer_name="sardonyx"), records))


def settle_names(leaves: Mapping[str, Any], used_names: Collection[str]) -> dict[str, Any]:
    """Leaves by names that are not `taken`."""
    names: dict[str, Any] = {}
    for name, leaf in leaves.items():
        while name in used_names:
            name = f"input.{name}"
        names[name] = leaf
    return names


def _name(function: Callable[..., Any]) -> str:
    inner = getattr(function, "__wrapped__", function)
    return getattr(inner, "__name__", type(inner).__name__).strip("<>")
