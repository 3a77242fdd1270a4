"""Elementwise nodes and sums of a step, put together: one pass over memory instead of many.

Nodes over the same shape form a group. A group becomes one node, which stands where its last member
stood; so no member may be read by another node before that place. The nodes are looked at in an
order in which elementwise ones come as soon as they can, so that this seldom gets in the way.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from sardonyx.engines.c_library import find_compiler
from sardonyx.engines.onnxruntime.kernels.convolutions import choose_convolutions
from sardonyx.engines.onnxruntime.kernels.images import choose_images, put_in
from sardonyx.engines.onnxruntime.kernels.library import library
from sardonyx.engines.onnxruntime.kernels.loops import choose_loops
from sardonyx.engines.onnxruntime.kernels.products import (
    choose_products,
    choose_repeated,
    multiplications,
    pack,
)
from sardonyx.engines.onnxruntime.kernels.program import (
    ARITY,
    DOMAIN,
    REDUCTIONS,
    ROW,
    SUM,
    WHOLE,
    Member,
    Programs,
)
from sardonyx.passes.nesting import bodies, graphs, reads

Shape: TypeAlias = tuple[int | str, ...]
FLOAT, BOOL = ir.DataType.FLOAT, ir.DataType.BOOL
SMALLEST = 256  # elements from which on a group pays
LEAST_SAVED = 1 << 20  # numbers from which on a step pays for a compiler
LEAST_WORK = 1 << 26  # multiplications, likewise
UNKNOWN = 32  # how large an unknown dimension is taken to be
REPEATS = 32  # how often the body of a loop is taken to run
SHORTEST, LONGEST = 16, 1 << 14  # elements of a row that fits a block
MOST_AXES, MOST_INPUTS = 8, 32


def fuse(graph: ir.Graph, threads: int | None = None) -> str | None:
    """Put groups of nodes together and replace products, in place; the library that computes them.

    None, and a graph as it was, where nothing is gained or there is no compiler.
    """
    if find_compiler() is None:
        return None
    threads = threads or os.cpu_count() or 1
    with_images = _replace_images(graph, threads)
    loops = choose_loops(graph, threads)
    whole = loops.bodies()
    products = choose_products(graph)
    repeated = choose_repeated(graph, whole)
    programs = Programs()
    parts = [part for part in graphs(graph) if part not in whole]
    groups = [(part, g) for part in parts for g in _groups(part, loops.taken)]
    nodes = [_node(group, number, programs) for number, (_, group) in enumerate(groups)]
    saved = sum(g.saved() * (1 if part is graph else REPEATS) for part, g in groups)
    work = sum(multiplications(node) for node in products.values())
    work += sum(multiplications(node) * REPEATS for node in repeated.values())
    work += loops.work()
    some = nodes or products or repeated or loops.nodes
    # Where images have paid for the compiler, the rest gains as well.
    enough = saved >= LEAST_SAVED or work >= LEAST_WORK or with_images is not None
    pays = enough and some
    path = library(programs.source(), loops.source()) if pays else None
    if path is None:
        recurrences = [loop.node for loop in loops.nodes.values()]
        _detach([*nodes, *products.values(), *repeated.values(), *recurrences])
        return with_images
    for (part, group), node in zip(groups, nodes, strict=True):
        _replace(part, group, node)
    for old, new in {**products, **repeated}.items():
        _exchange(old, new)
    pack(graph, repeated.values())
    loops.replace(graph)
    for part in graphs(graph):
        part.sort()
    graph.opset_imports[DOMAIN] = 1
    return path


def _replace_images(graph: ir.Graph, threads: int) -> str | None:
    """Replace convolutions and gradients of images, in place; a library without groups.

    It is built before the graph is changed, so that there always is one to run the graph.
    """
    rewrites = [*choose_images(graph, threads), *choose_convolutions(graph, threads)]
    pays = sum(r.numbers() for r in rewrites) >= LEAST_SAVED
    path = library(Programs().source()) if rewrites and pays else None
    if path is None:
        _detach([r.node for r in rewrites])
        return None
    put_in(graph, rewrites)
    graph.opset_imports[DOMAIN] = 1
    return path


def _groups(graph: ir.Graph, taken: set[ir.Node]) -> list[_Group]:
    """The nodes of a graph, or of a body of a loop, that are better put together."""
    candidates = {
        node: c for node in graph if node not in taken and (c := _candidate(node)) is not None
    }
    groups = _Grouping(candidates).groups(_fusable_first(list(graph), candidates))
    return [group for group in groups if group.is_useful()]


def _exchange(old: ir.Node, new: ir.Node) -> None:
    """Put one node in the place of another."""
    graph = old.graph
    assert isinstance(graph, ir.Graph)
    # inputs are read now: what was fused in between has replaced them
    for index in range(len(new.inputs)):
        new.replace_input_with(index, old.inputs[index])
    graph.insert_after(old, new)
    first, second = old.outputs[0], new.outputs[0]
    second.type, second.shape = first.type, first.shape
    second.name, first.name = first.name, f"{first.name}/before"
    ir.convenience.replace_all_uses_with(first, second, replace_graph_outputs=True)
    graph.remove(old, safe=True)


def _detach(nodes: Iterable[ir.Node]) -> None:
    """Nodes that are not used after all read nothing any more."""
    for node in nodes:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)


@dataclass
class _Candidate:
    """How a node can be a member of a group: the shape that it works on."""

    member: Member
    shape: Shape


@dataclass(eq=False)
class _Group:
    shape: Shape
    members: list[Member] = field(default_factory=list)
    closed: bool = False  # a node outside reads a member already

    def values(self) -> set[ir.Value]:
        return {m.value for m in self.members}

    def outputs(self) -> list[ir.Value]:
        """The members that something outside reads."""
        inside = {m.node for m in self.members}
        return [
            m.value
            for m in self.members
            if m.value.is_graph_output() or any(n not in inside for n in m.value.consumers())
        ]

    def inputs(self) -> set[ir.Value]:
        inside = self.values()
        return {v for m in self.members for v in m.node.inputs if v is not None and v not in inside}

    def is_useful(self) -> bool:
        """Whether memory is passed over less often than by the nodes one by one."""
        if len(self.members) < 2 or len(self.inputs()) > MOST_INPUTS:
            return False
        if not any(v.dtype == FLOAT for v in self.outputs()):
            return False
        return _size(self.shape) >= SMALLEST

    def saved(self) -> int:
        """Numbers that are neither written nor read again; of sums, few are written."""
        written = set(self.outputs())
        whole = [m for m in self.members if m.kind == WHOLE and m.value in written]
        return _size(self.shape) * (len(self.members) - len(whole))


def _size(shape: Shape) -> int:
    """How many elements a shape has, where an unknown size counts as a common batch."""
    return math.prod(d if isinstance(d, int) else UNKNOWN for d in shape)


# -- which nodes ----------------------------------------------------------------------------


def _candidate(node: ir.Node) -> _Candidate | None:
    if node.domain != "" or len(node.outputs) != 1 or bodies(node):
        return None
    shape = _shape(node.outputs[0])
    if shape is None or not _types_fit(node):
        return None
    if node.op_type in REDUCTIONS:
        return _reduction(node)
    values = [v for v in node.inputs if v is not None]
    if node.op_type not in ARITY or len(values) < ARITY[node.op_type]:
        return None
    if node.op_type == "Cast" and node.outputs[0].dtype != FLOAT:
        return None
    if not all(_broadcasts(_shape(v), shape) for v in values):
        return None
    return _Candidate(Member(node), shape)


def _types_fit(node: ir.Node) -> bool:
    values = [v for v in node.inputs if v is not None]
    if node.op_type in REDUCTIONS:
        values = values[:1]
    kinds = {v.dtype for v in (*values, *node.outputs)}
    return bool(kinds) and kinds <= {FLOAT, BOOL}


def _reduction(node: ir.Node) -> _Candidate | None:
    """A sum: over the last axis it can be read within the group, otherwise it is a result."""
    source = node.inputs[0]
    shape = _shape(source) if source is not None else None
    axes = _axes(node)
    if not shape or axes is None:
        return None
    axes = tuple(sorted(a % len(shape) for a in axes))
    keep = bool(node.attributes.get_int("keepdims", 1))
    last = shape[-1]
    is_row = axes == (len(shape) - 1,) and keep
    if is_row and isinstance(last, int) and SHORTEST <= last <= LONGEST:
        return _Candidate(Member(node, ROW), shape)
    if node.op_type != "ReduceSum" or not axes:
        return None
    return _Candidate(Member(node, SUM, axes, keep), shape)


def _axes(node: ir.Node) -> Sequence[int] | None:
    if "axes" in node.attributes:
        return list(node.attributes.get_ints("axes"))
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is None:
        rank = len(node.inputs[0].shape or ()) if node.inputs[0] is not None else 0
        return None if node.attributes.get_int("noop_with_empty_axes", 0) else list(range(rank))
    if value.const_value is None or value.is_graph_input():
        return None
    return [int(a) for a in value.const_value.numpy().reshape(-1)]


def _shape(value: ir.Value | None) -> Shape | None:
    if value is None or value.shape is None or len(value.shape) > MOST_AXES:
        return None
    sizes = [d if isinstance(d, int) else d.value for d in value.shape]
    named = tuple(d for d in sizes if d is not None and d != 0)
    return named if len(named) == len(sizes) else None


def _broadcasts(shape: Shape | None, to: Shape) -> bool:
    if shape is None or len(shape) > len(to):
        return False
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return all(a in (1, b) for a, b in pairs)


def _row(shape: Shape) -> Shape:
    return (*shape[:-1], 1)


# -- which belong together ------------------------------------------------------------------


def _fusable_first(
    nodes: Sequence[ir.Node], candidates: dict[ir.Node, _Candidate]
) -> list[ir.Node]:
    """The nodes, each after what it needs: candidates first, those of one shape together."""
    inside = set(nodes)
    makers = {n: {p for v in reads(n) if (p := v.producer()) in inside} for n in nodes}
    missing = {n: len(before) for n, before in makers.items()}
    after: dict[ir.Node, list[ir.Node]] = {n: [] for n in nodes}
    for node in nodes:
        for maker in makers[node]:
            after[maker].append(node)
    place = {n: i for i, n in enumerate(nodes)}
    ready: dict[Shape | None, list[int]] = {}  # heaps of places

    def add(node: ir.Node) -> None:
        shape = candidates[node].shape if node in candidates else None
        heapq.heappush(ready.setdefault(shape, []), place[node])

    for node in nodes:
        if not missing[node]:
            add(node)
    order: list[ir.Node] = []
    current: Shape | None = None
    while ready:
        if current is None or current not in ready:
            shapes = [s for s in ready if s is not None]
            # what only follows from sums would end a group: the largest shapes go on first
            current = max(shapes, key=lambda s: (len(s), _size(s)), default=None)
        node = nodes[heapq.heappop(ready[current])]
        if not ready[current]:
            del ready[current]
        order.append(node)
        for reader in after[node]:
            missing[reader] -= 1
            if not missing[reader]:
                add(reader)
    return order


class _Grouping:
    """Goes through the nodes in order and puts each into a group of what it reads, if it may."""

    def __init__(self, candidates: dict[ir.Node, _Candidate]):
        self.candidates = candidates
        self.group_of: dict[ir.Node, _Group] = {}

    def groups(self, order: Iterable[ir.Node]) -> list[_Group]:
        all_groups: dict[_Group, None] = {}
        for node in order:
            target = self._join(node)
            for value in reads(node):
                maker = value.producer()
                group = self.group_of.get(maker) if maker is not None else None
                if group is not None and group is not target:
                    group.closed = True
            if target is not None:
                all_groups[target] = None
        return [g for g in all_groups if g.members]

    def _join(self, node: ir.Node) -> _Group | None:
        """The group that a node belongs to from now on."""
        candidate = self.candidates.get(node)
        if candidate is None:
            return None
        member, shape = candidate.member, candidate.shape
        sources = [g for v in reads(node) if (g := self._source(v)) is not None]
        groups = [g for g in dict.fromkeys(sources) if not g.closed]
        target: _Group | None = None
        for group in groups:
            if group.shape == shape and self._readable(member, group):
                target = self._merge(target, group)
        if target is None:
            target = next((g for g in groups if self._is_row_of(node, g)), None)
            member = member if target is None else Member(node, ROW)
        if target is None:
            target = _Group(shape)
        target.members.append(member)
        self.group_of[node] = target
        return target

    def _source(self, value: ir.Value) -> _Group | None:
        maker = value.producer()
        return self.group_of.get(maker) if maker is not None else None

    def _readable(self, member: Member, group: _Group) -> bool:
        """Whether what a member reads of a group is there while the group runs: sums are not."""
        sums = {m.value for m in group.members if m.kind == SUM}
        return not any(v in sums for v in member.node.inputs)

    def _is_row_of(self, node: ir.Node, group: _Group) -> bool:
        """Whether a node computes one number for each row of a group, from such numbers."""
        candidate = self.candidates[node]
        if candidate.member.kind != WHOLE or candidate.shape != _row(group.shape):
            return False
        rows = {m.value for m in group.members if m.kind == ROW}
        whole = {m.value for m in group.members if m.kind != ROW}
        values = [v for v in node.inputs if v is not None]
        return any(v in rows for v in values) and not any(v in whole for v in values)

    def _merge(self, first: _Group | None, second: _Group) -> _Group:
        if first is None or first is second:
            return second
        first.members += second.members
        for member in second.members:
            self.group_of[member.node] = first
        second.members = []
        return first


def _node(group: _Group, number: int, programs: Programs) -> ir.Node:
    """The node that stands for a group; not yet in the graph."""
    results = [v for v in group.outputs() if v.dtype == FLOAT]
    node = programs.node(group.members, results, len(group.shape))
    node.name = f"{group.members[-1].node.name or 'step'}/fused_{number}"
    for old, new in zip(results, node.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
    return node


def _replace(graph: ir.Graph, group: _Group, node: ir.Node) -> None:
    """Put one node in the place of a group."""
    outputs = group.outputs()
    results = [v for v in outputs if v.dtype == FLOAT]
    flags = {v for v in outputs if v.dtype != FLOAT}
    keep = _needed(group, flags)
    inside = {m.node for m in group.members} - keep
    graph.insert_after(group.members[-1].node, node)
    for old, new in zip(results, node.outputs, strict=True):
        new.name, old.name = old.name, f"{old.name}/unfused"
        for reader, index in list(old.uses()):
            if reader not in inside and reader is not node:
                reader.replace_input_with(index, new)
        for index, output in enumerate(graph.outputs if old.is_graph_output() else ()):
            if output is old:
                graph.outputs[index] = new
    graph.remove([m.node for m in group.members if m.node in inside], safe=True)


def _needed(group: _Group, flags: set[ir.Value]) -> set[ir.Node]:
    """Nodes that stay beside the fused one, because it has no flags among its outputs."""
    results = set(group.outputs()) - flags
    inside = {m.value: m.node for m in group.members if m.value not in results}
    pending, keep = [v.producer() for v in flags], set[ir.Node]()
    while pending:
        node = pending.pop()
        if node is not None and node not in keep:
            keep.add(node)
            pending += [inside[v] for v in node.inputs if v in inside]
    return keep
