"""Parts of a graph that run on another engine: which nodes, grouped how, and each part as a model.

Neighbouring nodes that go to the same engine become one region, unless that would create a cycle. A
region is one node of the graph; the framework's adapter calls it (`Arrays.call_out`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset, plugins
from sardonyx.build import array_bytes
from sardonyx.errors import ArgumentError, quote
from sardonyx.lower.xp import is_float, is_string
from sardonyx.model import Model
from sardonyx.passes.functions import copy_nodes
from sardonyx.passes.nesting import graphs, reads
from sardonyx.passes.shapes import infer_shapes, set_shape
from sardonyx.registry import OpId, op_name

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

    model   -- the nodes as a model of their own
    like    -- for each output the position of an input of the same sizes, where that is certain
    cache   -- what engines keep with it: the prepared model, its gradient
    """

    engine: str
    placements: list[Placement]
    model: Model
    like: Sequence[int] | None = None
    cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def input_types(self) -> list[np.dtype | None]:
        return [element_type(v) for v in self.model.graph.inputs]

    @property
    def output_types(self) -> list[np.dtype | None]:
        return [element_type(v) for v in self.model.graph.outputs]

    @property
    def has_tensors(self) -> bool:
        """Whether all inputs and outputs are tensors, of numbers or text."""
        ends = (*self.model.graph.inputs, *self.model.graph.outputs)
        return all(isinstance(v.type, ir.TensorType) for v in ends)

    @property
    def is_plain(self) -> bool:
        """Whether all inputs and outputs are tensors of numbers."""
        types = (*self.input_types, *self.output_types)
        return self.has_tensors and not any(map(is_string, types))

    @property
    def label(self) -> str:
        """A name to display: the first node and how many more."""
        first, more = self.placements[0].row, len(self.placements) - 1
        return f"{first[0]} {first[1]}" + (f" and {more} more" if more else "")

    def floats(self, values: Iterable[ir.Value]) -> list[int]:
        """Positions of the values that have gradients."""
        kinds = [element_type(v) for v in values]
        return [i for i, t in enumerate(kinds) if t is not None and is_float(t)]

    def sizes(self, shapes: Sequence[Sequence[Any]]) -> list[list[Any] | None]:
        """The output shapes for these input shapes; None for sizes that depend on data."""
        if self.like is not None:
            return [list(shapes[i]) for i in self.like]
        if all(isinstance(d, int) for shape in shapes for d in shape):
            return self._inferred(tuple(tuple(shape) for shape in shapes))
        bound: dict[Any, Any] = {}
        for value, shape in zip(self.model.graph.inputs, shapes, strict=True):
            bound.update(zip(known_dims(value) or (), shape))
        outputs = [known_dims(v) for v in self.model.graph.outputs]
        return [
            None if dims is None else [d if isinstance(d, int) else bound.get(d or 0) for d in dims]
            for dims in outputs
        ]

    def _inferred(self, shapes: tuple[tuple[int, ...], ...]) -> list[list[Any] | None]:
        key = ("sizes", shapes)
        if key not in self.cache:
            copy = self.model.copy()
            for value, shape in zip(copy.graph.inputs, shapes, strict=True):
                value.shape = ir.Shape(shape)
            for node in copy.graph:
                for value in node.outputs:
                    value.shape = None
            infer_shapes(copy.graph, copy.skeleton)
            outputs = [known_dims(v) for v in copy.graph.outputs]
            self.cache[key] = [
                None if dims is None else [d if isinstance(d, int) else None for d in dims]
                for dims in outputs
            ]
        return list(self.cache[key])

    def with_known(self, constants: Mapping[int, np.ndarray]) -> Region:
        """The region with some of its inputs, by position, as constants inside."""
        key = ("known", *((i, a.dtype.str, a.shape, array_bytes(a)) for i, a in constants.items()))
        if key not in self.cache:
            copy = self.model.copy()
            inputs = list(copy.graph.inputs)
            for i, array in constants.items():
                inputs[i].const_value = ir.Tensor(np.array(array), name=inputs[i].name)
                set_shape(inputs[i], list(array.shape))
            copy.graph.inputs[:] = [v for i, v in enumerate(inputs) if i not in constants]
            for i in constants:
                copy.graph.register_initializer(inputs[i])
            rest = [i for i in range(len(inputs)) if i not in constants]
            like = None if self.like is None else [rest.index(i) for i in self.like]
            self.cache[key] = Region(self.engine, self.placements, copy, like)
        region: Region = self.cache[key]
        return region


# -- what was chosen ----------------------------------------------------------------


def chosen(graph: ir.Graph, place: Mapping[str, str], framework: str) -> dict[ir.Node, Placement]:
    """The nodes that `place` sends elsewhere; patterns are of names of nodes or of operators.

    The last pattern that matches a node decides; one that names the framework itself keeps it.
    """
    names = plugins.names()
    unknown = [[quote(e), f"for {quote(p)}"] for p, e in place.items() if e not in names]
    if unknown:
        raise ArgumentError("there is no such engine", unknown, hint=f"one of {plugins.listed()}")
    placements: dict[ir.Node, Placement] = {}
    unused = dict.fromkeys(place)
    for node in graph:
        for pattern, engine in place.items():
            names = (node.name or "", node.op_type, op_name(op_id(node)))
            if any(fnmatchcase(name, pattern) for name in names):
                unused.pop(pattern, None)
                placements[node] = Placement(node, CHOSEN, engine)
    if unused:
        raise ArgumentError(
            "no node outside of bodies has such a name or operator",
            [[quote(p)] for p in unused],
            hint="`sardonyx inspect` lists the model's nodes",
        )
    return {node: p for node, p in placements.items() if p.engine != framework}


# -- groups --------------------------------------------------------------------------


class Groups:
    """Nodes of one graph, of which some are joined; an edge leads from a group to its readers."""

    def __init__(self) -> None:
        self.of: dict[ir.Node, int] = {}
        self.members: dict[int, list[ir.Node]] = {}
        self.readers: dict[int, set[int]] = {}

    def add(self, node: ir.Node, placed: Mapping[ir.Node, Placement]) -> None:
        """Put a node in, together with the groups before it that go to the same engine."""
        number = len(self.of)
        before = {self.of[p] for v in reads(node) if (p := v.producer()) in self.of}
        self.of[node], self.members[number], self.readers[number] = number, [node], set()
        for group in before:
            self.readers[group].add(number)
        for group in sorted(before) if node in placed else ():
            other = placed.get(self.members[group][0])
            same = other is not None and other.engine == placed[node].engine
            if same and not self._returns({number, group}):
                number = self._merge(group, number)

    def _returns(self, groups: set[int]) -> bool:
        """Whether a path leads out of these groups and back into one of them."""
        pending = [r for g in groups for r in self.readers[g] if r not in groups]
        nodes = set(pending)
        while pending:
            for reader in self.readers[pending.pop()]:
                if reader in groups:
                    return True
                if reader not in nodes:
                    nodes.add(reader)
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
    joined = Groups()
    for node in graph:
        joined.add(node, placed)
    return [nodes for nodes in joined.members.values() if nodes[0] in placed]


# -- regions -------------------------------------------------------------------------


def partition(
    model: Model, placed: Mapping[ir.Node, Placement], fed: Collection[str] = ()
) -> dict[ir.Node, Region]:
    """Replace the placed nodes of a model, in place, by one node for each region.

    fed -- names of initializers whose values are passed at each call: inputs of the regions
    """
    regions: dict[ir.Node, Region] = {}
    for graph in list(graphs(model.graph)):
        here = {node: placed[node] for node in graph if node in placed}
        if not here:
            continue
        cut = Cut(model, here, readers_in(graph), fed)
        regions.update(cut.replace(graph, groups(graph, here)))
    return regions


def readers_in(graph: ir.Graph) -> dict[ir.Value, set[ir.Node | None]]:
    """The nodes of a graph that read each value, also in bodies; None for the graph's output."""
    readers: dict[ir.Value, set[ir.Node | None]] = {v: {None} for v in graph.outputs}
    for node in graph:
        for value in reads(node):
            readers.setdefault(value, set()).add(node)
    return readers


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
        regions: dict[ir.Node, Region] = {}
        replaced: list[tuple[ir.Value, ir.Value]] = []
        for nodes in parts:
            inputs, constants, outputs = self._ends(nodes)
            placements = [self.placed[node] for node in nodes]
            whole = self._model(nodes, inputs, constants, outputs)
            region = Region(placements[0].engine, placements, whole)
            node = ir.Node(DOMAIN, CALL, inputs, num_outputs=len(outputs), name=region.label)
            for before, after in zip(outputs, node.outputs, strict=True):
                after.name, after.type, after.shape = before.name, before.type, before.shape
                after.meta.update(before.meta)
            replaced += zip(outputs, node.outputs)
            regions[node] = region
        graph.extend(regions)
        for before, after in replaced:
            ir.convenience.replace_all_uses_with(before, after, replace_graph_outputs=True)
        graph.remove([node for nodes in parts for node in nodes], safe=True)
        graph.sort()
        return regions

    def model_of(self, nodes: Sequence[ir.Node]) -> Model:
        """Nodes of the graph, in its order, as a model of their own."""
        return self._model(nodes, *self._ends(nodes))

    def _ends(
        self, nodes: Sequence[ir.Node]
    ) -> tuple[list[ir.Value], list[ir.Value], list[ir.Value]]:
        """What nodes read from outside, as inputs and as constants, and what others read."""
        inside, members = {v: None for node in nodes for v in node.outputs}, set(nodes)
        outer = dict.fromkeys(v for node in nodes for v in reads(node) if v not in inside)
        inputs = [v for v in outer if not self._is_constant(v)]
        constants = [v for v in outer if self._is_constant(v)]
        return inputs, constants, [v for v in inside if self.readers.get(v, set()) - members]

    def _is_constant(self, value: ir.Value) -> bool:
        is_stored = value.is_initializer() and not value.is_graph_input()
        return is_stored and value.const_value is not None and value.name not in self.fed

    def _model(
        self,
        nodes: Sequence[ir.Node],
        inputs: Sequence[ir.Value],
        constants: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
    ) -> Model:
        values: dict[ir.Value, Any] = {v: _twin(v) for v in (*inputs, *constants)}
        for value in inputs:
            values[value].const_value = None
        copies = copy_nodes(nodes, values, {}, lambda name: name)
        graph = ir.Graph(
            [values[v] for v in inputs],
            [values[v] for v in outputs],
            nodes=copies,
            initializers=[values[v] for v in constants],
            opset_imports=dict(self.model.ir.opset_imports),
            name="region",
        )
        return Model(ir.Model(graph, ir_version=self.model.ir.ir_version or 13))


def _twin(value: ir.Value) -> ir.Value:
    twin = ir.Value(name=value.name, type=value.type, const_value=value.const_value)
    twin.shape = None if value.shape is None else value.shape.copy()
    twin.meta.update(value.meta)
    return twin
