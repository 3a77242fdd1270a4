"""Fourier transforms of Keras, whose complex numbers are pairs of real ones, as DFT."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import scipy.signal
from keras.src.backend.jax import math

from sardonyx.importers.jax.calls import MARKED
from sardonyx.importers.jax.writer import Writer
from sardonyx.importers.keras.replaced import replaced

REAL, COMPLEX = "keras_rfft", "keras_fft"


@contextlib.contextmanager
def spectral_marks() -> Iterator[None]:
    """Within this, `rfft`, `fft`, `fft2`, `ifft2` and `stft` are traced as calls with a mark."""
    with (
        replaced(math, "rfft", rfft),
        replaced(math, "fft", lambda x: _transformed(x, [-1], False)),
        replaced(math, "fft2", lambda x: _transformed(x, [-2, -1], False)),
        replaced(math, "ifft2", lambda x: _transformed(x, [-2, -1], True)),
        replaced(math, "stft", _stft_or(math.stft)),
    ):
        yield


def rfft(x: Any, fft_length: int | None = None) -> tuple[Any, Any]:
    """The spectrum of real numbers along the last axis."""
    from sardonyx.importers.keras.marks import marked

    x = jnp.asarray(x)
    count = x.shape[-1] if fft_length is None else fft_length
    missing = count - x.shape[-1]
    if missing > 0:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    x = x[..., :count]

    def function(x: Any) -> Any:
        spectrum = jnp.fft.rfft(x)
        return jnp.real(spectrum), jnp.imag(spectrum)

    real, imaginary = marked(REAL, function)(x)
    return real, imaginary


def _transformed(x: Any, axes: list[int], is_inverse: bool) -> tuple[Any, Any]:
    from sardonyx.importers.keras.marks import marked

    real, imaginary = map(jnp.asarray, x)
    transform = jnp.fft.ifft if is_inverse else jnp.fft.fft
    for axis in axes:

        def function(real: Any, imaginary: Any, axis: int = axis) -> Any:
            spectrum = transform(jax.lax.complex(real, imaginary), axis=axis)
            return jnp.real(spectrum), jnp.imag(spectrum)

        settings = {"axis": axis + real.ndim, "inverse": int(is_inverse)}
        real, imaginary = marked(COMPLEX, function, **settings)(real, imaginary)
    return real, imaginary


def _stft_or(original: Callable[..., Any]) -> Callable[..., Any]:
    def stft(
        x: Any, sequence_length: int, sequence_stride: int, fft_length: int, window: Any = "hann",
        center: bool = True,
    ) -> Any:  # fmt: skip
        usual = window is None or (isinstance(window, str) and window in ("hann", "hamming"))
        usual = usual and fft_length >= sequence_length and x.dtype in (jnp.float32, jnp.float64)
        if not usual:
            return original(x, sequence_length, sequence_stride, fft_length, window, center)
        if center:
            pads = [(0, 0)] * (x.ndim - 1) + [(fft_length // 2, fft_length // 2)]
            x = jnp.pad(x, pads, mode="reflect")
        left = (fft_length - sequence_length) // 2
        weights = np.ones(sequence_length)
        if window is not None:
            weights = scipy.signal.get_window(window, sequence_length)
        right = fft_length - sequence_length - left
        weights = np.pad(weights, (left, right), constant_values=0 if window is not None else 1)
        starts = jnp.arange((x.shape[-1] - fft_length) // sequence_stride + 1) * sequence_stride
        frames = x[..., starts[:, None] + jnp.arange(fft_length)[None, :]]
        return rfft(frames * jnp.asarray(weights, x.dtype))

    return stft


def real_transform(op: Writer, x: ir.Value) -> list[ir.Value]:
    rank = len(x.meta["aval"].shape)
    y = op.DFT(op.unsqueezed(x, [rank]), None, op.const(np.int64(rank - 1)), onesided=1)
    return _parts(op, y, rank)


def complex_transform(
    op: Writer, real: ir.Value, imaginary: ir.Value, *, axis: float, inverse: float
) -> list[ir.Value]:
    rank = len(real.meta["aval"].shape)
    x = op.Concat(op.unsqueezed(real, [rank]), op.unsqueezed(imaginary, [rank]), axis=rank)
    y = op.DFT(x, None, op.const(np.int64(axis)), inverse=int(inverse))
    return _parts(op, y, rank)


def _parts(op: Writer, y: ir.Value, rank: int) -> list[ir.Value]:
    return [op.squeezed(op.part(y, rank, i, i + 1), [rank]) for i in (0, 1)]


MARKED[REAL], MARKED[COMPLEX] = real_transform, complex_transform
