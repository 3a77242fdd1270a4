"""Operators of ONNX that TensorFlow writes as several: Gelu, BatchNormalization, MatMul.

Each function gets the operands of the last of them, and gives None where they are anything else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.build import constant, rank
from sardonyx.importers.tensorflow.writer import Size, Writer


def gelu(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value | None:
    """(x / 2) erfc(-x / √2), as `tf.nn.gelu` computes it, and x (erf(x / √2) + 1) / 2."""
    for half, tail in ((a, b), (b, a)):
        inner = tail.meta.get("erfc")
        if inner is None:
            continue
        for x in _scaled(half, 0.5):
            if any(_is_negative(v, x) for v in _scaled(inner, math.sqrt(0.5))) or any(
                v is x for v in _scaled(inner, -math.sqrt(0.5))
            ):
                return op.Gelu(x)
    return None


def _scaled(value: ir.Value, factor: float) -> Iterator[ir.Value]:
    """What `value` is the product of, beside the constant `factor`."""
    node = value.producer()
    if node is None or node.op_type not in ("Mul", "Div"):
        return
    pairs = zip(node.inputs, reversed(node.inputs), strict=True)
    for x, y in list(pairs)[: 2 if node.op_type == "Mul" else 1]:
        array = constant(y)
        if x is None or array is None or array.size != 1:
            continue
        number = float(array.reshape(-1)[0])
        number = number if node.op_type == "Mul" else 1 / number
        if abs(number - factor) <= 1e-6 * abs(factor):
            yield x


def _is_negative(value: ir.Value, x: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "Neg" and node.inputs[0] is x


def batch_normalization(op: Writer, a: ir.Value, b: ir.Value) -> ir.Value | None:
    """x i + (offset - mean i) with i = scale / √(variance + ε): `tf.nn.batch_normalization`."""
    for product, rest in ((a, b), (b, a)):
        shift = rest.producer()
        if shift is None or shift.op_type != "Sub":
            continue
        offset, moved = shift.inputs
        for x, inverse in _factors(product):
            for mean, other in _factors(moved):
                if other is not inverse or offset is None:
                    continue
                y = _normalized(op, x, inverse, offset, mean)
                if y is not None:
                    return y
    return None


def _factors(value: ir.Value | None) -> list[tuple[ir.Value, ir.Value]]:
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "Mul":
        return []
    first, second = node.inputs
    return [(first, second), (second, first)]  # type: ignore[list-item]


def _normalized(
    op: Writer, x: ir.Value, inverse: ir.Value, offset: ir.Value, mean: ir.Value
) -> ir.Value | None:
    for root, scale in _factors(inverse):
        reciprocal = root.producer()
        if reciprocal is None or reciprocal.op_type != "Reciprocal":
            continue
        sqrt = reciprocal.inputs[0].producer()  # type: ignore[union-attr]
        total = sqrt.inputs[0].producer() if sqrt is not None and sqrt.op_type == "Sqrt" else None  # type: ignore[union-attr]
        if total is None or total.op_type != "Add":
            continue
        variance, epsilon = total.inputs
        array = constant(epsilon)
        vectors = [_vector(v) for v in (scale, offset, mean, variance)]
        if array is None or array.size != 1 or not _fit(x, vectors):
            continue
        return _written(op, x, vectors, float(array.reshape(-1)[0]))
    return None


def _vector(value: ir.Value | None) -> ir.Value | None:
    """A vector that was reshaped to [1, …, 1, channels]."""
    node = value.producer() if value is not None else None
    if value is None or node is None or node.op_type != "Reshape" or value.shape is None:
        return value
    source, dims = node.inputs[0], list(value.shape)
    plain = source is not None and source.shape is not None and list(source.shape) == dims[-1:]
    return source if plain and set(dims[:-1]) <= {1} else value


def _fit(x: ir.Value, vectors: list[ir.Value | None]) -> bool:
    """Whether there is one number for each of the last axis's channels."""
    if x.shape is None or len(x.shape) < 2 or not isinstance(x.shape[-1], int):
        return False
    return all(
        v is not None and v.shape is not None and list(v.shape) == [x.shape[-1]] for v in vectors
    )


def _written(op: Writer, x: ir.Value, vectors: list[ir.Value | None], epsilon: float) -> ir.Value:
    first = op.channels_first(x) if rank(x) > 2 else x
    y = op.BatchNormalization(first, *vectors, epsilon=epsilon)
    return op.channels_last(y) if rank(x) > 2 else y


def product(x: ir.Value, sizes: Sequence[Any]) -> tuple[ir.Value, ir.Value] | None:
    """A product of matrices whose rows were flattened, and now get their axes back.

    sizes -- of the result: ints and `Size`s

    Gives the operands of the same product with all axes: `tf.tensordot` and layers of rank three.
    """
    node = x.producer()
    if node is None or node.op_type != "MatMul":
        return None
    rows, weight = node.inputs
    flat = rows.producer() if rows is not None else None
    if flat is None or flat.op_type != "Reshape" or weight is None or weight.shape is None:
        return None
    source = flat.inputs[0]
    if source is None or source.shape is None or rows is None or rows.shape is None:
        return None
    fits = len(source.shape) == len(sizes) > 2 and len(rows.shape) == len(weight.shape) == 2
    if not fits or rows.shape[-1] != source.shape[-1] or weight.shape[-1] != sizes[-1]:
        return None
    for axis, size in enumerate(sizes[:-1]):
        length = source.shape[axis]
        same = size == length if isinstance(length, int) else Size(source, axis).same(size)
        if not same:
            return None
    return source, weight
