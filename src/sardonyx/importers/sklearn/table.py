"""The input of an estimator: one matrix, or columns with names and types of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ImportRefused

FLOAT, DOUBLE, INT64, STRING, BOOL = (
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.INT64,
    ir.DataType.STRING,
    ir.DataType.BOOL,
)


@dataclass
class Columns:
    """Columns, each of shape [rows, 1]."""

    parts: list[ir.Value]


Table = ir.Value | Columns


def texts(op: Builder, values: Sequence[Any] | np.ndarray) -> ir.Value:
    """A constant of texts."""
    array = np.asarray(values, object)
    key = ("texts", array.shape, tuple(map(str, array.reshape(-1))))
    constants = op.root.constants
    if key not in constants:
        tensor = ir.StringTensor(
            [str(v).encode() for v in array.reshape(-1)],
            shape=ir.Shape(array.shape),
            name=op.fresh("texts"),
        )
        constants[key] = ir.Value(
            name=tensor.name, shape=tensor.shape, type=ir.TensorType(STRING), const_value=tensor
        )
    return constants[key]


def constant(op: Builder, array: Any) -> ir.Value:
    """A constant: floats in double, integers in int64, booleans, texts."""
    array = np.asarray(array)
    if array.dtype.kind in "OUST":
        return texts(op, array.astype(object))
    wide = {"f": np.float64, "i": np.int64, "u": np.int64, "b": np.bool_}[array.dtype.kind]
    return op.const(array.astype(wide))


def width(x: Table) -> int:
    if isinstance(x, Columns):
        return len(x.parts)
    assert x.shape is not None
    size = x.shape[1] if len(x.shape) > 1 else None
    if not isinstance(size, int):
        raise ImportRefused("the number of columns between two steps is not known")
    return size


def column(op: Builder, x: Table, i: int) -> ir.Value:
    """Column `i`, of shape [rows, 1]."""
    if isinstance(x, Columns):
        return x.parts[i]
    return x if width(x) == 1 else op.Gather(x, np.array([i]), axis=1)


def select(op: Builder, x: Table, which: Any) -> Table:
    """Some of the columns, in this order."""
    which = [int(i) for i in which]
    if isinstance(x, Columns):
        return Columns([x.parts[i] for i in which])
    if which == list(range(width(x))):
        return x
    return op.Gather(x, np.array(which, np.int64), axis=1)


def matrix(op: Builder, x: Table) -> ir.Value:
    """One matrix of floats: float32 where every column is, else double."""
    if not isinstance(x, Columns):
        return x if x.dtype in (FLOAT, DOUBLE, STRING) else op.cast(x, DOUBLE)
    kinds = {p.dtype for p in x.parts}
    if kinds == {STRING}:
        return op.Concat(*x.parts, axis=1)
    if STRING in kinds:
        raise ImportRefused("a step that needs numbers is given columns of texts")
    to = FLOAT if kinds == {FLOAT} else DOUBLE
    parts = [op.cast(p, to) for p in x.parts]
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)


def beside(op: Builder, parts: Sequence[Table]) -> Table:
    """Tables side by side."""
    parts = [p for p in parts if not (isinstance(p, Columns) and not p.parts)]
    kinds = {p.dtype for t in parts for p in (t.parts if isinstance(t, Columns) else [t])}
    if STRING in kinds and len(kinds) > 1:
        pieces = []
        for part in parts:
            pieces += [column(op, part, i) for i in range(width(part))]
        return Columns(pieces)
    matrices = [matrix(op, p) for p in parts]
    if len({m.dtype for m in matrices}) > 1:
        matrices = [op.cast(m, DOUBLE) for m in matrices]
    return matrices[0] if len(matrices) == 1 else op.Concat(*matrices, axis=1)


def double(op: Builder, x: Table) -> ir.Value:
    """The matrix in double precision."""
    return op.cast(matrix(op, x), DOUBLE)


def as_computed(op: Builder, y: ir.Value, x: ir.Value) -> ir.Value:
    """`y` in the precision of `x`: what a step that keeps float32 gives."""
    return op.cast(y, FLOAT) if x.dtype == FLOAT else y
