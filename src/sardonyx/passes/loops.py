"""Shapes inside loops: a state has the shape of its initial value, if every iteration keeps it.

ONNX infers no shape for what a Loop carries, because an iteration may change it. Here the
initial shape is assumed, the body inferred, and its outputs compared: sizes that differ become
unknown, and the body is inferred again with those, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.build import infer, same_dim
from sardonyx.passes.nesting import bodies, graphs

Dims = list[Any] | None


def settle_loops(graph: ir.Graph) -> None:
    """Infer what is still unknown in the graph and in the bodies of its If, Loop and Scan nodes."""
    for node in graph:
        inner = bodies(node) if node.attributes.data else ()
        unknown = any(v.shape is None for v in node.outputs)
        if not inner and unknown:
            infer(node)
        rule = RULES.get(node.op_type) if inner and node.domain == "" else None
        if rule is not None and (unknown or any(_is_open(body) for body in inner)):
            rule(node)


def _is_open(body: ir.Graph) -> bool:
    return any(v.shape is None for part in graphs(body) for v in _values(part))


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(v for node in graph for v in node.outputs)]


def _agreed(a: ir.Shape | None, b: Sequence[Any] | ir.Shape | None) -> Dims:
    """The dimensions in which two shapes agree; None where their ranks differ or are not known."""
    if a is None or b is None or len(a) != len(b):
        return None
    pairs = zip(a, b, strict=True)
    return [x if same_dim(x, y) else ir.SymbolicDim(None) for x, y in pairs]


def _refine(value: ir.Value, dims: Dims) -> None:
    if value.shape is None and dims is not None:
        value.shape = ir.Shape(dims)


def _settle_if(node: ir.Node) -> None:
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    for branch in branches:
        settle_loops(branch)
    outputs = zip(node.outputs, *(b.outputs for b in branches), strict=False)
    for value, then, other in outputs:
        _refine(value, _agreed(then.shape, other.shape))


def _settle_loop(node: ir.Node) -> None:
    body = node.attributes["body"].as_graph()
    states = body.inputs[2:]
    count = len(states)
    for counter in body.inputs[:2]:
        _refine(counter, [])
    assumed = [None if v is None or v.shape is None else list(v.shape) for v in node.inputs[2:]]
    open_values = [v for part in graphs(body) for v in _values(part) if v.shape is None]
    while True:
        for value, dims in zip(states, assumed, strict=True):
            _refine(value, dims)
        settle_loops(body)
        after = [v.shape for v in body.outputs[1 : 1 + count]]
        agreed = [_agreed(a, dims) for a, dims in zip(after, assumed, strict=True)]
        if all(_same(a, b) for a, b in zip(agreed, assumed, strict=True)):
            break
        assumed = agreed
        for value in open_values:
            value.shape = None
    for value, dims in zip(node.outputs, assumed, strict=False):
        _refine(value, dims)
    for value, inside in zip(node.outputs[count:], body.outputs[1 + count :], strict=False):
        _refine(value, None if inside.shape is None else [ir.SymbolicDim(None), *inside.shape])


def _same(a: Dims, b: Dims) -> bool:
    if a is None or b is None:
        return a is b
    return all(x is y or same_dim(x, y) or _both_open(x, y) for x, y in zip(a, b, strict=True))


def _both_open(x: Any, y: Any) -> bool:
    return not isinstance(x, int) and not isinstance(y, int) and x.value is None and y.value is None


def _settle_scan(node: ir.Node) -> None:
    body = node.attributes["body"].as_graph()
    read = node.attributes["num_scan_inputs"].as_int()
    count = len(node.inputs) - read
    axes = node.attributes.get("scan_input_axes")
    for i, (value, source) in enumerate(zip(body.inputs, node.inputs, strict=True)):
        if source is None or source.shape is None:
            continue
        dims = list(source.shape)
        if i >= count:
            del dims[axes.as_ints()[i - count] if axes is not None else 0]
        _refine(value, dims)
    settle_loops(body)
    for value, inside in zip(node.outputs[:count], body.inputs, strict=False):
        _refine(value, None if inside.shape is None else list(inside.shape))
    written = node.attributes.get("scan_output_axes")
    for i, (value, inside) in enumerate(
        zip(node.outputs[count:], body.outputs[count:], strict=False)
    ):
        if inside.shape is None:
            continue
        dims = list(inside.shape)
        axis = written.as_ints()[i] if written is not None else 0
        dims.insert(axis % (len(dims) + 1), ir.SymbolicDim(None))
        _refine(value, dims)


RULES = {"If": _settle_if, "Loop": _settle_loop, "Scan": _settle_scan}
