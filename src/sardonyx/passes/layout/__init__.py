"""One layout plan for a whole graph: channels first or last, with the fewest bytes transposed.

axes.py     the two layouts, and what a permutation does to a tensor
roles.py    the table of operators: which operands share a layout, and how a node is written in it
cut.py      an exact minimum cut
plan.py     the network of a graph, and the plan that its minimum cut gives
rewrite.py  the graph that follows a plan
absorb.py   Transposes that constants take over, before a plan is made
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from sardonyx.passes.layout.axes import FIRST, LAST
from sardonyx.passes.layout.plan import Demands, Plan, plan_layout
from sardonyx.passes.layout.rewrite import apply_layout

__all__ = ["FIRST", "LAST", "Demands", "Plan", "lay_out", "plan_layout"]


def lay_out(
    graph: ir.Graph,
    demands: Demands,
    *,
    parameters: Collection[str] = (),
    turned: Collection[str] = (),
) -> Plan:
    """Rewrite a normalized graph in place to the plan that moves the fewest bytes; the plan.

    parameters -- initializers that are no constants: what trains
    turned     -- inputs and outputs of the graph that get the other layout than they are written in
    """
    plan = plan_layout(graph, demands, parameters=parameters, turned=turned)
    apply_layout(graph, plan, tuple(turned))
    return plan
