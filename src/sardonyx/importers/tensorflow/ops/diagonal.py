"""Rules of diagonals and bands of matrices: the place of each element is computed.

Where sizes and diagonals are constants, so are the places, and one Gather remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant, rank
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


@dataclass
class _Band:
    """The diagonals from `low` to `high`, int64 vectors of one; 0 is the main one.

    single -- whether there is one only, so that it has no axis of its own; None: not known yet
    """

    op: Writer
    low: ir.Value
    high: ir.Value
    align: str
    single: bool | None

    @property
    def count(self) -> ir.Value:
        return self.op.Add(self.op.Sub(self.high, self.low), [1])

    def length(self, d: ir.Value, rows: ir.Value, columns: ir.Value) -> ir.Value:
        """How many elements diagonal `d` has."""
        op, zero = self.op, self.op.const(np.zeros(1, np.int64))
        return op.Min(op.Sub(columns, op.Max(d, zero)), op.Add(rows, op.Min(d, zero)))

    def longest(self, rows: ir.Value, columns: ir.Value) -> ir.Value:
        op, zero = self.op, self.op.const(np.zeros(1, np.int64))
        return op.Min(
            op.Add(rows, op.Min(self.high, zero)), op.Sub(columns, op.Max(self.low, zero))
        )

    def offset(self, d: ir.Value, longest: ir.Value, rows: ir.Value, columns: ir.Value) -> ir.Value:
        """How far the elements of diagonal `d` are moved to the right."""
        op, zero = self.op, self.op.const(np.zeros(1, np.int64))
        space = op.Sub(longest, self.length(d, rows, columns))
        upper, lower = self.align.split("_")
        if upper == lower:
            return space if upper == "RIGHT" else op.Mul(space, zero)
        right = op.GreaterOrEqual(d, zero) if upper == "RIGHT" else op.LessOrEqual(d, zero)
        return op.Where(right, space, zero)


def _band(op: Writer, k: ir.Value | None, node: Any) -> _Band:
    names = {a.name for a in node.op_def.attr}
    align = node.get_attr("align").decode() if "align" in names else "LEFT_LEFT"
    if k is None:
        zero = op.const(np.zeros(1, np.int64))
        return _Band(op, zero, zero, align, True)
    bounds = op.vector(k)
    array = constant(k)
    size = bounds.shape[0] if bounds.shape is not None else None
    if array is not None:
        single: bool | None = array.size == 1 or array.reshape(-1)[0] == array.reshape(-1)[1]
    else:
        single = True if size == 1 else None
    if not isinstance(size, int) or size > 2:
        raise Refusal("diagonals of an unknown number")
    return _Band(op, op.element(bounds, 0), op.element(bounds, size - 1), align, single)


def _all(op: Writer, first: ir.Value, *more: ir.Value) -> ir.Value:
    for value in more:
        first = op.And(first, value)
    return first


def _flat(op: Writer, x: ir.Value, axes: int) -> tuple[ir.Value, int]:
    """`x` with its last axes as one, and the number of those before."""
    batch = rank(x) - axes
    if axes == 1:
        return x, batch
    return op.Reshape(x, [*[0] * batch, -1] if batch else [-1]), batch


# -- out of matrices ------------------------------------------------------------------------------


def _part(op: Writer, x: ir.Value, band: _Band, filler: ir.Value) -> ir.Value:
    rows, columns = op.dim_value(x, -2), op.dim_value(x, -1)
    zero = op.const(np.zeros(1, np.int64))
    longest = band.longest(rows, columns)
    d = op.Unsqueeze(op.Sub(band.high, op.count(band.count)), [1])
    offset = band.offset(d, longest, rows, columns)
    number = op.Sub(op.count(longest), offset)
    row, column = op.Add(number, op.Max(op.Neg(d), zero)), op.Add(number, op.Max(d, zero))
    inside = _all(
        op,
        op.GreaterOrEqual(row, zero),
        op.Less(row, rows),
        op.GreaterOrEqual(column, zero),
        op.Less(column, columns),
    )
    place = op.Where(inside, op.Add(op.Mul(row, columns), column), zero)
    flat, batch = _flat(op, x, 2)
    y = op.where(inside, op.Gather(flat, place, axis=batch), filler)
    if band.single is None:
        several = op.Concat(op.Greater(band.count, [1]), op.const(np.array([True])), axis=0)
        tail = op.Compress(op.Concat(band.count, longest, axis=0), several, axis=0)
        lead = [op.Shape(x, end=-2)] if batch else []
        return op.Reshape(y, op.Concat(*lead, tail, axis=0) if lead else tail)
    return op.Squeeze(y, [batch]) if band.single else y


@importer("MatrixDiagPart")
def matrix_diag_part(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    return _part(op, x, _band(op, None, node), _zero(op, x))


@importer("MatrixDiagPartV2", "MatrixDiagPartV3")
def matrix_diag_part_v3(
    op: Writer, x: ir.Value, k: ir.Value, filler: ir.Value, *, node: Any
) -> ir.Value:
    return _part(op, x, _band(op, k, node), filler)


@importer("DiagPart")
def diag_part(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    if rank(x) != 2:
        raise Refusal("a diagonal of more than two axes")
    return _part(op, x, _band(op, None, node), _zero(op, x))


# -- into matrices --------------------------------------------------------------------------------


def _spread(
    op: Writer, diagonal: ir.Value, band: _Band, rows: ir.Value, columns: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The elements of diagonals at their places in matrices, and which places those are."""
    zero = op.const(np.zeros(1, np.int64))
    length = op.dim_value(diagonal, -1)
    row, column = op.Unsqueeze(op.count(rows), [1]), op.Unsqueeze(op.count(columns), [0])
    d = op.Sub(column, row)
    number = op.Sub(column, op.Max(d, zero))
    number = op.Add(number, band.offset(d, length, rows, columns))
    inside = _all(
        op,
        op.GreaterOrEqual(d, band.low),
        op.LessOrEqual(d, band.high),
        op.GreaterOrEqual(number, zero),
        op.Less(number, length),
    )
    place = op.Add(op.Mul(op.Sub(band.high, d), length), number)
    place = op.Where(inside, place, zero)
    if band.single is None:
        flat = op.Reshape(diagonal, op.Concat([-1], op.Mul(band.count, length), axis=0))
        return op.Gather(flat, place, axis=1), inside
    flat, batch = _flat(op, diagonal, 1 if band.single else 2)
    return op.Gather(flat, place, axis=batch), inside


def _lead(op: Writer, diagonal: ir.Value, band: _Band) -> ir.Value:
    """The shape before the axes of diagonals, which are one or two."""
    end = op.Where(op.Equal(band.count, [1]), op.const(np.array([-1])), op.const(np.array([-2])))
    return op.Slice(op.Shape(diagonal), [0], end, [0])


@importer("MatrixDiag", "Diag")
def matrix_diag(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    if node.type == "Diag" and rank(x) != 1:
        raise Refusal("a diagonal of more than two axes")
    size = op.dim_value(x, -1)
    y, inside = _spread(op, x, _band(op, None, node), size, size)
    return op.where(inside, y, _zero(op, x))


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
    band = _band(op, k, node)
    zero, length = op.const(np.zeros(1, np.int64)), op.dim_value(x, -1)
    least = op.Sub(length, op.Min(band.high, zero)), op.Add(length, op.Max(band.low, zero))
    extents = op.Reshape(op.int64(rows), [1]), op.Reshape(op.int64(columns), [1])
    free = tuple(op.Less(v, zero) for v in extents)
    both = op.And(*free)
    sizes = [
        op.Where(f, op.Where(both, op.Max(*least), size), v)
        for f, size, v in zip(free, least, extents, strict=True)
    ]
    y, inside = _spread(op, x, band, *sizes)
    y = op.where(inside, y, filler)
    if band.single is None:
        return op.Reshape(y, op.Concat(_lead(op, x, band), *sizes, axis=0))
    return y


@importer("MatrixSetDiag")
def matrix_set_diag(op: Writer, x: ir.Value, diagonal: ir.Value, *, node: Any) -> ir.Value:
    return _set(op, x, diagonal, _band(op, None, node))


@importer("MatrixSetDiagV2", "MatrixSetDiagV3")
def matrix_set_diag_v3(
    op: Writer, x: ir.Value, diagonal: ir.Value, k: ir.Value, *, node: Any
) -> ir.Value:
    return _set(op, x, diagonal, _band(op, k, node))


def _set(op: Writer, x: ir.Value, diagonal: ir.Value, band: _Band) -> ir.Value:
    y, inside = _spread(op, diagonal, band, op.dim_value(x, -2), op.dim_value(x, -1))
    if band.single is None:
        y = op.Reshape(y, op.Shape(x))
    return op.where(inside, y, x)


def _zero(op: Writer, x: ir.Value) -> ir.Value:
    return op.const(np.array(False)) if x.dtype == T.BOOL else op.like(0, x)


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
