"""Other formulations of a step, whose nodes onnxruntime-web places on the GPU.

It computes shapes and whole numbers on the CPU, and takes some operators there that are cheap on
other runtimes: every such node in the middle of a step is a transfer. The rules here are one
function for each operator, which returns what takes the place of the node's outputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.functions import replace

Rule = Callable[[Builder, ir.Node, ir.Graph], "list[ir.Value] | None"]


def rewrite(op: Builder, graph: ir.Graph) -> None:
    """Apply every rule to the nodes of a graph."""
    for rules in (RULES, SIZES):
        for node in list(graph):
            rule = rules.get(node.op_type)
            if rule is None or node.domain:
                continue
            with op, op.named(node.name or node.op_type):
                results = rule(op, node, graph)
            nodes, op.nodes = op.nodes, []
            if results is not None:
                replace(node, nodes, list(results))
        remove_dead(graph)


def gemm(op: Builder, node: ir.Node, graph: ir.Graph) -> list[ir.Value] | None:
    """The sum of rows, where a product with a row of ones computes it."""
    a, b, *c = node.inputs
    ones = a.producer() if a is not None else None
    plain = not any(node.attributes.get_int(n, 0) for n in ("transA", "transB"))
    plain = plain and node.attributes.get_float("alpha", 1.0) == 1.0 and not any(c)
    if ones is None or ones.op_type != "ConstantOfShape" or not plain or b is None:
        return None
    value = ones.attributes.get("value")
    if value is None or value.as_tensor().numpy().item() != 1 or a is None or a.shape is None:
        return None
    return [op.ReduceSum(b, [0], keepdims=1)] if a.shape[0] == 1 else None


def softmax_cross_entropy_loss(
    op: Builder, node: ir.Node, graph: ir.Graph
) -> list[ir.Value] | None:
    """The mean over rows by the logarithm of sums: there is no kernel for LogSoftmax."""
    x, label = node.inputs[0], node.inputs[1]
    settings = node.attributes
    mean = "reduction" not in settings or settings["reduction"].as_string() == "mean"
    plain = mean and "ignore_index" not in settings and not any(node.inputs[2:])
    if not plain or x is None or x.shape is None or len(x.shape) != 2 or label is None:
        return None
    shifted = op.Sub(x, op.ReduceMax(x, [1], keepdims=1))
    logs = op.Sub(shifted, op.Log(op.ReduceSum(op.Exp(shifted), [1], keepdims=1)))
    losses = op.GatherElements(logs, op.Unsqueeze(label, [1]), axis=1)
    return [op.Neg(op.ReduceMean(losses, keepdims=0)), logs][: len(node.outputs)]


def sum_(op: Builder, node: ir.Node, graph: ir.Graph) -> list[ir.Value] | None:
    """One addition after the other: there is no kernel for Sum."""
    first, *others = (v for v in node.inputs if v is not None)
    if not others:
        return None
    for value in others:
        first = op.Add(first, value)
    return [first]


def div(op: Builder, node: ir.Node, graph: ir.Graph) -> list[ir.Value] | None:
    """A number, where the quotient of two sizes does not depend on the batch."""
    sizes = [_counted(v) for v in node.inputs]
    if None in sizes or node.outputs[0].dtype is None:
        return None
    (above, over), (below, under) = (_factors(v) for v in sizes if v is not None)
    if over != under or not below or above % below:
        return None
    return [op.const(above // below, node.outputs[0].dtype)]


def _counted(value: ir.Value | None) -> ir.Value | None:
    """The value whose elements are counted by Size, and perhaps cast."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Cast":
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    counted = node.inputs[0] if node is not None and node.op_type == "Size" else None
    return counted if counted is not None and counted.shape is not None else None


def _factors(value: ir.Value) -> tuple[int, Counter[str | None]]:
    """The number of elements: the product of the fixed sizes, and the names of the others."""
    dims = list(value.shape or ())
    fixed = math.prod(d for d in dims if isinstance(d, int))
    free = Counter(d.value for d in dims if not isinstance(d, int))
    return fixed, free if None not in free else Counter({f"{id(value)}": 1})


def shape(op: Builder, node: ir.Node, graph: ir.Graph) -> list[ir.Value] | None:
    """The size of the batch by an input of the step, which is there before any computation."""
    (value,) = node.inputs
    if value is None or value.shape is None or value.is_graph_input():
        return None
    dims = list(value.shape)
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", len(dims))
    some = dims[start:end]
    if len(some) != 1 or isinstance(some[0], int):
        return None
    size = _size(op, some[0], graph)
    return None if size is None else [size]


def size(op: Builder, node: ir.Node, graph: ir.Graph) -> list[ir.Value] | None:
    """The number of elements by the size of the batch, as an input of the step has it."""
    (value,) = node.inputs
    if value is None or value.shape is None or value.is_graph_input():
        return None
    free = [d for d in value.shape if not isinstance(d, int)]
    rows = _size(op, free[0], graph) if len(free) == 1 else None
    if rows is None:
        return None
    fixed = math.prod(d for d in value.shape if isinstance(d, int))
    return [op.Squeeze(op.Mul(rows, op.const(fixed, ir.DataType.INT64)), [0])]


def _size(op: Builder, dim: ir.SymbolicDim, graph: ir.Graph) -> ir.Value | None:
    """A free size, as a tensor of one number, by an input that has it."""
    for value in graph.inputs:
        for axis, other in enumerate(value.shape or ()):
            if dim.value is not None and not isinstance(other, int) and other.value == dim.value:
                return op.Shape(value, start=axis, end=axis + 1)  # type: ignore[no-any-return]
    return None


def reshape(op: Builder, node: ir.Node, graph: ir.Graph) -> list[ir.Value] | None:
    """A constant shape, where one size at most is free: that one is left to be inferred."""
    x, target = node.inputs
    dims = _shape_of(target)
    if dims is None or x is None or sum(not isinstance(d, int) for d in dims) > 1 or 0 in dims:
        return None
    return [op.Reshape(x, [d if isinstance(d, int) else -1 for d in dims])]


def expand(op: Builder, node: ir.Node, graph: ir.Graph) -> list[ir.Value] | None:
    """A constant shape, where the free sizes are there before."""
    x, target = node.inputs
    dims = _shape_of(target)
    if dims is None or x is None or x.shape is None or len(x.shape) != len(dims):
        return None
    pairs = [*zip(x.shape, dims, strict=True)]
    if not all(isinstance(d, int) or _same(size, d) for size, d in pairs):
        return None
    return [op.Expand(x, [d if isinstance(d, int) else 1 for d in dims])]


def _same(size: int | ir.SymbolicDim, dim: ir.SymbolicDim) -> bool:
    return not isinstance(size, int) and size.value is not None and size.value == dim.value


def _shape_of(target: ir.Value | None) -> Sequence[int | ir.SymbolicDim] | None:
    """The sizes of the value whose whole shape `target` is."""
    node = target.producer() if target is not None else None
    if node is None or node.op_type != "Shape" or node.inputs[0] is None:
        return None
    whole = not node.attributes.get_int("start", 0) and "end" not in node.attributes
    declared = node.inputs[0].shape
    return list(declared) if whole and declared is not None else None


RULES: dict[str, Rule] = {
    "Div": div,
    "Expand": expand,
    "Gemm": gemm,
    "Reshape": reshape,
    "SoftmaxCrossEntropyLoss": softmax_cross_entropy_loss,
    "Sum": sum_,
}
SIZES: dict[str, Rule] = {"Shape": shape, "Size": size}  # what is left of them
