"""Rules of windows: reductions over them, and the selections behind gradients of pooling."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.jax.driver import Reader, importer
from sardonyx.importers.jax.elementwise import is_float, maximum, minimum
from sardonyx.importers.jax.reductions import elementwise, monoid
from sardonyx.importers.jax.shapes import dilated, is_same, padded
from sardonyx.importers.jax.writer import Refusal, Writer, is_static

T = ir.DataType
Combine = Callable[[ir.Value, ir.Value], ir.Value]
FEW = 8  # elements of a window up to which each becomes a slice
MANY = 512


@importer("reduce_window_max")
def reduce_window_max(
    op: Writer, x: ir.Value, *,
    window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any,
    window_dilation: Any,
) -> ir.Value:  # fmt: skip
    window = Window(
        op, x, window_dimensions, window_strides, padding, base_dilation, window_dilation
    )
    spatial = window.pooled()
    if spatial is not None:
        return _pooled(op, x, window, spatial)
    return window.reduced(lambda a, b: maximum(op, a, b), lowest(x))


@importer("reduce_window_min")
def reduce_window_min(
    op: Writer, x: ir.Value, *,
    window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any,
    window_dilation: Any,
) -> ir.Value:  # fmt: skip
    window = Window(
        op, x, window_dimensions, window_strides, padding, base_dilation, window_dilation
    )
    return window.reduced(lambda a, b: minimum(op, a, b), highest(x))


@importer("reduce_window_sum")
def reduce_window_sum(
    op: Writer, x: ir.Value, *,
    window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any,
    window_dilation: Any,
) -> ir.Value:  # fmt: skip
    window = Window(
        op, x, window_dimensions, window_strides, padding, base_dilation, window_dilation
    )
    return window.reduced(lambda a, b: op.Add(a, b), 0)


@importer("reduce_window")
def reduce_window(
    op: Writer, *operands: ir.Value,
    jaxpr: Any, consts: Any, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any, window_dilation: Any, reader: Reader,
) -> Sequence[ir.Value]:  # fmt: skip
    if len(operands) != 2 or consts:
        raise Refusal("windows of several arrays at once")
    x, start = operands
    closed = jaxpr if hasattr(jaxpr, "jaxpr") else _closed(jaxpr)
    window = Window(
        op, x, window_dimensions, window_strides, padding, base_dilation, window_dilation
    )
    simple = {
        "add": op.Add,
        "mul": op.Mul,
        "max": lambda a, b: maximum(op, a, b),
        "min": lambda a, b: minimum(op, a, b),
    }
    combine = simple.get(monoid(closed) or "")
    if combine is None:

        def combine(a: ir.Value, b: ir.Value) -> ir.Value:
            return reader.closed(op, elementwise(closed, a), [a, b])[0]

    y = window.reduced(combine, start)
    return [combine(op.expanded(start, list(y.shape)), y)]  # type: ignore[arg-type]


def _closed(jaxpr: Any) -> Any:
    from jax.extend.core import ClosedJaxpr

    return ClosedJaxpr(jaxpr, ())


def lowest(x: ir.Value) -> Any:
    kind = x.dtype.numpy()  # type: ignore[union-attr]
    if x.dtype == T.BOOL:
        return False
    return -np.inf if is_float(x) else np.iinfo(kind).min


def highest(x: ir.Value) -> Any:
    kind = x.dtype.numpy()  # type: ignore[union-attr]
    if x.dtype == T.BOOL:
        return True
    return np.inf if is_float(x) else np.iinfo(kind).max


class Window:
    """A window that moves over `x`: sizes, strides, padding and dilations by axis."""

    def __init__(
        self,
        op: Writer,
        x: ir.Value,
        sizes: Any,
        strides: Any,
        padding: Any,
        base: Any,
        dilation: Any,
    ):
        rank = len(sizes)
        self.op, self.x = op, x
        self.sizes, self.strides = [*sizes], [*strides]
        self.padding = [tuple(p) for p in padding]
        self.base, self.dilation = [*(base or [1] * rank)], [*(dilation or [1] * rank)]
        numbers = [*self.sizes, *self.strides, *self.base, *self.dilation]
        if not is_static(numbers):
            raise Refusal("a window of a free size")
        self.sizes, self.strides, self.base, self.dilation = (
            [int(v) for v in part] for part in (self.sizes, self.strides, self.base, self.dilation)
        )

    @property
    def busy(self) -> list[int]:
        """The axes along which the window is more than one element in its place."""
        return [
            a for a, size in enumerate(self.sizes)
            if (size, self.strides[a], self.base[a], self.padding[a]) != (1, 1, 1, (0, 0))
        ]  # fmt: skip

    def filled(self, value: Any) -> ir.Value:
        """`x` with its dilation and padding written out as `value`."""
        op, x = self.op, self.x
        scalar = value if isinstance(value, ir.Value) else op.like(value, x)
        for axis, factor in enumerate(self.base):
            if factor != 1:
                x = dilated(op, x, axis, factor, scalar)
        return padded(op, x, self.padding, scalar)

    def reduced(self, combine: Combine, value: Any) -> ir.Value:
        """Every window combined, one axis after the other."""
        x = self.filled(value)
        for axis in self.busy:
            x = self._along(x, axis, combine)
        return x

    def _count(self, x: ir.Value, axis: int, stride: int) -> int:
        size = x.shape[axis]  # type: ignore[index]
        if not isinstance(size, int):
            raise Refusal("a window over a free size")
        return (size - (self.sizes[axis] - 1) * self.dilation[axis] - 1) // stride + 1

    def _end(self, x: ir.Value, axis: int, start: int) -> Any:
        """Where the slice of the elements from `start` on ends, one of each window."""
        op, stride = self.op, self.strides[axis]
        size = op.dim(x, axis)
        if isinstance(size, int):
            return start + (self._count(x, axis, stride) - 1) * stride + 1
        span = (self.sizes[axis] - 1) * self.dilation[axis] + 1
        steps = op.Div(op.Sub(size, [span]), [stride])
        return op.Add(op.Mul(steps, [stride]), [start + 1])

    def _along(self, x: ir.Value, axis: int, combine: Combine) -> ir.Value:
        op, size, stride, gap = self.op, self.sizes[axis], self.strides[axis], self.dilation[axis]
        if size <= FEW:
            y = None
            for k in range(size):
                part = op.part(x, axis, k * gap, self._end(x, axis, k * gap), stride)
                y = part if y is None else combine(y, part)
            assert y is not None
            return y
        # Spans of 1, 2, 4, … elements; the window is the sum of those in its binary number.
        count = self._count(x, axis, 1)
        y, offset, span = None, 0, 1
        while span <= size:
            if size & span:
                part = op.part(x, axis, offset * gap, offset * gap + count)
                y, offset = part if y is None else combine(y, part), offset + span
            length = int(x.shape[axis])  # type: ignore[index,arg-type]
            if 2 * span <= size:
                x = combine(
                    op.part(x, axis, 0, length - span * gap), op.part(x, axis, span * gap, length)
                )
            span *= 2
        assert y is not None
        return op.part(y, axis, 0, count, stride) if stride != 1 else y

    def places(self) -> Iterator[tuple[int, ...]]:
        """The elements of the window, in order."""
        if np.prod(self.sizes) > MANY:
            raise Refusal(f"a selection in windows of more than {MANY} elements")
        return itertools.product(*(range(s) for s in self.sizes))

    def element(self, x: ir.Value, place: Sequence[int]) -> ir.Value:
        """One element of every window of `x`, which is padded already."""
        for axis in self.busy:
            count, stride = self._count(x, axis, self.strides[axis]), self.strides[axis]
            start = place[axis] * self.dilation[axis]
            end = start + (count - 1) * stride + 1
            if (start, end, stride) != (0, x.shape[axis], 1):  # type: ignore[index]
                x = self.op.part(x, axis, start, end, stride)
        return x

    def pooled(self) -> list[int] | None:
        """The axes over which MaxPool says exactly the same; None where it does not."""
        busy, rank = self.busy, len(self.sizes)
        plain = self.x.dtype in (T.FLOAT, T.DOUBLE) and set(self.base) == {1}
        return busy if plain and 1 <= len(busy) <= 3 and rank - len(busy) <= 2 else None

    def is_same(self) -> bool:
        """Whether the padding depends on free sizes, and is what ONNX calls SAME."""
        if is_static([p for pair in self.padding for p in pair]):
            return False
        reaches = [(s - 1) * d + 1 for s, d in zip(self.sizes, self.dilation, strict=True)]
        return is_same(self.x.meta["aval"].shape, reaches, self.strides, self.padding)

    def pads_fit(self) -> bool:
        """Whether MaxPool can pad by itself: every window has an element of `x`."""
        pads = [(a, p) for a in self.busy for p in self.padding[a]]
        static = is_static([p for _, p in pads])
        return static and all(0 <= p < self.sizes[a] for a, p in pads) and set(self.dilation) == {1}


def _pool_layout(window: Window, spatial: list[int]) -> tuple[list[int], int]:
    """The order of axes for pooling, and how many axes of size one to put before them."""
    others = [a for a in range(len(window.sizes)) if a not in spatial]
    return [*others, *spatial], 2 - len(others)


def _pool(
    op: Writer,
    x: ir.Value,
    window: Window,
    spatial: list[int],
    outputs: int | None = None,
    padding: str = "NOTSET",
) -> Any:
    """MaxPool over [n, c, …]; over one axis as over two, whose kernel knows -inf.

    padding -- how MaxPool pads: NOTSET as the window does, VALID not at all, SAME_UPPER
    """
    lead = [0] if len(spatial) == 1 else []
    pads: dict[str, Any] = {"auto_pad": padding}
    if padding == "NOTSET":
        lows, highs = zip(*(window.padding[a] for a in spatial), strict=True)
        pads = {"pads": lead + [int(n) for n in lows] + lead + [int(n) for n in highs]}
    elif padding == "VALID":
        pads = {"pads": [0] * 2 * (len(lead) + len(spatial))}
    return op.MaxPool(
        x,
        kernel_shape=[1] * len(lead) + [window.sizes[a] for a in spatial],
        strides=[1] * len(lead) + [window.strides[a] for a in spatial],
        dilations=[1] * len(lead) + [window.dilation[a] for a in spatial],
        outputs=outputs,
        **pads,
    )


def _to_pool(op: Writer, x: ir.Value, order: list[int], ones: int, spatial: list[int]) -> ir.Value:
    x = op.unsqueezed(op.transpose(x, order), list(range(ones)))
    return op.unsqueezed(x, [2]) if len(spatial) == 1 else x


def _from_pool(
    op: Writer, y: ir.Value, order: list[int], ones: int, spatial: list[int]
) -> ir.Value:
    y = op.squeezed(y, [2]) if len(spatial) == 1 else y
    y = op.squeezed(y, list(range(ones)))
    return op.transpose(y, np.argsort(order).tolist())


def _pooled(op: Writer, x: ir.Value, window: Window, spatial: list[int]) -> ir.Value:
    """The largest element by MaxPool, and NaN where there is one: MaxPool may drop it."""
    order, ones = _pool_layout(window, spatial)
    # Padded here: where MaxPool pads, a window of -inf comes out as the lowest number.
    same = window.is_same()
    filled = x if same else window.filled(-np.inf)
    image = _to_pool(op, filled, order, ones, spatial)
    padding = "SAME_UPPER" if same else "VALID"
    y = _pool(op, image, window, spatial, padding=padding)
    if same:
        lowest_number = op.like(np.finfo(x.dtype.numpy()).min, x)  # type: ignore[union-attr]
        y = op.Where(op.Greater(y, lowest_number), y, op.like(-np.inf, x))
    invalid = _pool(op, op.cast(op.IsNaN(image), T.FLOAT), window, spatial, padding=padding)
    y = op.Where(op.Greater(invalid, 0.0), op.like(np.nan, x), y)
    return _from_pool(op, y, order, ones, spatial)


# -- selections ---------------------------------------------------------------------------


def _keeps(op: Writer, select_prim: Any) -> Callable[[ir.Value, ir.Value], ir.Value]:
    name = getattr(select_prim, "name", str(select_prim))
    if name not in ("ge", "le"):
        raise Refusal(f"a selection by {name}")
    return op.GreaterOrEqual if name == "ge" else op.LessOrEqual


def _chosen(
    op: Writer, window: Window, x: ir.Value, select_prim: Any
) -> tuple[ir.Value, list[tuple[int, ...]]]:
    """Which element of each window is selected, as its number; and the places of the elements."""
    keeps, places = _keeps(op, select_prim), list(window.places())
    best = window.element(x, places[0])
    number = op.expanded(op.const(np.int64(0)), list(best.shape))  # type: ignore[arg-type]
    for k, place in enumerate(places[1:], 1):
        other = window.element(x, place)
        stays = keeps(best, other)
        best = op.Where(stays, best, other)
        number = op.Where(stays, number, op.const(np.int64(k)))
    return number, places


@importer("select_and_gather_add")
def select_and_gather_add(
    op: Writer, tangents: ir.Value, x: ir.Value, *,
    select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any,
    window_dilation: Any,
) -> ir.Value:  # fmt: skip
    rest = (window_dimensions, window_strides, padding, base_dilation, window_dilation)
    name = getattr(select_prim, "name", "")
    window, moved = Window(op, x, *rest), Window(op, tangents, *rest)
    operand = window.filled(lowest(x) if name == "ge" else highest(x))
    values = moved.filled(0)
    number, places = _chosen(op, window, operand, select_prim)
    y = moved.element(values, places[0])
    for k, place in enumerate(places[1:], 1):
        y = op.Where(op.Equal(number, op.const(np.int64(k))), moved.element(values, place), y)
    return y


@importer("select_and_scatter_add")
def select_and_scatter_add(
    op: Writer, source: ir.Value, x: ir.Value, *,
    select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any,
) -> ir.Value:  # fmt: skip
    window = Window(op, x, window_dimensions, window_strides, padding, None, None)
    name = getattr(select_prim, "name", "")
    if x.dtype == T.BOOL:
        raise Refusal("a sum of booleans")
    spatial = window.pooled() if name in ("ge", "le") and window.pads_fit() else None
    if spatial is not None and x.dtype == T.FLOAT and is_static(list(x.shape)):  # type: ignore[arg-type]
        return _scattered_by_pool(op, source, x, window, spatial, name)
    operand = window.filled(lowest(x) if name == "ge" else highest(x))
    if not is_static([*operand.shape, *(v for p in window.padding for v in p)]):  # type: ignore[misc]
        raise Refusal("windows over a free size")
    number, places = _chosen(op, window, operand, select_prim)
    total = None
    for k, place in enumerate(places):
        part = op.Where(op.Equal(number, op.const(np.int64(k))), source, op.like(0, source))
        part = _put_back(op, window, part, place, operand)
        total = part if total is None else op.Add(total, part)
    assert total is not None
    for axis, (low, high) in enumerate(window.padding):
        size = int(operand.shape[axis])  # type: ignore[index,arg-type]
        if low or high:
            total = op.part(total, axis, int(low), size - int(high))
    return total


def _put_back(
    op: Writer, window: Window, part: ir.Value, place: Sequence[int], operand: ir.Value
) -> ir.Value:
    """One element of each window, back at its place in the operand; zeros elsewhere."""
    zero = op.like(0, part)
    pads = [(0, 0)] * len(window.sizes)
    for axis in window.busy:
        if window.strides[axis] != 1:
            part = dilated(op, part, axis, window.strides[axis], zero)
        length = int(part.shape[axis])  # type: ignore[index,arg-type]
        pads[axis] = (place[axis], int(operand.shape[axis]) - length - place[axis])  # type: ignore[index,arg-type]
    return padded(op, part, pads, zero)


def _scattered_by_pool(
    op: Writer, source: ir.Value, x: ir.Value, window: Window, spatial: list[int], name: str
) -> ir.Value:
    """MaxPool tells where the largest element is; ScatterElements adds the source there."""
    order, ones = _pool_layout(window, spatial)
    image = _to_pool(op, x if name == "ge" else op.Neg(x), order, ones, spatial)
    _, where = _pool(op, image, window, spatial, outputs=2)
    values = _to_pool(op, source, order, ones, spatial)
    flat = op.fill(0, op.reshape(image, [-1]))
    flat = op.ScatterElements(
        flat, op.Reshape(where, [-1]), op.Reshape(values, [-1]), axis=0, reduction="add"
    )
    return _from_pool(op, op.reshape_like(flat, image), order, ones, spatial)
