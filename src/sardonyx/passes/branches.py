"""An If whose condition is known becomes its branch; the other branch goes.

Known shapes decide many conditions of exported models. Names in the branch stay unless something
else has them. onnxruntime would do the same later, but loses values of a branch that a deeper body
reads.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import Builder, constant, infer
from sardonyx.passes.functions import copy_nodes, replace
from sardonyx.passes.nesting import bodies, names


def take_known_branches(graph: ir.Graph) -> int:
    """Replace every If with a constant condition, at any depth; returns how many there were."""
    namer: Builder | None = None
    count = 0
    pending = [graph]
    while pending:
        current = pending.pop()
        for node in list(current):
            branch = _known_branch(node)
            if branch is None:
                continue
            if namer is None:
                namer = Builder()
                namer.reserve(names(graph))
            _take(current, node, branch, namer)
            count += 1
        if count:
            for node in current:
                if any(v.shape is None for v in node.outputs):
                    infer(node)
        if any(_known_branch(node) is not None for node in current):
            pending.append(current)
        else:
            pending.extend(body for node in current for body in bodies(node))
    return count


def _known_branch(node: ir.Node) -> ir.Graph | None:
    if node.op_type != "If" or node.domain != "":
        return None
    condition = node.inputs[0]
    if condition is None or condition.is_graph_input():
        return None
    value = condition.const_value
    fixed = constant(condition) if value is None else value.numpy()
    if fixed is None or fixed.size != 1:
        return None
    return node.attributes[
        "then_branch" if bool(fixed.reshape(-1)[0]) else "else_branch"
    ].as_graph()


def _take(graph: ir.Graph, node: ir.Node, branch: ir.Graph, namer: Builder) -> None:
    used_names = _names_here(graph)

    def rename(name: str) -> str:
        if name in used_names:
            return namer.fresh(name)
        used_names.add(name)
        namer.reserve([name])
        return name

    for name, value in list(branch.initializers.items()):
        del branch.initializers[name]
        value.name = rename(name)
        graph.register_initializer(value)
    values: dict[ir.Value, ir.Value | None] = {}
    nodes = copy_nodes(branch, values, {}, rename)
    replace(node, nodes, [values.get(v, v) for v in branch.outputs])


def _names_here(graph: ir.Graph) -> set[str]:
    """The names that a new value of `graph` must not have: its own."""
    names_here = {v.name for v in (*graph.inputs, *graph.initializers.values()) if v.name}
    for node in graph:
        names_here.update(v.name for v in node.outputs if v.name)
        if node.name:
            names_here.add(node.name)
    return names_here
