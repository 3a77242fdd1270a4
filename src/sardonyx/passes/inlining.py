"""Function operators replaced by their definitions, for runtimes that have few operators."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import Builder
from sardonyx.passes.functions import expand
from sardonyx.passes.nesting import graphs, names

# Operators that ONNX had by this version are in every runtime, such as Relu and Softmax, although
# newer versions of ONNX define some of them by others.
EVERYWHERE = 11


def is_inlined(node: ir.Node) -> bool:
    """Whether an operator is a function of others, and not one that every runtime has."""
    if not opset.has_body(node.op_type, node.domain):
        return False
    return opset.history(node.op_type, node.domain)[0].since_version > EVERYWHERE


def inline_functions(graph: ir.Graph) -> None:
    """Replace losses, normalizations and other function operators of a graph, in place, until none
    is left. Their constants stay nodes.
    """
    namer = Builder()
    namer.reserve(names(graph))
    pending = [node for part in graphs(graph) for node in part]
    while pending:
        node = pending.pop()
        if is_inlined(node):
            pending.extend(expand(node, namer) or ())
