"""The rows of a batch, as nodes: Slice their numbers, Gather the fields."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.train.whole.loops import Values
from sardonyx.train.whole.parts import Parts, Settings


class Batches:
    """How the fields of the data become the inputs of a step."""

    def __init__(self, parts: Parts, settings: Settings):
        self.parts, self.settings = parts, settings
        self.fields: Values = {}

    def over(self, fields: Values) -> Batches:
        """Take batches from these fields, whose rows are on the first axis."""
        self.fields = fields
        return self

    def take(
        self, op: Builder, rows: ir.Value, begin: ir.Value, size: ir.Value
    ) -> tuple[Values, ir.Value]:
        """The batch that begins at a place in the list `rows`, and how many rows it has."""
        begin = op.Reshape(begin, [1])
        numbers = op.Slice(rows, begin, op.Add(begin, size))
        count = op.Shape(numbers)
        feeds = {n: self._field(op, n, v, numbers) for n, v in self.fields.items()}
        for name, array in self.settings.constants.items():
            if name in self.parts.inputs:
                feeds[name] = self._constant(op, name, array, count)
        return feeds, count

    def _field(self, op: Builder, name: str, value: ir.Value, numbers: ir.Value) -> ir.Value:
        input_value = self.parts.inputs[name]
        batch = op.Gather(value, numbers, axis=0)
        axis = self.settings.axes.get(name, 0)
        if axis and input_value.shape is not None:
            axis %= len(input_value.shape)
            batch = op.Transpose(
                batch, perm=[*range(1, axis + 1), 0, *range(axis + 1, len(input_value.shape))]
            )
        batch.shape = ir.Shape(input_value.shape) if input_value.shape is not None else None
        return batch

    def _constant(self, op: Builder, name: str, array: np.ndarray, count: ir.Value) -> ir.Value:
        """A constant as it is fed: a number fills the whole input."""
        value = self.parts.inputs[name]
        if array.ndim or not value.shape:
            return op.const(array)
        axis = self.settings.axes.get(name, 0) % len(value.shape)
        dims = [
            d if isinstance(d, int) else count if i == axis else op.const([1], ir.DataType.INT64)
            for i, d in enumerate(value.shape)
        ]
        return op.Expand(op.const(array), op.join(dims))
