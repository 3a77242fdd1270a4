"""tensorflow's adapter: the array namespace of `lower/xp.py` in terms of tensorflow."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sardonyx.engines.tensorflow.branches import branched
from sardonyx.engines.tensorflow.sizes import Dim, dims_of, number, numbers, size_tensor
from sardonyx.errors import MissingExtra
from sardonyx.lower.unsigned import Unsigned, Widening
from sardonyx.lower.xp import (
    BINARY,
    SMALL_FLOATS,
    SMALL_INTEGERS,
    UNARY,
    Arrays,
    NotStatic,
    is_string,
    is_symbolic,
    settle,
)

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra("tensorflow", "tensorflow") from error

# tensorflow has these types but few functions of them.
WIDE = {
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.uint64: tf.int64,
}
FUNCTIONS = {
    "bitwise_not": tf.bitwise.invert,
    "bitwise_and": tf.bitwise.bitwise_and,
    "bitwise_or": tf.bitwise.bitwise_or,
    "bitwise_xor": tf.bitwise.bitwise_xor,
    "left_shift": tf.bitwise.left_shift,
    "right_shift": tf.bitwise.right_shift,
    "isnan": tf.math.is_nan,
    "isinf": tf.math.is_inf,
    "isfinite": tf.math.is_finite,
    "power": tf.math.pow,
    "floor_divide": tf.math.floordiv,
    "remainder": tf.math.floormod,
    "fmod": tf.raw_ops.TruncateMod,
}


UNSIGNED = Unsigned(tf.math.floordiv, tf.bitwise.right_shift, tf.where)
WIDENING = Widening(WIDE, tf.uint64, tf.cast, UNSIGNED)
widened, ordered, in_order = WIDENING.widened, WIDENING.ordered, WIDENING.in_order


def without_ones(equation, xs):
    """An equation without the axes of size 1 that broadcast, which tensorflow refuses."""
    terms, _, result = equation.partition("->")
    terms = terms.split(",")
    sizes: dict[str, set] = {}
    for term, x in zip(terms, xs):
        for label, size in zip(term, x.shape.as_list()):
            sizes.setdefault(label, set()).add(size)
    operands = []
    for i, x in enumerate(xs):
        axes_of_one = [
            axis
            for axis, (label, size) in enumerate(zip(terms[i], x.shape.as_list()))
            if size == 1 and len(sizes[label]) > 1
        ]
        operands.append(tf.squeeze(x, axes_of_one) if axes_of_one else x)
        terms[i] = "".join(c for axis, c in enumerate(terms[i]) if axis not in axes_of_one)
    return f"{','.join(terms)}->{result}", operands


def is_traced(value):
    """Whether a tensor is symbolic: a placeholder in a graph that is being built."""
    if isinstance(value, list):
        return any(map(is_traced, value))
    return tf.is_tensor(value) and not hasattr(value, "numpy")


def decoded(array):
    """Text as numpy has it: tensorflow's is bytes."""
    texts = [t.decode() if isinstance(t, bytes) else t for t in np.asarray(array, object).flat]
    return settle(texts, np.shape(array))


def is_one_matrix(a, b):
    """Whether `b` is a matrix by which all matrices of `a` are multiplied, and one size is free."""
    if a.shape.rank is None or a.shape.rank < 3 or b.shape.rank != 2:
        return False
    sizes = [*a.shape.as_list()[:-1], *b.shape.as_list()]
    return 0 not in sizes and None not in b.shape.as_list() and sizes.count(None) <= 1


def by_one_matrix(a, b):
    """The product of all rows at once: its gradient is one product too, and no sum of many."""
    rows = tf.matmul(tf.reshape(a, (-1, b.shape[0])), b)
    sizes = [-1 if size is None else size for size in a.shape.as_list()[:-1]]
    return tf.reshape(rows, [*sizes, b.shape[1]])


class Reader:
    """Rows that the steps of a loop read one after the other.

    The gradient of reading a row from a tensor would be a tensor of all rows at every step.
    """

    held: Any = ()  # what a loop hands on from step to step

    def __init__(self, rows):
        self.array = tf.TensorArray(rows.dtype, tf.shape(rows)[0]).unstack(rows)

    def row(self, i, held):
        return self.array.read(i), held


class Queue(Reader):
    """The same, taken from the end of a list that becomes shorter: its gradient is a list that
    becomes longer, where that of a `Reader` is a sum of lists with all rows at every step.
    """

    def __init__(self, rows):
        self.dtype, self.shape = rows.dtype, rows.shape[1:]
        self.held = tf.raw_ops.TensorListFromTensor(
            tensor=tf.reverse(rows, [0]), element_shape=tf.shape(rows)[1:]
        )

    def row(self, i, held):
        held, row = tf.raw_ops.TensorListPopBack(
            input_handle=held, element_shape=-1, element_dtype=self.dtype
        )
        return tf.ensure_shape(row, self.shape), held


class TensorFlow(Arrays):
    """The namespace over tensors of tensorflow."""

    name = "tensorflow"
    annotates = True
    forks = True
    carried = {**SMALL_FLOATS, **SMALL_INTEGERS}

    def __init__(self, once: bool = False) -> None:
        self.once = once
        for name in (*UNARY, *BINARY):
            if not hasattr(type(self), name):
                function = FUNCTIONS.get(name) or getattr(tf.math, name)
                setattr(self, name, widened(name, function))

    # -- what it is

    def dtype(self, x):
        return np.dtype(x.dtype.as_numpy_dtype) if isinstance(x.dtype, tf.DType) else x.dtype

    def shape(self, x):
        if isinstance(x, np.ndarray) or None not in x.shape.as_list():
            return tuple(x.shape)
        return dims_of(x)

    def annotate(self, x, dims):
        """Note what the model knows of a shape and tensorflow does not."""
        if not tf.is_tensor(x) or isinstance(x, tf.RaggedTensor):
            return
        shape = tf.TensorShape([d if isinstance(d, int) else None for d in dims])
        # In one of two branches for two ranks, what holds for the other is not noted.
        if not x.shape.is_fully_defined() and x.shape.is_compatible_with(shape):
            x.set_shape(shape)
            x._sardonyx_dims = dims

    def rank(self, x):
        return len(x.shape)

    def is_one(self, size):
        return tf.equal(size_tensor(size), 1)

    def fork(self, condition, branches):
        return branched(self, condition, branches)

    # -- conversion

    def asarray(self, array, dtype=None):
        if tf.is_tensor(array):
            return array if dtype is None else self.cast(array, dtype)
        if is_symbolic(array):
            return self.from_sizes(array)
        array = np.asarray(array, dtype)
        array = array.astype(self.storage(array.dtype)) if array.dtype in self.carried else array
        return tf.constant(array)

    def cast(self, x, dtype):
        target = tf.as_dtype(self.storage(dtype))
        if x.dtype == target:
            return x
        if x.dtype.is_floating and target in WIDE:
            return tf.cast(tf.cast(x, tf.int64), target)
        return tf.cast(x, target)

    def static(self, x):
        constant = tf.get_static_value(x)
        if constant is not None:
            return np.asarray(constant)
        if x.shape.rank == 0 and x.dtype.is_integer:
            return settle([Dim(lambda: tf.cast(x, tf.int64))], ())
        if x.shape.rank != 1 or x.shape[0] is None or not x.dtype.is_integer:
            raise NotStatic
        return settle([Dim(functools.partial(tf.cast, v, tf.int64)) for v in tf.unstack(x)])

    def to_numpy(self, x, dtype=None):
        array = x.numpy() if tf.is_tensor(x) else x
        if is_string(dtype):
            return decoded(array)
        return np.asarray(array) if dtype is None else np.asarray(array, dtype)

    def from_sizes(self, values):
        return tf.reshape(numbers(values.flat), values.shape)

    # -- making

    def full(self, shape, value, dtype):
        value = number(value)
        target = tf.as_dtype(self.storage(dtype))
        filler = tf.cast(value, target) if tf.is_tensor(value) else tf.constant(value, target)
        return filler if len(shape) == 0 else tf.fill(numbers(shape), filler)

    def arange(self, start, stop, step, dtype):
        target = tf.as_dtype(dtype)
        wide = WIDE.get(target, target)
        values = (number(v) for v in (start, stop, step))
        bounds = (tf.cast(v, wide) if tf.is_tensor(v) else tf.constant(v, wide) for v in values)
        return tf.cast(tf.range(*bounds), target)

    def _draw(self, function, stateless, shape, dtype, seed):
        if seed is None:
            return function(numbers(shape), dtype=dtype)
        return stateless(numbers(shape), seed=(abs(int(seed)), 0), dtype=dtype)

    def uniform(self, shape, dtype, low=0.0, high=1.0, seed=None):
        sample = self._draw(tf.random.uniform, tf.random.stateless_uniform, shape, dtype, seed)
        return sample * (high - low) + low

    def normal(self, shape, dtype, mean=0.0, scale=1.0, seed=None):
        sample = self._draw(tf.random.normal, tf.random.stateless_normal, shape, dtype, seed)
        return sample * scale + mean

    # -- layout

    def reshape(self, x, shape):
        shape = list(shape)
        unknown = [i for i, d in enumerate(shape) if isinstance(d, Dim)]
        fixed = [d for d in shape if not isinstance(d, Dim)]
        if len(unknown) == 1 and all(d > 0 for d in fixed):
            shape[unknown[0]] = -1  # it follows from the rest, without a look at any shape
        return tf.reshape(x, numbers(shape))

    def transpose(self, x, perm):
        return tf.transpose(x, list(perm))

    def expand_dims(self, x, axes):
        for axis in sorted(axes):
            x = tf.expand_dims(x, axis)
        return x

    def squeeze(self, x, axes):
        return tf.squeeze(x, list(axes)) if len(axes) else x

    def broadcast_to(self, x, shape):
        wide = WIDE.get(x.dtype)
        if wide is not None:
            return tf.cast(tf.broadcast_to(tf.cast(x, wide), numbers(shape)), x.dtype)
        return tf.broadcast_to(x, numbers(shape))

    def concat(self, xs, axis):
        return tf.concat(list(xs), axis)

    def stack(self, xs, axis):
        return tf.stack(list(xs), axis)

    def split(self, x, sizes, axis):
        return tf.split(x, numbers(sizes), axis)

    def slice(self, x, starts, stops, steps):
        if not starts:
            return x
        parts = [slice(number(a), number(b), c) for a, b, c in zip(starts, stops, steps)]
        return x[tuple(parts)]

    def pad(self, x, before, after, value):
        widths = (
            tf.stack([numbers(before), numbers(after)], 1) if before else tf.zeros((0, 2), tf.int64)
        )
        wide = WIDE.get(x.dtype, tf.int32 if x.dtype == tf.bool else None)
        if wide is not None:
            padded = tf.pad(tf.cast(x, wide), widths, constant_values=tf.cast(value, wide))
            return tf.cast(padded, x.dtype)
        return tf.pad(x, widths, constant_values=tf.cast(value, x.dtype))

    def flip(self, x, axes):
        return tf.reverse(x, list(axes)) if len(axes) else x

    def tile(self, x, repeats):
        return tf.tile(x, numbers(repeats)) if len(repeats) else x

    # -- indexing

    def take(self, x, indices, axis):
        return tf.gather(x, indices, axis=axis)

    def take_along(self, x, indices, axis):
        moved, places = (tf.experimental.numpy.moveaxis(v, axis, -1) for v in (x, indices))
        y = tf.gather(moved, places, batch_dims=len(x.shape) - 1)
        return tf.experimental.numpy.moveaxis(y, -1, axis)

    def put(self, x, indices, updates, reduction="none"):
        places = tf.expand_dims(indices, 1)
        if reduction == "none":
            return tf.tensor_scatter_nd_update(x, places, updates)
        wide = WIDE.get(x.dtype)
        if wide is not None:
            return tf.cast(
                self.put(tf.cast(x, wide), indices, tf.cast(updates, wide), reduction), x.dtype
            )
        if reduction == "add":
            return tf.tensor_scatter_nd_add(x, places, updates)
        if reduction == "mul":
            return x * self._products(indices, updates, tf.size(x, out_type=indices.dtype))
        function = tf.tensor_scatter_nd_max if reduction == "max" else tf.tensor_scatter_nd_min
        return function(x, places, updates)

    def _products(self, indices, updates, size):
        return tf.math.unsorted_segment_prod(updates, indices, size)

    def nonzero(self, x):
        return tf.transpose(tf.where(tf.cast(x, tf.bool) if x.dtype != tf.bool else x))

    def where(self, condition, a, b):
        return tf.where(condition, a, b)

    # -- elementwise where tensorflow differs

    def round(self, x):
        return tf.math.rint(x)

    def floor(self, x):
        return tf.math.floor(x)

    def remainder(self, a, b):
        return widened("remainder", tf.math.floormod)(a, b)

    def fmod(self, a, b):
        if a.dtype == tf.float16:  # no kernel
            return tf.cast(self.fmod(tf.cast(a, tf.float32), tf.cast(b, tf.float32)), a.dtype)
        return widened("fmod", lambda x, y: tf.raw_ops.TruncateMod(x=x, y=y))(a, b)

    # -- reductions

    def _reduce(self, function, x, axis, keepdims):
        wide = WIDE.get(x.dtype)
        if axis == ():
            return x
        if wide is not None:
            return tf.cast(function(tf.cast(x, wide), axis, keepdims=keepdims), x.dtype)
        return function(x, axis, keepdims=keepdims)

    def _added(self, function, x, axis, keepdims):
        # tensorflow adds halves up in half precision
        if x.dtype in (tf.float16, tf.bfloat16) and axis != ():
            wide = function(tf.cast(x, tf.float32), axis, keepdims=keepdims)
            return tf.cast(wide, x.dtype)
        return self._reduce(function, x, axis, keepdims)

    def sum(self, x, axis=None, keepdims=False):
        return self._added(tf.reduce_sum, x, axis, keepdims)

    def prod(self, x, axis=None, keepdims=False):
        return self._reduce(tf.reduce_prod, x, axis, keepdims)

    def mean(self, x, axis=None, keepdims=False):
        return self._added(tf.reduce_mean, x, axis, keepdims)

    def max(self, x, axis=None, keepdims=False):
        return in_order(lambda v: self._reduce(tf.reduce_max, v, axis, keepdims), x)

    def min(self, x, axis=None, keepdims=False):
        return in_order(lambda v: self._reduce(tf.reduce_min, v, axis, keepdims), x)

    def any(self, x, axis=None, keepdims=False):
        return tf.reduce_any(x, axis, keepdims=keepdims)

    def all(self, x, axis=None, keepdims=False):
        return tf.reduce_all(x, axis, keepdims=keepdims)

    def argmax(self, x, axis):
        return tf.argmax(ordered(x), axis)

    def argmin(self, x, axis):
        return tf.argmin(ordered(x), axis)

    def cumsum(self, x, axis):
        return self._running(tf.cumsum, x, axis)

    def cumprod(self, x, axis):
        return self._running(tf.math.cumprod, x, axis)

    def _running(self, function, x, axis):
        return tf.cast(function(tf.cast(x, WIDE.get(x.dtype, x.dtype)), axis), x.dtype)

    # -- order and products

    def sort(self, x, axis):
        return in_order(lambda v: tf.sort(v, axis), x)

    def argsort(self, x, axis, descending=False):
        wide = ordered(x)
        direction = "DESCENDING" if descending else "ASCENDING"
        return tf.cast(tf.argsort(wide, axis, direction, stable=True), tf.int64)

    def matmul(self, a, b):
        wide = WIDE.get(a.dtype)
        if wide is not None:
            return tf.cast(tf.matmul(tf.cast(a, wide), tf.cast(b, wide)), a.dtype)
        if a.dtype == tf.float16 and on_cpu():  # its kernel adds up in half precision
            return tf.cast(tf.matmul(tf.cast(a, tf.float32), tf.cast(b, tf.float32)), a.dtype)
        return by_one_matrix(a, b) if is_one_matrix(a, b) else tf.matmul(a, b)

    def einsum(self, equation, *xs):
        if "->" in equation and "." not in equation:
            equation, xs = without_ones(equation, xs)
        return tf.einsum(equation, *xs)

    def det(self, x):
        return tf.linalg.det(x)

    def fft(self, real, imaginary, axis, inverse):
        # in double: the single precision transform of tensorflow has errors of 2e-6
        last, dtype = len(real.shape) - 1, real.dtype
        imaginary = tf.zeros_like(real) if imaginary is None else imaginary
        x = tf.complex(tf.cast(real, tf.float64), tf.cast(imaginary, tf.float64))
        x = tf.experimental.numpy.moveaxis(x, axis, last)
        spectrum = (tf.signal.ifft if inverse else tf.signal.fft)(x)
        spectrum = tf.experimental.numpy.moveaxis(spectrum, last, axis)
        return tf.cast(tf.math.real(spectrum), dtype), tf.cast(tf.math.imag(spectrum), dtype)

    def bit_cast(self, x, dtype):
        # bool has no bits of its own
        x = tf.cast(x, tf.uint8) if x.dtype == tf.bool else x
        if dtype == np.dtype(bool):
            return tf.cast(tf.bitcast(x, tf.uint8), tf.bool)
        return tf.bitcast(x, self.storage(dtype))

    def sigmoid(self, x):
        return tf.sigmoid(x)

    def scan(self, step, state, rows, dtypes):
        if tf.executing_eagerly():
            return super().scan(step, state, rows, dtypes)
        count = tf.shape(rows[0])[0]
        arrays = tuple(tf.TensorArray(tf.as_dtype(t), count) for t in dtypes)
        kind = Queue if self.once else Reader
        queues = tuple(kind(r) for r in rows)

        def body(i, states, held, arrays):
            taken = [queue.row(i, h) for queue, h in zip(queues, held)]
            new, columns = step(states, tuple(row for row, _ in taken))
            for old, value in zip(states, new):
                value.set_shape(old.shape)
            written = tuple(a.write(i, v) for a, v in zip(arrays, columns))
            return i + 1, new, tuple(h for _, h in taken), written

        start = (tf.constant(0), tuple(state), tuple(q.held for q in queues), arrays)
        _, last, _, arrays = tf.while_loop(
            lambda i, *_: i < count, body, start, maximum_iterations=count
        )
        return last, tuple(a.stack() for a in arrays)

    def scan_product(self, step, matrix, state, rows, dtypes):
        if not self.once or tf.executing_eagerly():  # what follows could not be saved as a model
            return super().scan_product(step, matrix, state, rows, dtypes)
        before: list = []  # the first states, known when the gradient is asked for

        @tf.custom_gradient
        def begin(rows, matrix):
            def gradient(g):
                flat = [tf.reshape(v, (-1, v.shape[-1])) for v in (*before, g)]
                return g, tf.matmul(*flat, transpose_a=True)

            return tf.identity(rows), gradient

        (row,) = rows
        results = self.scan(
            functools.partial(step, tf.stop_gradient(matrix)), state, (begin(row, matrix),), dtypes
        )
        before.append(tf.concat([state[0][None], results[1][0][:-1]], 0))
        return results

    # -- other engines

    def call_out(self, region, values):
        """Run a region on another engine, as a part of the graph if it takes only tensors."""
        from sardonyx.engines import callout
        from sardonyx.engines.tensorflow.callout import call_out

        is_eager = tf.executing_eagerly()
        are_tensors = not any(isinstance(v, (list, dict, type(None))) for v in values)
        if not (region.is_plain if is_eager else region.has_tensors) or not are_tensors:
            if any(is_traced(v) for v in values):
                raise NotStatic(f"sequences and maps cannot be in a graph: {region.label}")
            return callout.run_at_once(self, region, values)
        if not is_eager:
            region, values = callout.inline_constants(region, values)
        return call_out(region, [self.asarray(v) for v in values])

    def is_array(self, value):
        return tf.is_tensor(value)


@functools.cache
def on_cpu():
    return not tf.config.list_physical_devices("GPU")


@functools.cache
def arrays(once=False):
    """once -- only steps of a training are computed, which nobody differentiates or saves"""
    return TensorFlow(once)


__all__ = ["Dim", "TensorFlow", "arrays", "number", "numbers", "tf"]
