"""The driver that brings every node to the internal opset, and the functions that adapters use.

An adapter is `function(op, node)`, registered for the version from which the new form holds. It
changes the node in place into the form of that version and returns None, or returns replacements
for the node's outputs, built with `op` at the internal opset: then the node is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import Builder, infer
from sardonyx.errors import ModelError, quote
from sardonyx.registry import OpId, op_name


class Adapter(NamedTuple):
    """One signature change of one operator."""

    to: int  # the version from which the new form holds
    function: Callable[[Builder, ir.Node], Any]
    shapes: bool  # whether it needs ranks or types of its inputs


ADAPTERS: dict[OpId, list[Adapter]] = {}
GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def upgrade(*ops: str, to: int, domain: str = "", shapes: bool = False) -> Callable[..., Any]:
    """Register how nodes of `ops` written before version `to` read from `to` on."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            adapters = ADAPTERS.setdefault((domain, op), [])
            if any(a.to == to for a in adapters):
                raise ValueError(f"{op_name((domain, op))} already has an adapter to {to}")
            adapters.append(Adapter(to, function, shapes))
            adapters.sort(key=lambda a: a.to)
        return function

    return register


def upgrade_graph(graph: ir.Graph, imports: dict[str, int]) -> None:
    """Rewrite every node of `graph` and of the bodies in it, in place, for the opset inside.

    graph    -- in topological order; of a model or of a function
    imports  -- the version that the nodes are written for, by domain; a domain that is not listed
                is at the version inside. A node's own `version`, where set, goes first.

    Names of values and nodes stay. Constants that adapters need become Constant nodes at the start
    of `graph`. Deprecated operators become live ones, except TreeEnsembleClassifier and
    TreeEnsembleRegressor: one of their leaves may weigh several targets, one of TreeEnsemble's may
    not, so they stay, and a model that has them must import ai.onnx.ml at version 4 or less.
    """
    versions = {opset.domain_name(d): v for d, v in imports.items()}
    pending = _outdated(graph, versions)
    if not pending:
        return
    builder = Builder()
    builder.reserve(_names(graph))
    shapes = any(a.shapes for n, v in pending.items() for a in _adapters(n, v))
    for node in _nodes(graph):
        version = _version(node, versions)
        if shapes:
            _infer_outputs(node, version)
        if node in pending:
            _upgrade_node(builder, node, version)
    _insert_constants(graph, builder)


def _nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Every node, a graph before the bodies in it; safe while nodes are replaced."""
    graphs = [graph]
    while graphs:
        for node in tuple(graphs.pop()):
            for attr in node.attributes.values() if node.attributes.data else ():
                if attr.type in GRAPHS and not attr.is_ref():
                    graphs += [attr.value] if attr.type == ir.AttributeType.GRAPH else attr.value
            yield node


def _version(node: ir.Node, versions: dict[str, int]) -> int:
    domain = opset.domain_name(node.domain)
    return node.version or versions.get(domain, opset.INSIDE.get(domain, 1))


def _adapters(node: ir.Node, version: int) -> list[Adapter]:
    adapters = ADAPTERS.get((opset.domain_name(node.domain), node.op_type), ())
    return [a for a in adapters if version < a.to]


def _outdated(graph: ir.Graph, versions: dict[str, int]) -> dict[ir.Node, int]:
    outdated: dict[tuple[str, str, int | None], bool] = {}
    pending = {}
    for node in _nodes(graph):
        form = node.domain, node.op_type, node.version
        if form not in outdated:
            outdated[form] = bool(_adapters(node, _version(node, versions)))
        if outdated[form]:
            pending[node] = _version(node, versions)
    return pending


def _names(graph: ir.Graph) -> set[str]:
    graphs = (graph, *graph.subgraphs())
    names = {v.name for g in graphs for v in (*g.inputs, *g.initializers.values())}
    for node in _nodes(graph):
        names.add(node.name)
        names.update(v.name for v in (*node.inputs, *node.outputs) if v is not None)
    return {name for name in names if name}


def _infer_outputs(node: ir.Node, version: int) -> None:
    if all(v.shape is not None and v.type is not None for v in node.outputs):
        return
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        ir.convenience.get_const_tensor(node.outputs[0], propagate_shape_type=True)
    else:
        infer(node, version)


def _upgrade_node(builder: Builder, node: ir.Node, version: int) -> None:
    while adapters := _adapters(node, version):
        adapter = adapters[0]
        with builder.named(node.name or node.op_type):
            replacements = _apply(adapter, builder, node, version)
            if replacements is not None:
                replacements = _own(builder, node, replacements)
        for new in builder.nodes:
            new.metadata_props.update(node.metadata_props)
        assert node.graph is not None
        node.graph.insert_before(node, builder.nodes)
        builder.nodes.clear()
        if replacements is not None:
            _replace(node, replacements)
            return
        version = adapter.to


def _apply(adapter: Adapter, builder: Builder, node: ir.Node, version: int) -> Any:
    try:
        return adapter.function(builder, node)
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        name = op_name((opset.domain_name(node.domain), node.op_type))
        raise ModelError(
            f"a node does not have the inputs and attributes of {name} at version {version}",
            [[name, f"node {quote(node.name)}"]],
            hint="check the model with onnx.checker",
        ) from error


def _own(builder: Builder, node: ir.Node, values: Any) -> dict[ir.Value, ir.Value]:
    """By the output that it replaces, each value as the output of a new node of its own."""
    pairs = zip(node.outputs, values if isinstance(values, tuple) else (values,), strict=False)
    return {
        old: new if new.producer() in builder.nodes else builder.Identity(new)
        for old, new in pairs
        if old.name and new is not None
    }


def _replace(node: ir.Node, replacements: dict[ir.Value, ir.Value]) -> None:
    for old, new in replacements.items():
        new.name = old.name
        new.type = old.type if old.type is not None else new.type
        new.shape = old.shape if old.shape is not None else new.shape
        new.metadata_props.update(old.metadata_props)
        new.meta.update(old.meta)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    for first in list(replacements.values())[:1]:
        main = first.producer()
        assert main is not None
        main.name = node.name or main.name
        main.doc_string = node.doc_string
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def _insert_constants(graph: ir.Graph, builder: Builder) -> None:
    nodes = []
    for value in builder.constants.values():
        if value.uses() and value.const_value is not None:
            content = ir.AttrTensor("value", value.const_value)
            nodes.append(ir.Node("", "Constant", [], [content], outputs=[value], name=value.name))
    if nodes:
        graph.insert_before(graph[0], nodes)


# -- functions that adapters use ------------------------------------------------------


def take(node: ir.Node, name: str, default: Any = None) -> Any:
    """Remove an attribute and return its value."""
    attr = node.attributes.pop(name, None)
    if attr is None:
        return default
    if attr.is_ref():
        raise ModelError(
            f"{node.op_type} takes its attribute {quote(name)} from the function around it",
            [[node.op_type, f"node {quote(node.name)}"]],
            hint="inline the model's functions before they are brought to another opset",
        )
    return tuple(attr.value) if isinstance(attr.value, (list, tuple)) else attr.value


def put(node: ir.Node, **attributes: Any) -> None:
    """Set attributes."""
    for name, value in attributes.items():
        node.attributes.add(ir.convenience.convert_attribute(name, value))


def feed(node: ir.Node, *inputs: ir.Value | None) -> None:
    """Give the node these inputs."""
    values = list(inputs)
    while values and values[-1] is None:
        values.pop()
    node.resize_inputs(len(values))
    for i, value in enumerate(values):
        node.replace_input_with(i, value)


def ints(op: Builder, values: Any) -> ir.Value | None:
    """Integers as a constant vector; None stays None."""
    return None if values is None else op.const(np.array(values, np.int64).reshape(-1))


def like(op: Builder, value: float, x: ir.Value) -> ir.Value:
    """A scalar constant of the type of `x`, also where that is not known."""
    if x.dtype is None:
        return op.CastLike(op.const(np.float32(value)), x)
    with np.errstate(over="ignore"):  # the largest float32 is no limit for a float16
        return op.const(np.asarray(value).astype(x.dtype.numpy()))


def is_used(value: ir.Value) -> bool:
    """Whether anything reads `value`."""
    return bool(value.uses()) or value.is_graph_output()


def present(node: ir.Node) -> int:
    """How many outputs a node has, without those left out by an empty name at the end."""
    return max((i + 1 for i, v in enumerate(node.outputs) if v.name), default=0)
