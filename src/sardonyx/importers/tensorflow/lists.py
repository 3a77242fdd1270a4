"""Lists of tensors, with which TensorFlow writes its arrays of loops.

A list is one tensor whose first axis counts the elements, or, before anything was written, a number
of elements. ONNX has no need of either: loops write them as scan outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant, rank
from sardonyx.importers.tensorflow.writer import Refusal, Writer


def count_of(op: Writer, number: ir.Value) -> ir.Value:
    """A number of elements as an int64 vector of one."""
    array = constant(number)
    if array is not None:
        return op.const(array.reshape(1).astype(np.int64))
    return op.Reshape(op.int64(number), [1])


@dataclass
class TensorList:
    """A list of tensors.

    value -- its elements, stacked; None where none has been written
    count -- how many elements were reserved, an int64 vector of one
    dtype -- of the elements
    shape -- of an element, where it is known: ints, and None for a free size
    lacks_size -- whether `value` is empty until the first element is written, which tells the size
    """

    dtype: ir.DataType
    value: ir.Value | None = None
    count: ir.Value | None = None
    shape: list[int | None] | None = None
    lacks_size: bool = False

    def stacked(self, op: Writer) -> ir.Value:
        """The elements as one tensor; those that were not written are zeros."""
        if self.value is not None:
            return self.value
        if self.shape is None:
            raise Refusal("a list whose elements have a free rank, before any is written")
        if any(d is None for d in self.shape):
            self.lacks_size = True
        return self.zeros(op, [d or 0 for d in self.shape])

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
        elif self.lacks_size:
            stacked = self._sized(op, stacked, item)
        place = op.Reshape(op.int64(index), [1, 1])
        if grows:
            after = op.Add(op.Reshape(place, [1]), [1])
            more = op.Max(op.Sub(after, op.dim_value(stacked, 0)), [0])
            n = rank(stacked)
            stacked = op.Pad(stacked, op.join([0] * n + [more] + [0] * (n - 1)))
        return TensorList(self.dtype, op.ScatterND(stacked, place, op.Unsqueeze(item, [0])))

    def _sized(self, op: Writer, stacked: ir.Value, item: ir.Value) -> ir.Value:
        """The elements, or, before the first was written, zeros of its size."""
        first, later = Writer(op.prefix, op), Writer(op.prefix, op)
        zeros = self.zeros(first, first.dims(item))
        same = later.Identity(stacked)
        graphs = [
            ir.Graph([], [v], nodes=w.nodes, name=op.fresh(n))
            for w, v, n in ((first, zeros, "first"), (later, same, "later"))
        ]
        empty = op.Equal(op.Size(stacked), op.const(np.int64(0)))
        name = op.fresh(f"{op.prefix}/If")
        attributes = [
            ir.AttrGraph("then_branch", graphs[0]),
            ir.AttrGraph("else_branch", graphs[1]),
        ]
        node = ir.Node("", "If", [empty], attributes=attributes, num_outputs=1, name=name)
        out = node.outputs[0]
        out.name, out.type = name, ir.TensorType(self.dtype)
        dims = [d if isinstance(d, int) else None for d in list(item.shape)]  # type: ignore[arg-type]
        out.shape = ir.Shape([None, *dims])
        op.nodes.append(node)
        return out

    def pushed(self, op: Writer, items: ir.Value) -> TensorList:
        """The list with more elements at its end, stacked in `items`."""
        if self.value is None:
            return TensorList(self.dtype, items)
        if self.lacks_size:
            first = op.Squeeze(op.part(items, 0, 0, 1), [0])
            return TensorList(
                self.dtype, op.Concat(self._sized(op, self.value, first), items, axis=0)
            )
        return TensorList(self.dtype, op.Concat(self.value, items, axis=0))
