"""Parts of a graph that run on another engine: which nodes, grouped how, and each part as a model.

Nodes next to each other that go to the same engine become one region, unless that would close a
circle. A region stands in the graph as one node; how it is called from inside a framework's graph
is the business of that framework's adapter (`Arrays.call_out`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.errors import ArgumentError, quote
from sardonyx.lower.xp import is_float, is_string
from sardonyx.model import Model
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import graphs, reads
from sardonyx.passes.shapes import infer_shapes, set_shape
from sardonyx.registry import OpId, op_name

ENGINES = ("numpy", "onnxruntime", "torch", "jax", "tensorflow")
DOMAIN, CALL = "ai.sardonyx", "CallOut"
CHOSEN = "chosen"


def op_id(node: ir.Node) -> OpId:
    return opset.domain_name(node.domain), node.op_type


@dataclass(frozen=True)
class Placement:
    """A node that does not run in the framework itself: where it does, and why."""

    node: ir.Node
    reason: str
    engine: str = "numpy"

    @property
    def row(self) -> list[str]:
        name = quote(self.node.name or (self.node.outputs[0].name if self.node.outputs else ""))
        return [op_name(op_id(self.node)), f"node {name}", f"on {self.engine}", self.reason]


def element_type(value: ir.Value | None) -> np.dtype | None:
    """The numpy type of a value's elements, also inside sequences and optionals."""
    kind: Any = None if value is None else value.type
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        kind = kind.elem_type
    if not isinstance(kind, (ir.TensorType, ir.SparseTensorType)):
        return None
    return None if kind.dtype == ir.DataType.UNDEFINED else np.dtype(kind.dtype.numpy())


def known_dims(value: ir.Value) -> list[int | str | None] | None:
    """The sizes of a value: numbers, names of symbols, or None; None where no rank is known."""
    if value.shape is None or not isinstance(value.type, ir.TensorType):
        return None
    return [d if isinstance(d, int) else d.value for d in value.shape]


@dataclass(eq=False)
class Region:
    """Nodes that run on another engine in one call.

    model   -- the nodes as a model of their own: what it takes and gives is what crosses
    like    -- for each output the position of an input of the same sizes, where that is certain
    held    -- what an engine keeps with it: the prepared model, its gradient
    """

    engine: str
    placements: list[Placement]
    model: Model
    like: Sequence[int] | None = None
    held: dict[Any, Any] = field(default_factory=dict)

    @property
    def input_types(self) -> list[np.dtype | None]:
        return [element_type(v) for v in self.model.graph.inputs]

    @property
    def output_types(self) -> list[np.dtype | None]:
        return [element_type(v) for v in self.model.graph.outputs]

    @property
    def is_plain(self) -> bool:
        """Whether all that crosses are tensors of numbers."""
        ends = (*self.model.graph.inputs, *self.model.graph.outputs)
        return all(
            isinstance(v.type, ir.TensorType) and not is_string(element_type(v)) for v in ends
        )

    @property
    def label(self) -> str:
        """A name for people: the first node and how many more."""
        first, more = self.placements[0].row, len(self.placements) - 1
        return f"{first[0]} {first[1]}" + (f" and {more} more" if more else "")

    def floats(self, values: Iterable[ir.Value]) -> list[int]:
        """Positions of the values that have gradients."""
        kinds = [element_type(v) for v in values]
        return [i for i, t in enumerate(kinds) if t is not None and is_float(t)]

    def sizes(self, given: Sequence[Sequence[Any]]) -> list[list[Any] | None]:
        """The sizes of the outputs for inputs of given sizes; None for those that data decides."""
        if self.like is not None:
            return [list(given[i]) for i in self.like]
        if all(isinstance(d, int) for shape in given for d in shape):
            return self._inferred(tuple(tuple(shape) for shape in given))
        bound: dict[Any, Any] = {}
        for value, shape in zip(self.model.graph.inputs, given, strict=True):
            bound.update(zip(known_dims(value) or (), shape))
        found = [known_dims(v) for v in self.model.graph.outputs]
        return [
            None if dims is None else [d if isinstance(d, int) else bound.get(d or 0) for d in dims]
            for dims in found
        ]

    def _inferred(self, given: tuple[tuple[int, ...], ...]) -> list[list[Any] | None]:
        key = ("sizes", given)
        if key not in self.held:
            copy = self.model.copy()
            for value, shape in zip(copy.graph.inputs, given, strict=True):
                value.shape = ir.Shape(shape)
            for node in copy.graph:
                for value in node.outputs:
                    value.shape = None
            infer_shapes(copy.graph, copy.skeleton())
            found = [known_dims(v) for v in copy.graph.outputs]
            self.held[key] = [
                None if dims is None else [d if isinstance(d, int) else None for d in dims]
                for dims in found
            ]
        return list(self.held[key])

    def with_known(self, known: Mapping[int, np.ndarray]) -> Region:
        """The region with some of its inputs, by position, as constants inside."""
        key = ("known", *((i, a.dtype.str, a.shape, a.tobytes()) for i, a in known.items()))
        if key not in self.held:
            copy = self.model.copy()
            inputs = list(copy.graph.inputs)
            for i, array in known.items():
                inputs[i].const_value = ir.Tensor(np.array(array), name=inputs[i].name)
                set_shape(inputs[i], list(array.shape))
            copy.graph.inputs[:] = [v for i, v in enumerate(inputs) if i not in known]
            for i in known:
                copy.graph.register_initializer(inputs[i])
            left = [i for i in range(len(inputs)) if i not in known]
            like = None if self.like is None else [left.index(i) for i in self.like]
            self.held[key] = Region(self.engine, self.placements, copy, like)
        made: Region = self.held[key]
        return made


# -- what was chosen ----------------------------------------------------------------


def chosen(graph: ir.Graph, place: Mapping[str, str], framework: str) -> dict[ir.Node, Placement]:
    """The nodes that `place` sends elsewhere; patterns are of names of nodes or of operators.

    The last pattern that matches a node decides; one that names the framework itself keeps it.
    """
    unknown = [[quote(e), f"for {quote(p)}"] for p, e in place.items() if e not in ENGINES]
    if unknown:
        raise ArgumentError("there is no such engine", unknown, hint=f"one of {ENGINES}")
    found: dict[ir.Node, Placement] = {}
    unused = dict.fromkeys(place)
    for node in graph:
        for pattern, engine in place.items():
            names = (node.name or "", node.op_type, op_name(op_id(node)))
            if any(fnmatchcase(name, pattern) for name in names):
                unused.pop(pattern, None)
                found[node] = Placement(node, CHOSEN, engine)
    if unused:
        raise ArgumentError(
            "no node outside of bodies has such a name or operator",
            [[quote(p)] for p in unused],
            hint="`sardonyx inspect` lists the model's nodes",
        )
    return {node: p for node, p in found.items() if p.engine != framework}


# -- groups --------------------------------------------------------------------------


class Groups:
    """Nodes of one graph, of which some are joined; an edge leads from a group to its readers."""

    def __init__(self) -> None:
        self.of: dict[ir.Node, int] = {}
        self.members: dict[int, list[ir.Node]] = {}
        self.readers: dict[int, set[int]] = {}

    def add(self, node: ir.Node, placed: Mapping[ir.Node, Placement]) -> None:
        """Put a node in, together with the groups before it that go to the same engine."""
        own = len(self.of)
        before = {self.of[p] for v in reads(node) if (p := v.producer()) in self.of}
        self.of[node], self.members[own], self.readers[own] = own, [node], set()
        for group in before:
            self.readers[group].add(own)
        for group in sorted(before) if node in placed else ():
            other = placed.get(self.members[group][0])
            same = other is not None and other.engine == placed[node].engine
            if same and not self._returns({own, group}):
                own = self._merge(group, own)

    def _returns(self, groups: set[int]) -> bool:
        """Whether a way leads out of these groups and back into one of them."""
        pending = [r for g in groups for r in self.readers[g] if r not in groups]
        seen = set(pending)
        while pending:
            for reader in self.readers[pending.pop()]:
                if reader in groups:
                    return True
                if reader not in seen:
                    seen.add(reader)
                    pending.append(reader)
        return False

    def _merge(self, first: int, second: int) -> int:
        self.members[first] += self.members.pop(second)
        self.readers[first] |= self.readers.pop(second)
        for readers in self.readers.values():
            if second in readers:
                readers.discard(second)
                readers.add(first)
        self.readers[first].discard(first)
        for node in self.members[first]:
            self.of[node] = first
        return first


def groups(graph: ir.Graph, placed: Mapping[ir.Node, Placement]) -> list[list[ir.Node]]:
    """The placed nodes, those of one engine that are next to each other together."""
    found = Groups()
    for node in graph:
        found.add(node, placed)
    return [nodes for nodes in found.members.values() if nodes[0] in placed]


# -- regions -------------------------------------------------------------------------


def partition(
    model: Model, placed: Mapping[ir.Node, Placement], fed: Collection[str] = ()
) -> dict[ir.Node, Region]:
    """Replace the placed nodes of a model, in place, by one node for each region.

    fed -- initializers that are given at each call: they cross, and are no constants inside
    """
    found: dict[ir.Node, Region] = {}
    for graph in list(graphs(model.graph)):
        here = {node: placed[node] for node in graph if node in placed}
        if not here:
            continue
        readers: dict[ir.Value, set[ir.Node | None]] = {v: {None} for v in graph.outputs}
        for node in graph:
            for value in reads(node):
                readers.setdefault(value, set()).add(node)
        cut = Cut(model, here, readers, fed)
        found.update(cut.replace(graph, groups(graph, here)))
    return found


@dataclass
class Cut:
    """Regions out of one graph.

    readers -- value -> the nodes that read it, None for the graph's own output
    """

    model: Model
    placed: Mapping[ir.Node, Placement]
    readers: Mapping[ir.Value, set[ir.Node | None]]
    fed: Collection[str]

    def replace(self, graph: ir.Graph, parts: list[list[ir.Node]]) -> dict[ir.Node, Region]:
        made: dict[ir.Node, Region] = {}
        replaced: list[tuple[ir.Value, ir.Value]] = []
        for nodes in parts:
            inside = {v: None for node in nodes for v in node.outputs}
            outer = [v for node in nodes for v in reads(node) if v not in inside]
            given = [v for v in dict.fromkeys(outer) if not self._is_constant(v)]
            constants = [v for v in dict.fromkeys(outer) if self._is_constant(v)]
            wanted = [v for v in inside if self.readers.get(v, set()) - set(nodes)]
            region = self._region(nodes, given, constants, wanted)
            node = ir.Node(DOMAIN, CALL, given, num_outputs=len(wanted), name=region.label)
            for before, after in zip(wanted, node.outputs, strict=True):
                after.name, after.type, after.shape = before.name, before.type, before.shape
                after.meta.update(before.meta)
            replaced += zip(wanted, node.outputs)
            made[node] = region
        graph.extend(made)
        for before, after in replaced:
            ir.convenience.replace_all_uses_with(before, after, replace_graph_outputs=True)
        graph.remove([node for nodes in parts for node in nodes], safe=True)
        graph.sort()
        return made

    def _is_constant(self, value: ir.Value) -> bool:
        is_stored = value.is_initializer() and not value.is_graph_input()
        return is_stored and value.const_value is not None and value.name not in self.fed

    def _region(
        self,
        nodes: Sequence[ir.Node],
        given: Sequence[ir.Value],
        constants: Sequence[ir.Value],
        wanted: Sequence[ir.Value],
    ) -> Region:
        values: dict[ir.Value, Any] = {v: _twin(v) for v in (*given, *constants)}
        for value in given:
            values[value].const_value = None
        copies = copy_nodes(nodes, values, {}, lambda name: name)
        graph = ir.Graph(
            [values[v] for v in given],
            [values[v] for v in wanted],
            nodes=copies,
            initializers=[values[v] for v in constants],
            opset_imports=dict(self.model.ir.opset_imports),
            name="region",
        )
        placements = [self.placed[node] for node in nodes]
        whole = Model(ir.Model(graph, ir_version=self.model.ir.ir_version or 13))
        return Region(placements[0].engine, placements, whole)


def _twin(value: ir.Value) -> ir.Value:
    made = ir.Value(name=value.name, type=value.type, const_value=value.const_value)
    made.shape = None if value.shape is None else value.shape.copy()
    made.meta.update(value.meta)
    return made
