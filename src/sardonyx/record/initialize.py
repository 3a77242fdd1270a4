"""The `initialization` graph of a record: starting values as ONNX nodes
(`initializer.py` defines them).
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ArgumentError, quote
from sardonyx.initializer import Initializer, as_used, matrix, spread
from sardonyx.model import Model, Record
from sardonyx.record.builder import RecordBuilder

# Newton-Schulz steps that bring a random matrix to an orthogonal one in float32.
ORTHOGONAL_STEPS = 40


def write_initialization(
    record: Record, model: Model, builder: RecordBuilder, patterns: Mapping[str, str | Initializer]
) -> None:
    """Give the record an initialization: of its slots, and of the parameters in `patterns`."""
    op = Builder("initialize")
    outputs: list[tuple[str, ir.Value]] = []
    for name, slot in builder.slots.items():
        outputs.append((name, _constant(op, slot.start)))
    for pattern, initializer in patterns.items():
        parameters = [n for n in builder.updates if fnmatchcase(n, pattern)]
        if not parameters:
            raise ArgumentError(f"no trained parameter matches {quote(pattern)} in `initialize`")
        for name in parameters:
            outputs.append((name, _start(op, initializer, model.graph.initializers[name])))
    results = []
    for name, value in outputs:
        result = op.Identity(value)
        result.name = f"{name}/start"
        result.shape = value.shape
        results.append(result)
        record.initialization_binding.append((name, f"{name}/start"))
    initializers = list(op.constants.values())
    record.initialization = ir.Graph(
        [], results, nodes=op.nodes, initializers=initializers, name="initialize"
    )


def _constant(op: Builder, start: np.ndarray) -> ir.Value:
    first = start.reshape(-1)[:1].copy()
    if start.size > 1 and (start == first).all():
        value = op.ConstantOfShape(
            np.array(start.shape, np.int64), value=ir.Tensor(first, shape=ir.Shape([1]))
        )
        value.shape = ir.Shape(start.shape)
        return value
    return op.const(start)


def _start(op: Builder, initializer: str | Initializer, value: ir.Value) -> ir.Value:
    start, input_first = as_used(initializer, value)
    shape, dtype = tuple(value.const_value.shape.numpy()), value.const_value.dtype  # type: ignore[union-attr]
    if not input_first:
        return _random(op, start, shape, dtype)
    *rest, wide, narrow = shape
    matrix = _random(op, start, (*rest, narrow, wide), dtype)
    return op.Transpose(matrix, perm=[*range(len(rest)), len(rest) + 1, len(rest)])


def _random(
    op: Builder, start: Initializer, shape: tuple[int, ...], dtype: ir.DataType
) -> ir.Value:
    if start.kind in ("zeros", "ones"):
        return _constant(op, np.full(shape, float(start.kind == "ones"), dtype.numpy()))
    if start.kind == "orthogonal":
        return op.cast(_orthogonal_graph(op, start, shape), dtype)
    kind, size = spread(start, shape)
    if kind == "normal":
        return op.cast(op.RandomNormal(scale=size, shape=list(shape), dtype=1), dtype)
    return op.cast(op.RandomUniform(low=-size, high=size, shape=list(shape), dtype=1), dtype)


def _orthogonal_graph(op: Builder, start: Initializer, shape: tuple[int, ...]) -> ir.Value:
    """The orthogonal factor of a random matrix, by Newton-Schulz: ONNX has no QR."""
    rows, columns = matrix(shape)
    x = op.RandomNormal(shape=[max(rows, columns), min(rows, columns)], dtype=1)
    with op:
        x = x / op.Sqrt(op.ReduceSumSquare(x, keepdims=0))
        for _ in range(ORTHOGONAL_STEPS):
            gram = op.MatMul(op.Transpose(x, perm=[1, 0]), x)
            x = x * 1.5 - op.MatMul(x, gram) * 0.5
        x = x * (1.0 if start.scale is None else start.scale)
    x = x if rows >= columns else op.Transpose(x, perm=[1, 0])
    return op.reshape(x, list(shape))
