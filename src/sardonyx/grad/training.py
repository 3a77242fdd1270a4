"""Lowering: the operators of ai.onnx.preview.training become plain ones, Gradient before all
others.

Gradient names tensors of the graph around it; those names are hidden reads that any other
change of the graph would break. So they are made visible first: each named tensor becomes an
input of its Gradient node, before functions are inlined or anything is renamed. Then the nodes
go in order, inner gradients first.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import Builder, infer
from sardonyx.errors import ModelError, quote
from sardonyx.grad.controlflow.unroll import unroll_growing_loops
from sardonyx.grad.driver import backward, blocked, is_differentiable, path
from sardonyx.grad.quantization import switch_of
from sardonyx.grad.training_optimizer import OPTIMIZERS, expand_optimizer, problems, refuse
from sardonyx.model import Model
from sardonyx.normalize import extended, regular_copy
from sardonyx.passes.cse import is_random
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.functions import copy_nodes, expand, replace
from sardonyx.passes.nesting import bodies, graphs, names, reads

DOMAINS = (opset.TRAINING_DOMAIN, "ai.onnx.preview")
Scope = dict[str, ir.Value]


def lower_training(model: Model, strict: bool = False) -> Model:
    """`model` with Gradient, Adam, Adagrad and Momentum nodes replaced by plain operators.

    strict -- refuse a Gradient whose y depends on graph inputs or weights outside its xs and zs

    The model is not changed, and the result is normalized. A model that has none of these nodes is
    returned as it is.
    """
    if not any(_training_nodes(model)):
        return model
    work = model.copy()
    _name_domain(work)
    link_names(work)
    work = regular_copy(work)
    unroll_growing_loops(work)
    for graph in graphs(work.graph):
        refuse(
            [row for n in graph if n.op_type in OPTIMIZERS and _is_ours(n) for row in problems(n)]
        )
    weights = set(work.graph.initializers)
    _lower_graph(work.graph, Lowering(work.graph, strict))
    for domain in DOMAINS:
        work.ir.opset_imports.pop(domain, None)
    remove_dead(work.graph, keep=weights)
    return extended(work)


def _is_ours(node: ir.Node) -> bool:
    return node.domain in DOMAINS and (node.op_type == "Gradient" or node.op_type in OPTIMIZERS)


def _training_nodes(model: Model) -> Iterator[ir.Node]:
    every = [model.graph, *(f.graph for f in model.ir.functions.values())]
    for graph in every:
        yield from (node for part in graphs(graph) for node in part if _is_ours(node))


def _name_domain(model: Model) -> None:
    """Some exporters write the domain without its last part."""
    odd = [n for n in _training_nodes(model) if n.domain != opset.TRAINING_DOMAIN]
    if odd:
        listed = ", ".join(quote(n.name or n.outputs[0].name) for n in odd)
        warnings.warn(
            f"read as {opset.TRAINING_DOMAIN}, not {odd[0].domain}: {listed}", stacklevel=3
        )
    for node in odd:
        node.domain = opset.TRAINING_DOMAIN


# -- names become reads -----------------------------------------------------------------


def link_names(model: Model) -> None:
    """Give every Gradient node the tensors that it names as inputs: xs and zs, then y."""
    rows: list[list[str]] = []
    every = [model.graph, *(f.graph for f in model.ir.functions.values())]
    for graph in every:
        _link_graph(graph, {}, rows)
    if rows:
        raise ModelError(
            f"{len(rows)} problem{'s' * (len(rows) > 1)} with Gradient nodes",
            rows,
            hint="xs, zs and y name tensors in the graph of the node; one input per x and z",
        )
    for graph in every:
        for part in graphs(graph):
            _sort(part)


def _link_graph(graph: ir.Graph, outer: Scope, rows: list[list[str]]) -> None:
    local_scope: Scope = {
        v.name: v for v in (*graph.inputs, *graph.initializers.values()) if v.name
    }
    local_scope.update({v.name: v for node in graph for v in node.outputs if v.name})
    scope = {**outer, **local_scope}
    for node in graph:
        for body in bodies(node):
            _link_graph(body, scope, rows)
        if node.op_type == "Gradient" and _is_ours(node):
            _link(node, local_scope, scope, rows)


def _link(node: ir.Node, local_scope: Scope, scope: Scope, rows: list[list[str]]) -> None:
    where = ["Gradient", f"node {quote(node.name or node.outputs[0].name)}"]
    xs, zs = (_strings(node, name) for name in ("xs", "zs"))
    y = node.attributes.get_string("y") if "y" in node.attributes else None
    if y is None or not xs:
        rows.append([*where, "needs the attributes xs and y"])
        return
    if len(node.inputs) != len(xs) + len(zs) or any(v is None for v in node.inputs):
        count = sum(v is not None for v in node.inputs)
        rows.append([*where, f"has {count} inputs for {len(xs)} xs and {len(zs)} zs"])
    if len(node.outputs) > len(xs):
        rows.append([*where, f"has {len(node.outputs)} outputs for {len(xs)} xs"])
    unknown = [name for name in (*xs, *zs) if name not in scope]
    rows.extend([*where, f"names {quote(name)}, which nothing makes"] for name in unknown)
    if y not in local_scope:
        reason = "which is made outside its graph" if y in scope else "which nothing makes"
        rows.append([*where, f"has y {quote(y)}, {reason}"])
    if rows:
        return
    linked = [*node.inputs, *(scope[name] for name in (*xs, *zs)), local_scope[y]]
    node.resize_inputs(len(linked))
    for i, value in enumerate(linked):
        node.replace_input_with(i, value)


def _strings(node: ir.Node, name: str) -> list[str]:
    attr = node.attributes.get(name)
    return [] if attr is None else list(attr.as_strings())


def _sort(graph: ir.Graph) -> None:
    """Put each Gradient behind the node that makes its y."""
    try:
        graph.sort()
    except ValueError as error:
        names_ = [quote(n.name or n.outputs[0].name) for n in graph if n.op_type == "Gradient"]
        raise ModelError(
            "a Gradient and its y depend on each other", [["Gradient", f"node {n}"] for n in names_]
        ) from error


# -- the nodes, in order ------------------------------------------------------------------


class Lowering:
    """What all nodes of one model share: fresh names, and constants of the outermost graph."""

    def __init__(self, root: ir.Graph, strict: bool):
        self.root, self.strict = root, strict
        self.op = Builder()
        self.op.reserve(names(root))
        self.registered = 0

    def take(self) -> list[ir.Node]:
        """The nodes built since the last call; their constants become initializers."""
        for value in list(self.op.constants.values())[self.registered :]:
            self.root.register_initializer(value)
        self.registered = len(self.op.constants)
        nodes, self.op.nodes = self.op.nodes, []
        return nodes


def _lower_graph(graph: ir.Graph, lowering: Lowering) -> None:
    for node in list(graph):
        if node.graph is None:
            continue  # its function body has taken its place
        for body in bodies(node):
            _lower_graph(body, lowering)
        if not _is_ours(node):
            if any(v.type is None for v in node.outputs):
                infer(node)
        elif node.op_type == "Gradient":
            _lower_gradient(graph, node, lowering)
        else:
            with lowering.op.named(node.name or node.op_type), lowering.op:
                results = expand_optimizer(lowering.op, node)
            replace(node, lowering.take(), list(results))


@dataclass
class Question:
    """What one Gradient node computes: the gradients of y for tensors, at given points."""

    node: ir.Node
    xs: int  # how many of the tensors are to be differentiated

    @property
    def count(self) -> int:
        return (len(self.node.inputs) - 1) // 2

    @property
    def points(self) -> list[ir.Value]:
        return list(self.node.inputs)[: self.count]  # type: ignore[return-value]

    @property
    def named(self) -> list[ir.Value]:
        return list(self.node.inputs)[self.count : 2 * self.count]  # type: ignore[return-value]

    @property
    def y(self) -> ir.Value:
        return self.node.inputs[-1]  # type: ignore[return-value]


def _lower_gradient(graph: ir.Graph, node: ir.Node, lowering: Lowering) -> None:
    with switch_of(node):
        _differentiate(graph, node, lowering)


def _differentiate(graph: ir.Graph, node: ir.Node, lowering: Lowering) -> None:
    ask = Question(node, len(_strings(node, "xs")))
    _refuse_dependent(ask, _before(graph, node))
    if graph is not lowering.root:
        _refuse_detours(ask, graph)
    if lowering.strict:
        _refuse_others(ask, graph)
    _expand_functions(graph, ask, lowering)
    leaves = _moved(graph, ask, lowering)
    with lowering.op.named(node.name or "Gradient"):
        # Behind an unknown operator y has no type; `backward` names that operator.
        seed = lowering.op.fill(1, ask.y, ask.y.dtype or leaves[0].dtype)
        nodes = _before(graph, node)
        gradients = backward(lowering.op, nodes, {ask.y: seed}, leaves)
        results = []
        for x, g, name in zip(leaves, gradients, _strings(node, "xs"), strict=True):
            if g is None:
                y = quote(node.attributes.get_string("y"))
                warnings.warn(f"{y} does not depend on {quote(name)}: zeros", stacklevel=4)
                g = lowering.op.zeros_like(x)
            results.append(g)
    replace(node, lowering.take(), list(results))


def _before(graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
    nodes_before = []
    for other in graph:
        if other is node:
            break
        nodes_before.append(other)
    return nodes_before


def _expand_functions(graph: ir.Graph, ask: Question, lowering: Lowering) -> None:
    """Replace operators on the way that have no rule but a function body."""
    while True:
        starts = [v for v in ask.named[: ask.xs] if is_differentiable(v)]
        between, values = path(_before(graph, ask.node), starts, [ask.y], ())
        bodied = [n for n in blocked(between, values) if opset.has_body(n.op_type, n.domain)]
        expanded = [expand(n, lowering.op) for n in bodied]
        if not any(expanded):
            break
    wrong = [v for v in (*ask.named[: ask.xs], ask.y) if not is_differentiable(v)]
    if wrong:
        raise ModelError(
            f"only floating-point tensors have gradients (Gradient {quote(ask.node.name)})",
            [[quote(v.name), str(v.type)] for v in wrong],
        )


# -- xs and zs must be independent ----------------------------------------------------------


def _ancestors(ends: Iterable[ir.Value], stop: set[ir.Value]) -> set[ir.Value]:
    """All values that `ends` depend on; nothing behind `stop` counts."""
    ancestors: set[ir.Value] = set()
    pending = list(ends)
    while pending:
        producer = pending.pop().producer()
        for value in reads(producer) if producer is not None else ():
            if value not in ancestors:
                ancestors.add(value)
                if value not in stop:
                    pending.append(value)
    return ancestors


def _refuse_dependent(ask: Question, nodes: list[ir.Node]) -> None:
    named = list(dict.fromkeys(ask.named))
    rows = []
    for value in named:
        if value.producer() is not None:
            above = _ancestors([value], set())
            rows += [
                [quote(v.name), f"is used to compute {quote(value.name)}"]
                for v in named
                if v in above
            ]
    if rows:
        raise ModelError(
            f"xs and zs of Gradient {quote(ask.node.name)} are not independent of each other",
            rows,
            hint="name either a tensor or what it is computed from, not both",
        )


def _refuse_detours(ask: Question, graph: ir.Graph) -> None:
    """Inside a body, a way from x to y through the graph around it would be left out unseen."""
    stop = set(ask.named)
    rows = []
    for value in _ancestors([ask.y], stop) - stop:
        producer = value.producer()
        if producer is not None and producer.graph is not graph:
            behind = _ancestors([value], stop) & set(ask.named[: ask.xs])
            rows += [[quote(value.name), f"is computed from {quote(x.name)}"] for x in behind]
    if rows:
        raise ModelError(
            f"y of Gradient {quote(ask.node.name)} depends on its xs outside its graph",
            sorted(rows),
            hint="compute these inside the body, or move the Gradient out of it",
        )


def _refuse_others(ask: Question, graph: ir.Graph) -> None:
    named = set(ask.named)
    ancestors = _ancestors([ask.y], named) - named
    others = [v for v in ancestors if v.producer() is None and is_differentiable(v)]
    if others:
        raise ModelError(
            f"y of Gradient {quote(ask.node.name)} depends on tensors outside its xs and zs",
            [[quote(v.name)] for v in sorted(others, key=lambda v: v.name or "")],
            hint="add them to zs, or lower without strict=True to take them as constants",
        )


# -- gradients elsewhere ---------------------------------------------------------------------


def _moved(graph: ir.Graph, ask: Question, lowering: Lowering) -> list[ir.Value]:
    """The tensors to differentiate; where points differ from them, of a copy of the forward."""
    moved: dict[ir.Value, ir.Value] = {}
    for value, point in zip(ask.named, ask.points, strict=True):
        if moved.setdefault(value, point) is not point:
            raise ModelError(
                f"Gradient {quote(ask.node.name)} gives two points for one tensor",
                [[quote(value.name)]],
            )
    moved = {value: point for value, point in moved.items() if value is not point}
    if not moved:
        return ask.named[: ask.xs]
    op = lowering.op
    copies: dict[ir.Value, ir.Value | None] = {}
    with op.named(ask.node.name or "Gradient"):
        for value, point in moved.items():
            # A leaf of its own: the point may be computed from what y depends on.
            leaf = op.Identity(point)
            leaf.type, leaf.shape = point.type or value.type, point.shape
            copies[value] = leaf
        between = _between(_before(graph, ask.node), set(moved), ask.y)
        _refuse_random(ask, between)
        prefix = op.prefix
        op.nodes += copy_nodes(between, copies, {}, lambda name: op.fresh(f"{prefix}/{name}"))
    leaves = [copies.get(v, v) for v in ask.named[: ask.xs]]
    graph.insert_before(ask.node, lowering.take())
    end = copies.get(ask.y)
    if end is not None:
        ask.node.replace_input_with(len(ask.node.inputs) - 1, end)
    return leaves  # type: ignore[return-value]


def _between(nodes: list[ir.Node], starts: set[ir.Value], end: ir.Value) -> list[ir.Node]:
    """The nodes that depend on `starts` and that `end` depends on, whatever their types."""
    reached, forward = set(starts), []
    for node in nodes:
        if any(v in reached for v in reads(node)) and not any(v in starts for v in node.outputs):
            forward.append(node)
            reached.update(node.outputs)
    needed, between = {end}, []
    for node in reversed(forward):
        if any(v in needed for v in node.outputs):
            between.append(node)
            needed.update(reads(node))
    return between[::-1]


def _refuse_random(ask: Question, nodes: list[ir.Node]) -> None:
    every = [
        n
        for node in nodes
        for n in (node, *(i for b in bodies(node) for g in graphs(b) for i in g))
    ]
    random = [n for n in every if is_random(n)]
    if random:
        raise ModelError(
            f"Gradient {quote(ask.node.name)} is taken at other points of a random forward pass",
            [[n.op_type, f"node {quote(n.name or n.outputs[0].name)}"] for n in random],
            hint="give the named tensors themselves as inputs",
        )
