"""Lists of tensors, with which TensorFlow writes its arrays of loops.

A list is one tensor whose first axis counts the elements, or, before anything was written, a number
of elements. ONNX has no need of either: loops write them as scan outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.writer import Refusal, Writer


@dataclass
class TensorList:
    """A list of tensors.

    value -- its elements, stacked; None where none has been written
    count -- how many elements were reserved, an int64 vector of one
    dtype -- of the elements
    shape -- of an element, where it is known: ints, and None for a free size
    """

    dtype: ir.DataType
    value: ir.Value | None = None
    count: ir.Value | None = None
    shape: list[int | None] | None = None

    def stacked(self, op: Writer) -> ir.Value:
        """The elements as one tensor; those that were not written are zeros."""
        if self.value is not None:
            return self.value
        if self.shape is None or any(d is None for d in self.shape):
            raise Refusal("a list whose elements have a free size, before any is written")
        return self.zeros(op, [int(d) for d in self.shape])  # type: ignore[arg-type]

    def zeros(self, op: Writer, dims: list[Any]) -> ir.Value:
        """As many zeros of the shape `dims` as were reserved."""
        assert self.count is not None
        if self.dtype == ir.DataType.STRING:
            return op.Expand(op.const(np.array(b"")), op.join([self.count, *dims]))
        zero = ir.tensor(np.zeros(1, self.dtype.numpy()))
        return op.ConstantOfShape(op.join([self.count, *dims]), value=zero)

    def length(self, op: Writer) -> ir.Value:
        """The number of elements, an int64 vector of one."""
        if self.value is not None:
            return op.dim_value(self.value, 0)
        assert self.count is not None
        return self.count

    def with_item(
        self, op: Writer, index: ir.Value, item: ir.Value, grows: bool = False
    ) -> TensorList:
        """The list after element `index` was set; it may lie beyond the end if the list grows."""
        stacked = self.value
        if stacked is None:
            stacked = self.zeros(op, op.dims(item))
        place = op.Reshape(op.int64(index), [1, 1])
        if grows:
            after = op.Add(op.Reshape(place, [1]), [1])
            more = op.Max(op.Sub(after, op.dim_value(stacked, 0)), [0])
            n = rank(stacked)
            stacked = op.Pad(stacked, op.join([0] * n + [more] + [0] * (n - 1)))
        return TensorList(self.dtype, op.ScatterND(stacked, place, op.Unsqueeze(item, [0])))

    def pushed(self, op: Writer, items: ir.Value) -> TensorList:
        """The list with more elements at its end, stacked in `items`."""
        if self.value is None:
            return TensorList(self.dtype, items)
        return TensorList(self.dtype, op.Concat(self.value, items, axis=0))
