"""Products of one row by one column, many at once, as the gradient of batch normalization sums over
the pixels of an image.

onnxruntime multiplies a row by a column number by number. Long rows are several times faster by a
product whose second operand is a row too, which the kernel transposes. Short rows, each of which
would be a product of its own, are faster as one multiplication and one sum.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.passes.nesting import names

DOMAIN = "com.microsoft"
LONG = 256  # numbers in a row from which on a product is as fast; it needs no memory either


def rewrite_dots(graph: ir.Graph) -> int:
    """Rewrite the products of rows by columns in a step; how many there are."""
    nodes = [node for node in graph if _is_dot(node)]
    if not nodes:
        return 0
    op = Builder("sardonyx/dots")
    op.reserve(names(graph))
    for node in nodes:
        row, column = _without(op, node, 0, -2), _without(op, node, 1, -1)
        last, new = (_product if _length(node) >= LONG else _sum)(op, node, row, column)
        old = last.outputs[0]
        graph.insert_before(last, op.nodes)
        op.nodes = []
        new.type, new.shape, name = old.type, old.shape, old.name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name, new.name = f"{name}/plain", name
        graph.remove([node] if last is node else [last, node], safe=True)
    for value in op.constants.values():
        graph.register_initializer(value)
    return len(nodes)


def _is_dot(node: ir.Node) -> bool:
    """Whether a node multiplies rows by columns, each a matrix of its own."""
    if node.op_type != "MatMul" or node.domain != "":
        return False
    a, b = node.inputs
    if a is None or b is None or a.shape is None or b.shape is None:
        return False
    if a.dtype != ir.DataType.FLOAT or len(a.shape) != len(b.shape) or len(a.shape) < 3:
        return False
    return a.shape[-2] == 1 and b.shape[-1] == 1 and isinstance(a.shape[-1], int)


def _length(node: ir.Node) -> int:
    length = node.inputs[0].shape[-1]  # type: ignore[union-attr, index]
    assert isinstance(length, int)
    return length


def _without(op: Builder, node: ir.Node, index: int, axis: int) -> ir.Value:
    """An operand without its axis of one element."""
    value = node.inputs[index]
    assert value is not None and value.shape is not None
    maker, place = value.producer(), len(value.shape) + axis
    if maker is not None and maker.op_type == "Unsqueeze" and _constant(maker, 1) == [place]:
        assert maker.inputs[0] is not None
        return maker.inputs[0]
    return op.Squeeze(value, [place])


def _constant(node: ir.Node, index: int) -> list[int] | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = value.const_value if value is not None and value.is_initializer() else None
    return None if tensor is None else tensor.numpy().reshape(-1).tolist()


def _product(
    op: Builder, node: ir.Node, row: ir.Value, column: ir.Value
) -> tuple[ir.Node, ir.Value]:
    """The node whose output is replaced, and by what: rows by rows, the second transposed."""
    place = rank(row) - 1
    inputs = [op.Unsqueeze(row, [place]), op.Unsqueeze(column, [place])]
    product = ir.node("FusedMatMul", inputs, {"transB": 1}, domain=DOMAIN, name=f"{node.name}/rows")
    op.nodes.append(product)
    return node, product.outputs[0]


def _sum(op: Builder, node: ir.Node, row: ir.Value, column: ir.Value) -> tuple[ir.Node, ir.Value]:
    """The same as a multiplication and a sum, together with a sum that follows."""
    place = rank(row) - 1
    terms = op.Mul(row, column)
    readers = node.outputs[0].consumers()
    reader = readers[0] if len(readers) == 1 and not node.outputs[0].is_graph_output() else None
    if reader is not None and reader.op_type == "ReduceSum" and reader.domain == "":
        axes = [a + place + 2 if a < 0 else a for a in _constant(reader, 1) or []]
        if {place, place + 1} <= set(axes) and not reader.attributes.get_int("keepdims", 1):
            return reader, op.ReduceSum(terms, sorted(set(axes) - {place + 1}), keepdims=0)
    return node, op.Unsqueeze(op.ReduceSum(terms, [place], keepdims=0), [place, place + 1])
