"""A minimum cut of a network with integer capacities, by Dinic's algorithm."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

UNCUT = 1 << 200  # the capacity of an edge that no cut contains


class Network:
    """Directed edges with capacities between numbered nodes."""

    def __init__(self) -> None:
        self.heads: list[int] = []
        self.capacities: list[int] = []
        self.edges: list[list[int]] = []  # of each node; an edge and its reverse are e and e ^ 1

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        for start, end, residual in ((tail, head, capacity), (head, tail, 0)):
            self.edges[start].append(len(self.heads))
            self.heads.append(end)
            self.capacities.append(residual)

    def minimum_cut(self, source: int, sink: int) -> tuple[int, set[int]]:
        """The value of a minimum cut, and the smallest set of nodes on the side of the source."""
        value = 0
        while True:
            levels = self._levels(source)
            if levels[sink] < 0:
                return value, {n for n, level in enumerate(levels) if level >= 0}
            value += self._blocking_flow(source, sink, levels)

    def _levels(self, source: int) -> list[int]:
        levels = [-1] * len(self.edges)
        levels[source] = 0
        pending = deque([source])
        while pending:
            node = pending.popleft()
            for edge in self.edges[node]:
                head = self.heads[edge]
                if self.capacities[edge] and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    pending.append(head)
        return levels

    def _blocking_flow(self, source: int, sink: int, levels: list[int]) -> int:
        """Flow along shortest paths until each has a full edge; paths are walked without recursion,
        since graphs may be thousands of nodes deep.
        """
        total = 0
        positions = [0] * len(self.edges)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                residual = min(self.capacities[edge] for edge in path)
                total += residual
                self._push(path, residual)
                full = next(i for i, edge in enumerate(path) if not self.capacities[edge])
                node = self.heads[path[full] ^ 1]
                del path[full:]
                continue
            edge = self._onward(node, positions, levels)
            if edge >= 0:
                path.append(edge)
                node = self.heads[edge]
            elif path:
                node = self.heads[path.pop() ^ 1]
                positions[node] += 1
            else:
                return total

    def _onward(self, node: int, positions: list[int], levels: list[int]) -> int:
        edges = self.edges[node]
        while positions[node] < len(edges):
            edge = edges[positions[node]]
            if self.capacities[edge] and levels[self.heads[edge]] == levels[node] + 1:
                return edge
            positions[node] += 1
        return -1

    def _push(self, path: Iterable[int], amount: int) -> None:
        for edge in path:
            self.capacities[edge] -= amount
            self.capacities[edge ^ 1] += amount
