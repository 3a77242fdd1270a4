"""The namespace in terms of numpy: what is known while building is computed with it, in any engine.

`NumpyLike` is written against a module with numpy's functions, so that a framework that copies
numpy's interface only overrides what differs. `Numpy` is the adapter over numpy itself. Sizes that
only the framework knows are elements of object arrays here; arithmetic on them is Python's.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sardonyx.lower import sizes
from sardonyx.lower.error_function import erf
from sardonyx.lower.xp import BINARY, UNARY, Arrays, NotStatic, is_float, is_symbolic, settle

SAME_NAME = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "atan2": "arctan2",
    "round": "rint",
    "bitwise_not": "invert",
}


class NumpyLike(Arrays):
    """The namespace over a module that has numpy's functions."""

    def __init__(self, module: Any):
        self.np = module
        for name in (*UNARY, *BINARY):
            function = getattr(module, SAME_NAME.get(name, name), None)
            if function is not None and name not in type(self).__dict__:
                setattr(self, name, function)

    # -- what it is

    def dtype(self, x):
        return np.dtype(x.dtype)

    def shape(self, x):
        return tuple(x.shape)

    def rank(self, x):
        return x.ndim

    # -- making

    def full(self, shape, value, dtype):
        return self.np.full(tuple(shape), value, dtype)

    def arange(self, start, stop, step, dtype):
        return self.np.arange(start, stop, step, dtype)

    # -- layout

    def reshape(self, x, shape):
        return self.np.reshape(x, tuple(shape))

    def transpose(self, x, perm):
        return self.np.transpose(x, tuple(perm))

    def expand_dims(self, x, axes):
        return self.np.expand_dims(x, tuple(axes))

    def squeeze(self, x, axes):
        return self.np.squeeze(x, tuple(axes))

    def broadcast_to(self, x, shape):
        return self.np.broadcast_to(x, tuple(shape))

    def concat(self, xs, axis):
        return self.np.concatenate(list(xs), axis)

    def stack(self, xs, axis):
        return self.np.stack(list(xs), axis)

    def split(self, x, sizes, axis):
        parts, start = [], 0
        for size in sizes:
            parts.append(self.index(x, axis, start, start + size))
            start = start + size
        return parts

    def slice(self, x, starts, stops, steps):
        return x[tuple(slice(a, b, c) for a, b, c in zip(starts, stops, steps))]

    def pad(self, x, before, after, value):
        return self.np.pad(x, list(zip(before, after)), constant_values=value)

    def flip(self, x, axes):
        return self.np.flip(x, tuple(axes))

    def tile(self, x, repeats):
        return self.np.tile(x, tuple(repeats))

    # -- indexing

    def take(self, x, indices, axis):
        return self.np.take(x, indices, axis)

    def take_along(self, x, indices, axis):
        return self.np.take_along_axis(x, indices, axis)

    def nonzero(self, x):
        return self.np.stack(self.np.nonzero(x)).astype(np.int64)

    def where(self, condition, a, b):
        return self.np.where(condition, a, b)

    # -- reductions

    def _reduce(self, name, x, axis, keepdims):
        return getattr(self.np, name)(x, axis=axis, keepdims=keepdims, dtype=self.dtype(x))

    def sum(self, x, axis=None, keepdims=False):
        return self._reduce("sum", x, axis, keepdims)

    def prod(self, x, axis=None, keepdims=False):
        return self._reduce("prod", x, axis, keepdims)

    def mean(self, x, axis=None, keepdims=False):
        if 0 in x.shape and is_float(self.dtype(x)):  # NaN, without a warning of numpy
            return self.sum(x, axis, keepdims) * self.scalar(np.nan, x)
        return self._reduce("mean", x, axis, keepdims)

    def max(self, x, axis=None, keepdims=False):
        return self.np.max(x, axis=axis, keepdims=keepdims)

    def min(self, x, axis=None, keepdims=False):
        return self.np.min(x, axis=axis, keepdims=keepdims)

    def any(self, x, axis=None, keepdims=False):
        return self.np.any(x, axis=axis, keepdims=keepdims)

    def all(self, x, axis=None, keepdims=False):
        return self.np.all(x, axis=axis, keepdims=keepdims)

    def argmax(self, x, axis):
        return self.np.argmax(x, axis).astype(np.int64)

    def argmin(self, x, axis):
        return self.np.argmin(x, axis).astype(np.int64)

    def cumsum(self, x, axis):
        return self.np.cumsum(x, axis, dtype=self.dtype(x))

    def cumprod(self, x, axis):
        return self.np.cumprod(x, axis, dtype=self.dtype(x))

    # -- order and products

    def sort(self, x, axis):
        return self.np.sort(x, axis)

    def argsort(self, x, axis, descending=False):
        if not descending:
            return self.np.argsort(x, axis, stable=True).astype(np.int64)
        # Reversed twice, so that equal elements keep their order.
        backwards = self.np.argsort(self.np.flip(x, axis), axis, stable=True)
        return (self.shape(x)[axis] - 1 - self.np.flip(backwards, axis)).astype(np.int64)

    def matmul(self, a, b):
        return self.np.matmul(a, b)

    def einsum(self, equation, *xs):
        return self.np.einsum(equation, *xs)

    def det(self, x):
        return self.np.linalg.det(x)

    def fft(self, real, imaginary, axis, inverse):
        dtype = self.dtype(real)
        x = real if imaginary is None else real + 1j * imaginary
        spectrum = (self.np.fft.ifft if inverse else self.np.fft.fft)(x, axis=axis)
        return spectrum.real.astype(dtype), spectrum.imag.astype(dtype)


PUT = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


class Numpy(NumpyLike):
    """The namespace over numpy itself."""

    name = "numpy"
    strings = True

    def __init__(self) -> None:
        super().__init__(np)
        self.generator = np.random.default_rng()

    def asarray(self, array, dtype=None):
        return np.asarray(array, dtype)

    def cast(self, x, dtype):
        with np.errstate(all="ignore"):
            return x if x.dtype == dtype or x.dtype == object else np.asarray(x).astype(dtype)

    def static(self, x):
        return np.asarray(x)

    def to_numpy(self, x, dtype=None):
        return np.asarray(x, dtype)

    def result(self, x):
        """A rule's result as an array: numpy's functions give scalars for rank 0."""
        if isinstance(x, np.ndarray) and x.dtype != object:
            return x
        array = np.asarray(x)
        is_sizes = array.dtype == object and array.size
        if is_sizes and all(isinstance(v, (int, np.integer)) for v in array.flat):
            return settle(array.flat, array.shape)
        return array

    def floor_divide(self, a, b):
        return np.floor_divide(a, b)

    # -- sizes that only a framework knows

    def maximum(self, a, b):
        is_plain = not is_symbolic(a) and not is_symbolic(b)
        return np.maximum(a, b) if is_plain else sizes.of_sizes(sizes.larger, a, b)

    def minimum(self, a, b):
        is_plain = not is_symbolic(a) and not is_symbolic(b)
        return np.minimum(a, b) if is_plain else sizes.of_sizes(sizes.smaller, a, b)

    def equal(self, a, b):
        is_plain = not is_symbolic(a) and not is_symbolic(b)
        return np.equal(a, b) if is_plain else sizes.of_sizes(sizes.is_equal, a, b).astype(bool)

    def slice(self, x, starts, stops, steps):
        _refuse_symbolic(*starts, *stops)
        return super().slice(x, starts, stops, steps)

    def reshape(self, x, shape):
        _refuse_symbolic(*shape)
        return super().reshape(x, shape)

    def take(self, x, indices, axis):
        _refuse_symbolic(indices)
        return super().take(x, indices, axis)

    def erf(self, x):
        return erf(np.asarray(x, np.float64)).astype(x.dtype)

    def put(self, x, indices, updates, reduction="none"):
        array = np.array(x)
        if reduction == "none":
            array[indices] = updates
        else:
            PUT[reduction].at(array, indices, updates)
        return array

    def matmul(self, a, b):
        if is_float(a.dtype) and a.dtype.itemsize < 4:
            return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype)
        return np.matmul(a, b)

    def einsum(self, equation, *xs):
        wide = np.float32 if is_float(xs[0].dtype) and xs[0].dtype.itemsize < 4 else xs[0].dtype
        return np.einsum(equation, *(x.astype(wide) for x in xs)).astype(xs[0].dtype)

    def bit_cast(self, x, dtype):
        return np.ascontiguousarray(x).view(dtype).reshape(x.shape)

    def _rng(self, seed):
        # with a seed the generator of ONNX's own examples, so that their draws are ours
        return self.generator if seed is None else np.random.RandomState(abs(int(seed)))

    def uniform(self, shape, dtype, low=0.0, high=1.0, seed=None):
        return self._rng(seed).uniform(low, high, tuple(shape)).astype(dtype)

    def normal(self, shape, dtype, mean=0.0, scale=1.0, seed=None):
        return self._rng(seed).normal(mean, scale, tuple(shape)).astype(dtype)


def _refuse_symbolic(*values):
    """numpy would ask a framework's scalar for its number: the framework computes such nodes."""
    for value in values:
        is_plain = value is None or sizes.is_number(value)
        if is_symbolic(value) if isinstance(value, np.ndarray) else not is_plain:
            raise NotStatic


@functools.cache
def numpy_arrays() -> Numpy:
    return Numpy()
