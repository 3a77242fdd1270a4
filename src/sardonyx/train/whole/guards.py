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
    """The checks of one file, collected until something waits for them."""

    def __init__(self, op: Builder, parts: Parts, settings: Settings):
        self.op, self.parts, self.settings = op, parts, settings
        self.empty: list[ir.Value] = []

    def rows(self, data: Values, epochs: ir.Value, batch_size: ir.Value) -> ir.Value:
        """The number of rows, as a vector of one element, known when all checks have passed."""
        op = self.op
        counts = {n: op.Shape(v, start=0, end=1) for n, v in data.items()}
        (first, count), *others = counts.items()
        for name, other in others:
            words = f"the field {name} must have as many rows as {first}"
            self._check(words, op.Equal(other, count))
        least = 1 if self.settings.share is None else 2
        self._check(f"there must be at least {least} rows", op.GreaterOrEqual(count, [least]))
        for name, value, least in (("epochs", epochs, 0), ("batch_size", batch_size, 1)):
            holds = op.GreaterOrEqual(op.Reshape(value, [1]), [least])
            self._check(f"{name} must be at least {least}", holds)
        fixed = self.parts.fixed(self.settings)
        if fixed is not None:
            holds = op.Equal(op.Reshape(batch_size, [1]), [fixed])
            self._check(f"batch_size must be {fixed}, as the model takes batches of it", holds)
        self._labels(data, self.parts.classes)
        return self._checked(count)

    def batches(self, rows: ir.Value, what: str, drop_last: bool) -> ir.Value:
        """A number of rows that divides into batches, where the model takes batches of one size."""
        op, fixed = self.op, self.parts.fixed(self.settings)
        if fixed is not None and drop_last:
            words = f"there must be at least {fixed} rows {what}"
            self._check(words, op.GreaterOrEqual(rows, [fixed]))
        elif fixed is not None:
            words = f"the rows {what} must divide into batches of {fixed}"
            self._check(words, op.Equal(op.Mod(rows, [fixed]), [0]))
        return self._checked(rows)

    def _checked(self, value: ir.Value) -> ir.Value:
        """A vector, which waits for all checks so far."""
        empty, self.empty = self.empty, []
        return self.op.Concat(value, *empty, axis=0) if empty else value

    def _check(self, words: str, holds: ir.Value) -> None:
        """Fail unless the only element of `holds` is true."""
        op = self.op
        row = op.cast(op.Not(holds), T.INT64)
        empty = op.Gather(op.const(np.zeros((1, 0), np.int64)), row, axis=0)
        node = empty.producer()
        assert node is not None
        node.name = op.fresh(words)
        self.empty.append(op.Reshape(empty, [0], allowzero=1))

    def _labels(self, data: Values, classes: Mapping[str, tuple[int, int | None]]) -> None:
        op = self.op
        for name, (count, ignored) in classes.items():
            if name not in data:
                continue
            label = op.cast(op.Reshape(data[name], [-1]), T.INT64)
            fits = op.And(op.GreaterOrEqual(label, 0), op.Less(label, count))
            if ignored is not None:
                fits = op.Or(fits, op.Equal(label, ignored))
            wrong = op.ReduceSum(op.cast(op.Not(fits), T.INT64), [0], keepdims=1)
            words = f"the labels in {name} must be from 0 to {count - 1}"
            self._check(words, op.Equal(wrong, 0))
