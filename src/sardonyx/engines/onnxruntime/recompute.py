"""Recomputation: most of what the backward pass reads is computed again instead of being kept.

The forward pass is cut into segments. What crosses a cut is kept; what a segment has inside is
forgotten and computed again, from what is kept, just before the backward pass needs it. The cuts
are those that keep least: the sum of what crosses them plus the largest segment. Values do not
change: the same nodes run on the same tensors. Nodes that draw random numbers or hold graphs run
once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.engines.onnxruntime.schedule import COUNTED_BYTES, Dependencies, base, nbytes
from sardonyx.passes.nesting import bodies

SHRINK, LIMITS = 0.8, 12  # the sizes of the largest segment that are tried
ONCE = ("RandomNormal", "RandomUniform", "Bernoulli", "Multinomial", "Dropout")


def recompute(graph: ir.Graph, metrics: Sequence[str]) -> int:
    """Forget what can be computed again; how many nodes run twice.

    The graph's nodes must stand in the order in which they run.
    """
    forward = _forward(graph, metrics)
    region = _Region(forward)
    boundary = region.kept()
    if boundary is None:
        return 0
    return _Again(graph, forward, region, boundary).write()


def _forward(graph: ir.Graph, metrics: Sequence[str]) -> list[ir.Node]:
    """The nodes on which the metrics depend, in order."""
    data = Dependencies(graph)
    ancestors = 0
    for value in graph.outputs:
        maker = value.producer()
        if value.name in metrics and maker is not None:
            ancestors |= data.all_before[data.number[maker]] | 1 << data.number[maker]
    return [node for i, node in enumerate(data.nodes) if ancestors >> i & 1]


@dataclass
class _Region:
    """The forward pass as a line of nodes: what the rest of the step reads of it, where to cut."""

    nodes: list[ir.Node]

    def __post_init__(self) -> None:
        self.at = {node: i for i, node in enumerate(self.nodes)}
        self.saved: list[int] = [0] * len(self.nodes)  # bytes that the rest of the step reads
        self.last: dict[ir.Value, int] = {}  # the last node of the line that reads a large value
        buffers: set[ir.Value] = set()
        for node in self.nodes:
            for value in node.outputs:
                buffer = base(value)
                if buffer.producer() not in self.at or nbytes(buffer) < COUNTED_BYTES:
                    continue
                for reader in value.consumers():
                    if reader in self.at:
                        self.last[buffer] = max(self.last.get(buffer, -1), self.at[reader])
                    elif buffer not in buffers:
                        buffers.add(buffer)
                        self.saved[self._born(buffer)] += nbytes(buffer)

    def _born(self, value: ir.Value) -> int:
        maker = value.producer()
        assert maker is not None
        return self.at[maker]

    def crossing(self, cut: int) -> set[ir.Value]:
        """What is made up to node `cut` and read after it."""
        return {v for v, last in self.last.items() if self._born(v) <= cut < last}

    def kept(self) -> set[ir.Value] | None:
        """The values to keep; None if nothing is gained."""
        costs = self._costs()
        total = sum(self.saved)
        best, best_cuts = total, None
        for power in range(1, 1 + LIMITS):
            cuts = self._cuts(costs, total * SHRINK**power)
            if cuts is None:
                break
            needed = sum(costs[c] for c in cuts) + self._largest(cuts)
            if needed < best:
                best, best_cuts = needed, cuts
        if best_cuts is None:
            return None
        return set().union(*(self.crossing(c) for c in best_cuts))

    def _costs(self) -> list[int]:
        """What crosses a cut after each node."""
        change = [0] * (len(self.nodes) + 1)
        for value, last in self.last.items():
            change[self._born(value)] += nbytes(value)
            change[last] -= nbytes(value)
        costs, now = [], 0
        for step in change[:-1]:
            now += step
            costs.append(now)
        return costs

    def _largest(self, cuts: Sequence[int]) -> int:
        edges = [-1, *cuts, len(self.nodes) - 1]
        return max(sum(self.saved[a + 1 : b + 1]) for a, b in itertools.pairwise(edges))

    def _cuts(self, costs: Sequence[int], limit: float) -> list[int] | None:
        """The cheapest cuts that leave no segment above `limit`; None if there are none."""
        places = _low_points(costs)
        before = [0]
        for amount in self.saved:
            before.append(before[-1] + amount)
        cheapest: dict[int, tuple[float, int]] = {-1: (0.0, -1)}
        for place in [*places, len(self.nodes) - 1]:
            cost = 0 if place == len(self.nodes) - 1 else costs[place]
            options = [
                (cost_so_far + cost, earlier)
                for earlier, (cost_so_far, _) in cheapest.items()
                if before[place + 1] - before[earlier + 1] <= limit
            ]
            if options:
                cheapest[place] = min(options)
        cut, cuts = len(self.nodes) - 1, []
        if cut not in cheapest:
            return None
        while (cut := cheapest[cut][1]) >= 0:
            cuts.append(cut)
        return cuts[::-1]


def _low_points(costs: Sequence[int]) -> list[int]:
    """Places where less crosses than on either side; of a flat stretch the last."""
    inner = range(1, len(costs) - 1)
    return [i for i in inner if costs[i] <= costs[i - 1] and costs[i] < costs[i + 1]]


class _Again:
    """Writes the second run of forgotten values, and lets the rest of the step read it."""

    def __init__(
        self, graph: ir.Graph, forward: list[ir.Node], region: _Region, kept: set[ir.Value]
    ):
        self.graph, self.region, self.kept = graph, region, kept
        self.forward = forward
        self.copies: dict[ir.Value, ir.Value] = {}
        self.made: list[ir.Node] = []

    def write(self) -> int:
        inside = self.region.at
        for node in [n for n in self.graph if n not in inside]:
            for i, value in enumerate(node.inputs):
                if value is not None and value.producer() in inside:
                    node.replace_input_with(i, self._again(value))
            # what is computed again stands before its first reader
            for new in self.made:
                self.graph.insert_before(node, new)
            self.made.clear()
        return len({v.producer() for v in self.copies.values()} - set(inside))

    def _again(self, value: ir.Value) -> ir.Value:
        """The value, or its second run where it was forgotten."""
        maker, buffer = value.producer(), base(value)
        if maker not in self.region.at or buffer in self.kept or not self._can_run_twice(maker):
            return value
        if nbytes(buffer) < COUNTED_BYTES and not self._is_overwritten(value):
            return value
        if value not in self.copies:
            assert maker is not None
            self._copy(maker)
        return self.copies[value]

    def _can_run_twice(self, node: ir.Node | None) -> bool:
        return node is not None and not bodies(node) and not node.op_type.startswith(ONCE)

    def _is_overwritten(self, value: ir.Value) -> bool:
        """Whether it is a buffer into which a BatchNormalization writes its running statistics."""
        readers = [n for n in value.consumers() if n.op_type == "BatchNormalization"]
        return any(value in n.inputs[3:5] and len(n.outputs) > 1 for n in readers)

    def _copy(self, node: ir.Node) -> None:
        inputs = [v if v is None else self._again(v) for v in node.inputs]
        copy = ir.Node(
            node.domain, node.op_type, inputs, list(node.attributes.values()),
            num_outputs=len(node.outputs), version=node.version,
            name=f"again/{node.outputs[0].name}",
        )  # fmt: skip
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            new.name = f"again/{old.name}" if old.name else ""
            new.type, new.shape = old.type, old.shape
            self.copies[old] = new
        self.made.append(copy)
