"""Checks of what is fed, as nodes: a run on data that does not fit fails, and says why.

ONNX has no operator that fails on purpose. A check takes an element of an empty vector from a row
that exists only if all is well; its node is named after what is wrong, which runtimes print.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.train.whole.loops import Values
from sardonyx.train.whole.parts import Parts, Settings

T = ir.DataType


class Guards:
    """The checks of one file."""

    def __init__(
        self, op: Builder, data: Values, parts: Parts, settings: Settings, batch_size: ir.Value
    ):
        self.op, self.data, self.parts, self.settings = op, data, parts, settings
        self.batch_size = batch_size
        self.empty: list[ir.Value] = []

    def rows(self, op: Builder, epochs: ir.Value) -> ir.Value:
        """The number of rows, which is known when all checks have passed."""
        counts = {n: op.Shape(v, start=0, end=1) for n, v in self.data.items()}
        first = next(iter(counts.values()))
        for name, count in counts.items():
            if count is not first:
                self._check(
                    f"the field {name} must have as many rows as the first", op.Equal(count, first)
                )
        least = 1 if self.settings.share is None else 2
        self._check(f"the data must have at least {least} rows", op.GreaterOrEqual(first, [least]))
        size = op.Reshape(self.batch_size, [1])
        self._check("batch_size must be at least 1", op.GreaterOrEqual(size, [1]))
        self._check("epochs must not be negative", op.GreaterOrEqual(op.Reshape(epochs, [1]), [0]))
        self._fixed(size, first)
        self._labels(self.parts.classes)
        return op.Concat(first, *self.empty, axis=0)

    def _check(self, words: str, holds: ir.Value) -> None:
        """Fail unless the only element of `holds` is true."""
        op = self.op
        row = op.cast(op.Not(holds), T.INT64)
        empty = op.Gather(op.const(np.zeros((1, 0), np.int64)), row, axis=0)
        node = empty.producer()
        assert node is not None
        node.name = words
        self.empty.append(op.Reshape(empty, [0], allowzero=1))

    def _fixed(self, size: ir.Value, rows: ir.Value) -> None:
        """A model that takes batches of one size."""
        op = self.op
        fixed = self.parts.fixed(self.settings)
        if fixed is None:
            return
        self._check(f"batch_size must be {fixed}, which the model takes", op.Equal(size, [fixed]))
        if not self.settings.drop_last:
            rest = op.Mod(rows, [fixed])
            self._check(f"the rows must divide into batches of {fixed}", op.Equal(rest, [0]))
        else:
            words = f"there must be at least one batch of {fixed}"
            self._check(words, op.GreaterOrEqual(rows, [fixed]))

    def _labels(self, classes: Mapping[str, tuple[int, int | None]]) -> None:
        op = self.op
        for name, (count, ignored) in classes.items():
            if name not in self.data:
                continue
            label = op.cast(op.Reshape(self.data[name], [-1]), T.INT64)
            fits = op.And(op.GreaterOrEqual(label, 0), op.Less(label, count))
            if ignored is not None:
                fits = op.Or(fits, op.Equal(label, ignored))
            wrong = op.ReduceSum(op.cast(op.Not(fits), T.INT64), [0], keepdims=1)
            words = f"the labels in {name} must be from 0 to {count - 1}"
            self._check(words, op.Equal(wrong, 0))
