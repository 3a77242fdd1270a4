"""Nodes with data-dependent shapes, which a graph of fixed sizes cannot hold.

Such a node runs on another engine, together with every node that reads its outputs, up to the first
results whose sizes are known again. `partition.py` makes regions of these nodes.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from sardonyx.errors import quote
from sardonyx.lower.driver import find
from sardonyx.lower.partition import Placement, known_dims, op_id
from sardonyx.passes.cse import is_random
from sardonyx.passes.nesting import bodies, graphs, reads
from sardonyx.registry import op_name

DECIDES = frozenset(("NonZero", "Unique", "Compress", "NonMaxSuppression", "StringSplit"))
MEASURES = ("Shape", "Size")


def decided_by_data(
    graph: ir.Graph, framework: str, fed: Collection[str] = ()
) -> dict[ir.Node, Placement]:
    """The nodes of `graph` that cannot be in a graph of `framework` whose sizes are all fixed.

    fed -- initializers that are given at each call
    """
    walk = Walk(graph, framework, fed)
    for node in graph:
        walk.visit(node)
    return walk.placed


class Walk:
    """One walk through a graph, in order.

    known  -- values that are known while the graph is built: constants, sizes, and their results
    loose  -- values of data-dependent shape → the first node of their chain
    """

    def __init__(self, graph: ir.Graph, framework: str, fed: Collection[str]):
        self.framework = framework
        self.known = {v for n, v in graph.initializers.items() if n not in fed}
        self.known.difference_update(graph.inputs)
        self.symbols = {d for v in graph.inputs for d in known_dims(v) or () if isinstance(d, str)}
        self.loose: dict[ir.Value, ir.Node] = {}
        self.placed: dict[ir.Node, Placement] = {}

    def visit(self, node: ir.Node) -> None:
        inputs = reads(node)
        origins = [self.loose[v] for v in inputs if v in self.loose]
        if origins:
            first = origins[0]
            name = quote(first.name or first.outputs[0].name)
            self._place(node, first, f"reads the output of {op_name(op_id(first))} {name}")
        elif self._is_known(node, inputs):
            self.known.update(node.outputs)
        elif self._decides(node):
            self._place(node, node, "the size of its output depends on data")
        elif self._lacks(node):
            self._place(node, node, f"{self.framework} must know an input that depends on data")

    def _is_known(self, node: ir.Node, inputs: list[ir.Value]) -> bool:
        if node.op_type in MEASURES and not node.domain:
            return True
        if is_random(node) or bodies(node) or find(node.op_type, node.domain, "numpy") is None:
            return False
        return all(v in self.known for v in inputs)

    def _decides(self, node: ir.Node) -> bool:
        inside = (n for body in bodies(node) for part in graphs(body) for n in part)
        listed = any(n.op_type in DECIDES and not n.domain for n in (node, *inside))
        return listed or (node.op_type == "Loop" and not node.domain and self._stacks(node))

    def _stacks(self, loop: ir.Node) -> bool:
        """Whether a loop stacks one row per trip, and the number of trips depends on data."""
        trips, body = loop.inputs[0], loop.attributes["body"].as_graph()
        if len(loop.outputs) == len(loop.inputs) - 2:
            return False
        going_on = body.outputs[0]
        is_endless = going_on in body.inputs or going_on.is_initializer()
        return trips not in self.known or not is_endless

    def _lacks(self, node: ir.Node) -> bool:
        rule = find(node.op_type, node.domain, self.framework)
        static_positions = () if rule is None else rule.options["static"]
        inputs = enumerate(node.inputs)
        return any(
            v is not None and i in static_positions and v not in self.known for i, v in inputs
        )

    def _place(self, node: ir.Node, first: ir.Node, reason: str) -> None:
        self.placed[node] = Placement(node, reason)
        self.loose.update((v, first) for v in node.outputs if not self._is_sized(v))

    def _is_sized(self, value: ir.Value) -> bool:
        dims = known_dims(value)
        return dims is not None and all(isinstance(d, int) or d in self.symbols for d in dims)
