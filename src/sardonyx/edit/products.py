"""Products with a stored weight, and what a low-rank adapter beside each computes.

MatMul, Gemm and Conv; the weight may be stored as it is read, or behind operators that rearrange or
dequantize it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import FLOATS, Builder, constant
from sardonyx.edit.dequantize import along
from sardonyx.errors import ModelError, quote

OPERATORS = ("MatMul", "Gemm", "Conv")
# Operators that may stand between a stored weight and its product.
BETWEEN = ("Transpose", "Identity", "Cast", "DequantizeLinear", "Reshape", "Mul")


@dataclass(frozen=True)
class Product:
    """A product with a stored weight.

    position -- the input of `node` that the weight is
    operand  -- what the node reads there
    weight   -- the stored tensor behind it
    """

    node: ir.Node
    position: int
    operand: ir.Value
    weight: ir.Value

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(d) for d in self.operand.shape)  # type: ignore[union-attr,arg-type]

    @property
    def dtype(self) -> Any:
        assert self.operand.dtype is not None
        return self.operand.dtype.numpy()

    @property
    def group(self) -> int:
        return self.node.attributes.get_int("group", 1) if self.node.op_type == "Conv" else 1

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for products that can share an adapter: they read a weight in the same way."""
        layout = tuple(self.node.attributes.get_int(n, 0) for n in ("transA", "transB"))
        return id(self.operand), self.node.op_type, self.position, self.group, layout

    @property
    def is_transposed(self) -> bool:
        """Whether a Gemm reads its weight transposed."""
        name = "transB" if self.position == 1 else "transA"
        return self.node.op_type == "Gemm" and self.node.attributes.get_int(name, 0) == 1

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows (inputs) and columns (outputs) of the weight as a matrix, of one group."""
        sizes = self.sizes
        if self.node.op_type == "Conv":
            return math.prod(sizes[1:]), sizes[0] // self.group
        rows, columns = sizes[-2:]
        return (columns, rows) if self.is_transposed != (self.position == 0) else (rows, columns)

    @property
    def grouping(self) -> str:
        return f", {self.group} groups" if self.group > 1 else ""

    def factors(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of A as (out, in, …), in which it is drawn, and the shape of B."""
        sizes = self.sizes
        if self.node.op_type == "Conv":
            ones = (1,) * (len(sizes) - 2)
            return (rank * self.group, *sizes[1:]), (sizes[0], rank, *ones)
        rows, columns = self.matrix
        batch = sizes[:-2]
        second = (rank, columns) if self.position == 1 else (columns, rank)
        return (rank * math.prod(batch), rows), (*batch, *second)

    def started_shape(self, rank: int) -> tuple[int, ...]:
        """The shape of A."""
        if self.node.op_type == "Conv":
            return self.factors(rank)[0]
        rows, batch = self.matrix[0], self.sizes[:-2]
        return (*batch, *((rows, rank) if self.position == 1 else (rank, rows)))

    def started(self, numbers: np.ndarray) -> np.ndarray:
        """A, out of numbers that were drawn in the shape (out, in, …)."""
        if self.node.op_type != "Conv":
            batch = self.sizes[:-2]
            numbers = numbers.reshape(*batch, -1, numbers.shape[-1])
            numbers = np.swapaxes(numbers, -1, -2) if self.position == 1 else numbers
        return np.ascontiguousarray(numbers, self.dtype)

    def path(self, op: Builder, a: ir.Value, b: ir.Value, scale: float, dropout: float) -> ir.Value:
        """What the adapter adds to the result of the product."""
        x = self.node.inputs[0 if self.position else 1]
        assert x is not None
        if dropout:
            x = op.Dropout(x, op.const(np.float32(dropout)))
        factor = scale * self._gain
        number = op.const(np.asarray(factor, self.dtype))
        if self.node.op_type == "Conv":
            settings = {k: v.value for k, v in self.node.attributes.items()}
            ones = len(self.sizes) - 2
            inner = op.Conv(x, a, **settings)
            return op.Conv(
                op.Mul(inner, number),
                b,
                group=self.group,
                kernel_shape=[1] * ones,
                strides=[1] * ones,
                dilations=[1] * ones,
                pads=[0] * (2 * ones),
            )
        other = "transA" if self.position == 1 else "transB"
        if self.node.op_type == "Gemm" and self.node.attributes.get_int(other, 0) == 1:
            x = op.Transpose(x, perm=[1, 0])
        if self.position == 1:
            return op.MatMul(op.Mul(op.MatMul(x, a), number), b)
        return op.MatMul(b, op.Mul(op.MatMul(a, x), number))

    @property
    def _gain(self) -> float:
        """What a Gemm multiplies its product by."""
        return self.node.attributes.get_float("alpha", 1.0) if self.node.op_type == "Gemm" else 1.0

    def change(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """A·B in the layout of the weight, in float64."""
        a, b = a.astype(np.float64), b.astype(np.float64)
        if self.node.op_type == "Conv":
            groups, sizes = self.group, self.sizes
            rows = a.reshape(groups, a.shape[0] // groups, -1)
            columns = b.reshape(groups, b.shape[0] // groups, -1)
            return (columns @ rows).reshape(sizes)
        product = a @ b if self.position == 1 else b @ a
        return np.swapaxes(product, -1, -2) if self.is_transposed else product


def adaptable(node: ir.Node) -> Product | None:
    """The product of a node, if one of its operands is a stored float weight of known size."""
    if node.domain != "" or node.op_type not in OPERATORS:
        return None
    for position in (1,) if node.op_type == "Conv" else (1, 0):
        operand = node.inputs[position]
        source = _source(operand)
        if operand is None or source is None or operand.dtype not in FLOATS:
            continue
        if not _is_matrix(operand, node.inputs[1 - position]):
            continue
        product = Product(node, position, operand, source)
        return product if product.group > 0 else None
    return None


def _is_matrix(operand: ir.Value, other: ir.Value | None) -> bool:
    sizes: Sequence[Any] = () if operand.shape is None else tuple(operand.shape)
    if len(sizes) < 2 or not all(isinstance(d, int) and d > 0 for d in sizes):
        return False
    return other is not None and _source(other) is None  # a constant product has no activations


def _source(value: ir.Value | None) -> ir.Value | None:
    """The stored tensor behind an operand."""
    while value is not None and (node := value.producer()) is not None:
        if node.domain != "" or node.op_type not in BETWEEN:
            return None
        if any(v is not None and _source(v) is None for v in node.inputs[1:]):
            return None
        value = node.inputs[0]
    return value if value is not None and value.is_initializer() else None


def stored_array(value: ir.Value | None) -> np.ndarray:
    """The numbers of an operand that is stored, as the graph computes them."""
    array = constant(value)
    if array is not None:
        return array
    if value is not None and value.is_initializer() and value.const_value is not None:
        return value.const_value.numpy()  # an input whose default it is
    node = None if value is None else value.producer()
    if node is None or value is None:
        raise ModelError(f"{quote(None if value is None else value.name)} is not stored")
    inputs = [None if v is None else stored_array(v) for v in node.inputs]
    first = inputs[0]
    assert first is not None
    if node.op_type == "Identity":
        return first
    if node.op_type == "Cast":
        return first.astype(value.dtype.numpy())  # type: ignore[union-attr]
    if node.op_type == "Transpose":
        return np.transpose(first, node.attributes.get_ints("perm"))
    if node.op_type == "Reshape":
        assert value.shape is not None
        return first.reshape(value.shape.numpy())
    if node.op_type == "Mul":
        assert inputs[1] is not None
        return np.multiply(first, inputs[1])
    return _dequantized(node, first, inputs)


def _dequantized(
    node: ir.Node, levels: np.ndarray, inputs: Sequence[np.ndarray | None]
) -> np.ndarray:
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    scale = inputs[1]
    zero = inputs[2] if len(inputs) > 2 else None
    assert scale is not None
    centred = levels.astype(np.float32)
    if zero is not None:
        centred = centred - along(zero, levels, axis, block).astype(np.float32)
    return (centred * along(scale, levels, axis, block).astype(np.float32)).astype(scale.dtype)
