"""Loops of TensorFlow 1: cycles of the graph, whose parts are cut out as graphs of their own.

Enter brings a value into a loop. Merge takes it, or what NextIteration gives; Switch sends it into
the body, or, when LoopCond says so, out through Exit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from sardonyx.importers.tensorflow.writer import Refusal

EXITS = ("Exit", "RefExit")
ENTERS = ("Enter", "RefEnter")
MERGES = ("Merge", "RefMerge")
SWITCHES = ("Switch", "RefSwitch")
BACK = ("NextIteration", "RefNextIteration")


@dataclass(frozen=True)
class Variable:
    """What changes from one iteration to the next."""

    start: tf.Tensor  # outside of the loop
    merged: tf.Tensor  # what the test sees
    inside: tf.Tensor  # what the body sees
    following: tf.Tensor  # what the body makes of it
    outside: tf.Tensor  # what Exit sees


@dataclass(frozen=True)
class Frame:
    """A loop: its variables, and the tensors that it reads from outside."""

    test: tf.Tensor
    variables: list[Variable]
    constants: list[tf.Tensor]  # results of Enter

    def operands(self) -> list[tf.Tensor]:
        """The tensors outside of the loop that it needs."""
        return [v.start for v in self.variables] + [t.op.inputs[0] for t in self.constants]


def frame_of(node: tf.Operation) -> Frame:
    """The loop that an Exit leads out of."""
    switch = _origin(node.inputs[0]).op
    if switch.type not in SWITCHES:
        raise Refusal("a loop of TensorFlow 1 without a Switch before its Exit")
    loop = _origin(switch.inputs[1])
    if loop.op.type != "LoopCond":
        raise Refusal("a loop of TensorFlow 1 without a LoopCond")
    switches = [n for n in _readers(loop) if n.type in SWITCHES]
    variables = [_variable(n) for n in switches]
    test = loop.op.inputs[0]
    nodes = _inside([test, *(v.following for v in variables)])
    merges = {v.merged.op for v in variables}
    if any(n.type in MERGES and n not in merges and _is_head(n) for n in nodes):
        raise Refusal("a loop of TensorFlow 1 with a variable that its test does not decide on")
    starts = {_enter(v.merged.op) for v in variables}
    constants = [n.outputs[0] for n in nodes if n.type in ENTERS and n not in starts]
    return Frame(test, variables, constants)


def needs(node: tf.Operation) -> list[tf.Tensor]:
    """The tensors that an operator needs; a loop, which its Exits stand for, as one operator."""
    return frame_of(node).operands() if node.type in EXITS else list(node.inputs)


def _variable(switch: tf.Operation) -> Variable:
    merge = _origin(switch.inputs[0]).op
    if merge.type not in MERGES or not _is_head(merge):
        raise Refusal("a loop of TensorFlow 1 without a Merge at its head")
    back = next(t.op for t in merge.inputs if t.op.type in BACK)
    return Variable(
        _enter(merge).inputs[0],
        merge.outputs[0],
        switch.outputs[1],
        back.inputs[0],
        switch.outputs[0],
    )


def _enter(merge: tf.Operation) -> tf.Operation:
    nodes = [_origin(t).op for t in merge.inputs if t.op.type not in BACK]
    if len(nodes) != 1 or nodes[0].type not in ENTERS:
        raise Refusal("a loop of TensorFlow 1 with an unusual head")
    return nodes[0]


def _is_head(node: tf.Operation) -> bool:
    return any(t.op.type in BACK for t in node.inputs)


def _inside(results: Sequence[tf.Tensor]) -> list[tf.Operation]:
    """The operators of a loop, without those of loops in it, that results need."""
    depth = {t.op: 0 for t in results}
    stack = list(depth)
    while stack:
        node = stack.pop()
        level = depth[node]
        if node.type in ENTERS:
            if level == 0:
                continue
            level -= 1
        elif node.type in EXITS:
            level += 1
        for tensor in node.inputs:
            if tensor.op not in depth:
                depth[tensor.op] = level
                stack.append(tensor.op)
    return [node for node, level in depth.items() if level == 0]


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _readers(tensor: tf.Tensor) -> list[tf.Operation]:
    nodes: list[tf.Operation] = []
    for node in tensor.consumers():
        nodes += _readers(node.outputs[0]) if node.type == "Identity" else [node]
    return nodes


# -- parts of a graph as graphs -------------------------------------------------------------------


def part(inputs: Mapping[str, tf.TensorShape], results: Sequence[tf.Tensor]) -> tf.Graph:
    """The operators between tensors and `results`, as a graph with `inputs` and `outputs`.

    inputs -- shapes of the tensors that the graph gets from outside, by their names

    Of control edges, those remain that tell in which branch an operator is.
    """
    whole = results[0].graph
    definition = tf.compat.v1.GraphDef()
    definition.versions.CopyFrom(whole.graph_def_versions)
    places: dict[str, str] = {}
    nodes = _between(inputs, results)
    names = {n.name for n in nodes}
    for tensor_name, shape in inputs.items():
        tensor = whole.get_tensor_by_name(tensor_name)
        stem = tensor_name.replace(":", "_")
        while stem in names:
            stem += "_"
        names.add(stem)
        places[tensor_name] = stem
        node = definition.node.add(name=stem, op="Placeholder")
        node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(shape.as_proto())
    for operation in nodes:
        node = definition.node.add()
        node.CopyFrom(operation.node_def)
        del node.input[:]
        node.input.extend(places.get(t.name, t.name) for t in operation.inputs)
        node.input.extend(f"^{n.name}" for n in _pivots(operation, inputs))
        node.attr.pop("_class", None)
    functions = [n for n in nodes if any(a.type in FUNCTIONS for a in n.op_def.attr)]
    if functions:
        definition.library.CopyFrom(whole.as_graph_def().library)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(definition, name="")
    graph.inputs = [graph.get_tensor_by_name(f"{places[n]}:0") for n in inputs]
    graph.outputs = [
        graph.get_tensor_by_name(f"{places[t.name]}:0" if t.name in places else t.name)
        for t in results
    ]
    return graph


FUNCTIONS = ("func", "list(func)")


def _between(inputs: Mapping[str, Any], results: Iterable[tf.Tensor]) -> list[tf.Operation]:
    nodes: dict[tf.Operation, None] = {}
    stack = [t.op for t in results if t.name not in inputs]
    while stack:
        node = stack.pop()
        if node in nodes:
            continue
        nodes[node] = None
        stack += [t.op for t in node.inputs if t.name not in inputs] + _pivots(node, inputs)
    return list(nodes)


def _pivots(node: tf.Operation, inputs: Mapping[str, Any]) -> list[tf.Operation]:
    """The operators that stand for the branch which an operator without inputs is in."""
    pivots = [n for n in node.control_inputs if n.type == "Identity"]
    origins = [_origin(n.outputs[0]) for n in pivots]
    return [
        n
        for n, t in zip(pivots, origins, strict=True)
        if t.op.type in SWITCHES and _origin(t.op.inputs[1]).op.type != "LoopCond"
    ]


# -- branches -------------------------------------------------------------------------------------

Context = tuple[tuple[str, int], ...]  # conditions from the outermost in, and the way at each


def condition_of(merge: tf.Operation) -> tuple[str, bool] | None:
    """The condition of the branches that a Merge ends, and whether the first is that of True."""
    contexts = [_context(t) for t in merge.inputs]
    inner = [c[-1] for c in contexts if c]
    sides = [side for _, side in inner]
    if len(contexts) != 2 or not inner or len({name for name, _ in inner}) != 1:
        return None
    if len(inner) == 2 and set(sides) != {0, 1}:
        return None
    return inner[0][0], sides[0] == 1 if contexts[0] else sides[0] == 0


def conditions(
    nodes: Iterable[tf.Operation], others: Mapping[str, Any]
) -> dict[str, tuple[str, bool] | None]:
    """The conditions of all branches that end among `nodes`, but for `others`."""
    merges = [n for n in nodes if n.type in MERGES and n.name not in others]
    return {n.name: condition_of(n) for n in merges}


def _context(tensor: tf.Tensor) -> Context:
    """The conditions under which TensorFlow computes a tensor."""
    contexts: dict[tf.Operation, Context] = {}
    stack = [tensor.op]
    while stack:
        node = stack[-1]
        sources = _sources(node)
        missing = [n for n in sources if n not in contexts]
        if node in contexts or not missing:
            stack.pop()
            contexts.setdefault(node, _context_of(node, contexts))
        else:
            stack += missing
    return _at(tensor, contexts)


def _sources(node: tf.Operation) -> list[tf.Operation]:
    return [t.op for t in needs(node)] + list(node.control_inputs)


def _context_of(node: tf.Operation, contexts: dict[tf.Operation, Context]) -> Context:
    inputs = [_at(t, contexts) for t in needs(node)]
    controls = [contexts[n] for n in node.control_inputs if n.type not in SWITCHES]
    deepest: Context = max([(), *inputs, *controls], key=len)
    return deepest[:-1] if node.type in MERGES else deepest


def _at(tensor: tf.Tensor, contexts: dict[tf.Operation, Context]) -> Context:
    """The context of a tensor; beyond a Switch, it is one deeper than that of the Switch."""
    context = contexts[tensor.op]
    if tensor.op.type not in SWITCHES:
        return context
    return (*context, (_origin(tensor.op.inputs[1]).name, tensor.value_index))
