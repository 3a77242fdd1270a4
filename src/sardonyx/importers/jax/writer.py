"""The builder that rules for JAX's primitives write with.

It adds sizes of JAX's symbolic shapes as values, and functions of JAX that are traced and written
in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Dim
from sardonyx.importers.widening import Refusal as Refusal
from sardonyx.importers.widening import WideningBuilder

T = ir.DataType


class Writer(WideningBuilder):
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

    # -- constants and sizes -----------------------------------------------------------

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
