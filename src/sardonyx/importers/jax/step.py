"""`from_jax_step`: a whole training step of JAX as the record of a model.

The step `(state, batch) -> (state, metrics)` becomes one graph, which is cut in two: what the
metrics need is the model's own graph, with the batch as its inputs; the rest is the algorithm of
the record, whose bindings assign the new state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax import tree_util

from sardonyx import opset, partial
from sardonyx.errors import ArgumentError, ImportDiffers, quote
from sardonyx.importers.jax import trees
from sardonyx.importers.jax.check import (
    JaxSide,
    fitting_size,
    require_same,
    require_same_training,
)
from sardonyx.importers.jax.finish import as_model, settle_names
from sardonyx.importers.jax.purity import pure, require_repeatable
from sardonyx.importers.jax.shorten import NAME, shorten
from sardonyx.importers.jax.trace import Tracer, flat, settle_weights, trace
from sardonyx.model import Model, Record
from sardonyx.passes.nesting import reads
from sardonyx.record import info
from sardonyx.record.builder import ROLE

SHOWN = 3


def from_jax_step(step: Callable[[Any, Any], Any], state: Any, batch: Any) -> Model:
    """Import a training step of JAX: any loss, any optimizer, exactly as it stands.

    Two steps are compared with `jax.jit(step)` before the model is returned.

    step  -- `step(state, batch)` returns the new state and metrics: a loss, or a tree of numbers
    state -- a tree of arrays: parameters, the optimizer's state, statistics, random keys
    batch -- a tree of arrays, an example of what each step is fed

    >>> import jax, jax.numpy as jnp, sardonyx as sx
    >>> def step(params, batch):
    ...     def loss(p):
    ...         return jnp.mean((batch["x"] @ p["w"] - batch["y"]) ** 2)
    ...     value, gradient = jax.value_and_grad(loss)(params)
    ...     return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), {"loss": value}
    >>> batch = {"x": jnp.ones((8, 3)), "y": jnp.ones(8)}
    >>> model = sx.from_jax_step(step, {"w": jnp.zeros(3)}, batch)
    >>> model.records[0].update_binding
    [('w', 'w/next')]
    """
    with pure(step):
        return _imported(step, state, batch)


def _imported(step: Callable[[Any, Any], Any], state: Any, batch: Any) -> Model:
    before = trees.named_leaves(state)
    names = trees.argument_names(step, 1, 1)
    fed = settle_names(_batch_leaves(names[0], batch), before)
    trees.require_arrays(before, "the state")
    trees.require_arrays(fed, "the batch")
    traced = trace(step, state, batch)
    results = _metrics(traced.result, state, before)
    tracer = Tracer()
    operands = [tracer.input(n, leaf) for n, leaf in {**before, **fed}.items()]
    metrics = metric_names(results, {*before, *fed})
    tracer.op.reserve([*metrics, *(f"{n}/next" for n in before)])
    values = tracer.read(traced, operands)
    new, numbers = values[: len(before)], values[len(before) :]
    moved = {n: v for n, v in zip(before, new, strict=True) if v is not tracer.inputs[n]}
    _require_training(moved, numbers)
    outputs = {
        **dict(zip(metrics, numbers, strict=True)),
        **{f"{n}/next": v for n, v in moved.items()},
    }
    graph = tracer.finish(list(outputs.values()), list(outputs), "step")
    shorten(graph, list(before))
    arrays = {n: trees.array(leaf) for n, leaf in before.items()}
    model = cut(graph, arrays, metrics, list(moved))

    def again(state: Any, batch: Any) -> Any:  # JAX traces a function that it has not seen
        return step(state, batch)

    try:
        require_same_training(model, JaxSide(again, state, batch, list(fed)), fed)
        numbers_of = flat(lambda *trees_: again(*trees_)[1], state, batch)
        require_same(model, jax.jit(numbers_of), before, fed, fitting_size(traced.jaxpr, fed))
    except ImportDiffers:
        require_repeatable(
            lambda: trace(lambda s, b, run=step: run(s, b), state, batch), "the step"
        )
        raise
    return model


def _batch_leaves(name: str, batch: Any) -> dict[str, Any]:
    """The leaves of a batch: a mapping names its own."""
    return trees.named_leaves(batch, "" if isinstance(batch, Mapping) else name)


def _metrics(result: Any, state: Any, names: Mapping[str, Any]) -> Any:
    """The metrics of a step's result, after a check of the new state."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(
            "the step does not return a pair of the new state and metrics",
            [[f"it returns {type(result).__name__}"]],
            hint="return state, {'loss': loss}",
        )
    after, metrics = result
    structures = tree_util.tree_structure(state), tree_util.tree_structure(after)
    if structures[0] != structures[1]:
        raise ArgumentError(
            "the step returns a state of another structure",
            [["before", str(structures[0])], ["after", str(structures[1])]],
            hint="return the state as the first of the pair",
        )
    rows = [
        [quote(name), f"{_type(old)} before", f"{_type(new)} after"]
        for (name, old), new in zip(names.items(), tree_util.tree_leaves(after), strict=True)
        if _type(old) != _type(new)
    ]
    if rows:
        raise ArgumentError(
            "the step changes types or shapes of its state",
            rows,
            hint="a state keeps them: cast what the step returns, or the state before the first",
        )
    return metrics


def _type(leaf: Any) -> str:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return f"{aval.dtype}{list(aval.shape)}"


def _require_training(moved: Mapping[str, Any], metrics: Sequence[Any]) -> None:
    if not moved:
        raise ArgumentError("the step changes nothing in its state", hint="return the new state")
    if not metrics:
        raise ArgumentError(
            "the step returns no metrics", hint="return state, {'loss': loss}: a run shows it"
        )


def metric_names(metrics: Any, used_names: set[str]) -> list[str]:
    """Names for the metrics of a step; a single number is its loss."""
    leaves = tree_util.tree_leaves(metrics)
    if len(leaves) == 1 and metrics is leaves[0]:
        return ["loss" if "loss" not in used_names else "metric/loss"]
    return [n.replace("output_", "metric_", 1) for n in trees.output_names(metrics, used_names)]


def cut(
    graph: ir.Graph, arrays: Mapping[str, np.ndarray], metrics: Sequence[str], moved: Sequence[str]
) -> Model:
    """The model whose graph computes `metrics`, and whose record the new values of `moved`."""
    outputs = {v.name: v for v in graph.outputs}
    served = _needed([outputs[n] for n in metrics])
    graph.outputs.clear()
    for name in metrics:  # a run reports the algorithm's outputs
        outputs[name].name = f"metrics.{name}"
        graph.outputs.append(outputs[name])
    later = [node for node in graph if node not in served]
    graph.remove(later)
    results = []
    for name in (*metrics, *(f"{n}/next" for n in moved)):
        value = outputs[name]
        if value.producer() in served:
            if value.name == name:
                value.name = f"{name}/value"
            value = _copied(value, name)
            later.append(value.producer())  # type: ignore[arg-type]
        results.append(value)
    algorithm = ir.Graph([], results, nodes=later, name=NAME)
    private = _private(graph, partial.free_values(algorithm), arrays)
    partial.detach(algorithm)
    settle_weights(graph, {n: a for n, a in arrays.items() if n not in private})
    graph.inputs[:] = [v for v in graph.inputs if v.name not in private]
    for name in private:
        graph.initializers.pop(name, None)
    record = Record(algorithm, private, update_binding=[(n, f"{n}/next") for n in moved])
    return _checked(as_model(graph, [record]), moved)


def attach(
    model: Model,
    graph: ir.Graph,
    arrays: Mapping[str, np.ndarray],
    moved: Sequence[str],
    defaults: Sequence[str] = (),
) -> Model:
    """The model with a whole step, which computes the new values of `moved`, as its record.

    defaults -- names among `arrays` that may be fed: their arrays are what they are otherwise
    """
    ours = {v.name for v in model.graph.inputs} | set(model.graph.initializers)
    private: dict[str, ir.TensorProtocol] = {
        n: ir.Tensor(a, name=n, shape=ir.Shape(a.shape)) for n, a in arrays.items() if n not in ours
    }
    for name, value in graph.initializers.items():
        assert value.const_value is not None
        private[name] = value.const_value
    inputs = [
        v for v in graph.inputs
        if v.name not in ours and (v.name not in private or v.name in defaults)
    ]  # fmt: skip
    outputs, nodes = list(graph.outputs), list(graph)
    graph.outputs.clear()
    graph.inputs.clear()
    graph.initializers.clear()
    graph.remove(nodes)
    algorithm = ir.Graph(inputs, outputs, nodes=nodes, name=NAME)
    for value in partial.free_values(algorithm):
        value.const_value = None
    partial.detach(algorithm)
    record = Record(algorithm, private, update_binding=[(n, f"{n}/next") for n in moved])
    joined = model.copy()
    joined.ir.graph.opset_imports[""] = opset.OPSET
    joined.metadata.update(
        {f"{ROLE}{v.name}": "hyperparameter" for v in inputs if v.name in arrays}
    )
    return _checked(as_model(joined.graph, [record]), moved)


def _checked(model: Model, moved: Sequence[str]) -> Model:
    for name in moved:
        inside = name in model.graph.initializers
        model.metadata[f"{ROLE}{name}"] = "parameter" if inside else "slot"
    info.check(model)
    return model


def _copied(value: ir.Value, name: str) -> ir.Value:
    node = ir.Node("", "Identity", [value], num_outputs=1, name=f"{name}/Identity")
    (copy,) = node.outputs
    copy.name, copy.type, copy.shape = name, value.type, value.shape
    return copy


def _needed(values: Sequence[ir.Value]) -> set[ir.Node]:
    """The nodes that compute `values`."""
    nodes: set[ir.Node] = set()
    pending = [v.producer() for v in values]
    while pending:
        node = pending.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        pending += [v.producer() for v in reads(node)]
    return nodes


def _private(
    graph: ir.Graph, free: Sequence[ir.Value], arrays: Mapping[str, np.ndarray]
) -> dict[str, ir.TensorProtocol]:
    """The state and constants that the algorithm alone reads, or only assigns."""
    read = {v for node in graph.all_nodes() for v in node.inputs} | set(graph.outputs)
    private: dict[str, ir.TensorProtocol] = {}
    for name, array in arrays.items():
        value = next((v for v in graph.inputs if v.name == name), None)
        if value is None or value not in read:
            private[name] = ir.Tensor(array, name=name, shape=ir.Shape(array.shape))
    for value in free:
        if value.const_value is not None and value not in read:
            private[value.name or ""] = value.const_value
    return private
