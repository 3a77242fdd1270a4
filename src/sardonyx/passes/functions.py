"""Calls become bodies: model-local functions, and the operators that ONNX defines by a function.

`inline` removes every call of a model-local function. A body is instantiated per call, outermost
first, so that references to the call's attributes are resolved before anything looks at them.
`expand` replaces one node by ONNX's own definition of its operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx
import onnx.helper
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import Builder, infer, type_proto
from sardonyx.errors import ModelError, quote
from sardonyx.passes.nesting import bodies, graphs, names
from sardonyx.upgrades import upgrade_graph

Attributes = Mapping[str, ir.Attr]
Values = dict[ir.Value, ir.Value | None]


# Bodies of operators that no file needs to carry along, by (domain, name, overload).
DEFINED: dict[tuple[str, str, str], ir.Function] = {}


def _add_defined(model: ir.Model) -> None:
    """Give a model the defined functions that it, or its functions, call."""
    pending = [model.graph, *(f.graph for f in model.functions.values())]
    while pending:
        for part in graphs(pending.pop()):
            calls = dict.fromkeys(n.op_identifier() for n in part)
            for key in [k for k in calls if k in DEFINED and k not in model.functions]:
                model.functions[key] = DEFINED[key].clone()
                pending.append(model.functions[key].graph)


def inline(model: ir.Model, others: Sequence[ir.Graph] = ()) -> None:
    """Replace every call of a model-local or defined function by its body, at any depth.

    others -- graphs outside the model's own, such as those of training records

    A function has its own opset imports: each node that comes out of one carries its version.
    """
    if DEFINED:
        _add_defined(model)
    if not model.functions:
        return
    _refuse_cycles(model)
    namer = Builder()
    roots = (model.graph, *others)
    for root in roots:
        namer.reserve(names(root))
    pending_graphs = [(root, root) for root in roots]
    while pending_graphs:
        graph, root = pending_graphs.pop()
        pending = list(reversed(list(graph)))
        while pending:
            node = pending.pop()
            function = model.functions.get(node.op_identifier())
            if function is None:
                pending_graphs.extend((body, root) for body in bodies(node))
                continue
            attributes = {n: a for n, a in function.attributes.items() if a.value is not None}
            attributes.update(node.attributes)
            new_nodes, results = _instantiate(function.graph, node, attributes, root, namer)
            imports = {opset.domain_name(d): v for d, v in function.opset_imports.items()}
            for new in _all_nodes(new_nodes):
                new.version = imports.get(new.domain)
            replace(node, new_nodes, results)
            pending.extend(reversed(new_nodes))
    model.functions.clear()


def _all_nodes(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """The nodes and those inside their bodies."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        pending.extend(inner for body in bodies(node) for inner in body)


def _instantiate(
    body: ir.Graph, call: ir.Node, attributes: Attributes, root: ir.Graph, namer: Builder
) -> tuple[list[ir.Node], list[ir.Value | None]]:
    """New nodes that do what `body` does on the inputs of `call`, and the values of its outputs."""
    prefix = call.name or call.op_type
    rename = lambda name: namer.fresh(f"{prefix}/{name}")
    values: Values = {}
    for value in body.initializers.values():
        values[value] = _copy_value(value, ir.Value(), rename(value.name or "const"))
        root.register_initializer(values[value])  # type: ignore[arg-type]
    actual = list(call.inputs) + [None] * len(body.inputs)
    values.update(zip(body.inputs, actual, strict=False))
    nodes = copy_nodes(body, values, attributes, rename)
    return nodes, [values.get(v, v) for v in body.outputs]


def copy_nodes(
    graph: Iterable[ir.Node],
    values: Values,
    attributes: Attributes,
    rename: Callable[[str], str],
) -> list[ir.Node]:
    """Copies of the nodes of `graph`, reading `values` in place of its own; adds their outputs."""
    nodes = []
    for old in graph:
        inputs = [None if v is None else values.get(v, v) for v in old.inputs]
        copied = [_copy_attribute(a, values, attributes, rename) for a in old.attributes.values()]
        node = ir.Node(
            old.domain,
            old.op_type,
            inputs,
            [a for a in copied if a is not None],
            overload=old.overload,
            num_outputs=len(old.outputs),
            name=rename(old.name or old.op_type),
            doc_string=old.doc_string,
            metadata_props=dict(old.metadata_props),
        )
        for before, after in zip(old.outputs, node.outputs, strict=True):
            values[before] = _copy_value(before, after, rename(before.name) if before.name else "")
        nodes.append(node)
    return nodes


def _copy_attribute(
    attr: ir.Attr, values: Values, attributes: Attributes, rename: Callable[[str], str]
) -> ir.Attr | None:
    """The attribute with references resolved; None where the call leaves it out."""
    if attr.is_ref():
        actual = attributes.get(attr.ref_attr_name or "")
        if actual is None:
            return None
        if actual.is_ref():
            return ir.RefAttr(attr.name, actual.ref_attr_name or "", actual.type)
        return ir.Attr(attr.name, actual.type, actual.value)
    if attr.type == ir.AttributeType.GRAPH:
        return ir.AttrGraph(attr.name, _copy_graph(attr.value, values, attributes, rename))
    if attr.type == ir.AttributeType.GRAPHS:
        copies = [_copy_graph(g, values, attributes, rename) for g in attr.value]
        return ir.AttrGraphs(attr.name, copies)
    return attr


def _copy_graph(
    graph: ir.Graph, values: Values, attributes: Attributes, rename: Callable[[str], str]
) -> ir.Graph:
    inner = dict(values)
    for value in (*graph.inputs, *graph.initializers.values()):
        if value not in inner:
            inner[value] = _copy_value(value, ir.Value(), rename(value.name or "input"))
    nodes = copy_nodes(graph, inner, attributes, rename)
    return ir.Graph(
        _present(inner.get(v, v) for v in graph.inputs),
        _present(inner.get(v, v) for v in graph.outputs),
        nodes=nodes,
        initializers=_present(inner[v] for v in graph.initializers.values()),
        opset_imports=dict(graph.opset_imports),
        name=graph.name,
    )


def _present(values: Iterable[ir.Value | None]) -> list[ir.Value]:
    return [v for v in values if v is not None]


def _copy_value(old: ir.Value, new: ir.Value, name: str) -> ir.Value:
    new.name = name
    new.type = old.type
    new.shape = old.shape.copy() if old.shape is not None else None
    new.const_value = old.const_value
    new.metadata_props.update(old.metadata_props)
    return new


def replace(node: ir.Node, new_nodes: list[ir.Node], results: list[ir.Value | None]) -> None:
    """Put `new_nodes` in the place of `node`; `results` take over its outputs, names included."""
    graph = node.graph
    new_values = {v for n in new_nodes for v in n.outputs}
    assigned: set[ir.Value] = set()
    swaps = []
    for old, new in zip(node.outputs, results, strict=False):
        if not old.name:
            continue
        if new not in new_values or new in assigned:
            # A result that is an input, or that two outputs share, needs a value of its own.
            identity = ir.Node("", "Identity", [new], name=f"{node.name or node.op_type}/Identity")
            new_nodes.append(identity)
            new = identity.outputs[0]
        assigned.add(new)
        swaps.append((old, new))
    if graph is not None:
        graph.insert_before(node, new_nodes)
    for old, new in swaps:
        name, old.name = old.name, None
        new.name = name
        new.type = old.type or new.type
        new.shape = old.shape if old.shape is not None else new.shape
        new.metadata_props.update(old.metadata_props)
        new.meta.update(old.meta)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    if graph is not None:
        graph.remove(node, safe=True)


def _refuse_cycles(model: ir.Model) -> None:
    """A function that calls itself, however far around, has no body to put in place of a call."""
    calls = {
        key: {n.op_identifier() for g in graphs(f.graph) for n in g} & model.functions.keys()
        for key, f in model.functions.items()
    }
    callers = dict.fromkeys(calls, 0)
    for targets in calls.values():
        for target in targets:
            callers[target] += 1
    free = [key for key, count in callers.items() if not count]
    while free:
        for target in calls.pop(free.pop()):
            callers[target] -= 1
            if not callers[target]:
                free.append(target)
    if calls:
        raise ModelError(
            "functions that call themselves", [[quote(f"{key[0]}::{key[1]}")] for key in calls]
        )


# -- operators that ONNX defines by a function --------------------------------------


def expand(node: ir.Node, namer: Builder | None = None) -> list[ir.Node] | None:
    """Replace `node` by ONNX's definition of its operator; the new nodes, or None if it has none.

    Where `node` is in a graph, the new nodes take its place there, and its output names. The types
    of its inputs must be known for operators whose definition depends on them.

    namer -- a builder that has reserved the names in use; give one when many nodes are expanded
    """
    definition = _definition(node)
    if definition is None:
        return None
    # Outputs that the node leaves out have no node in a definition made for it, yet are listed.
    produced = {name for inner in definition.node for name in inner.output} | set(definition.input)
    outputs = list(definition.output)
    del definition.output[:]
    definition.output.extend(name for name in outputs if name in produced)
    function = ir.serde.deserialize_function(definition)
    body = _copy_graph(function.graph, {}, _attributes(node), str)
    for formal, value in zip(body.inputs, node.inputs, strict=False):
        if value is not None:
            formal.type, formal.shape = value.type, value.shape
    upgrade_graph(body, dict(function.opset_imports))
    holder = body if node.graph is None else node.graph
    if namer is None:
        namer = Builder()
        namer.reserve(names(holder))
    nodes, results = _instantiate(body, node, {}, holder, namer)
    for new in nodes:
        infer(new)
    present = iter(results)
    replace(node, nodes, [next(present) if name in produced else None for name in outputs])
    return nodes


def _attributes(node: ir.Node) -> dict[str, ir.Attr]:
    """The node's attributes, with the defaults of the schema where it has none."""
    schema = opset.schema(node.op_type, node.domain)
    attributes = {
        name: ir.serde.deserialize_attribute(attr.default_value)
        for name, attr in (schema.attributes.items() if schema else ())
        if attr.default_value.type != onnx.AttributeProto.UNDEFINED
    }
    attributes.update(node.attributes)
    return attributes


def _definition(node: ir.Node) -> onnx.FunctionProto | None:
    if not opset.has_body(node.op_type, node.domain):
        return None
    types = []
    for value in node.inputs:
        proto = type_proto(value) if value is not None else None
        types.append(proto if proto is not None else onnx.TypeProto())
    proto = ir.serde.serialize_node(node)
    for attribute in proto.attribute:
        if attribute.HasField("g"):
            _constants_to_nodes(attribute.g, node.attributes[attribute.name].as_graph())
    return opset.body(proto, types)


def _constants_to_nodes(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    """Write the constants that `graph` reads as nodes: ONNX takes only nodes into a definition."""
    read = {v.name or "": v.const_value for node in graph for v in node.inputs if v is not None}
    constants = []
    for name, tensor in read.items():
        if tensor is not None:
            value = ir.serde.serialize_tensor(tensor)
            constants.append(onnx.helper.make_node("Constant", [], [name], value=value))
    nodes = [*constants, *proto.node]
    proto.ClearField("node")
    proto.ClearField("initializer")
    proto.node.extend(nodes)
