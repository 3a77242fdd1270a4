"""Rules of reductions and of positions of extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.arithmetic import extreme
from sardonyx.importers.jax.driver import Reader, importer
from sardonyx.importers.jax.elementwise import converted, is_float, maximum, minimum
from sardonyx.importers.jax.integers import and_, or_, xor
from sardonyx.importers.jax.writer import Refusal, Writer, is_static

T = ir.DataType
Combine = Callable[[ir.Value, ir.Value], ir.Value]


@importer("reduce_sum")
def reduce_sum(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    return op.total(x, list(axes))


@importer("reduce_prod")
def reduce_prod(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    return op.ReduceProd(x, list(axes), keepdims=0) if len(axes) else x


@importer("reduce_max")
def reduce_max(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    return _extreme(op, x, axes, "ReduceMax")


@importer("reduce_min")
def reduce_min(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    return _extreme(op, x, axes, "ReduceMin")


def _extreme(op: Writer, x: ir.Value, axes: Sequence[int], op_type: str) -> ir.Value:
    return extreme(op, op_type, x, list(axes), keepdims=0) if len(axes) else x


@importer("reduce_and")
def reduce_and(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    if x.dtype != T.BOOL:
        return folded(op, x, axes, lambda a, b: and_(op, a, b))
    return op.ReduceMin(x, list(axes), keepdims=0) if len(axes) else x


@importer("reduce_or")
def reduce_or(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    if x.dtype != T.BOOL:
        return folded(op, x, axes, lambda a, b: or_(op, a, b))
    return op.ReduceMax(x, list(axes), keepdims=0) if len(axes) else x


@importer("reduce_xor")
def reduce_xor(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    return folded(op, x, axes, lambda a, b: xor(op, a, b))


def folded(op: Writer, x: ir.Value, axes: Sequence[int], combine: Combine) -> ir.Value:
    """Any associative reduction: halves are combined until one element is left."""
    dims = list(x.shape)  # type: ignore[arg-type]
    if not is_static([dims[a] for a in axes]):
        raise Refusal("a reduction over a free size")
    for axis in axes:
        size = int(dims[axis])  # type: ignore[arg-type]
        if size == 0:
            raise Refusal("a reduction over no elements")
        while size > 1:
            half = size // 2
            low, high = op.part(x, axis, 0, half), op.part(x, axis, half, 2 * half)
            rest = op.part(x, axis, 2 * half, size) if size % 2 else None
            x = combine(low, high)
            x = x if rest is None else op.Concat(x, rest, axis=axis)
            size = half + size % 2
    return op.squeezed(x, axes)


@importer("reduce")
def reduce(
    op: Writer,
    *operands: ir.Value,
    jaxpr: Any,
    dimensions: Sequence[int],
    reader: Reader,
) -> Sequence[ir.Value]:
    """A reduction by the user's own function of two elements."""
    count = len(operands) // 2
    if count != 1:
        raise Refusal("a reduction of several arrays at once")
    x, start = operands

    def combine(a: ir.Value, b: ir.Value) -> ir.Value:
        return reader.closed(op, elementwise(jaxpr, a), [a, b])[0]

    rule = NAMED.get(monoid(jaxpr) or "")
    y = folded(op, x, dimensions, combine) if rule is None else rule(op, x, axes=dimensions)
    return [combine(op.expanded(start, list(y.shape)), y)]  # type: ignore[arg-type]


NAMED: dict[str, Callable[..., ir.Value]] = {
    "add": reduce_sum, "mul": reduce_prod, "max": reduce_max, "min": reduce_min,
    "and": reduce_and, "or": reduce_or,
}  # fmt: skip


def monoid(jaxpr: Any) -> str | None:
    """The primitive of a function of two elements that consists of nothing else."""
    equations = jaxpr.jaxpr.eqns
    if len(equations) != 1 or set(equations[0].invars) != set(jaxpr.jaxpr.invars):
        return None
    return equations[0].primitive.name


def elementwise(jaxpr: Any, like: ir.Value) -> Any:
    """A function of two scalars as one of two arrays."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    aval = jax.ShapeDtypeStruct(tuple(like.shape), like.dtype.numpy())  # type: ignore[union-attr,arg-type]
    function = jaxpr_as_fun(jaxpr)
    for _ in aval.shape:
        function = jax.vmap(function)
    return jax.make_jaxpr(function)(aval, aval)


@importer("argmax")
def argmax(op: Writer, x: ir.Value, *, axes: Sequence[int], index_dtype: Any) -> ir.Value:
    return _position(op, x, axes, index_dtype, "ArgMax")


@importer("argmin")
def argmin(op: Writer, x: ir.Value, *, axes: Sequence[int], index_dtype: Any) -> ir.Value:
    return _position(op, x, axes, index_dtype, "ArgMin")


def _position(
    op: Writer, x: ir.Value, axes: Sequence[int], index_dtype: Any, op_type: str
) -> ir.Value:
    """The first extreme element; a NaN is more extreme than any number."""
    (axis,) = axes
    attributes = {"axis": axis, "keepdims": 0}
    at = op.call(op_type, [x], attributes)
    if is_float(x):
        invalid = op.cast(op.IsNaN(x), T.INT32)
        some = op.cast(op.ReduceMax(invalid, [axis], keepdims=0), T.BOOL)
        at = op.Where(some, op.ArgMax(invalid, **attributes), at)
    return converted(op, at, ir.DataType.from_numpy(np.dtype(index_dtype)))


# -- running reductions ------------------------------------------------------------------


@importer("cumsum")
def cumsum(op: Writer, x: ir.Value, *, axis: int, reverse: bool) -> ir.Value:
    return op.CumSum(x, op.const(np.int64(axis)), reverse=int(reverse))


@importer("cumprod")
def cumprod(op: Writer, x: ir.Value, *, axis: int, reverse: bool) -> ir.Value:
    return _running(op, x, axis, reverse, lambda a, b: op.Mul(a, b))


@importer("cummax")
def cummax(op: Writer, x: ir.Value, *, axis: int, reverse: bool) -> ir.Value:
    return _running(op, x, axis, reverse, lambda a, b: maximum(op, a, b))


@importer("cummin")
def cummin(op: Writer, x: ir.Value, *, axis: int, reverse: bool) -> ir.Value:
    return _running(op, x, axis, reverse, lambda a, b: minimum(op, a, b))


@importer("cumlogsumexp")
def cumlogsumexp(op: Writer, x: ir.Value, *, axis: int, reverse: bool) -> ir.Value:
    def combine(a: ir.Value, b: ir.Value) -> ir.Value:
        top = op.Max(a, b)
        safe = op.Where(op.Less(op.Abs(top), op.like(np.inf, top)), top, op.like(0, top))
        total = op.Add(op.Exp(op.Sub(a, safe)), op.Exp(op.Sub(b, safe)))
        return op.Add(op.Log(total), safe)

    return _running(op, x, axis, reverse, combine)


def _running(op: Writer, x: ir.Value, axis: int, reverse: bool, combine: Combine) -> ir.Value:
    """Every prefix combined: each round doubles the number of elements that a result covers."""
    size = x.shape[axis]  # type: ignore[index]
    if not isinstance(size, int):
        raise Refusal("a running reduction over a free size")
    distance = 1
    while distance < size:
        if reverse:
            later = combine(op.part(x, axis, 0, size - distance), op.part(x, axis, distance, size))
            x = op.Concat(later, op.part(x, axis, size - distance, size), axis=axis)
        else:
            later = combine(op.part(x, axis, distance, size), op.part(x, axis, 0, size - distance))
            x = op.Concat(op.part(x, axis, 0, distance), later, axis=axis)
        distance *= 2
    return x
