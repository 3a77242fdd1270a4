"""`xp`: the small array namespace that every lowering is written against.

An adapter per framework implements it (`engines/<framework>/xp.py`). All that a rule may call:

    what it is     dtype(x) -> numpy dtype · rank(x) -> int
                   shape(x) -> tuple of ints, or of symbolic scalars where a size is not known
    conversion     asarray(array, dtype=None) · cast(x, dtype)
                   static(x) -> numpy · to_numpy(x, dtype=None)
    making         full(shape, value, dtype) · arange(start, stop, step, dtype)
                   uniform(shape, dtype, low, high, seed) · normal(shape, dtype, mean, scale, seed)
    layout         reshape(x, shape) · transpose(x, perm) · expand_dims(x, axes) · squeeze(x, axes)
                   broadcast_to(x, shape) · concat(xs, axis) · stack(xs, axis) · flip(x, axes)
                   split(x, sizes, axis) · slice(x, starts, stops, steps) · tile(x, repeats)
                   pad(x, before, after, value)
    indexing       take(x, indices, axis) · take_along(x, indices, axis) · nonzero(x)
                   put(x, indices, updates, reduction) on flat arrays
    choice         where(condition, a, b)
    elementwise    UNARY and BINARY below: ONNX's broadcasting, both operands of one dtype
    reductions     sum prod max min mean any all (x, axis, keepdims) · argmax argmin (x, axis)
                   cumsum(x, axis) · cumprod(x, axis)
    order          sort(x, axis) · argsort(x, axis, descending=False), stable
    products       matmul(a, b) · einsum(equation, *xs) · det(x)
                   fft(real, imaginary, axis, inverse) -> real, imaginary
    bits           bit_cast(x, dtype)

and what `Arrays` below makes of these. dtypes are numpy's (ml_dtypes for bfloat16 and smaller). A
type that a framework has no arrays of is `carried`: held exactly in a wider type of the framework,
while the graph remembers what it is. Sizes are ints where known, else scalars of the framework that
take part in + - * //: never `int()` them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

UNARY = (
    *("negative", "abs", "sign", "exp", "expm1", "log", "log1p", "sqrt", "erf"),
    *("sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("floor", "ceil", "round", "isnan", "isinf", "isfinite", "logical_not", "bitwise_not"),
)
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
BINARY = (
    *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod"),
    *("power", "maximum", "minimum", "atan2", *COMPARISONS),
    *("logical_and", "logical_or", "logical_xor"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SMALL_FLOATS = {
    np.dtype(t): np.dtype(np.float32)
    for t in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float8_e8m0fnu,
        ml_dtypes.float4_e2m1fn,
    )
}
SMALL_INTEGERS = {
    np.dtype(ml_dtypes.int4): np.dtype(np.int8),
    np.dtype(ml_dtypes.int2): np.dtype(np.int8),
    np.dtype(ml_dtypes.uint4): np.dtype(np.uint8),
    np.dtype(ml_dtypes.uint2): np.dtype(np.uint8),
}
FLOAT_DTYPES = frozenset(
    (np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64), *SMALL_FLOATS)
)


class NotStatic(Exception):
    """A value that must be known while building is not."""

    def __init__(self, what: str = "what must be known while building depends on data") -> None:
        super().__init__(what)


def is_float(dtype: np.dtype) -> bool:
    return dtype in FLOAT_DTYPES


def is_integer(dtype: np.dtype) -> bool:
    return dtype.kind in "iu" or dtype in SMALL_INTEGERS


def is_string(dtype: np.dtype | None) -> bool:
    return dtype is not None and dtype.kind in "OUST"


def is_symbolic(value: Any) -> bool:
    """Whether a numpy array holds sizes that are only known to the framework."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype == object
        and any(not isinstance(v, (str, bytes, int, type(None))) for v in value.flat)
    )


def settle(values: Any, shape: Sequence[int] | None = None) -> np.ndarray:
    """Sizes as one array: int64 where all are known, else an array of objects."""
    items = list(values)
    if all(isinstance(v, (int, np.integer)) for v in items):
        array = np.array([int(v) for v in items], np.int64)
    else:
        array = np.empty(len(items), object)
        for i, v in enumerate(items):
            array[i] = int(v) if isinstance(v, np.integer) else v
    return array if shape is None else array.reshape(shape)


def positive(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


class Arrays:
    """What all adapters share: the parts of the namespace that follow from the rest."""

    name = ""
    strings = False  # whether the framework has arrays of strings
    forks = False  # whether the rest of a graph can be built for each of several ranks
    annotates = False  # whether arrays can be annotated with sizes the framework does not infer
    carried: dict[np.dtype, np.dtype] = {}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the {self.name} adapter has no {name!r}: see lower/xp.py")

    def storage(self, dtype: np.dtype) -> np.dtype:
        """The type in which the framework holds arrays of `dtype`."""
        return self.carried.get(dtype, dtype)

    def rank(self, x) -> int:
        return len(self.shape(x))

    def size(self, x):
        return self.count(self.shape(x))

    def count(self, dims):
        """The product of sizes."""
        total = 1
        for d in dims:
            total = total * d
        return total

    def zeros(self, shape, dtype):
        return self.full(shape, 0, dtype)

    def ones(self, shape, dtype):
        return self.full(shape, 1, dtype)

    def full_like(self, x, value):
        return self.full(self.shape(x), value, self.dtype(x))

    def scalar(self, value, like):
        """A constant of rank 0, of the type of `like`."""
        return self.full((), value, self.dtype(like))

    def index(self, x, axis, start, stop=None, step=1):
        """A slice along one axis."""
        rank = self.rank(x)
        starts, stops, steps = [0] * rank, [None] * rank, [1] * rank
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.slice(x, starts, stops, steps)

    def swap(self, x):
        """The last two axes exchanged."""
        axes = list(range(self.rank(x)))
        axes[-2:] = axes[-1], axes[-2]
        return self.transpose(x, axes)

    def move(self, x, source, target):
        axes = [a for a in range(self.rank(x)) if a != source]
        axes.insert(target, source)
        return self.transpose(x, axes)

    def square(self, x):
        return self.multiply(x, x)

    def reciprocal(self, x):
        return self.divide(self.scalar(1, x), x)

    def sigmoid(self, x):
        # exp of a number that is never positive: no overflow on either side
        e = self.exp(self.negative(self.abs(x)))
        return self.where(self.greater_equal(x, self.scalar(0, x)), 1 / (1 + e), e / (1 + e))

    def softplus(self, x):
        zero = self.scalar(0, x)
        return self.add(self.maximum(x, zero), self.log1p(self.exp(self.negative(self.abs(x)))))

    def scan(self, step, state, rows, dtypes):
        """Fold `step` over the first axis of all `rows`: the last state, and the stacked outputs.

        step(state, row) returns the next state and one row of each output, both tuples of arrays;
        `dtypes` are the types of the outputs. Shapes and types of the state stay the same.
        """
        columns = []
        for i in range(self.shape(rows[0])[0]):
            row = tuple(self.squeeze(self.index(r, 0, i, i + 1), (0,)) for r in rows)
            state, new = step(state, row)
            columns.append(new)
        return state, tuple(self.stack(column, 0) for column in zip(*columns))

    def scan_product(self, step, matrix, state, rows, dtypes):
        """`scan` of a step(matrix, state, row) that multiplies the first state by a matrix and adds
        this to the row, and reads the matrix nowhere else; it gives the new first state alone.

        So the gradient of the matrix is that of a product of all first states, after the loop.
        Everything else that has a gradient is in `state` and `rows`.
        """
        return self.scan(functools.partial(step, matrix), state, rows, dtypes)

    def computed_once(self, x):
        """`x`, computed once: compilers that recompute a value may round it differently."""
        return x

    def rounded(self, x):
        """`x`, rounded before its maximum is subtracted: compilers may keep more digits of a
        product there than the maximum has.
        """
        return x

    def standardized(self, x, axes, epsilon):
        """`x` with a mean of zero and a variance of one along axes; its mean and variance, with
        the axes kept.
        """
        mean = self.mean(x, axes, True)
        away = x - mean
        variance = self.mean(away * away, axes, True)
        return away / self.sqrt(variance + epsilon), mean, variance

    def clip(self, x, low, high):
        x = x if low is None else self.maximum(x, low)
        return x if high is None else self.minimum(x, high)
