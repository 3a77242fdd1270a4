"""A step in two halves, for engines that differentiate by themselves.

`split_step` parts a symbolic record at its Gradient node: the forward half computes the loss, the
update half everything else from the gradients. A framework runs the first under its own automatic
differentiation, with its fused kernels, instead of the expanded gradient node by node.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx import opset
from sardonyx.grad.driver import STOPPED
from sardonyx.grad.training import link_names, lower_training
from sardonyx.model import Model, Record
from sardonyx.normalize import NormalizedModel, extended, normalize, regular_copy
from sardonyx.passes.cse import is_random, merge_common
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold
from sardonyx.passes.nesting import bodies, graphs, reads
from sardonyx.passes.stages import cut_front
from sardonyx.record.info import metrics
from sardonyx.record.kinks import select_at_kinks, unselectable
from sardonyx.record.step import StepGraph, drop_unused_inputs, open_step

# Operators that compute sizes from sizes.
SIZES = frozenset([
    "Concat", "Gather", "Slice", "Squeeze", "Unsqueeze", "Cast", "Reshape", "Identity", "Add",
    "Sub", "Mul", "Div", "Mod", "Max", "Min", "ReduceProd",
])  # fmt: skip
# Their gradients are chosen in the record (straight through), not by the framework.
QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinearFixed")


class NotNative(Exception):
    """Why a record cannot be executed by a framework's own differentiation."""


@dataclass
class SplitStep:
    """A step in two halves.

    forward   -- state and data → `loss`, then the tensors that the update reads, then metrics
    update    -- `gradients`, tensors of the forward half, state and data → new state and metrics
    loss      -- the output of `forward` that is differentiated
    variables -- the state variables by which it is differentiated
    gradients -- the inputs of `update` that take the gradients of these variables
    whole     -- names of inputs, state, updates and metrics; its model is the forward half
    """

    forward: NormalizedModel
    update: NormalizedModel
    loss: str
    variables: list[str]
    gradients: list[str]
    whole: StepGraph


def split_step(model: Model, record: Record, kept: Collection[str] = ()) -> SplitStep:
    """The two halves of a symbolic record; raises `NotNative` with the reason where there are
    none.

    kept -- operators whose slopes at kinks the framework chooses as the gradient rules do
    """
    joined, state, hyper = open_step(model, record)
    _refuse_nested(joined)
    link_names(joined)
    joined = regular_copy(joined)
    node = _gradient(joined.graph)
    count = (len(node.inputs) - 1) // 2
    points, xs, y = node.inputs[:count], node.inputs[count:-1], node.inputs[-1]
    if list(points) != list(xs) or not all(v is not None and v.name in state for v in xs):
        raise NotNative("it differentiates by tensors that are not variables")
    assert y is not None
    forward_nodes = _ancestors(y)
    _refuse_operators(forward_nodes)
    _separate_sizes(joined.graph, set(forward_nodes))
    loss, names = y.name or "", [v.name or "" for v in xs]  # type: ignore[union-attr]
    gradients = [v.name or "" for v in node.outputs]
    first = {n.outputs[0].name or "" for n in (*forward_nodes, node)}
    parts = cut_front(joined, first)
    forward, update = parts.front, parts.rest
    _set_forward_outputs(forward, [loss, *parts.boundary], gradients)
    update = normalize(lower_training(update))
    fold(update.graph)
    remove_dead(update.graph)
    merge_common(update.graph)
    drop_unused_inputs(update.graph)
    forward.ir.opset_imports.pop(opset.TRAINING_DOMAIN, None)
    forward_model = normalize(forward)
    forward_model = _with_selections(forward_model, kept)
    fed = [n for n in _input_names(forward_model) if n not in state and n not in hyper]
    late = [n for n in _input_names(update) if n not in (*state, *hyper, *parts.boundary, *fed)]
    if late:
        raise NotNative(f"its update reads the data {late[0]!r}")
    whole = StepGraph(
        forward_model, fed, hyper, state, dict(record.update_binding), metrics(record)
    )
    return SplitStep(forward_model, NormalizedModel.of(update), loss, names, gradients, whole)


def _with_selections(forward: NormalizedModel, kept: Collection[str]) -> NormalizedModel:
    """The forward half with operators that every framework differentiates alike."""
    node = unselectable(list(forward.graph))
    if node is not None:
        raise NotNative(f"{node.op_type} of a free size may have ties")
    work = regular_copy(forward)
    select_at_kinks(work, kept)
    return extended(work)


def _input_names(model: Model) -> list[str]:
    return [v.name or "" for v in model.graph.inputs]


def _refuse_nested(model: Model) -> None:
    every = [model.graph, *(f.graph for f in model.ir.functions.values())]
    for graph in every:
        for part in graphs(graph):
            inner = part is not model.graph
            if inner and any(n.op_type == "Gradient" for n in part):
                raise NotNative("a Gradient is inside a body or a function")


def _gradient(graph: ir.Graph) -> ir.Node:
    nodes = [n for n in graph if n.op_type == "Gradient" and n.domain == opset.TRAINING_DOMAIN]
    if len(nodes) != 1:
        count = len(nodes) or "no"
        raise NotNative(f"it has {count} Gradient nodes" if nodes else "its gradient is expanded")
    return nodes[0]


def _ancestors(value: ir.Value) -> list[ir.Node]:
    """The nodes that a value depends on."""
    first = value.producer()
    pending = [first] if first is not None else []
    ancestors: dict[ir.Node, None] = {}
    while pending:
        node = pending.pop()
        if node in ancestors:
            continue
        ancestors[node] = None
        for source in reads(node):
            producer = source.producer()
            if producer is not None:
                pending.append(producer)
    return list(ancestors)


def _separate_sizes(graph: ir.Graph, forward: set[ir.Node]) -> None:
    """Let the update half compute the sizes that it reads by itself.

    As results of the forward half they would be numbers that a compiler does not know.
    """
    copies: dict[ir.Value, ir.Value] = {}
    taken = {v.name for n in graph.all_nodes() for v in n.outputs}

    def copied(value: ir.Value, reader: ir.Node) -> ir.Value:
        node = value.producer()
        if node is None or node not in forward or not _is_size(node):
            return value
        if value not in copies:
            shape_of = node.op_type in ("Shape", "Size")
            inputs = [v if v is None or shape_of else copied(v, reader) for v in node.inputs]
            copy = ir.Node(node.domain, node.op_type, inputs, node.attributes.values())
            (result,), (old,) = copy.outputs, node.outputs
            result.name, result.type, result.shape = f"{old.name}/again", old.type, old.shape
            while result.name in taken:
                result.name += "_"
            taken.add(result.name)
            copy.name = result.name
            graph.insert_before(reader, [copy])
            copies[value] = result
        return copies[value]

    for node in list(graph):
        if node in forward or node.op_type == "Gradient":
            continue
        for index, value in enumerate(node.inputs):
            if value is not None and (replacement := copied(value, node)) is not value:
                node.replace_input_with(index, replacement)


def _is_size(node: ir.Node) -> bool:
    """Whether a node computes sizes of tensors, and nothing else."""
    if node.op_type in ("Shape", "Size") and node.domain == "":
        return True
    if node.op_type not in SIZES or node.domain != "" or len(node.outputs) != 1:
        return False
    producers = [v.producer() for v in node.inputs if v is not None and v.const_value is None]
    return bool(producers) and all(p is not None and _is_size(p) for p in producers)


def _refuse_operators(nodes: list[ir.Node]) -> None:
    for node in nodes:
        if node.op_type in QUANTIZED:
            raise NotNative(f"{node.op_type} has a straight-through gradient")
        if node.op_type == "Gradient":
            raise NotNative("its loss holds a gradient itself")
        if bodies(node):
            raise NotNative(f"{node.op_type} has a body")
        if STOPPED in node.metadata_props:
            raise NotNative("gradients stop inside its forward part")
        if is_random(node):
            raise NotNative(f"{node.op_type} is random")


def _set_forward_outputs(forward: Model, names: list[str], gradients: list[str]) -> None:
    graph = forward.graph
    values = {v.name: v for node in graph for v in node.outputs}
    graph.outputs.clear()
    graph.outputs.extend(values[n] for n in dict.fromkeys(names) if n not in gradients)
    remove_dead(graph)
    drop_unused_inputs(graph)
