"""Fourier transforms and what goes with them. Complex numbers are pairs on the last axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.lower.driver import lowering
from sardonyx.lower.xp import positive

INT64 = np.dtype(np.int64)


def parts(xp, x):
    """Real and imaginary part; None for the latter where the last axis has one element."""
    last = xp.rank(x) - 1
    real = xp.squeeze(xp.index(x, last, 0, 1), (last,))
    if xp.shape(x)[last] == 1:
        return real, None
    return real, xp.squeeze(xp.index(x, last, 1, 2), (last,))


def fitted(xp, x, axis, length):
    """`x` cut or padded with zeros to `length` along `axis`."""
    size = xp.shape(x)[axis]
    if size is length or (isinstance(size, int) and size == length):
        return x
    if isinstance(size, int) and isinstance(length, int) and size > length:
        return xp.index(x, axis, 0, length)
    after = [0] * xp.rank(x)
    after[axis] = length - size
    return xp.pad(x, [0] * xp.rank(x), after, 0)


@lowering("DFT", static=("dft_length", "axis"))
def dft(xp, x, dft_length=None, axis=None, *, inverse, onesided):
    axis = positive(-2 if axis is None else int(axis.reshape(())), xp.rank(x))
    length = None if dft_length is None else dft_length.reshape(-1)[0]
    length = int(length) if isinstance(length, np.integer) else length
    return transform(xp, x, length, axis, inverse, onesided)


def transform(xp, x, length, axis, inverse, onesided):
    real, imaginary = parts(xp, x)
    size = xp.shape(real)[axis]
    if inverse and onesided:
        whole = 2 * (size - 1) if length is None else length
        half = whole // 2 + 1
        real, imaginary = (fitted(xp, v, axis, half) for v in (real, imaginary))
        real, imaginary = mirrored(xp, real, imaginary, axis, whole)
        return xp.stack([xp.fft(real, imaginary, axis, True)[0]], xp.rank(real))
    if length is not None:
        real = fitted(xp, real, axis, length)
        imaginary = None if imaginary is None else fitted(xp, imaginary, axis, length)
    real, imaginary = xp.fft(real, imaginary, axis, bool(inverse))
    if onesided:
        half = xp.shape(real)[axis] // 2 + 1
        real, imaginary = (xp.index(v, axis, 0, half) for v in (real, imaginary))
    return xp.stack([real, imaginary], xp.rank(real))


def mirrored(xp, real, imaginary, axis, whole):
    """The whole spectrum of a real signal from its first half."""
    rest = whole - whole // 2  # where the mirror image of the second half ends
    tail = [xp.flip(xp.index(v, axis, 1, rest), (axis,)) for v in (real, imaginary)]
    return xp.concat([real, tail[0]], axis), xp.concat([imaginary, xp.negative(tail[1])], axis)


@lowering("STFT", static=("frame_step", "frame_length"))
def stft(xp, signal, frame_step, window=None, frame_length=None, *, onesided):
    if (
        len(xp.shape(signal)) == 2
    ):  # real exporters leave the last axis out, and onnxruntime takes it
        signal = xp.reshape(signal, (*xp.shape(signal), 1))
    size = xp.shape(signal)[1]
    step = int(frame_step.reshape(-1)[0])
    if frame_length is not None:
        length = int(frame_length.reshape(-1)[0])
    else:
        length = size if window is None else xp.shape(window)[0]
    frames = (size - length) // step + 1
    first = xp.reshape(xp.arange(0, frames, 1, INT64) * step, (frames, 1))
    at = first + xp.reshape(xp.arange(0, length, 1, INT64), (1, length))
    cut = xp.take(signal, at, 1)
    if window is not None:
        cut = cut * xp.reshape(window, (1, 1, length, 1))
    return transform(xp, cut, None, 2, False, onesided)


@lowering("MelWeightMatrix", static=("bins", "dft_length", "rate", "lower_edge", "upper_edge"))
def mel_weight_matrix(xp, bins, dft_length, rate, lower_edge, upper_edge, *, output_datatype):
    count, length = int(bins.reshape(-1)[0]), int(dft_length.reshape(-1)[0])
    low, high = (
        2595 * np.log10(1 + float(v.reshape(-1)[0]) / 700) for v in (lower_edge, upper_edge)
    )
    step = (high - low) / (count + 2)
    hertz = 700 * (10 ** ((np.arange(count + 2) * step + low) / 2595) - 1)
    at = ((length + 1) * hertz // float(rate.reshape(-1)[0])).astype(np.int64)
    matrix = np.zeros((length // 2 + 1, count))
    for k in range(count):
        begin, middle, end = at[k : k + 3]
        if middle == begin:
            matrix[middle, k] = 1
        else:
            rising = np.arange(begin, middle + 1)
            matrix[rising, k] = (rising - begin) / (middle - begin)
        if end > middle:
            falling = np.arange(middle, end)
            matrix[falling, k] = (end - falling) / (end - middle)
    return matrix.astype(ir.DataType(output_datatype).numpy())


@lowering("Det")
def det(xp, x):
    return xp.det(x)
