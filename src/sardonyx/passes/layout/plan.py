"""Which operators of a graph work on which layout, by a minimum cut.

Every image has a label, the layout in which the graph has it: known where an operator has its
channels at axis 1 by definition, and passed on from there through the roles of operators; a
Transpose between the layouts changes it. Images on both sides of such a Transpose are one tensor,
and what the Transpose costs is part of the plan.

The network has one node per operator that can work on either layout. The source stands for the
layout that an engine demands, the sink for the other one. A tensor whose producer and readers
stand on different sides costs the bytes that a Transpose moves, once for all of its readers: two
auxiliary nodes per tensor see to that. Among cuts of equal bytes, one with the fewest changes of
layout is taken. Constants are transposed while building and cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.passes.layout.axes import (
    FIRST,
    bytes_of,
    is_image,
    keeps_order,
    other,
    permutation,
    rank_of,
    turn,
    turns_freely,
    unknown_sizes,
)
from sardonyx.passes.layout.cut import UNCUT, Network
from sardonyx.passes.layout.roles import (
    ANCHORS,
    FREE,
    LINKED,
    ROLES,
    Ports,
    changes_layout,
    order_of,
)


@dataclass(frozen=True)
class Demands:
    """What an engine wants.

    layout  -- the layout of the operators in `operators`
    operators -- those that must have it
    kernels -- operators with their channels at axis 1 that the engine also has with channels last,
               under the same name in `domain`; the others have channels first
    trains  -- whether its BatchNormalization with channels last has the training mode
    """

    layout: str = FIRST
    operators: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    domain: str = ""
    trains: bool = False


@dataclass
class Plan:
    """Layouts of a graph's operators.

    parameters  -- initializers that are no constants
    labels      -- the layout in which the graph has an image
    roots       -- the tensor that an image is, across Transposes between the layouts
    ports       -- the kinds of operands, of operators that may work on either layout
    written     -- the layout in which the graph has such an operator
    sides       -- the layout on which such an operator works
    given       -- the layout in which a tensor is produced
    bytes       -- what Transposes move: the value of the cut
    conversions -- changes of layout that are left, those that move nothing included
    """

    demands: Demands
    parameters: frozenset[str] = frozenset()
    labels: dict[ir.Value, str] = field(default_factory=dict)
    roots: dict[ir.Value, ir.Value] = field(default_factory=dict)
    ports: dict[ir.Node, Ports] = field(default_factory=dict)
    written: dict[ir.Node, str] = field(default_factory=dict)
    sides: dict[ir.Node, str] = field(default_factory=dict)
    layouts: dict[ir.Value, str] = field(default_factory=dict)
    bytes: int = 0
    conversions: int = 0


def _resizes_pixels(node: ir.Node) -> bool:
    """Whether a Resize changes the last two of four axes: those of an image with channels first."""
    if node.op_type != "Resize" or node.inputs[0] is None:
        return False
    shapes = (node.inputs[0].shape, node.outputs[0].shape)
    if any(s is None or len(s) != 4 for s in shapes):
        return False
    old, new = (list(s) for s in shapes)  # type: ignore[arg-type]
    return old[:2] == new[:2] and all(a != b for a, b in zip(old[2:], new[2:], strict=True))


def plan_layout(
    graph: ir.Graph,
    demands: Demands,
    *,
    parameters: Collection[str] = (),
    turned: Collection[str] = (),
) -> Plan:
    """The plan of a normalized graph that moves the fewest bytes.

    parameters -- initializers that are no constants: what trains
    turned     -- inputs and outputs of the graph that get the other layout than they are written in
    """
    return _Planner(graph, demands, frozenset(parameters), frozenset(turned)).plan


@dataclass
class _Tensor:
    producer: int
    readers: set[int]
    cost: int  # bytes; 0 where both layouts are the same bytes


class _Planner:
    def __init__(
        self,
        graph: ir.Graph,
        demands: Demands,
        parameters: frozenset[str],
        turned: frozenset[str],
    ):
        self.graph, self.demands = graph, demands
        self.parameters, self.turned = parameters, turned
        self.plan = Plan(demands, parameters)
        self._label()
        self._ports()
        self._roots()
        self.network = Network()
        source, sink = self.network.node(), self.network.node()
        self.terminals = {demands.layout: source, other(demands.layout): sink}
        self.operators = {n: self.network.node() for n, p in self.plan.ports.items() if _links(p)}
        self.free: dict[ir.Value, int] = {}
        self._cut()

    # -- labels

    def is_constant(self, value: ir.Value) -> bool:
        """Whether a value may be transposed while building."""
        if value.const_value is None or value.is_graph_input():
            return False
        return value.name not in self.parameters

    def _label(self) -> None:
        pending: deque[ir.Node] = deque()
        for node in self.graph:
            if node.domain == "" and (node.op_type in ANCHORS or _resizes_pixels(node)):
                for value in (node.inputs[0], node.outputs[0]):
                    self._give(value, FIRST, pending)
        while pending:
            node = pending.popleft()
            if node.graph is self.graph:
                for value, layout in list(self._implied(node)):
                    self._give(value, layout, pending)

    def _give(self, value: ir.Value | None, layout: str, pending: deque[ir.Node]) -> None:
        if value is None or value in self.plan.labels or not is_image(value):
            return
        if self.is_constant(value):
            return
        self.plan.labels[value] = layout
        producer = value.producer()
        pending.extend([] if producer is None else [producer])
        pending.extend(use.node for use in value.uses())

    def _implied(self, node: ir.Node) -> Iterator[tuple[ir.Value | None, str]]:
        """The labels of a node's operands that follow from those that are there."""
        labels = self.plan.labels
        if changes_layout(node) is not None:
            x, (y,) = node.inputs[0], node.outputs
            perm = order_of(node)
            if x in labels and perm == turn(len(perm), other(labels[x])):
                yield y, other(labels[x])
            if y in labels and perm == turn(len(perm), labels[y]):
                yield x, other(labels[y])
            return
        present = {labels[v] for v in (*node.inputs, *node.outputs) if v in labels}
        role = ROLES.get(node.op_type) if node.domain == "" else None
        ports = role.ports(node, *present) if role is not None and len(present) == 1 else None
        if ports is not None:
            (layout,) = present
            for place in _places(ports.inputs):
                yield node.inputs[place], layout
            for place in _places(ports.outputs):
                yield node.outputs[place], layout

    # -- kinds of operands

    def _ports(self) -> None:
        for node in self.graph:
            role = ROLES.get(node.op_type) if node.domain == "" else None
            if role is None or self._is_between(node):
                continue
            anchored = node.op_type in ANCHORS and not node.op_type.startswith("Global")
            if anchored and (node.op_type not in self.demands.kernels or self._lacks_mode(node)):
                continue
            ports = self._ports_of(node)
            if ports is not None:
                self.plan.ports[node] = ports
                self.plan.written[node] = self._written(node, ports)

    def _lacks_mode(self, node: ir.Node) -> bool:
        return bool(node.attributes.get_int("training_mode", 0)) and not self.demands.trains

    def _ports_of(self, node: ir.Node) -> Ports | None:
        labels = self.plan.labels
        before = {labels[v] for v in node.inputs if v in labels}
        after = {labels[v] for v in node.outputs if v in labels}
        role = ROLES[node.op_type]
        if len(before | after) == 1:
            ports = role.ports(node, *(before | after))
            return None if ports is None else self._labelled(node, ports)
        # Layouts differ before and after: what does not care which it is, still does not.
        inputs = role.ports(node, *before) if len(before) == 1 else None
        outputs = role.ports(node, *after) if len(after) == 1 else None
        ports = Ports(
            {i: k for i, k in inputs.inputs.items() if k == FREE} if inputs else {},
            {i: k for i, k in outputs.outputs.items() if k == FREE} if outputs else {},
        )
        return self._labelled(node, ports) if ports.inputs or ports.outputs else None

    def _labelled(self, node: ir.Node, ports: Ports) -> Ports:
        labels = self.plan.labels
        outputs = {i: k for i, k in ports.outputs.items() if node.outputs[i] in labels}
        return Ports(ports.inputs, outputs, ports.broadcast)

    def _written(self, node: ir.Node, ports: Ports) -> str:
        """The layout in which the graph has the linked operands of a node."""
        values: list[ir.Value | None] = [node.outputs[i] for i in _places(ports.outputs)]
        values += [node.inputs[i] for i in _places(ports.inputs)]
        return next((self.plan.labels[v] for v in values if v in self.plan.labels), FIRST)

    def _is_between(self, node: ir.Node) -> bool:
        """Whether a node is a Transpose from the layout of its input to the other one."""
        if changes_layout(node) is None:
            return False
        x, (y,) = node.inputs[0], node.outputs
        labels, perm = self.plan.labels, order_of(node)
        if x not in labels or y not in labels or labels[x] == labels[y]:
            return False
        return perm == permutation(len(perm), labels[x], labels[y])

    def _roots(self) -> None:
        roots = self.plan.roots
        for node in self.graph:
            if self._is_between(node):
                x = node.inputs[0]
                assert x is not None
                roots[node.outputs[0]] = roots.get(x, x)

    # -- the network

    def _cut(self) -> None:
        for node, number in self.operators.items():
            if node.op_type in self.demands.operators:
                self.network.edge(self.terminals[self.demands.layout], number, UNCUT)
        tensors = [*self._tensors(), *self._broadcast()]
        share = len(tensors) + 1  # all conversions together weigh less than one byte
        for tensor in tensors:
            self._tensor(tensor, tensor.cost * share + 1)
        layout, opposite = self.demands.layout, other(self.demands.layout)
        value, reached = self.network.minimum_cut(self.terminals[layout], self.terminals[opposite])
        self.plan.bytes, self.plan.conversions = divmod(value, share)

        def side(number: int) -> str:
            return layout if number in reached else opposite

        self.plan.sides = {n: side(number) for n, number in self.operators.items()}
        for root in self._labelled_roots():
            self.plan.layouts[root] = side(self._producer(root))

    def _tensor(self, tensor: _Tensor, capacity: int) -> None:
        if tensor.readers <= {tensor.producer}:
            return
        out, back = self.network.node(), self.network.node()
        self.network.edge(tensor.producer, out, capacity)
        self.network.edge(back, tensor.producer, capacity)
        for reader in tensor.readers:
            self.network.edge(out, reader, UNCUT)
            self.network.edge(reader, back, UNCUT)

    def _labelled_roots(self) -> Iterator[ir.Value]:
        return (v for v in self.plan.labels if v not in self.plan.roots)

    def _tensors(self) -> Iterator[_Tensor]:
        readers: dict[ir.Value, set[int]] = {}
        for value in self.plan.labels:
            root = self.plan.roots.get(value, value)
            readers.setdefault(root, set()).update(self._readers(value))
        for root in self._labelled_roots():
            moves = unknown_sizes(root) > 1 or not turns_freely(root, self.plan.labels[root])
            cost = bytes_of(root) if moves else 0
            yield _Tensor(self._producer(root), readers[root], cost)

    def _producer(self, value: ir.Value) -> int:
        node, label = value.producer(), self.plan.labels[value]
        if node is None:
            return self.terminals[other(label) if value.name in self.turned else label]
        ports = self.plan.ports.get(node)
        kind = None if ports is None else ports.outputs.get(value.index() or 0)
        if kind == LINKED:
            return self.operators[node]
        if kind == FREE:
            if value not in self.free:
                self.free[value] = self.network.node()
            return self.free[value]
        return self.terminals[label]

    def _readers(self, value: ir.Value) -> Iterator[int]:
        label = self.plan.labels[value]
        for node, place in value.uses():
            ports = self.plan.ports.get(node)
            kind = None if ports is None else ports.inputs.get(place)
            if self._is_between(node) or kind == FREE:
                continue
            if kind == LINKED:
                yield self.operators[node]
            else:
                yield self.terminals[label]
        if value.is_graph_output():
            yield self.terminals[other(label) if value.name in self.turned else label]

    def _broadcast(self) -> Iterator[_Tensor]:
        """Operands of fewer axes than the image: given axes of size 1, and transposed."""
        tensors: dict[tuple[ir.Value, int, str], _Tensor] = {}
        for node, ports in self.plan.ports.items():
            for place in ports.broadcast:
                value = node.inputs[place]
                assert value is not None and value.shape is not None
                if self.is_constant(value):
                    continue
                label = self.plan.written[node]
                rank = rank_of(node.outputs[0])
                dims = [1] * (rank - rank_of(value)) + list(value.shape)
                moves = not keeps_order(dims, turn(rank, other(label)))
                start = _Tensor(self.terminals[label], set(), bytes_of(value) if moves else 0)
                tensor = tensors.setdefault((value, rank, label), start)
                tensor.readers.add(self.operators[node])
        yield from tensors.values()


def _places(kinds: dict[int, str]) -> list[int]:
    return [place for place, kind in kinds.items() if kind == LINKED]


def _links(ports: Ports) -> bool:
    return bool(_places(ports.inputs) or _places(ports.outputs))
