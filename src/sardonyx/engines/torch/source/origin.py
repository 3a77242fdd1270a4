"""Weights that a graph rearranges before use, as exporters do with the gates of an LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from sardonyx.engines.torch.source.layers import Tensor, dims
from sardonyx.lower.precompute import compute

if TYPE_CHECKING:
    from sardonyx.engines.torch.source.reading import Reader

MOVES = {"Slice", "Concat", "Unsqueeze", "Squeeze", "Transpose", "Reshape", "Identity", "Split"}
SHIFT = 40  # bits of an element's place; the number of its tensor is above them


class Origin:
    """For every element of a value: the tensor of the model and the place it comes from."""

    def __init__(self, reader: Reader, value: ir.Value):
        self.reader = reader
        self.sources: list[ir.Value] = []
        self.places = self._trace(value)

    def _trace(self, value: ir.Value) -> np.ndarray | None:
        shape = dims(value)
        if shape is not None:
            if value not in self.sources:
                self.sources.append(value)
            places = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
            return places + (self.sources.index(value) << SHIFT)
        node = value.producer()
        if node is None or node.domain != "" or node.op_type not in MOVES:
            return None
        count = len(node.inputs) if node.op_type == "Concat" else 1
        operands = [None if v is None else self._trace(v) for v in node.inputs[:count]]
        options = [None if v is None else self.reader.known.get(v) for v in node.inputs[count:]]
        if any(v is None for v in operands):
            return None
        if any(v is not None and o is None for v, o in zip(node.inputs[count:], options)):
            return None
        results = compute(node, [*operands, *options], self.reader.budget)
        return None if results is None else results[list(node.outputs).index(value)]

    @property
    def shape(self) -> tuple[int, ...]:
        assert self.places is not None
        return self.places.shape

    def tensor(self, change: Callable[[np.ndarray], np.ndarray]) -> Tensor | None:
        """The tensor of a layer, if its elements come from one tensor of the model."""
        assert self.places is not None
        chosen = change(self.places)
        numbers = np.unique(chosen >> SHIFT)
        if len(numbers) != 1:
            return None
        source = self.sources[numbers[0]]
        places = chosen & ((1 << SHIFT) - 1)
        if places.shape == dims(source) and np.array_equal(places.flat, np.arange(places.size)):
            return Tensor([source])
        return Tensor([source], lambda array: array.reshape(-1)[places])
