"""Small changes to an order of nodes that shorten the lives of large tensors.

Two passes: what frees at least as much as it takes runs as soon as it can; what takes more than it
frees runs as late as it can, just before its first reader.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.engines.onnxruntime.sizes import SMALL, VIEWS, base, nbytes
from sardonyx.passes.nesting import reads

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
    return nbytes(value) >= SMALL


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
        found = []
        while self.ready:
            i = heapq.heappop(self.eager or self.ready)
            if not self.done[i]:
                self.done[i] = True
                found.append(self.nodes[i])
                self._follow(i)
        return found

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
        return sum(nbytes(v) for v, own in others if all(self.at[j] < until for j in own))
