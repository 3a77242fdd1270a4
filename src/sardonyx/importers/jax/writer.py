"""The builder that rules for JAX's primitives write with.

It adds three things to `Builder`: sizes of JAX's symbolic shapes as values, functions of JAX traced
and written in place, and types for which onnxruntime has no kernel, computed in wider ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, Dim, Operand

T = ir.DataType
NARROW = (T.INT8, T.UINT8, T.INT16, T.UINT16)
# Operators of onnxruntime 1.30 and 1.31 that have no kernel for some integer types, measured with
# their CPU wheels; the type in which they are computed instead holds every value, and wraps around
# alike.
WITHOUT = {
    "Pow": (*NARROW, T.UINT32),
    "Max": (T.BOOL, T.INT16, T.UINT16),
    "Min": (T.BOOL, T.INT16, T.UINT16),
    "Neg": (T.UINT8, T.UINT16, T.UINT32, T.UINT64),
    "Less": (T.BOOL,),
    "Greater": (T.BOOL,),
    "LessOrEqual": (T.BOOL,),
    "GreaterOrEqual": (T.BOOL,),
    "Pad": (T.INT16, T.UINT16),
    "ReduceSum": (T.BOOL, *NARROW, T.UINT32, T.UINT64),
    "ReduceProd": (T.BOOL, *NARROW, T.UINT32, T.UINT64),
    "ReduceMax": (T.INT16, T.UINT16, T.UINT32),
    "ReduceMin": (T.INT16, T.UINT16, T.UINT32),
    "ArgMax": (T.BOOL, T.INT16, T.UINT16, T.UINT32),
    "ArgMin": (T.BOOL, T.INT16, T.UINT16, T.UINT32),
    "Where": (T.BOOL, T.INT8, T.INT16, T.UINT16, T.UINT32, T.UINT64),
    "CumSum": (T.BOOL, *NARROW, T.UINT32, T.UINT64),
    "MatMul": NARROW,
    "TopK": (T.BOOL, T.INT16, T.UINT16, T.UINT32),
    "Sign": (T.BOOL,),
}
CARRIER = {T.BOOL: T.INT32, **dict.fromkeys(NARROW, T.INT32), T.UINT32: T.INT64, T.UINT64: T.INT64}
# onnxruntime moves bfloat16 about, and computes little in it.
MOVES = frozenset([
    "Cast", "BitCast", "Concat", "Transpose", "Identity", "Reshape", "Slice", "Gather",
    "GatherElements", "GatherND", "ScatterND", "ScatterElements", "Squeeze", "Unsqueeze", "Shape",
    "If", "Loop", "Scan", "IsNaN", "IsInf", "Split",
])  # fmt: skip
NO_DOUBLE = frozenset([
    "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Erf", "Softplus",
])  # fmt: skip
INDICES = frozenset(["ArgMax", "ArgMin"])  # their results are positions, not values


class Refusal(Exception):
    """A rule cannot express what an equation does; the driver collects these."""


class Writer(Builder):
    """A builder of nodes for the equations of a jaxpr.

    inline  -- writes the equations of a JAX function in place: set by the driver
    symbols -- sizes of symbolic dimensions by name, each a value of shape [1] in the outermost
               graph
    sizes   -- sizes that are sums, quotients and so on, by their expressions: an axis of a value
               of this graph that has the size, or the size itself once it was read
    """

    def __init__(self, prefix: str = "", parent: Writer | None = None):
        super().__init__(prefix, parent)
        self.inline: Callable[..., list[ir.Value]] = parent.inline if parent else _no_driver
        self.symbols: dict[str, ir.Value] = parent.symbols if parent else {}
        self.sizes: dict[str, ir.Value | tuple[ir.Value, int]] = {}

    def call(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int | None = None,
    ) -> Any:
        """One node; in a wider type where onnxruntime has no kernel for that of its inputs."""
        types = {v.dtype for v in inputs if isinstance(v, ir.Value)}
        narrow = next((t for t in types if self._lacks(op_type, t)), None)
        if narrow is None:
            return super().call(op_type, inputs, attributes, domain=domain, outputs=outputs)
        wide = T.FLOAT if narrow == T.BFLOAT16 else CARRIER[narrow]
        if op_type == "Where":  # its condition stays
            values = [inputs[0], *(self._widened(v, narrow, wide) for v in inputs[1:])]
        else:
            values = [self._widened(v, narrow, wide) for v in inputs]
        result = super().call(op_type, values, attributes, domain=domain, outputs=outputs)
        if op_type in INDICES:
            return result
        if outputs is not None:
            return (self._narrowed(result[0], wide, narrow), *result[1:])
        return self._narrowed(result, wide, narrow)

    def _lacks(self, op_type: str, dtype: ir.DataType | None) -> bool:
        if dtype == T.BFLOAT16:
            return op_type not in MOVES
        if dtype == T.DOUBLE and op_type in NO_DOUBLE:
            raise Refusal(f"onnxruntime has no {op_type} in float64")
        if op_type == "Where" and dtype == T.BOOL:
            return False  # `where` writes it with And and Or
        return dtype in WITHOUT.get(op_type, ())

    def _widened(self, x: Operand, narrow: ir.DataType, wide: ir.DataType) -> Operand:
        return self.cast(x, wide) if isinstance(x, ir.Value) and x.dtype == narrow else x

    def _narrowed(self, x: ir.Value, wide: ir.DataType, narrow: ir.DataType) -> ir.Value:
        return self.cast(x, narrow) if x.dtype == wide else x

    def where(self, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        """Where, for every type: onnxruntime has none for bool."""
        if yes.dtype != T.BOOL:
            return self.Where(condition, yes, no)
        return self.Or(self.And(condition, yes), self.And(self.Not(condition), no))

    # -- constants and sizes -----------------------------------------------------------

    def like(self, value: Any, x: ir.Value) -> ir.Value:
        """A scalar constant of the type of `x`."""
        return self.const(value, x.dtype)

    def size(self, dim: Any) -> Dim:
        """A dimension of JAX as a size: an int, or a value of shape [1] where it is symbolic."""
        if isinstance(dim, (int, np.integer)):
            return int(dim)
        total = self._read_size(str(dim))
        if total is not None:
            return total
        for term, count in dim._sorted_terms:
            value = self._term(term, int(count))
            total = value if total is None else self.Add(total, value)
        assert total is not None
        return total

    def remember_sizes(self, value: ir.Value) -> ir.Value:
        """Note the free sizes of `value`: reading them off it is less than computing them."""
        for axis, dim in enumerate(value.meta["aval"].shape):
            if not isinstance(dim, int):
                self.sizes.setdefault(str(dim), (value, axis))
        return value

    def _read_size(self, expression: str) -> ir.Value | None:
        if expression in self.symbols:
            return self.symbols[expression]
        writer: Any = self
        while writer is not None:
            if expression in writer.sizes:
                break
            writer = writer.parent
        else:
            return None
        size = writer.sizes[expression]
        if isinstance(size, ir.Value):
            return size
        value, axis = size
        read = self.Shape(value, start=axis, end=axis + 1)
        self.sizes[expression] = read
        return read

    def _term(self, term: Any, count: int) -> ir.Value:
        value: ir.Value | None = None
        for factor, power in term._factors:
            for _ in range(int(power)):
                part = self._factor(factor)
                value = part if value is None else self.Mul(value, part)
        number = self.const(np.array([count], np.int64))
        if value is None:
            return number
        return value if count == 1 else self.Mul(value, number)

    def _factor(self, factor: Any) -> ir.Value:
        if factor.var is not None:
            return self.symbols[factor.var]
        size = self._read_size(str(factor))
        if size is not None:
            return size
        negative = self._read_size(f"- {factor}")
        if negative is not None:
            return self.Neg(negative)
        a, b = (self.vector([operand]) for operand in factor.operands)
        if factor.operation == "max":
            return self.Max(a, b)
        if factor.operation == "min":
            return self.Min(a, b)
        modulo = self.Mod(a, b)  # of the divisor's sign, as in Python
        return modulo if factor.operation == "mod" else self.Div(self.Sub(a, modulo), b)

    def vector(self, dims: Sequence[Any]) -> ir.Value:
        """Sizes of JAX as one int64 vector."""
        if not len(dims):
            return self.const(np.zeros(0, np.int64))
        return self.join([self.size(d) for d in dims])

    # -- shapes ------------------------------------------------------------------------

    def shaped(self, x: ir.Value, dims: Sequence[Any]) -> ir.Value:
        """`x` with the shape `dims` of JAX."""
        if all(isinstance(d, int) for d in dims):
            return self.reshape(x, [int(d) for d in dims], allowzero=int(0 in dims))
        if x.shape is not None and list(x.shape) == list(shape_of(dims)):
            return x
        empty = any(isinstance(d, int) and d == 0 for d in dims)
        constants = None if empty else self._constant_shape(x, dims)
        shape = self.vector(dims) if constants is None else self.const(constants)
        y = self.Reshape(x, shape, allowzero=int(empty))
        y.shape = shape_of(dims)
        return y

    def _constant_shape(self, x: ir.Value, dims: Sequence[Any]) -> np.ndarray | None:
        """A shape of Reshape that needs no sizes: 0 for those that stay, or one -1.

        Not both: what -1 stands for is not defined where another size is none.
        """
        old = list(x.shape) if x.shape is not None else []
        new = list(shape_of(dims))
        free = [a for a, d in enumerate(dims) if not isinstance(d, int)]
        if all(a < len(old) and old[a] == new[a] for a in free):
            return np.array([0 if a in free else int(d) for a, d in enumerate(dims)], np.int64)
        if len(free) == 1:
            return np.array([-1 if a in free else int(d) for a, d in enumerate(dims)], np.int64)
        return None

    def expanded(self, x: ir.Value, dims: Sequence[Any]) -> ir.Value:
        """`x` broadcast to the shape `dims` of JAX."""
        if x.shape is not None and list(x.shape) == list(shape_of(dims)):
            return x
        y = self.Expand(x, self.vector(dims))
        y.shape = shape_of(dims)
        return y

    def part(self, x: ir.Value, axis: int, start: Operand, end: Operand, step: int = 1) -> ir.Value:
        """The elements from `start` to `end` along one axis."""
        one = [v if isinstance(v, ir.Value) else [v] for v in (start, end)]
        return self.Slice(x, one[0], one[1], [axis], [step])

    def unsqueezed(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self.Unsqueeze(x, list(axes)) if len(axes) else x

    def squeezed(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self.Squeeze(x, list(axes)) if len(axes) else x

    def iota(self, size: Any) -> ir.Value:
        """0, 1, … `size` - 1 in int64."""
        count = self.size(size)
        if isinstance(count, int):
            if count <= 1 << 12:
                return self.const(np.arange(count, dtype=np.int64))
            count = self.const(np.array([count], np.int64))
        zero, one = self.const(np.int64(0)), self.const(np.int64(1))
        return self.Range(zero, self.Squeeze(count), one)


def shape_of(dims: Sequence[Any]) -> ir.Shape:
    """A shape of JAX as one of ONNX; a symbolic size is named by its expression."""
    return ir.Shape([int(d) if isinstance(d, (int, np.integer)) else str(d) for d in dims])


def is_static(dims: Sequence[Any]) -> bool:
    return all(isinstance(d, (int, np.integer)) for d in dims)


def count(dims: Sequence[Any]) -> int:
    return math.prod(int(d) for d in dims)


def _no_driver(*_: Any) -> list[ir.Value]:
    raise NotImplementedError
