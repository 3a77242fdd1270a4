"""The order in which the nodes of a step run, chosen so that few large tensors are alive at once.

onnxruntime keeps the given order of nodes if optimization is switched off and the execution order
is by priority: nodes without a priority run in the order of the list. Only the order is decided
here; correctness never depends on it, because data dependencies ensure it (`in_place.py`).

Three parts: how much memory a tensor takes and whose memory it shares; which node depends on
which; and two passes over the list that shorten the lives of large tensors: a node that
frees at least as much as it takes runs as soon as it can, one that takes more runs just before its
first reader.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from sardonyx.passes.nesting import reads

COUNTED_BYTES = 1 << 13  # bytes: less does not count
UNKNOWN = 32  # how large an unknown dimension is taken to be
# Operators whose output may share the memory of an input.
VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


def base(value: ir.Value) -> ir.Value:
    """The value whose memory a value shares."""
    maker = value.producer()
    while maker is not None and maker.op_type in VIEWS and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return value


def nbytes(value: ir.Value) -> int:
    if value.shape is None or value.dtype is None:
        return 0
    sizes = [d if isinstance(d, int) else UNKNOWN for d in value.shape.dims]
    return int(math.prod(sizes) * value.dtype.itemsize)


# -- who comes before whom --------------------------------------------------


class Dependencies:
    """Which nodes of a graph come before which, by data. A set of nodes is one integer's bits."""

    def __init__(self, graph: ir.Graph):
        self.nodes = list(graph)
        self.number = {node: i for i, node in enumerate(self.nodes)}
        self.before = [self._direct(node) for node in self.nodes]
        self.all_before = [0] * len(self.nodes)
        for i, direct in enumerate(self.before):
            self.all_before[i] = self._closure(direct)

    def _direct(self, node: ir.Node) -> set[int]:
        makers = (value.producer() for value in reads(node))
        return {self.number[m] for m in makers if m in self.number}

    def _closure(self, direct: Iterable[int]) -> int:
        ancestors = 0
        for j in direct:
            ancestors |= self.all_before[j] | 1 << j
        return ancestors

    def precedes(self, first: ir.Node, second: ir.Node) -> bool:
        """Whether `second` needs `first`, directly or not."""
        return bool(self.all_before[self.number[second]] >> self.number[first] & 1)

    def put_before(self, first: ir.Node, second: ir.Node) -> None:
        """From now on `second` also waits for `first`."""
        i, j = self.number[first], self.number[second]
        self.before[j].add(i)
        new = self.all_before[i] | 1 << i
        self.all_before[j] |= new
        if any(value.consumers() for value in second.outputs):
            for k, ancestors in enumerate(self.all_before):
                if ancestors >> j & 1:
                    self.all_before[k] = ancestors | new


def arranged(graph: ir.Graph, place: Mapping[ir.Node, float]) -> list[ir.Node]:
    """The nodes of a graph, each output as early as possible: gradients do not pile up.

    place -- where nodes stood in the graph as it was written, which decides between equals; a node
             that is not there comes as late as it may

    Outputs come in the order of how much must have happened before: the loss, then the updates of
    the last layers, then those of the first.
    """
    data = Dependencies(graph)
    at = [place.get(node, math.inf) for node in data.nodes]
    ends = {data.number[m] for v in graph.outputs if (m := v.producer()) is not None}
    done, order = 0, []
    for end in sorted(ends, key=lambda i: (data.all_before[i].bit_count(), at[i])):
        part = (data.all_before[end] | 1 << end) & ~done
        done |= part
        order += _by_place(_members(part), data, at)
    return shortened([data.nodes[i] for i in order])


def _members(bits: int) -> list[int]:
    members = []
    while bits:
        lowest = bits & -bits
        members.append(lowest.bit_length() - 1)
        bits ^= lowest
    return members


def _by_place(members: list[int], data: Dependencies, place: Sequence[float]) -> list[int]:
    """These nodes so that each follows what it needs, otherwise by place."""
    inside = set(members)
    missing = {i: len(data.before[i] & inside) for i in members}
    after: dict[int, list[int]] = {i: [] for i in members}
    for i in members:
        for j in data.before[i] & inside:
            after[j].append(i)
    ready = [(place[i], i) for i in members if not missing[i]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(i)
        for j in after[i]:
            missing[j] -= 1
            if not missing[j]:
                heapq.heappush(ready, (place[j], j))
    return order


def places(graph: ir.Graph, at: Mapping[str, float]) -> dict[ir.Node, float]:
    """Where each node of an optimized graph stood before: by its outputs, or by what it reads.

    at -- value → the place of the node that made it
    """
    positions: dict[ir.Node, float] = {}
    for node in graph:
        output_places = [at[v.name] for v in node.outputs if v.name and v.name in at]
        read = [positions.get(m, 0.0) for v in reads(node) if (m := v.producer()) is not None]
        positions[node] = max(output_places or read, default=0.0)
    return positions


# -- lives of large tensors --------------------------------------------------

LAST = math.inf
DEEPEST = 64  # nodes that wait for one another


def shortened(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """The same nodes, each after what it needs."""
    return _Late(_Eager(nodes).order()).order()


class _List:
    """A list of nodes: who reads whose memory, who follows whom."""

    def __init__(self, nodes: Sequence[ir.Node]):
        self.nodes = nodes
        place: dict[ir.Node | None, int] = {node: i for i, node in enumerate(nodes)}
        self.read: list[set[ir.Value]] = []  # the large values in whose memory a node reads
        self.readers: dict[ir.Value, set[int]] = {}
        self.after: list[list[int]] = [[] for _ in nodes]
        self.missing = [0] * len(nodes)
        for i, node in enumerate(nodes):
            values = reads(node)
            self.read.append({v for v in map(base, values) if _counts(v)})
            for value in self.read[-1]:
                self.readers.setdefault(value, set()).add(i)
            for maker in {v.producer() for v in values} & place.keys():
                self.after[place[maker]].append(i)
                self.missing[i] += 1

    def made(self, i: int) -> int:
        return sum(nbytes(v) for v in self.nodes[i].outputs if base(v) is v and _counts(v))


def _counts(value: ir.Value) -> bool:
    """Whether a value takes memory that is free again when its last reader has run."""
    if value.producer() is None or value.is_graph_output():
        return False
    return nbytes(value) >= COUNTED_BYTES


class _Eager(_List):
    """A node that frees at least what it takes need not wait."""

    def __init__(self, nodes: Sequence[ir.Node]):
        super().__init__(nodes)
        self.ready: list[int] = []
        self.eager: list[int] = []
        self.done = [False] * len(nodes)

    def order(self) -> list[ir.Node]:
        for i, count in enumerate(self.missing):
            if not count:
                self._add(i)
        node_order = []
        while self.ready:
            i = heapq.heappop(self.eager or self.ready)
            if not self.done[i]:
                self.done[i] = True
                node_order.append(self.nodes[i])
                self._follow(i)
        return node_order

    def _add(self, i: int) -> None:
        heapq.heappush(self.ready, i)
        if self._gains(i):
            heapq.heappush(self.eager, i)

    def _follow(self, i: int) -> None:
        """What a node that has run makes possible, and what it leaves to a last reader."""
        for j in self.after[i]:
            self.missing[j] -= 1
            if not self.missing[j]:
                self._add(j)
        for value in self.read[i]:
            self.readers[value].discard(i)
            for j in self.readers[value] if len(self.readers[value]) == 1 else ():
                if not self.missing[j] and self._gains(j):
                    heapq.heappush(self.eager, j)

    def _gains(self, i: int) -> bool:
        freed = sum(nbytes(v) for v in self.read[i] if self.readers[v] == {i})
        return freed >= self.made(i)


class _Late(_List):
    """A node that takes more than it frees waits for its first reader."""

    def __init__(self, nodes: Sequence[ir.Node]):
        super().__init__(nodes)
        # where a node stands: a place in the list or, before another node, that one's place first
        self.at: list[tuple[float, ...]] = [(i, LAST) for i in range(len(nodes))]

    def order(self) -> list[ir.Node]:
        for i in range(len(self.nodes) - 1, -1, -1):
            self._move(i)
        return [self.nodes[i] for i in sorted(range(len(self.nodes)), key=self.at.__getitem__)]

    def _move(self, i: int) -> None:
        first = min((self.at[j] for j in self.after[i]), default=None)
        if first is None or len(first) > DEEPEST:
            return
        if self.nodes[i].op_type in VIEWS or self._kept_longer(i, first) < self.made(i):
            self.at[i] = (*first[:-1], i, LAST)

    def _kept_longer(self, i: int, until: tuple[float, ...]) -> int:
        """Bytes that would live on because this node reads them later."""
        others = ((v, self.readers[v] - {i}) for v in self.read[i])
        return sum(nbytes(v) for v, readers in others if all(self.at[j] < until for j in readers))
