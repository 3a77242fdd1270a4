"""Rules of Fourier transforms and complex numbers, which ONNX holds in one more axis of two."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.ops.math import atan2
from sardonyx.importers.tensorflow.reader import dtype_of, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

PRODUCT = 1024  # up to this size, a transform is a product with a matrix


def _complex(x: ir.Value) -> ir.Value:
    x.meta["complex"] = True
    return x


def _parts(op: Writer, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Real and imaginary part, without the last axis."""
    zero, one = op.const(np.int64(0)), op.const(np.int64(1))
    return op.Gather(x, zero, axis=-1), op.Gather(x, one, axis=-1)


def _joined(op: Writer, real: ir.Value, imaginary: ir.Value) -> ir.Value:
    return _complex(op.Concat(op.Unsqueeze(real, [-1]), op.Unsqueeze(imaginary, [-1]), axis=-1))


def _fitted(op: Writer, x: ir.Value, axis: int, length: int) -> ir.Value:
    """`x` cut or padded with zeros to `length` along an axis."""
    size = x.shape[axis] if x.shape is not None else None
    if size == length:
        return x
    if not isinstance(size, int):
        x = op.part(x, axis, 0, length)
        missing = op.Sub([length], op.dim_value(x, axis))
        return op.Pad(x, op.join(_pad_row(x, axis, missing)))
    if size > length:
        return op.part(x, axis, 0, length)
    return op.Pad(x, _pad_row(x, axis, length - size))


def _pad_row(x: ir.Value, axis: int, after: Any) -> list[Any]:
    n = rank(x)
    row: list[Any] = [0] * (2 * n)
    row[n + axis % n] = after
    return row


def _matrix(n: int, columns: int, dtype: Any, sign: float) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of the transform of n values to `columns` frequencies."""
    turns = np.outer(np.arange(n), np.arange(columns)) % n
    angle = 2 * np.pi * turns / n
    # Zeros are exact: noise in their place would decide on the sign of an angle.
    cosine = np.where((4 * turns) % (2 * n) == n, 0.0, np.cos(angle))
    sine = np.where((2 * turns) % n == 0, 0.0, np.sin(angle))
    return cosine.astype(dtype), (sign * sine).astype(dtype)


def _lengths(op: Writer, lengths: ir.Value) -> list[int]:
    return [int(v) for v in op.known(lengths, "a length").reshape(-1)]


def _transformed(
    op: Writer, real: ir.Value, imaginary: ir.Value | None, sign: float, columns: int
) -> tuple[ir.Value, ir.Value]:
    """The transform along the last axis, whose size is known."""
    n = real.shape[-1] if real.shape is not None else None
    if not isinstance(n, int) or n > PRODUCT:
        raise Refusal("a Fourier transform of more than 1024 values, or of a free number")
    cosine, sine = (op.const(m) for m in _matrix(n, columns, real.dtype.numpy(), sign))  # type: ignore[union-attr]
    a, b = op.MatMul(real, cosine), op.MatMul(real, sine)
    if imaginary is None:
        return a, b
    c, d = op.MatMul(imaginary, cosine), op.MatMul(imaginary, sine)
    return op.Sub(a, d), op.Add(b, c)


@importer("RFFT")
def rfft(op: Writer, x: ir.Value, lengths: ir.Value) -> ir.Value:
    (n,) = _lengths(op, lengths)
    x = _fitted(op, x, -1, n)
    return _joined(op, *_transformed(op, x, None, -1.0, n // 2 + 1))


@importer("RFFT2D")
def rfft2d(op: Writer, x: ir.Value, lengths: ir.Value) -> ir.Value:
    rows, n = _lengths(op, lengths)
    x = _fitted(op, _fitted(op, x, -1, n), -2, rows)
    real, imaginary = _transformed(op, x, None, -1.0, n // 2 + 1)
    real, imaginary = _transformed(op, op.swap(real), op.swap(imaginary), -1.0, rows)
    return _joined(op, op.swap(real), op.swap(imaginary))


@importer("FFT", "FFT2D")
def fft(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    return _full(op, x, -1.0, node.type.endswith("2D"))


@importer("IFFT", "IFFT2D")
def ifft(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    return _full(op, x, 1.0, node.type.endswith("2D"))


def _full(op: Writer, x: ir.Value, sign: float, plane: bool) -> ir.Value:
    real, imaginary = _parts(op, x)
    sizes = []
    for _ in range(1 + plane):
        n = real.shape[-1] if real.shape is not None else None
        if not isinstance(n, int):
            raise Refusal("a Fourier transform of a free number of values")
        sizes.append(n)
        real, imaginary = _transformed(op, real, imaginary, sign, n)
        if plane:
            real, imaginary = op.swap(real), op.swap(imaginary)
    if sign > 0:
        scale = op.like(1 / np.prod(sizes), real)
        real, imaginary = op.Mul(real, scale), op.Mul(imaginary, scale)
    return _joined(op, real, imaginary)


@importer("IRFFT")
def irfft(op: Writer, x: ir.Value, lengths: ir.Value) -> ir.Value:
    (n,) = _lengths(op, lengths)
    half = n // 2 + 1
    real, imaginary = (_fitted(op, v, -1, half) for v in _parts(op, x))
    k = np.arange(half)
    share = np.where((k == 0) | ((n % 2 == 0) & (k == n // 2)), 1.0, 2.0)[:, None] / n
    angle = 2 * np.pi * (np.outer(k, np.arange(n)) % n) / n
    kind = real.dtype.numpy()  # type: ignore[union-attr]
    cosine = op.const((share * np.cos(angle)).astype(kind))
    sine = op.const((share * np.sin(angle)).astype(kind))
    return op.Sub(op.MatMul(real, cosine), op.MatMul(imaginary, sine))


@importer("ComplexAbs")
def complex_abs(op: Writer, x: ir.Value) -> ir.Value:
    real, imaginary = _parts(op, x)
    return op.Sqrt(op.Add(op.Mul(real, real), op.Mul(imaginary, imaginary)))


@importer("Real")
def real(op: Writer, x: ir.Value) -> ir.Value:
    return _parts(op, x)[0]


@importer("Imag")
def imag(op: Writer, x: ir.Value) -> ir.Value:
    return _parts(op, x)[1]


@importer("Complex")
def complex_(op: Writer, real: ir.Value, imaginary: ir.Value) -> ir.Value:
    if real.shape != imaginary.shape:
        shape = op.shape(real)
        real = op.Expand(real, op.shape(imaginary))  # Expand widens either side
        imaginary = op.Expand(imaginary, shape)
    return _joined(op, real, imaginary)


@importer("Conj")
def conj(op: Writer, x: ir.Value) -> ir.Value:
    signs = op.const(np.array([1, -1], x.dtype.numpy()))  # type: ignore[union-attr]
    return _complex(op.Mul(x, signs))


@importer("Angle")
def angle(op: Writer, x: ir.Value, *, node: Any) -> ir.Value:
    real_part, imaginary = _parts(op, x)
    return op.cast(atan2(op, imaginary, real_part), dtype_of(node.outputs[0].dtype))
