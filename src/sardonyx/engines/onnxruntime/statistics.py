"""Private buffers for the running statistics of batch normalization.

In training mode onnxruntime writes the running mean and variance over inputs 3 and 4, whatever else
reads them (its kernel demands it: `Alias(3, 1)`, `Alias(4, 2)`). It also merges equal constants and
equal nodes. So a constant changes from run to run, and layers that share a statistic, or whose
statistics equal a bias, overwrite each other. Each such node gets copies that nothing else reads
and that the optimizer can neither fold nor merge: joined with one element of the node's own input,
and cut off again. It is the only kernel that overwrites an input which has other readers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from sardonyx.model import Model
from sardonyx.passes.nesting import graphs

RUNNING = (3, 4)  # the inputs that are overwritten


def own_statistics(model: Model) -> Model:
    """The model, or a copy in which nothing else reads a statistic that is overwritten."""
    if next(_layers(model), None) is None:
        return model
    work = model.copy()
    for number, (graph, node) in enumerate(list(_layers(work))):
        _give_copies(graph, node, f"{node.name or node.outputs[0].name}/{number}", number)
    return work


def _layers(model: Model) -> Iterator[tuple[ir.Graph, ir.Node]]:
    for graph in (model.graph, *(f.graph for f in model.ir.functions.values())):
        for part in graphs(graph):
            yield from ((part, node) for node in part if _overwrites(node))


def _overwrites(node: ir.Node) -> bool:
    """Whether a node overwrites a value that another node may read."""
    if node.op_type != "BatchNormalization" or node.domain != "":
        return False
    if not node.attributes.get_int("training_mode", 0) or len(node.inputs) < 5:
        return False
    if not any(v.name for v in node.outputs[1:]):
        return False
    # With momentum 0, nodes that normalize the same tensor write the same numbers.
    momentum = node.attributes.get_float("momentum", 0.9)
    return momentum != 0 or not all(_comes_from(node.inputs[i], node.inputs[0]) for i in RUNNING)


def _comes_from(value: ir.Value | None, x: ir.Value | None, depth: int = 8) -> bool:
    """Whether a few nodes compute a value from `x`."""
    if value is x:
        return True
    node = value.producer() if value is not None and depth else None
    return node is not None and any(_comes_from(v, x, depth - 1) for v in node.inputs)


def _give_copies(graph: ir.Graph, node: ir.Node, name: str, number: int) -> None:
    nodes: list[ir.Node] = []

    def add(op_type: str, inputs: list[ir.Value | None], **attributes: int) -> ir.Value:
        nodes.append(ir.node(op_type, inputs, attributes, name=f"{name}/{op_type}_{len(nodes)}"))
        nodes[-1].outputs[0].name = f"{name}/own_{len(nodes)}"
        return nodes[-1].outputs[0]

    def vector(item: int) -> ir.Value:
        nodes.append(ir.node("Constant", [], {"value": ir.tensor(np.array([item], np.int64))}))
        nodes[-1].outputs[0].name = f"{name}/own_{len(nodes)}"
        return nodes[-1].outputs[0]

    x, zero = node.inputs[0], vector(0)
    # A different element for each node (or none, past the end): equal nodes would be merged.
    element = add("Reshape", [x, vector(-1)])
    element = add("Slice", [element, vector(number), vector(number + 1), zero])
    for position in RUNNING:
        statistic = node.inputs[position]
        same = statistic is not None and x is not None and x.dtype == statistic.dtype is not None
        like = element if same else add("CastLike", [element, statistic])
        joined = add("Concat", [statistic, like], axis=0)
        size = add("Shape", [statistic])
        node.replace_input_with(position, add("Slice", [joined, zero, size, zero]))
    graph.insert_before(node, nodes)
