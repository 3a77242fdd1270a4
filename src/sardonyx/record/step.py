"""The step as one plain graph: what every engine executes.

`compile_step` joins a record to its model, lowers `Gradient` and the optimizers to plain operators
and turns state into inputs and outputs: a pure function (state, data) -> (metrics, new state).
`compile_inference` is the served graph with its state as inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.grad.training import lower_training
from sardonyx.model import Model, Record
from sardonyx.normalize import NormalizedModel, normalize
from sardonyx.passes.cse import merge_common
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold
from sardonyx.record.info import combine, metrics, state_names


@dataclass
class StepGraph:
    """A pure step.

    model     -- the graph; its inputs are `inputs`, `hyper`, `state` and `constants`,
                 its outputs `metrics` and `updates`
    inputs    -- what the caller feeds at every step
    hyper     -- scalars with a default that the caller may feed
    state     -- names of the variables that the graph reads
    updates   -- variable → the output that becomes its new value
    metrics   -- outputs to display: losses, norms
    constants -- weights that no step changes, as inputs: the same tensors at every step
    """

    model: NormalizedModel
    inputs: list[str]
    hyper: dict[str, np.ndarray]
    state: list[str]
    updates: dict[str, str]
    metrics: list[str] = field(default_factory=list)
    constants: dict[str, ir.TensorProtocol] = field(default_factory=dict)


Binds = Callable[[ir.Value], bool] | None


def compile_step(model: Model, record: Record, binds: Binds = None) -> StepGraph:
    """One step of `record` as a pure graph of plain operators.

    binds -- the initializers that become inputs although no step changes them
    """
    joined, state, hyper = open_step(model, record)
    variables = set(all_state(model))
    constants = _bound(joined.graph, binds)
    # Gradient names tensors: it goes before anything else touches the graph.
    lowered = normalize(lower_training(joined))
    graph = lowered.graph
    fold(graph)
    remove_dead(graph)
    merge_common(graph)
    drop_unused_inputs(graph)
    names = [v.name for v in graph.inputs]
    not_fed = variables | hyper.keys() | constants.keys()
    lowered.ir.graph.opset_imports[""] = opset.OPSET
    return StepGraph(
        NormalizedModel.of(lowered),
        [n for n in names if n and n not in not_fed],
        {n: v for n, v in hyper.items() if n in names},
        [n for n in state if n in names],
        dict(record.update_binding),
        metrics(record),
        {n: tensor for n, tensor in constants.items() if n in names},
    )


def open_step(model: Model, record: Record) -> tuple[Model, list[str], dict[str, np.ndarray]]:
    """The graph of a step whose state and hyperparameters are inputs; their names, the defaults."""
    joined = combine(model, record)
    variables = set(all_state(model))
    hyper = _defaults(joined, variables)
    # Before any pass sees the graph: to a pass, an initializer is a constant.
    state = _free(joined.graph, variables)
    _free(joined.graph, set(hyper))
    _set_outputs(joined, [*metrics(record), *(value for _, value in record.update_binding)])
    return joined, state, hyper


def step_inputs(model: Model) -> list[ir.Value]:
    """What a step of all records must be fed, with types and shapes; nothing is compiled."""
    inputs: dict[str, ir.Value] = {}
    variables = set(all_state(model))
    for record in model.records:
        joined = combine(model, record)
        defaults = _defaults(joined, variables)
        _set_outputs(joined, [*metrics(record), *(value for _, value in record.update_binding)])
        remove_dead(joined.graph)
        drop_unused_inputs(joined.graph)
        values = {v.name: v for v in joined.graph.inputs if v.name}
        inputs |= {n: v for n, v in values.items() if n not in variables and n not in defaults}
    return list(inputs.values())


def compile_evaluation(
    model: Model,
    record: Record,
    forward: Mapping[str, str],
    predictions: Sequence[str],
    binds: Binds = None,
) -> StepGraph:
    """The metrics of a record, and `predictions`, computed by the served graph, without updates.

    forward -- tensors of the served graph → their copies in training mode, which they replace
    """
    joined = combine(model, record)
    values = {v.name: v for node in joined.graph for v in node.outputs}
    for served, copy in forward.items():
        if served in values and copy in values:
            values[copy].replace_all_uses_with(values[served])
    variables = set(all_state(model))
    hyper = _defaults(joined, variables)
    state = _free(joined.graph, variables)
    _free(joined.graph, set(hyper))
    constants = _bound(joined.graph, binds)
    metric_names = metrics(record)
    _set_outputs(joined, [*metric_names, *predictions])
    remove_dead(joined.graph)
    joined = normalize(lower_training(joined))
    drop_unused_inputs(joined.graph)
    names = [v.name for v in joined.graph.inputs]
    not_fed = variables | hyper.keys() | constants.keys()
    return StepGraph(
        NormalizedModel.of(joined),
        [n for n in names if n and n not in not_fed],
        {n: v for n, v in hyper.items() if n in names},
        [n for n in state if n in names],
        {},
        [v.name or "" for v in joined.outputs],
        {n: tensor for n, tensor in constants.items() if n in names},
    )


def compile_inference(model: Model, binds: Binds = None) -> StepGraph:
    """The served graph, with state variables as inputs."""
    served = Model(model.ir.clone(), [], model.source)
    variables = set(all_state(model))
    hyper = _defaults(served, variables)
    state = _free(served.graph, variables)
    _free(served.graph, set(hyper))
    constants = _bound(served.graph, binds)
    served = normalize(served)
    names = [v.name for v in served.graph.inputs]
    inputs = [n for n in names if n and n not in {*state, *hyper, *constants}]
    hyper = {n: v for n, v in hyper.items() if n in names}
    state = [n for n in state if n in names]
    constants = {n: tensor for n, tensor in constants.items() if n in names}
    outputs = [v.name or "" for v in served.outputs]
    return StepGraph(served, inputs, hyper, state, {}, outputs, constants)


def distinct_outputs(graph: StepGraph) -> StepGraph:
    """One output for each variable: two buffers cannot be bound to one, nor one to an input."""
    outputs: set[str] = set(graph.metrics)
    model: Model = graph.model
    updates = dict(graph.updates)
    values = {v.name: v for v in model.outputs}
    for name, output in graph.updates.items():
        if output not in outputs and values[output].producer() is not None:
            outputs.add(output)
            continue
        if model is graph.model:
            model = model.copy()
            values = {v.name: v for v in model.outputs}
        node = ir.Node("", "Identity", [values[output]], num_outputs=1)
        (copy,) = node.outputs
        copy.name = updates[name] = f"{name}/assigned"
        copy.type, copy.shape = values[output].type, values[output].shape
        model.graph.append(node)
        model.graph.outputs.append(copy)
    if model is graph.model:
        return graph
    return replace(graph, model=NormalizedModel.of(model), updates=updates)


def all_state(model: Model) -> list[str]:
    """The state variables of all records of a model, each once."""
    return list(dict.fromkeys(n for r in model.records for n in state_names(model, r)))


def _set_outputs(model: Model, names: list[str]) -> None:
    graph = model.graph
    values = {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
    values.update({v.name: v for node in graph for v in node.outputs})
    graph.outputs.clear()
    graph.outputs.extend(values[n] for n in dict.fromkeys(names))


def _free(graph: ir.Graph, names: set[str]) -> list[str]:
    """Make initializers plain inputs; those that the graph has, in order."""
    freed = []
    for name in [n for n in graph.initializers if n in names]:
        value = graph.initializers.pop(name)
        value.const_value = None
        if not value.is_graph_input():
            graph.inputs.append(value)
        freed.append(name)
    return freed


def _bound(graph: ir.Graph, binds: Binds) -> dict[str, ir.TensorProtocol]:
    """Make the initializers that `binds` names plain inputs; their tensors."""
    if binds is None:
        return {}
    tensors = {
        n: v.const_value
        for n, v in graph.initializers.items()
        if v.const_value is not None and binds(v)
    }
    _free(graph, set(tensors))
    return tensors


def _defaults(joined: Model, variables: set[str]) -> dict[str, np.ndarray]:
    """The inputs that have a default: a caller may feed them."""
    fed = [v.name for v in joined.graph.inputs if v.name and v.name not in variables]
    return {n: _array(joined.graph, n) for n in fed if n in joined.graph.initializers}


def _array(graph: ir.Graph, name: str) -> np.ndarray:
    tensor = graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy().copy()


def drop_unused_inputs(graph: ir.Graph) -> None:
    """Inputs that nothing reads any more would only cost time."""
    read = [v for v in graph.inputs if v.uses() or v.is_graph_output()]
    graph.inputs.clear()
    graph.inputs.extend(read)
