"""Rules of diagonals and bands of matrices.

Where the sizes of the matrices are known, TensorFlow itself moves the numbers of elements, and one
Gather moves the elements alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import rank
from sardonyx.importers.tensorflow.evaluation import run
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


def _moved(
    op: Writer,
    node: Any,
    moved: Sequence[tuple[int, ir.Value, int]],
    others: dict[int, np.ndarray],
    filler: ir.Value | None = None,
    filler_place: int | None = None,
) -> ir.Value:
    """The result of an operator that moves elements of the last axes.

    moved  -- operands whose elements move: their place, their value, how many last axes
    others -- arrays of the other operands, by place
    filler -- the value of elements that come from none, given to the operator as -1
    """
    batch = rank(moved[0][1]) - moved[0][2]
    arrays: dict[int, np.ndarray] = dict(others)
    rows, count = [], 0
    for place, value, axes in moved:
        dims = list(value.shape)[rank(value) - axes :]  # type: ignore[arg-type]
        if any(not isinstance(d, int) for d in dims):
            raise Refusal("matrices of a free size")
        size = int(np.prod(dims)) if dims else 1  # type: ignore[arg-type]
        numbers = np.arange(count, count + size, dtype=np.float64).reshape(dims)  # type: ignore[arg-type]
        arrays[place] = numbers.reshape((1,) * batch + numbers.shape)
        rows.append(_rows(op, value, batch))
        count += size
    if filler_place is not None:
        arrays[filler_place] = np.array(-1.0)
    results = _numbers(node, [arrays[i] for i in range(len(node.inputs))])
    if results is None:
        raise Refusal("a diagonal that TensorFlow does not compute")
    target = results[0].reshape(results[0].shape[batch:])
    flat = rows[0] if len(rows) == 1 else op.Concat(*rows, axis=-1)
    index = np.round(target).astype(np.int64)
    if filler is not None:
        index = np.where(index < 0, count, index)
        tail = op.Reshape(filler, [1] * (batch + 1))
        if batch:
            sizes = op.join([*[op.dim(flat, a) for a in range(batch)], 1])
            tail = op.Expand(tail, sizes)
        flat = op.Concat(flat, tail, axis=-1)
    return op.Gather(flat, index, axis=batch)


def _rows(op: Writer, x: ir.Value, batch: int) -> ir.Value:
    if rank(x) == batch + 1:
        return x
    return op.Reshape(x, [*[0] * batch, -1]) if batch else op.Reshape(x, [-1])


def _numbers(node: Any, arrays: list[np.ndarray]) -> list[np.ndarray] | None:
    """The operator in float64, whatever its type is."""
    return run(_Double(node), arrays)


class _Double:
    """A node of TensorFlow as if its elements were float64."""

    def __init__(self, node: Any):
        self.node, self.type, self.op_def = node, node.type, node.op_def
        generic = {a.name: a.type_attr for a in node.op_def.input_arg}
        self.inputs = [_Typed(t) for t in node.inputs]
        for typed, kind in zip(self.inputs, generic.values(), strict=True):
            if kind == "T":
                typed.dtype = tf.float64

    def get_attr(self, name: str) -> Any:
        return self.node.get_attr(name)


class _Typed:
    def __init__(self, tensor: Any):
        self.dtype, self.shape = tensor.dtype, tensor.shape


def _zero(op: Writer, x: ir.Value) -> ir.Value:
    return op.const(np.array(False)) if x.dtype == T.BOOL else op.like(0, x)


@importer("MatrixDiag")
def matrix_diag(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    """Without a value to fill with: its zeros are told from the first element by adding one."""
    size = x.shape[-1] if x.shape is not None else None
    if not isinstance(size, int):
        n = op.dim_value(x, -1)
        same = op.Equal(op.Unsqueeze(op.count(n), [1]), op.Unsqueeze(op.count(n), [0]))
        return op.where(same, op.Unsqueeze(x, [-1]), _zero(op, x))
    same = op.const(np.eye(size, dtype=bool))
    return op.where(same, op.Unsqueeze(x, [-1]), _zero(op, x))


@importer("MatrixDiagV2", "MatrixDiagV3")
def matrix_diag_v3(
    op: Writer,
    x: ir.Value,
    k: ir.Value,
    rows: ir.Value,
    columns: ir.Value,
    filler: ir.Value,
    *,
    node: Any,
) -> ir.Value:
    bounds = op.known(k, "a diagonal")
    several = bounds.size == 2 and bounds[0] != bounds[1]
    others = {1: bounds, 2: op.known(rows, "a size"), 3: op.known(columns, "a size")}
    return _moved(op, node, [(0, x, 2 if several else 1)], others, filler, 4)


@importer("MatrixDiagPart")
def matrix_diag_part(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    return _moved(op, node, [(0, x, 2)], {})


@importer("MatrixDiagPartV2", "MatrixDiagPartV3")
def matrix_diag_part_v3(
    op: Writer, x: ir.Value, k: ir.Value, filler: ir.Value, *, node: Any
) -> ir.Value:
    return _moved(op, node, [(0, x, 2)], {1: op.known(k, "a diagonal")}, filler, 2)


@importer("MatrixSetDiag")
def matrix_set_diag(op: Writer, x: ir.Value, diagonal: ir.Value, *, node: Any) -> ir.Value:
    return _moved(op, node, [(0, x, 2), (1, diagonal, 1)], {})


@importer("MatrixSetDiagV2", "MatrixSetDiagV3")
def matrix_set_diag_v3(
    op: Writer, x: ir.Value, diagonal: ir.Value, k: ir.Value, *, node: Any
) -> ir.Value:
    bounds = op.known(k, "a diagonal")
    several = bounds.size == 2 and bounds[0] != bounds[1]
    parts = [(0, x, 2), (1, diagonal, 2 if several else 1)]
    return _moved(op, node, parts, {2: bounds})


@importer("Diag")
def diag(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    if rank(x) != 1:
        raise Refusal("a diagonal of more than two axes")
    return matrix_diag(op, x, node=node)


@importer("DiagPart")
def diag_part(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    return _moved(op, node, [(0, x, rank(x))], {})


@importer("MatrixBandPart")
def matrix_band_part(op: Writer, x: ir.Value, lower: ir.Value, upper: ir.Value) -> ir.Value:
    """Elements with row - column ≤ lower and column - row ≤ upper; a negative bound is none."""
    rows, columns = op.dim_value(x, -2), op.dim_value(x, -1)
    below = op.Sub(op.Unsqueeze(op.count(rows), [1]), op.Unsqueeze(op.count(columns), [0]))
    keep: ir.Value | None = None
    for bound, distance in ((lower, below), (upper, op.Neg(below))):
        limit = op.int64(bound)
        inside = op.Or(op.LessOrEqual(distance, limit), op.Less(limit, op.const(np.int64(0))))
        keep = inside if keep is None else op.And(keep, inside)
    assert keep is not None
    return op.where(keep, x, _zero(op, x))
