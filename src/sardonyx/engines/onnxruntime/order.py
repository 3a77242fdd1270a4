"""The order in which the nodes of a step run: who comes before whom by data, and a list that keeps
few tensors alive.

onnxruntime runs a list as it stands if it is told to optimize nothing and to go by priority: nodes
without a priority go by their place in the list. Only the order is made here; nothing relies on it
for its correctness, which is a matter of data (`in_place.py`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from sardonyx.engines.onnxruntime.lifetimes import shortened
from sardonyx.passes.nesting import reads


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
        found = 0
        for j in direct:
            found |= self.all_before[j] | 1 << j
        return found

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
            for k, known in enumerate(self.all_before):
                if known >> j & 1:
                    self.all_before[k] = known | new


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
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


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


def places(graph: ir.Graph, written: ir.Graph) -> dict[ir.Node, float]:
    """Where each node of an optimized graph stood before: by its outputs, or by what it reads."""
    at = {v.name: float(i) for i, node in enumerate(written) for v in node.outputs if v.name}
    found: dict[ir.Node, float] = {}
    for node in graph:
        own = [at[v.name] for v in node.outputs if v.name in at]
        read = [found.get(m, 0.0) for v in reads(node) if (m := v.producer()) is not None]
        found[node] = max(own or read, default=0.0)
    return found
