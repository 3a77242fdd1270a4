"""Rules of reductions and of positions of extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from sardonyx.importers.arithmetic import extreme
from sardonyx.importers.jax.driver import Reader, importer
from sardonyx.importers.jax.elementwise import converted, is_float, maximum, minimum
from sardonyx.importers.jax.integers import TOP, and_, or_, signed_order, xor
from sardonyx.importers.jax.writer import Refusal, Writer, is_static

T = ir.DataType
LONG = (T.INT64, T.UINT64)
Combine = Callable[[ir.Value, ir.Value], ir.Value]


@importer("reduce_sum")
def reduce_sum(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    if x.dtype not in LONG:
        return op.total(x, list(axes))
    # onnxruntime adds integers up in float64: the halves of words have sums that are exact.
    word = op.cast(x, T.INT64)
    shift = op.const(np.int64(1 << 32))
    low = op.BitwiseAnd(word, op.const(np.int64((1 << 32) - 1)))
    high = op.total(op.Div(op.Sub(word, low), shift), list(axes))
    return op.cast(op.Add(op.Mul(high, shift), op.total(low, list(axes))), x.dtype)


@importer("reduce_prod")
def reduce_prod(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    if is_float(x) or not len(axes):
        return op.ReduceProd(x, list(axes), keepdims=0) if len(axes) else x
    # onnxruntime multiplies integers in float64, and does not wrap around.
    if is_static([x.meta["aval"].shape[a] for a in axes]):
        if any(_is_zero(x.meta["aval"].shape[a]) for a in axes):
            return op.ReduceProd(x, list(axes), keepdims=0)
        return folded(op, x, axes, lambda a, b: op.Mul(a, b))
    return op.inline(op, lambda v: _product(v, axes), x)[0]


def _product(x: Any, axes: Sequence[int]) -> Any:
    for axis in sorted(axes, reverse=True):
        rows = jnp.moveaxis(x, axis, 0)
        x = lax.scan(lambda c, v: (c * v, None), jnp.ones(rows.shape[1:], x.dtype), rows)[0]
    return x


@importer("reduce_max")
def reduce_max(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    return _extreme(op, x, axes, "ReduceMax")


@importer("reduce_min")
def reduce_min(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    return _extreme(op, x, axes, "ReduceMin")


def _extreme(op: Writer, x: ir.Value, axes: Sequence[int], op_type: str) -> ir.Value:
    if not len(axes):
        return x
    shape = x.meta["aval"].shape
    if any(_is_zero(shape[a]) for a in axes):
        left = [d for a, d in enumerate(shape) if a not in axes]
        return op.expanded(op.const(_weakest(x.dtype, op_type), x.dtype), left)  # type: ignore[arg-type]
    if x.dtype != T.UINT64:
        return extreme(op, op_type, x, list(axes), keepdims=0)
    y = extreme(op, op_type, signed_order(op, x), list(axes), keepdims=0)
    return op.BitwiseXor(op.BitCast(y, to=int(T.UINT64)), op.const(TOP))


def _is_zero(size: Any) -> bool:
    return isinstance(size, (int, np.integer)) and int(size) == 0


def _weakest(dtype: ir.DataType, op_type: str) -> Any:
    """What a reduction of no elements gives."""
    is_max = op_type == "ReduceMax"
    if dtype == T.BOOL or dtype.is_floating_point():
        return not is_max if dtype == T.BOOL else -np.inf if is_max else np.inf
    limits = np.iinfo(dtype.numpy())
    return limits.min if is_max else limits.max


@importer("reduce_and")
def reduce_and(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    if x.dtype != T.BOOL:
        return folded(op, x, axes, lambda a, b: and_(op, a, b))
    return _extreme(op, x, axes, "ReduceMin")


@importer("reduce_or")
def reduce_or(op: Writer, x: ir.Value, *, axes: Sequence[int]) -> ir.Value:
    if x.dtype != T.BOOL:
        return folded(op, x, axes, lambda a, b: or_(op, a, b))
    return _extreme(op, x, axes, "ReduceMax")


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
    x = signed_order(op, x) if x.dtype == T.UINT64 else x
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
    return _running(op, x, axis, reverse, lambda a, b: op.Mul(a, b), lax.mul)


@importer("cummax")
def cummax(op: Writer, x: ir.Value, *, axis: int, reverse: bool) -> ir.Value:
    return _running(op, x, axis, reverse, lambda a, b: maximum(op, a, b), lax.max)


@importer("cummin")
def cummin(op: Writer, x: ir.Value, *, axis: int, reverse: bool) -> ir.Value:
    return _running(op, x, axis, reverse, lambda a, b: minimum(op, a, b), lax.min)


@importer("cumlogsumexp")
def cumlogsumexp(op: Writer, x: ir.Value, *, axis: int, reverse: bool) -> ir.Value:
    def combine(a: ir.Value, b: ir.Value) -> ir.Value:
        top = op.Max(a, b)
        safe = op.Where(op.Less(op.Abs(top), op.like(np.inf, top)), top, op.like(0, top))
        total = op.Add(op.Exp(op.Sub(a, safe)), op.Exp(op.Sub(b, safe)))
        return op.Add(op.Log(total), safe)

    return _running(op, x, axis, reverse, combine, jnp.logaddexp)


def _running(
    op: Writer,
    x: ir.Value,
    axis: int,
    reverse: bool,
    combine: Combine,
    function: Callable[[Any, Any], Any],
) -> ir.Value:
    """Every prefix combined: each round doubles the number of elements that a result covers.

    function -- what `combine` writes, as JAX has it: over a free size, it is scanned
    """
    size = x.shape[axis]  # type: ignore[index]
    if not isinstance(size, int):
        return op.inline(op, lambda v: _scanned(v, axis, reverse, function), x)[0]
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


def _scanned(x: Any, axis: int, reverse: bool, function: Callable[[Any, Any], Any]) -> Any:
    x = jnp.moveaxis(x, axis, 0)

    def step(state: Any, row: Any) -> Any:
        is_first, total = state
        total = jnp.where(is_first, row, function(total, row))
        return (jnp.zeros((), bool), total), total

    start = jnp.ones((), bool), jnp.zeros(x.shape[1:], x.dtype)
    return jnp.moveaxis(lax.scan(step, start, x, reverse=reverse)[1], 0, axis)
