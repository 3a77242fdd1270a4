"""A builder that computes in a wider type where onnxruntime has no kernel for the type of a source.

The builders of JAX's and TensorFlow's rules derive from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.build import Builder, Operand

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
    "ReduceSum": (T.BOOL, *NARROW, T.UINT32, T.UINT64, T.INT32),
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
CARRIER = {
    T.BOOL: T.INT32,
    **dict.fromkeys(NARROW, T.INT32),
    T.INT32: T.INT64,  # its sums are computed in float64, and do not wrap around
    T.UINT32: T.INT64,
    T.UINT64: T.INT64,
    T.BFLOAT16: T.FLOAT,
}
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
    """A rule cannot express what its source does; the driver collects these."""


class WideningBuilder(Builder):
    """A builder whose operators take every type that a source has."""

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
        narrow = None if domain else next((t for t in types if _lacks(op_type, t)), None)
        if narrow is None:
            return super().call(op_type, inputs, attributes, domain=domain, outputs=outputs)
        wide = CARRIER[narrow]
        first = 1 if op_type == "Where" else 0  # the condition stays
        values = [*inputs[:first], *(self._widened(v, narrow, wide) for v in inputs[first:])]
        result = super().call(op_type, values, attributes, outputs=outputs)
        if op_type in INDICES:
            return result
        if outputs is not None:
            return (self._narrowed(result[0], wide, narrow), *result[1:])
        return self._narrowed(result, wide, narrow)

    def _widened(self, x: Operand, narrow: ir.DataType, wide: ir.DataType) -> Operand:
        return self.cast(x, wide) if isinstance(x, ir.Value) and x.dtype == narrow else x

    def _narrowed(self, x: ir.Value, wide: ir.DataType, narrow: ir.DataType) -> ir.Value:
        return self.cast(x, narrow) if x.dtype == wide else x

    def where(self, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        """Where, for every type: onnxruntime has none for bool."""
        if yes.dtype != T.BOOL:
            return self.Where(condition, yes, no)
        return self.Or(self.And(condition, yes), self.And(self.Not(condition), no))

    def like(self, value: Any, x: ir.Value) -> ir.Value:
        """A scalar constant of the type of `x`."""
        return self.const(value, x.dtype)

    def part(self, x: ir.Value, axis: int, start: Operand, end: Operand, step: int = 1) -> ir.Value:
        """The elements from `start` to `end` along one axis."""
        one = [v if isinstance(v, ir.Value) else [v] for v in (start, end)]
        return self.Slice(x, one[0], one[1], [axis], [step])

    def unsqueezed(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self.Unsqueeze(x, list(axes)) if len(axes) else x

    def squeezed(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self.Squeeze(x, list(axes)) if len(axes) else x

    def as_graph(
        self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str
    ) -> ir.Graph:
        """The nodes of this builder as the body of a branch or a loop.

        Its outputs are distinct values that it computes itself.
        """
        values = {v for node in self.nodes for v in node.outputs}
        results: list[ir.Value] = []
        for value in outputs:
            if value not in values or value in results:
                kind, shape = value.type, value.shape
                value = self.call("Identity", [value])
                value.type, value.shape = kind, shape
            results.append(value)
        return ir.Graph(list(inputs), results, nodes=self.nodes, name=self.fresh(name))


def _lacks(op_type: str, dtype: ir.DataType | None) -> bool:
    if dtype == T.BFLOAT16:
        return op_type not in MOVES
    if dtype == T.DOUBLE and op_type in NO_DOUBLE:
        raise Refusal(f"onnxruntime has no {op_type} in float64")
    if op_type == "Where" and dtype == T.BOOL:
        return False  # `where` writes it with And and Or
    return dtype in WITHOUT.get(op_type, ())
