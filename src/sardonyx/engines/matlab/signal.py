"""Fourier transforms. Complex numbers are pairs on the last axis of ONNX, MATLAB's first."""

from __future__ import annotations

from sardonyx.engines.matlab.elementwise import bool_word
from sardonyx.engines.matlab.function import FLOAT_CLASSES, Refused, matlab


@matlab("DFT")
def dft(m, x, length=None, axis=None, *, inverse, onesided):
    if m.type() not in FLOAT_CLASSES:
        raise Refused("integers")
    rank = m.rank()
    dim = m.dim(m.numbers(2, "axis")[0] if axis is not None else -2, rank)
    if dim == 1:
        raise Refused("a transform along the parts of complex numbers")
    words = f"{length or '[]'}, {bool_word(inverse)}, {bool_word(onesided)}"
    return f"onnx_dft({x}, {rank}, {dim}, {words})"


@matlab("STFT")
def stft(m, signal, step, window=None, length=None, *, onesided):
    words = f"{window or '[]'}, {length or '[]'}, {bool_word(onesided)}"
    return f"onnx_stft({signal}, {m.rank()}, {step}, {words})"
