"""The cost of one run, from shapes alone: floating-point operations and memory of activations.

How the operations of a node are counted is in `passes/flops.py`. A node whose shapes are not known
is counted in `unknown_nodes`, and in nothing else; a body counts once, whatever the number of its
runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.build import is_static, static
from sardonyx.passes.flops import node_flops
from sardonyx.passes.nesting import bodies, graphs


@dataclass(frozen=True)
class Cost:
    """The cost of one run at given sizes.

    activation_bytes  -- all results of nodes together: what training keeps, at most
    peak_bytes        -- the most that is alive at once when each result goes after its last use
    """

    sizes: dict[str, int] = field(default_factory=dict)
    flops: int = 0
    activation_bytes: int = 0
    peak_bytes: int = 0
    unknown_nodes: int = 0


def cost(graph: ir.Graph, sizes: Mapping[str, int]) -> Cost:
    """The cost of running a normalized graph whose sizes are known."""
    flops = unknown = 0
    for part in graphs(graph):
        for node in part:
            counted = node_flops(node)
            unknown += counted is None
            flops += counted or 0
    total, peak = _memory(graph)
    return Cost(dict(sizes), flops, total, peak, unknown)


def _memory(graph: ir.Graph) -> tuple[int, int]:
    """Bytes of all results in the graph, and the most alive at once in node order."""
    last: dict[ir.Value, int] = {}
    nodes = list(graph)
    for position, node in enumerate(nodes):
        inside = bodies(node) if node.attributes.data else ()
        for inner in (node, *(n for body in inside for g in graphs(body) for n in g)):
            for value in inner.inputs:
                if value is not None:
                    last[value] = position
    outputs = set(graph.outputs)
    ending: dict[int, int] = {}
    total = peak = alive = 0
    for value in graph.inputs:
        if value.name not in graph.initializers:
            alive += _bytes(value)
            if value in last and value not in outputs:
                ending[last[value]] = ending.get(last[value], 0) + _bytes(value)
    for position, node in enumerate(nodes):
        for value in node.outputs:
            size = _bytes(value)
            total, alive = total + size, alive + size
            if value not in outputs:
                end = last.get(value, position)
                ending[end] = ending.get(end, 0) + size
        peak = max(peak, alive)
        alive -= ending.pop(position, 0)
    return total, peak


def _bytes(value: ir.Value) -> int:
    dtype = value.dtype
    without_size = (None, ir.DataType.STRING, ir.DataType.UNDEFINED)
    if not is_static(value) or dtype is None or dtype in without_size:
        return 0
    return -(-math.prod(static(value)) * dtype.bitwidth // 8)
