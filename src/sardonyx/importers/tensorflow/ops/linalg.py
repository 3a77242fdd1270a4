"""Rules of determinants, inverses and solutions of small systems."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

LARGEST = 16  # rows of a matrix, each of which takes a dozen nodes


@importer("MatrixDeterminant")
def matrix_determinant(op: Writer, x: ir.Value) -> ir.Value:
    return op.Det(x)


@importer("MatrixInverse")
def matrix_inverse(op: Writer, x: ir.Value, *, adjoint: bool) -> ir.Value:
    n = x.shape[-1] if x.shape is not None else None
    if not isinstance(n, int) or n > LARGEST:
        raise Refusal("the inverse of a matrix of more than 16 rows, or of a free size")
    a = op.swap(x) if adjoint else x
    unit = op.const(np.eye(n, dtype=x.dtype.numpy()))  # type: ignore[union-attr]
    lead = list(x.shape)[:-2]  # type: ignore[arg-type]
    if lead:
        unit = op.Expand(unit, op.join([*op.dims(x, 0, -2), n, n]))
    return _solved(op, a, unit, n)


@importer("MatrixSolve")
def matrix_solve(op: Writer, a: ir.Value, b: ir.Value, *, adjoint: bool) -> ir.Value:
    n = a.shape[-1] if a.shape is not None else None
    if not isinstance(n, int) or n > LARGEST:
        raise Refusal("a system of more than 16 equations, or of a free number")
    return _solved(op, op.swap(a) if adjoint else a, b, n)


def _solved(op: Writer, a: ir.Value, b: ir.Value, n: int) -> ir.Value:
    """Gauss-Jordan elimination that takes the largest pivot of each column."""
    both = op.Concat(a, b, axis=-1)
    rows = rank(a) - 2
    order: list[ir.Value] = []
    used: ir.Value | None = None
    for column in range(n):
        entries = op.Gather(both, op.const(np.int64(column)), axis=-1)
        size = op.Abs(entries)
        if used is not None:
            size = op.Where(used, op.like(-1, size), size)
        pivot = op.ArgMax(size, axis=-1, keepdims=1)  # [..., 1]
        hot = op.Equal(pivot, op.const(np.arange(n)))
        used = hot if used is None else op.Or(used, hot)
        order.append(pivot)
        mask = op.cast(op.Unsqueeze(hot, [-1]), both.dtype)
        row = op.ReduceSum(op.Mul(both, mask), [rows], keepdims=1)
        lead = op.part(row, -1, column, column + 1)
        row = op.Div(row, lead)
        factor = op.Unsqueeze(entries, [-1])
        cleared = op.Sub(both, op.Mul(factor, row))
        both = op.Where(op.Unsqueeze(hot, [-1]), row, cleared)
    answer = op.part(both, -1, n, np.iinfo(np.int64).max)
    places = op.Concat(*order, axis=-1) if n > 1 else order[0]
    width = op.dim(answer, -1)
    index = op.Unsqueeze(places, [-1])
    index = op.Expand(index, op.join([*op.dims(answer, 0, -1), width]))
    return op.GatherElements(answer, index, axis=rows)


@importer("Cholesky")
def cholesky(op: Writer, a: ir.Value) -> ir.Value:
    """Column by column: each leaves its product with itself out of the rest."""
    columns = []
    for j in range(_rows(a)):
        column = op.part(a, -1, j, j + 1)
        diagonal = op.Sqrt(op.part(column, -2, j, j + 1))
        below = np.arange(_rows(a))[:, None] >= j
        column = op.Where(op.const(below), op.Div(column, diagonal), op.like(0, a))
        columns.append(column)
        a = op.Sub(a, op.MatMul(column, op.swap(column)))
    return op.Concat(*columns, axis=-1)


@importer("MatrixTriangularSolve")
def matrix_triangular_solve(
    op: Writer, a: ir.Value, b: ir.Value, *, lower: bool, adjoint: bool
) -> ir.Value:
    """Substitution: each unknown row is taken out of the right-hand sides of the rest."""
    n = _rows(a)
    a, lower = (op.swap(a), not lower) if adjoint else (a, lower)
    answers: dict[int, ir.Value] = {}
    for j in range(n) if lower else reversed(range(n)):
        column = op.part(a, -1, j, j + 1)
        answers[j] = op.Div(op.part(b, -2, j, j + 1), op.part(column, -2, j, j + 1))
        b = op.Sub(b, op.MatMul(column, answers[j]))
    return op.Concat(*(answers[j] for j in range(n)), axis=-2)


def _rows(a: ir.Value) -> int:
    n = a.shape[-1] if a.shape is not None else None
    if not isinstance(n, int) or not 0 < n <= LARGEST:
        raise Refusal("a matrix of more than 16 rows, or of a free number")
    return n


@importer("Qr", "Svd", "SelfAdjointEigV2", "MatrixExponential")
def decompositions(op: Writer, *operands: ir.Value) -> ir.Value:
    raise Refusal("ONNX has no decompositions of matrices")
