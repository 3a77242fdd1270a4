"""Rules that move blocks of pixels between space, depth and batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Dim, constant, rank
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Writer


def _divided(op: Writer, size: Dim, by: int) -> Dim:
    return size // by if isinstance(size, int) else op.Div(size, [by])


def _multiplied(op: Writer, size: Dim, by: int) -> Dim:
    return size * by if isinstance(size, int) else op.Mul(size, [by])


@importer("SpaceToDepth")
def space_to_depth(op: Writer, x: ir.Value, *, block_size: int, data_format: str) -> ir.Value:
    b = block_size
    if data_format == "NCHW":
        n, c, h, w = op.dims(x)
        y = op.reshape(x, [n, c, _divided(op, h, b), b, _divided(op, w, b), b])
        y = op.Transpose(y, perm=[0, 3, 5, 1, 2, 4])
        sizes = [n, _multiplied(op, c, b * b), _divided(op, h, b), _divided(op, w, b)]
        return op.reshape(y, sizes)
    n, h, w, c = op.dims(x)
    y = op.reshape(x, [n, _divided(op, h, b), b, _divided(op, w, b), b, c])
    y = op.Transpose(y, perm=[0, 1, 3, 2, 4, 5])
    return op.reshape(y, [n, _divided(op, h, b), _divided(op, w, b), _multiplied(op, c, b * b)])


@importer("DepthToSpace")
def depth_to_space(op: Writer, x: ir.Value, *, block_size: int, data_format: str) -> ir.Value:
    b = block_size
    if data_format == "NCHW":
        n, c, h, w = op.dims(x)
        y = op.reshape(x, [n, b, b, _divided(op, c, b * b), h, w])
        y = op.Transpose(y, perm=[0, 3, 4, 1, 5, 2])
        sizes = [n, _divided(op, c, b * b), _multiplied(op, h, b), _multiplied(op, w, b)]
        return op.reshape(y, sizes)
    n, h, w, c = op.dims(x)
    y = op.reshape(x, [n, h, w, b, b, _divided(op, c, b * b)])
    y = op.Transpose(y, perm=[0, 1, 3, 2, 4, 5])
    return op.reshape(y, [n, _multiplied(op, h, b), _multiplied(op, w, b), _divided(op, c, b * b)])


def _pads(op: Writer, x: ir.Value, pairs: ir.Value, count: int) -> Any:
    """[count, 2] paddings of the axes after the batch as ONNX's pads of all axes."""
    array = constant(pairs)
    n = rank(x)
    if array is not None:
        row = np.zeros((2, n), np.int64)
        row[:, 1 : 1 + count] = array.T
        return row.reshape(-1)
    turned = op.Transpose(op.int64(pairs), perm=[1, 0])
    return op.Reshape(op.Pad(turned, [0, 1, 0, n - 1 - count]), [-1])


@importer("SpaceToBatchND")
def space_to_batch_nd(op: Writer, x: ir.Value, block: ir.Value, paddings: ir.Value) -> ir.Value:
    sizes = [int(b) for b in op.known(block, "a block")]
    m, n = len(sizes), rank(x)
    pads = _pads(op, x, paddings, m)
    if isinstance(pads, ir.Value) or pads.any():
        x = op.Pad(x, pads)
    batch, *rest = op.dims(x)
    parts = [p for s, b in zip(rest, sizes) for p in (_divided(op, s, b), b)]
    y = op.reshape(x, [batch, *parts, *rest[m:]])
    order = [2 * i + 2 for i in range(m)] + [0] + [2 * i + 1 for i in range(m)]
    y = op.Transpose(y, perm=[*order, *range(2 * m + 1, n + m)])
    total = _multiplied(op, batch, int(np.prod(sizes)))
    return op.reshape(y, [total, *(_divided(op, s, b) for s, b in zip(rest, sizes)), *rest[m:]])


@importer("BatchToSpaceND")
def batch_to_space_nd(op: Writer, x: ir.Value, block: ir.Value, crops: ir.Value) -> ir.Value:
    sizes = [int(b) for b in op.known(block, "a block")]
    m, n = len(sizes), rank(x)
    batch, *rest = op.dims(x)
    less = _divided(op, batch, int(np.prod(sizes)))
    y = op.reshape(x, [*sizes, less, *rest])
    order = [m] + [p for i in range(m) for p in (m + 1 + i, i)]
    y = op.Transpose(y, perm=[*order, *range(2 * m + 1, n + m)])
    large = [_multiplied(op, s, b) for s, b in zip(rest, sizes)]
    y = op.reshape(y, [less, *large, *rest[m:]])
    array = constant(crops)
    if array is not None and not array.any():
        return y
    wide = op.int64(crops)
    start = op.Squeeze(op.part(wide, 1, 0, 1), [1])
    after = op.Squeeze(op.part(wide, 1, 1, 2), [1])
    end = op.Sub(op.join(large), after)
    return op.Slice(y, start, end, list(range(1, m + 1)))


@importer("SpaceToBatch")
def space_to_batch(op: Writer, x: ir.Value, paddings: ir.Value, *, block_size: int) -> ir.Value:
    return space_to_batch_nd(op, x, op.const(np.array([block_size] * 2)), paddings)


@importer("BatchToSpace")
def batch_to_space(op: Writer, x: ir.Value, crops: ir.Value, *, block_size: int) -> ir.Value:
    return batch_to_space_nd(op, x, op.const(np.array([block_size] * 2)), crops)
