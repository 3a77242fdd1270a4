"""Images that are resized by weights: a product with a matrix per axis.

The matrices are TensorFlow's own where both sizes are known; otherwise the model computes them, by
the formulas of TensorFlow's kernels. ONNX's Resize has other ones: TensorFlow rounds the
coefficients of a bicubic to a table, and its antialiased kernels skip what lies outside of the
image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType
TABLE = 1024.0  # entries of the table of a bicubic's coefficients, from one pixel to the next
LEAST = 1000 * float(np.finfo(np.float32).tiny)  # of weights that are divided by their sum


@importer("ResizeBicubic", "ResizeArea")
def resize_by_product(op: Writer, x: ir.Value, size: ir.Value, *, node: Any) -> ir.Value:
    function = getattr(tf.raw_ops, node.type)
    names = ("align_corners", "half_pixel_centers")
    attributes = {a.name for a in node.op_def.attr}
    options = {n: node.get_attr(n) for n in names if n in attributes}
    formula = _bicubic if node.type == "ResizeBicubic" else _area

    def known(old: int, new: int, axis: int) -> np.ndarray:
        unit = np.eye(old, dtype=np.float32).reshape(1, old, 1, old)
        y = function(images=unit, size=[new, 1], **options)
        return np.asarray(y.numpy()).reshape(new, old)

    def computed(old: ir.Value, new: ir.Value, axis: int) -> ir.Value:
        return formula(op, old, new, **options)

    return _resized(op, x, size, known, computed)


@importer("ScaleAndTranslate")
def scale_and_translate(
    op: Writer,
    x: ir.Value,
    size: ir.Value,
    scale: ir.Value,
    translation: ir.Value,
    *,
    kernel_type: str,
    antialias: bool,
) -> ir.Value:
    """A kernel about the place of each new pixel; antialiasing widens it."""
    numbers = [constant(scale), constant(translation)]

    def known(old: int, new: int, axis: int) -> np.ndarray | None:
        if any(n is None for n in numbers):
            return None
        ratio, shift = (n.reshape(-1)[axis] for n in numbers)  # type: ignore[union-attr]
        unit = np.eye(old, dtype=np.float32).reshape(1, old, 1, old)
        y = tf.raw_ops.ScaleAndTranslate(
            images=unit,
            size=[new, 1],
            scale=[ratio, 1.0],
            translation=[shift, 0.0],
            kernel_type=kernel_type,
            antialias=antialias,
        )
        return np.asarray(y.numpy()).reshape(new, old)

    def computed(old: ir.Value, new: ir.Value, axis: int) -> ir.Value:
        ratio, shift = (op.part(v, 0, axis, axis + 1) for v in (scale, translation))
        return _spans(op, old, new, ratio, shift, kernel_type, antialias)

    return _resized(op, x, size, known, computed)


def _resized(
    op: Writer,
    x: ir.Value,
    size: ir.Value,
    known: Callable[[int, int, int], np.ndarray | None],
    computed: Callable[[ir.Value, ir.Value, int], ir.Value],
) -> ir.Value:
    """An image times [new, old] matrices of its rows and columns."""
    if x.shape is None:
        raise Refusal("an image of unknown rank")
    target = constant(size)
    matrices = []
    for axis in range(2):
        old, matrix = x.shape[axis + 1], None
        if target is not None and isinstance(old, int):
            matrix = known(old, int(target.reshape(-1)[axis]), axis)
        if matrix is not None:
            matrices.append(op.const(matrix))
            continue
        new = op.element(op.int64(size), axis)
        matrices.append(computed(op.dim_value(x, axis + 1), new, axis))
    rows, columns = matrices
    image = op.channels_first(op.cast(x, T.FLOAT))
    y = op.MatMul(op.MatMul(rows, image), op.swap(columns))
    return op.channels_last(y)


# -- matrices of weights, [new, old], of sizes that are vectors of one ---------------------------


def _pixels(op: Writer, size: ir.Value) -> ir.Value:
    return op.cast(op.count(size), T.FLOAT)


def _scale(op: Writer, old: ir.Value, new: ir.Value, align_corners: bool) -> ir.Value:
    """How many old pixels each new one stands for."""
    plain = op.Div(op.cast(old, T.FLOAT), op.cast(new, T.FLOAT))
    if not align_corners:
        return plain
    gaps = op.Div(
        op.cast(op.Sub(old, [1]), T.FLOAT), op.cast(op.Max(op.Sub(new, [1]), [1]), T.FLOAT)
    )
    return op.Where(op.And(op.Greater(new, [1]), op.Greater(old, [1])), gaps, plain)


def _shares(op: Writer, weights: ir.Value) -> ir.Value:
    """Weights divided by their sum; none where there is next to nothing to divide."""
    total = op.ReduceSum(weights, [1], keepdims=1)
    counts = op.GreaterOrEqual(op.Abs(total), op.like(LEAST, total))
    shares = op.Div(weights, op.Where(counts, total, op.like(1, total)))
    return op.Where(counts, shares, op.like(0, total))


def _keys(op: Writer, distance: ir.Value, a: float) -> ir.Value:
    """The cubic kernel whose slope at 1 is `a`."""

    def c(number: float) -> ir.Value:
        return op.like(number, distance)

    square = op.Mul(distance, distance)
    near = op.Sub(op.Mul(c(a + 2), distance), c(a + 3))
    near = op.Add(op.Mul(near, square), c(1))
    far = op.Mul(
        op.Add(op.Mul(op.Sub(op.Mul(c(a), distance), c(5 * a)), distance), c(8 * a)), distance
    )
    far = op.Sub(far, c(4 * a))
    return op.Where(
        op.LessOrEqual(distance, c(1)), near, op.Where(op.Less(distance, c(2)), far, c(0))
    )


def _bicubic(
    op: Writer, old: ir.Value, new: ir.Value, *, align_corners: bool, half_pixel_centers: bool
) -> ir.Value:
    """Four pixels about each place, whose distance is rounded to the table's.

    Beyond the border nothing counts with half-pixel centers; otherwise the last pixel repeats.
    """
    scale, places = _scale(op, old, new, align_corners), _pixels(op, new)
    if half_pixel_centers:
        half = op.const(np.float32(0.5))
        places = op.Sub(op.Mul(op.Add(places, half), scale), half)
    else:
        places = op.Mul(places, scale)
    before = op.Floor(places)
    size = op.const(np.float32(TABLE))
    rest = op.Div(op.Round(op.Mul(op.Sub(places, before), size)), size)
    pixels = op.Unsqueeze(_pixels(op, old), [0])
    if half_pixel_centers:
        distance = op.Abs(op.Sub(pixels, op.Unsqueeze(op.Add(before, rest), [1])))
        return _shares(op, _keys(op, distance, -0.5))
    taps = op.const(np.arange(-1, 3, dtype=np.float32))
    distance = op.Abs(op.Sub(taps, op.Unsqueeze(rest, [1])))
    weights = _keys(op, distance, -0.75)  # [new, 4]
    last = op.cast(op.Sub(old, [1]), T.FLOAT)
    reads = op.Add(op.Unsqueeze(before, [1]), taps)
    reads = op.Min(op.Max(reads, op.like(0, reads)), last)
    hits = op.cast(op.Equal(op.Unsqueeze(reads, [2]), pixels), T.FLOAT)  # [new, 4, old]
    return op.ReduceSum(op.Mul(hits, op.Unsqueeze(weights, [2])), [1], keepdims=0)


def _area(op: Writer, old: ir.Value, new: ir.Value, *, align_corners: bool) -> ir.Value:
    """How much of each new pixel an old one covers; the last one goes on beyond the border."""
    scale, numbers = _scale(op, old, new, align_corners), _pixels(op, new)
    one = op.const(np.float32(1))
    first = op.Unsqueeze(op.Mul(numbers, scale), [1])
    end = op.Unsqueeze(op.Mul(op.Add(numbers, one), scale), [1])
    pixels = _pixels(op, old)
    last = op.cast(op.Sub(old, [1]), T.FLOAT)
    after = op.Where(op.Less(pixels, last), op.Add(pixels, one), op.const(np.float32(np.inf)))
    covered = op.Sub(op.Min(end, after), op.Max(first, pixels))
    return op.Div(op.Max(covered, op.const(np.float32(0))), scale)


def _spans(
    op: Writer,
    old: ir.Value,
    new: ir.Value,
    scale: ir.Value,
    shift: ir.Value,
    kernel_type: str,
    antialias: bool,
) -> ir.Value:
    """The kernel at the distance of each old pixel; nothing for places outside of the image."""
    zero, half, one = (op.const(np.float32(v)) for v in (0, 0.5, 1))
    ratio = op.Div(one, scale)
    places = op.Mul(op.Add(_pixels(op, new), half), ratio)
    places = op.Unsqueeze(op.Sub(places, op.Mul(ratio, shift)), [1])
    centers = op.Add(_pixels(op, old), half)
    distance = op.Abs(op.Sub(centers, places))
    if antialias:
        distance = op.Div(distance, op.Max(ratio, one))
    weights = _shares(op, _kernel(op, kernel_type, distance))
    inside = op.And(op.GreaterOrEqual(places, zero), op.LessOrEqual(places, op.cast(old, T.FLOAT)))
    return op.Where(inside, weights, zero)


def _kernel(op: Writer, kind: str, x: ir.Value) -> ir.Value:
    """One of TensorFlow's kernels at a distance."""

    def c(number: float) -> ir.Value:
        return op.like(number, x)

    if kind in ("lanczos1", "lanczos3", "lanczos5"):
        return _lanczos(op, x, float(kind[-1]))
    if kind == "gaussian":
        y = op.Exp(op.Mul(op.Mul(x, x), c(-2)))
        return op.Where(op.Less(x, c(1.5)), y, c(0))
    if kind == "box":
        return op.Where(op.Less(x, c(0.5)), c(1), op.Where(op.Equal(x, c(0.5)), c(0.5), c(0)))
    if kind == "triangle":
        return op.Max(op.Sub(c(1), x), c(0))
    if kind == "keyscubic":
        return _keys(op, x, -0.5)
    if kind == "mitchellcubic":
        return _mitchell(op, x)
    raise Refusal(f"a kernel {kind}")


def _lanczos(op: Writer, x: ir.Value, radius: float) -> ir.Value:
    def c(number: float) -> ir.Value:
        return op.like(number, x)

    turn = op.Mul(x, c(np.pi))
    top = op.Mul(c(radius), op.Mul(op.Sin(turn), op.Sin(op.Div(turn, c(radius)))))
    near = op.LessOrEqual(x, c(1e-3))
    y = op.Div(top, op.Where(near, c(1), op.Mul(turn, turn)))
    return op.Where(op.Greater(x, c(radius)), c(0), op.Where(near, c(1), y))


def _mitchell(op: Writer, x: ir.Value) -> ir.Value:
    def c(number: float) -> ir.Value:
        return op.like(number, x)

    def cubic(*coefficients: float) -> ir.Value:
        y = c(coefficients[0])
        for number in coefficients[1:]:
            y = op.Add(op.Mul(y, x), c(number))
        return y

    near, far = cubic(7 / 6, -2, 0, 8 / 9), cubic(-7 / 18, 2, -10 / 3, 16 / 9)
    far = op.Where(op.Less(x, c(2)), far, c(0))
    return op.Where(op.Less(x, c(1)), near, far)
