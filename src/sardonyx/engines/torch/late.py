"""Small functions of other results of a forward pass, computed together at its end.

A batch normalization gives the inverse of a deviation, of which the update wants the variance: a
few operations on a vector for each layer. `Grouped` runs them for all layers at once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from sardonyx.engines.torch.foreach import BINARY, UNARY, Grouped
from sardonyx.engines.torch.xp import torch

Node: TypeAlias = torch.fx.Node


def separate_late(module: torch.fx.GraphModule) -> Grouped | None:
    """Take what can be computed late out of a graph, whose first output is the loss.

    The graph then gives its other outputs in order, and after them what the late part reads.
    Returns a function of these outputs that gives the outputs as they were; None where nothing is
    late. Its nodes still have the trace's metadata.
    """
    (output,) = [n for n in module.graph.nodes if n.op == "output"]
    results: list[Node] = list(output.args[0])
    late = _late(module.graph, results[0])
    if not late:
        return None
    early = [n for n in dict.fromkeys(results) if n not in late]
    reads = dict.fromkeys(n for node in late for n in node.all_input_nodes if n not in late)
    early += [n for n in reads if n not in early]
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for number, node in enumerate(early):
        copies[node] = graph.placeholder(f"early_{number}")
        copies[node].meta = dict(node.meta)
    for node in module.graph.nodes:
        if node in late:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[n] for n in results])
    output.args = (early,)
    module.graph.eliminate_dead_code()
    module.recompile()
    return Grouped(torch.fx.GraphModule(module, graph))


def _late(graph: torch.fx.Graph, loss: Node) -> dict[Node, None]:
    """Operations that `Grouped` can join and that nothing but outputs and each other read."""
    late: dict[Node, None] = {}
    for node in reversed(graph.nodes):
        joinable = node.target in UNARY or node.target in BINARY
        if node.op != "call_function" or not joinable or node is loss or not node.users:
            continue
        if any(isinstance(a, torch.fx.Node) and not _is_vector(a) for a in node.args):
            continue
        if all(user in late or user.op == "output" for user in node.users):
            late[node] = None
    return late


def _is_vector(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.ndim == 1
