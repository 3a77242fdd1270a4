"""Fourier transforms of TensorFlow Lite, and complex numbers, which have one more axis of two."""

from __future__ import annotations

import numpy as np

from sardonyx.importers.tflite import shapes  # noqa: F401  (its rules are wrapped below)
from sardonyx.importers.tflite.rules import RULES, Unsupported, known, rank, rule, sizes

# Operators that give or take complex numbers; a tensor that any other one takes is refused.
COMPLEX = ("RFFT2D", "REAL", "IMAG", "COMPLEX_ABS", "RESHAPE", "SQUEEZE", "EXPAND_DIMS")


@rule("RFFT2D")
def rfft2d(op, node, x, lengths):
    rows, columns = (int(n) for n in known(lengths, "the length of the transform"))
    x = _fitted(op, _fitted(op, x, -2, rows), -1, columns)
    spectrum = op.DFT(op.Unsqueeze(x, [-1]), None, np.int64(-2), onesided=1)
    return op.DFT(spectrum, None, np.int64(-3)) if rows > 1 else spectrum


def _fitted(op, x, axis, length):
    """The first elements along an axis, as many as the transform has, or zeros after them."""
    size = sizes(x)[axis]
    if not isinstance(size, int):
        raise Unsupported("a free size along the transform")
    if size > length:
        return op.Slice(x, [0], [length], [axis])
    if size == length:
        return x
    widths = np.zeros((2, rank(x)), np.int64)
    widths[1, axis] = length - size
    return op.Pad(x, widths.reshape(-1))


def _part(op, x, place):
    return op.Gather(x, np.int64(place), axis=-1)


@rule()
def real(op, node, x):
    return _part(op, x, 0)


@rule()
def imag(op, node, x):
    return _part(op, x, 1)


@rule("COMPLEX_ABS")
def complex_abs(op, node, x):
    return op.ReduceL2(x, [-1], keepdims=0)


def _with_parts(name, plain):
    """A rule of shapes that leaves the last axis of complex numbers where it is."""

    def apply(op, node, x, *others):
        if not node.inputs[0].is_complex:
            return plain(op, node, x, *others)
        shape = list(node.outputs[0].shape)
        if shape.count(None) > 1:
            raise Unsupported("several free sizes of complex numbers")
        return op.Reshape(x, np.array([*(-1 if d is None else d for d in shape), 2], np.int64))

    apply.__name__ = name
    return apply


for _name in ("RESHAPE", "SQUEEZE", "EXPAND_DIMS"):
    RULES[_name] = _with_parts(_name.lower(), RULES[_name])
