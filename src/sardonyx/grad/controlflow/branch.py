"""If: each branch gets a backward branch, under the same condition."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, constant, is_static, rank, static
from sardonyx.grad.controlflow.body import (
    body_of,
    name_outputs,
    own,
    read_inside,
    reread,
    results_of,
    seeds_of,
)
from sardonyx.grad.driver import Path, backward, gradient_rule, path
from sardonyx.passes.nesting import captured


def _branches(node: ir.Node) -> list[ir.Graph]:
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    name_outputs(node, branches[0].outputs)
    return branches


def _if_paths(node: ir.Node, values: set[ir.Value]) -> list[Path]:
    starts = [v for v in captured(node) if v in values]
    paths = []
    for body in _branches(node):
        ends = [y for y, out in zip(body.outputs, node.outputs, strict=True) if out in values]
        paths.append(path(list(body), starts, ends, ()))
    return paths


@gradient_rule("If", structural=True, inside=_if_paths)
def if_(op, gs, node, targets):
    starts = [v for v in captured(node) if v in targets]
    forward = _branches(node)
    builders = [Builder(op.prefix, parent=op) for _ in forward]
    branch_gradients = []
    for inner, body in zip(builders, forward, strict=True):
        pairs = zip(body.outputs, gs, strict=False)
        seeds = seeds_of(inner, [(y, g) for y, g in pairs if g is not None])
        branch_gradients.append(backward(inner, list(body), seeds, starts, checked=True))
    reached = [i for i in range(len(starts)) if any(f[i] is not None for f in branch_gradients)]
    if not reached:
        return {}
    grads = []
    for inner, body, gradients in zip(builders, forward, branch_gradients, strict=True):
        results = [gradients[i] or inner.zeros_like(starts[i]) for i in reached]
        outputs = results_of(inner, results)
        _tape_branch(op, node, body, inner.nodes)
        grads.append(body_of(inner, "branch", [], outputs))
    branches = {
        "then_branch": ir.AttrGraph("then_branch", grads[0]),
        "else_branch": ir.AttrGraph("else_branch", grads[1]),
    }
    outputs = op.call("If", [node.inputs[0]], branches, outputs=len(reached))
    for out, i in zip(outputs, reached, strict=True):
        out.type, out.shape = starts[i].type, starts[i].shape
    return {starts[i]: out for i, out in zip(reached, outputs, strict=True)}


def _tape_branch(op: Builder, node: ir.Node, body: ir.Graph, backward_nodes: list[ir.Node]) -> None:
    """Make what a backward branch reads from its forward branch outputs of the forward If."""
    new: dict[ir.Value, ir.Value] = {}
    for value in read_inside(backward_nodes, body):
        fixed = constant(value)
        if fixed is not None and value.producer() is None:
            new[value] = op.const(fixed)
            continue
        branches = _branches(node)
        node.resize_outputs(len(node.outputs) + 1)
        out = node.outputs[-1]
        out.name = op.fresh(f"{node.name or node.op_type}/{value.name}")
        out.type = value.type
        # The other branch gives an empty tensor here: no size is certain.
        out.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
        for branch in branches:
            inner = Builder(op.prefix, parent=op)
            if branch is not body:
                result = _nothing_like(inner, value)
            else:
                result = value if value not in body.outputs else own(inner, value)
            branch.extend(inner.nodes)
            branch.outputs.append(result)
        new[value] = out
    reread(backward_nodes, new)


def _nothing_like(op: Builder, value: ir.Value) -> ir.Value:
    """What the other branch gives for `value`: as little as possible, of the same type and rank.

    A condition keeps its one element: onnxruntime folds an If even in a branch that never runs.
    """
    if isinstance(value.type, ir.SequenceType):
        return op.SequenceEmpty(dtype=int(value.type.elem_type.dtype))
    assert value.dtype is not None
    if is_static(value) and np.prod(static(value)) == 1:
        dims = list(static(value))
    else:
        dims = [int(value.dtype == ir.DataType.BOOL)] * (1 if value.shape is None else rank(value))
    return op.Identity(op.const(np.zeros(dims, value.dtype.numpy())))
