"""Fourier transforms. The adjoint of a transform of length n is n times its inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, constant, content, rank
from sardonyx.grad.driver import gradient_rule


@gradient_rule("DFT")
def dft(op, g, x, dft_length, axis, *, inverse, onesided, out):
    if axis is not None and constant(axis) is None:
        return _dft_along_computed_axis(op, g, x, dft_length, axis, inverse, onesided, out[0])
    at = (-2 if axis is None else int(constant(axis).reshape(()))) % rank(x)  # type: ignore[union-attr]
    if onesided and inverse:
        return _irfft(op, g, x, at, out[0])
    n = op.dim(out[0], at) if not onesided else _length(op, dft_length, x, at)
    if onesided:
        g = _resized(op, g, at, n)
    dx = op.DFT(g, None, _scalar(op, at - rank(x)), inverse=1 - inverse)
    dx = dx / _number(op, n, x) if inverse else dx * _number(op, n, x)
    return _resized(op, _resized(op, dx, rank(x) - 1, op.dim(x, -1)), at, op.dim(x, at))


def _irfft(op: Builder, g: ir.Value, x: ir.Value, at: int, y: ir.Value) -> ir.Value:
    """A one-sided spectrum stands for its mirror image too: inner bins count twice."""
    n = op.dim(y, at)
    dx = op.DFT(g, None, _scalar(op, at - rank(x)), onesided=1)
    shape = [-1] + [1] * (rank(x) - 1 - at)
    if isinstance(n, int):
        bins = np.arange(n // 2 + 1)
        weights = (2.0 - (bins == 0) - (2 * bins == n)) / n
        scaled = dx * op.const(weights.reshape(shape), x.dtype)
    else:
        scaled = dx * op.Reshape(_bin_weights(op, n, x), shape)
    return _resized(op, scaled, at, op.dim(x, at))


def _bin_weights(op: Builder, n: ir.Value, like: ir.Value) -> ir.Value:
    """How often each bin of a one-sided spectrum counts, over the length n."""
    bins = op.Range(0, op.Squeeze(n / 2 + 1, [0]), 1)
    edge = op.Or(op.Equal(bins, 0), op.Equal(bins * 2, n))
    twice = op.Where(edge, op.const(1.0, like.dtype), op.const(2.0, like.dtype))
    return twice / _number(op, n, like)


def _dft_along_computed_axis(
    op: Builder,
    g: ir.Value,
    x: ir.Value,
    dft_length: ir.Value | None,
    axis: ir.Value,
    inverse: int,
    onesided: int,
    y: ir.Value,
) -> ir.Value:
    at = op.Reshape(axis, [1])
    at = op.Where(op.Less(at, 0), at + rank(x), at)
    is_axis = op.Equal(op.const(np.arange(rank(x))), at)
    if onesided and inverse:
        weights = _bin_weights(op, op.Gather(op.Shape(y), at), x)
        dx = op.DFT(g, None, axis, onesided=1)
        dx = dx * op.Reshape(weights, op.Where(is_axis, -1, op.const(1, ir.DataType.INT64)))
        return _fitted(op, dx, op.shape(x), rank(x))
    if dft_length is None:
        n = op.Gather(op.Shape(x), at)
    else:
        n = op.cast(op.Reshape(dft_length, [1]), ir.DataType.INT64)
    if onesided:
        g = _fitted(op, g, op.Where(is_axis, n, op.Shape(g)), rank(x))
    dx = op.DFT(g, None, axis, inverse=1 - inverse)
    dx = dx / _number(op, n, x) if inverse else dx * _number(op, n, x)
    return _fitted(op, dx, op.shape(x), rank(x))


def _fitted(op: Builder, x: ir.Value, shape: ir.Value, axes: int) -> ir.Value:
    """`x` cut off, or filled up with zeros, to `shape`."""
    zeros = op.const(np.zeros(axes, np.int64))
    missing = op.Max(shape - op.Shape(x), zeros)
    out = op.Slice(op.Pad(x, op.Concat(zeros, missing, axis=0)), zeros, shape)
    out.shape = ir.Shape([None] * axes)
    return out


def _length(op: Builder, length: ir.Value | None, x: ir.Value, at: int) -> Dim:
    """The length of the transform."""
    if length is None:
        return op.dim(x, at)
    number = constant(length)
    if number is not None:
        return int(number.reshape(()))
    return op.cast(op.Reshape(length, [1]), ir.DataType.INT64)


def _number(op: Builder, n: Dim, like: ir.Value) -> ir.Value | float:
    assert like.dtype is not None
    return float(n) if isinstance(n, int) else op.cast(n, like.dtype)


def _scalar(op: Builder, value: int) -> ir.Value:
    return op.const(np.array(value, np.int64))


def _resized(op: Builder, x: ir.Value, axis: int, size: Dim) -> ir.Value:
    """`x` cut off, or filled up with zeros, to `size` along `axis`."""
    have = op.dim(x, axis)
    if isinstance(have, int) and isinstance(size, int):
        if have < size:
            return op.Pad(x, [0, size - have], None, [axis])
        return x if have == size else op.Slice(x, [0], [size], [axis])
    target = size if isinstance(size, ir.Value) else op.const([size], ir.DataType.INT64)
    missing = op.Max(target - have, 0)
    padded = op.Pad(x, op.Concat([0], missing, axis=0), None, [axis])
    out = op.Slice(padded, [0], target, [axis])
    if x.shape is not None:
        dims: list[Any] = list(x.shape)
        dims[axis] = (content(target) or (None,))[0]
        out.shape = ir.Shape(dims)
    return out


@gradient_rule("STFT")
def stft(op, g, signal, frame_step, window, frame_length, *, onesided, out):
    """Frames are gathered, windowed and transformed; backwards they overlap and add up."""
    if frame_length is None and window is not None:
        n = op.dim(window, 0)
    else:
        n = _length(op, frame_length, signal, 1)
    spectrum = _resized(op, g, 2, n)
    if spectrum.shape is None:
        spectrum.shape = ir.Shape([None, None, None, 2])
    dframes = op.DFT(spectrum, None, _scalar(op, -2), inverse=1)
    dframes = _resized(op, dframes * _number(op, n, signal), 3, op.dim(signal, -1))
    places = _frame_places(op, frame_step, op.dim(out[0], 1), n)
    dwindow = None
    if window is not None:
        frames = op.Gather(signal, places, axis=1)
        dwindow = op.total(frames * dframes, [0, 1, 3])
        dframes = dframes * op.Unsqueeze(window, [1])
    # ScatterND adds along the first axis: positions first, then batch and channel.
    first = op.Transpose(dframes, perm=[1, 2, 0, 3])
    by_place = op.Transpose(signal, perm=[1, 0, 2])
    summed = op.ScatterND(
        op.zeros_like(by_place), op.Unsqueeze(places, [2]), first, reduction="add"
    )
    return op.Transpose(summed, perm=[1, 0, 2]), None, dwindow, None


def _frame_places(op: Builder, frame_step: ir.Value, frames: Dim, n: Dim) -> ir.Value:
    """The position in the signal of each element of each frame, (frames, n)."""
    step = constant(frame_step)
    if step is not None and isinstance(frames, int) and isinstance(n, int):
        return op.const(np.add.outer(np.arange(frames) * int(step.reshape(())), np.arange(n)))
    starts = _counted(op, frames) * op.cast(op.Reshape(frame_step, [1]), ir.DataType.INT64)
    return op.Unsqueeze(starts, [1]) + _counted(op, n)


def _counted(op: Builder, n: Dim) -> ir.Value:
    if isinstance(n, int):
        return op.const(np.arange(n, dtype=np.int64))
    return op.Range(0, op.Squeeze(n, [0]), 1)
