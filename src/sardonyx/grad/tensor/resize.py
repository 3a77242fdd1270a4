"""Resize: along each axis it is a matrix, and its gradient multiplies by the transpose.

`interpolation` writes that matrix once, against the few array functions named in `Nodes`: numpy
computes it while building where sizes are known, `Nodes` builds the nodes that compute it where
they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, constant, rank, same_dim
from sardonyx.grad.driver import gradient_rule
from sardonyx.grad.tensor.gather import wide

Array = Any  # a numpy array or a value: `+ - * /` work on both


@dataclass(frozen=True)
class Style:
    """The attributes of Resize that shape an interpolation matrix."""

    mode: str
    nearest_mode: str
    coordinate_transformation_mode: str
    cubic_coeff_a: float
    antialias: int
    exclude_outside: int
    whole: bool  # scales are quotients of sizes


class Nodes:
    """The names of numpy that `interpolation` uses, for values: they build nodes."""

    def __init__(self, op: Builder, dtype: ir.DataType):
        self.op, self.dtype = op, dtype
        self.floor, self.ceil, self.abs, self.where = op.Floor, op.Ceil, op.Abs, op.Where
        self.less, self.greater, self.equal = op.Less, op.Greater, op.Equal
        self.less_equal, self.logical_or, self.matmul = op.LessOrEqual, op.Or, op.MatMul

    def minimum(self, a: Array, b: Array) -> Array:
        return self.op.Min(self._value(a), b)

    def maximum(self, a: Array, b: Array) -> Array:
        return self.op.Max(self._value(a), b)

    def arange(self, start: Array, stop: Array) -> Array:
        # Range of INT64: onnxruntime 1.31 takes a size that was cast for an INT64 all the same, and
        # refuses a Range of it beside numbers of another type.
        ends = [self.op.cast(self._value(v), ir.DataType.INT64) for v in (start, stop)]
        return self.op.cast(self.op.Range(*ends, 1), self.dtype)

    def expand_dims(self, x: Array, axis: int) -> Array:
        return self.op.Unsqueeze(x, [axis])

    def sum(self, x: Array, axis: int) -> Array:
        return self.op.ReduceSum(x, [axis], keepdims=1)

    def number(self, condition: Array) -> Array:
        return self.op.cast(condition, self.dtype)

    def _value(self, x: Array) -> ir.Value:
        return x if isinstance(x, ir.Value) else self.op.const(x, self.dtype)


class Arrays:
    """The same names, from numpy."""

    floor, ceil, abs = np.floor, np.ceil, np.abs
    less, greater, equal, less_equal = np.less, np.greater, np.equal, np.less_equal
    logical_or, matmul, minimum, maximum = np.logical_or, np.matmul, np.minimum, np.maximum
    where, expand_dims = staticmethod(np.where), staticmethod(np.expand_dims)

    def __init__(self, dtype: Any):
        self.dtype = dtype

    def arange(self, start: float, stop: float) -> np.ndarray:
        return np.arange(start, stop, dtype=self.dtype)

    def sum(self, x: np.ndarray, axis: int) -> np.ndarray:
        return np.sum(x, axis=axis, keepdims=True)

    def number(self, condition: np.ndarray) -> np.ndarray:
        return np.asarray(condition).astype(self.dtype)


# -- the matrix of one axis -----------------------------------------------------------


def interpolation(
    xp: Any, style: Style, size: Array, length: Array, scale: Array, roi: tuple[Array, Array] | None
) -> Array:
    """The matrix, `length` x `size`, that resizes an axis from `size` to `length` elements."""
    x = coordinates(xp, style, size, length, scale, roi)
    column = xp.expand_dims(x, 1)
    if style.mode == "nearest":
        index = xp.minimum(xp.maximum(nearest(xp, x, style.nearest_mode), 0.0), size - 1.0)
        matrix = xp.number(
            xp.equal(xp.expand_dims(index, 1), xp.expand_dims(xp.arange(0.0, size), 0))
        )
    else:
        matrix = _weights(xp, style, size, scale, column)
    if style.coordinate_transformation_mode != "tf_crop_and_resize":
        return matrix
    outside = xp.logical_or(xp.less(column, 0.0), xp.greater(column, size - 1.0))
    return xp.where(outside, 0.0 * matrix, matrix)


def _weights(xp: Any, style: Style, size: Array, scale: Array, column: Array) -> Array:
    """The kernel around each coordinate, over the axis and as far beside it as the kernel goes."""
    reach = 2.0 if style.mode == "cubic" else 1.0
    shrink = xp.minimum(scale, 1.0) if style.antialias else 1.0
    reach = xp.ceil(reach / shrink) if style.antialias else reach
    beside = 0.0 if style.exclude_outside else reach + 1.0
    sources = xp.arange(0.0 - beside, size + beside)
    distance = xp.abs(column - xp.expand_dims(sources, 0))
    distance = distance * shrink if style.antialias else distance
    cubic = style.mode == "cubic"
    kernel = _cubic(xp, distance, style.cubic_coeff_a) if cubic else _hat(xp, distance)
    if style.antialias or style.exclude_outside:
        kernel = kernel / xp.sum(kernel, 1)
    if style.exclude_outside:
        return kernel
    # Beside the axis its first and last element repeat: fold those weights onto them.
    inside = xp.minimum(xp.maximum(sources, 0.0), size - 1.0)
    fold = xp.equal(xp.expand_dims(inside, 1), xp.expand_dims(xp.arange(0.0, size), 0))
    return xp.matmul(kernel, xp.number(fold))


def coordinates(
    xp: Any, style: Style, size: Array, length: Array, scale: Array, roi: tuple[Array, Array] | None
) -> Array:
    """Where each element of the resized axis lies on the original one."""
    how, i, last = style.coordinate_transformation_mode, xp.arange(0.0, length), size - 1.0
    # By a scale, the width may be fractional, as in ONNX's reference; `length` is what is left.
    width = length if style.whole else scale * size
    if how == "asymmetric":
        return i / scale
    if how == "align_corners":
        single = xp.number(xp.equal(width, 1.0))
        return i * last / (width - 1.0 + single) * (1.0 - single)
    if how == "tf_crop_and_resize":
        assert roi is not None
        start, end = roi
        single = xp.number(xp.equal(width, 1.0))
        along = i * last / (width - 1.0 + single) * (1.0 - single) + 0.5 * single * last
        return along * (end - start) + start * last
    centred = (i + 0.5) / scale - 0.5
    if how == "half_pixel_symmetric":
        return centred + size * 0.5 * (1.0 - length / width)
    if how == "pytorch_half_pixel":
        return xp.where(xp.greater(length, 1.0), centred, 0.0 * i)
    return centred


def nearest(xp: Any, x: Array, how: str) -> Array:
    if how == "floor":
        return xp.floor(x)
    if how == "ceil":
        return xp.ceil(x)
    below = xp.floor(x)
    closer = xp.less_equal if how == "round_prefer_floor" else xp.less
    return xp.where(closer(x - below, 0.5), below, below + 1.0)


def _hat(xp: Any, d: Array) -> Array:
    return xp.maximum(1.0 - d, 0.0)


def _cubic(xp: Any, d: Array, a: float) -> Array:
    near = ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    far = ((d - 5.0) * d + 8.0) * d * a - 4.0 * a
    return xp.where(xp.less_equal(d, 1.0), near, xp.where(xp.less(d, 2.0), far, 0.0 * d))


# -- the rule ---------------------------------------------------------------------


@gradient_rule("Resize", refuses=(1, 2))
def resize(
    op, g, x, roi, scales, sizes, *, axes, extrapolation_value, keep_aspect_ratio_policy, **how
):
    style = Style(whole=sizes is not None and keep_aspect_ratio_policy == "stretch", **how)
    where = list(range(rank(x))) if axes is None else [a % rank(x) for a in axes]
    g = seed = wide(op, g)
    ratios = _ratios(op, x, where, scales, sizes, keep_aspect_ratio_policy, g.dtype)
    cropped = style.coordinate_transformation_mode == "tf_crop_and_resize"
    if not cropped:
        same = [a for a in where if _unchanged(x, seed, a, ratios[a])]
        where = [a for a in where if a not in same]
    if _repeats(style, [ratios[a] for a in where]):
        return _sum_of_repeats(op, g, x, {a: round(ratios[a]) for a in where})
    for i, axis in enumerate(where):
        part = _part(op, roi, i, len(where), g.dtype) if cropped else None
        matrix = _matrix(
            op, style, op.dim(x, axis), op.dim(seed, axis), ratios[axis], part, g.dtype
        )
        g = _multiply(op, g, matrix, axis)
    return g


def _unchanged(x: ir.Value, y: ir.Value, axis: int, ratio: Array) -> bool:
    same = x.shape is not None and y.shape is not None and same_dim(x.shape[axis], y.shape[axis])
    return ratio == 1.0 if isinstance(ratio, float) else same


def _ratios(
    op: Builder,
    x: ir.Value,
    axes: Sequence[int],
    scales: ir.Value | None,
    sizes: ir.Value | None,
    policy: str,
    dtype: Any,
) -> dict[int, Array]:
    """The scale of each axis: a number where known, else a scalar value."""
    source = scales if scales is not None and not _is_empty(scales) else sizes
    assert source is not None
    numbers = constant(source)
    ratios: dict[int, Array] = {}
    for i, axis in enumerate(axes):
        part = (
            float(numbers[i])
            if numbers is not None
            else _scalar(op, op.Slice(source, [i], [i + 1], [0]), dtype)
        )
        ratios[axis] = part if source is scales else part / _scalar(op, op.dim(x, axis), dtype)
    if source is scales or policy == "stretch":
        return ratios
    pick, emit = (min, op.Min) if policy == "not_larger" else (max, op.Max)
    if all(isinstance(r, float) for r in ratios.values()):
        one: Array = pick(ratios.values())
    else:
        one = emit(*(r if isinstance(r, ir.Value) else op.const(r, dtype) for r in ratios.values()))
    return dict.fromkeys(axes, one)


def _is_empty(x: ir.Value) -> bool:
    return x.shape is not None and x.shape[0] == 0


def _scalar(op: Builder, size: Dim, dtype: Any) -> Array:
    """A number as float: of Python where known, else a value without dimensions."""
    return float(size) if isinstance(size, int) else op.Squeeze(op.cast(size, dtype), [0])


def _part(op: Builder, roi: ir.Value | None, i: int, count: int, dtype: Any) -> tuple[Array, Array]:
    assert roi is not None
    numbers = constant(roi)
    if numbers is not None:
        return float(numbers[i]), float(numbers[count + i])
    first, last = (_scalar(op, op.Slice(roi, [k], [k + 1], [0]), dtype) for k in (i, count + i))
    return first, last


def _matrix(
    op: Builder, style: Style, size: Dim, length: Dim, ratio: Array, part: Any, dtype: Any
) -> ir.Value:
    numbers = [_scalar(op, size, dtype), _scalar(op, length, dtype), ratio, *(part or ())]
    if all(isinstance(n, float) for n in numbers):
        # float32, except in float64 models: onnxruntime finds coordinates, so ties, in float32.
        xp: Any = Arrays(dtype.numpy())
        numbers = [dtype.numpy().type(n) for n in numbers]
    else:
        xp = Nodes(op, dtype)
        numbers = [n if isinstance(n, ir.Value) else op.const(n, dtype) for n in numbers]
    extent, reach, scale, *region = numbers
    matrix = interpolation(xp, style, extent, reach, scale, tuple(region) or None)
    return op.const(matrix) if isinstance(matrix, np.ndarray) else matrix


def _multiply(op: Builder, g: ir.Value, matrix: ir.Value, axis: int) -> ir.Value:
    """The product of `g` along `axis` with the transpose of `matrix`."""
    n = rank(g)
    if n == 1:
        return op.Squeeze(op.MatMul(op.Unsqueeze(g, [0]), matrix), [0])
    if axis == n - 1:
        return op.MatMul(g, matrix)
    if axis == n - 2:
        return op.MatMul(op.swap(matrix), g)
    perm = [*(a for a in range(n) if a != axis), axis]
    product = op.MatMul(op.transpose(g, perm), matrix)
    return op.transpose(product, np.argsort(perm).tolist())


# -- the common case: each element repeated -------------------------------------------


def _repeats(style: Style, ratios: Sequence[Array]) -> bool:
    """Whether nearest sampling repeats each element a whole number of times."""
    if style.mode != "nearest" or not ratios:
        return False
    if not all(isinstance(r, float) and r >= 1 and r == round(r) for r in ratios):
        return False
    if style.coordinate_transformation_mode == "asymmetric":
        return style.nearest_mode == "floor"
    centred = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
    return style.coordinate_transformation_mode in centred and style.nearest_mode.startswith(
        "round"
    )


def _sum_of_repeats(op: Builder, g: ir.Value, x: ir.Value, times: dict[int, int]) -> ir.Value:
    # onnxruntime pools 1.5 times as fast as it reduces, but in float32 only.
    if g.dtype == ir.DataType.FLOAT and rank(x) == 4 and set(times) <= {2, 3}:
        window = [times.get(2, 1), times.get(3, 1)]
        pooled = op.AveragePool(g, kernel_shape=window, strides=window)
        return pooled * float(window[0] * window[1])
    dims, summed = [], []
    for axis, size in enumerate(op.dims(x)):
        dims.append(size)
        if axis in times:
            summed.append(len(dims))
            dims.append(times[axis])
    return op.total(op.reshape(g, dims), summed)
