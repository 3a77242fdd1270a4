"""Scales and zero points: of weights from their numbers, of activations from rows of the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import DataError
from sardonyx.model import Model
from sardonyx.train.batches import epoch_blocks
from sardonyx.train.evaluation import chosen_batch_size, open_for
from sardonyx.train.fields import Feeding, link, row_count
from sardonyx.train.tables import Rows

BATCH_SIZE = 64
# Shares of the largest number that are tried as the end of a weight's range.
SHARES = np.linspace(0.3, 1.0, 36)


@dataclass(frozen=True)
class Levels:
    """An integer type and the numbers that it holds."""

    dtype: ir.DataType
    low: int
    high: int

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.dtype.numpy())


LEVELS = {
    "int4": Levels(ir.DataType.INT4, -8, 7),
    "int8": Levels(ir.DataType.INT8, -128, 127),
    "uint8": Levels(ir.DataType.UINT8, 0, 255),
    "int16": Levels(ir.DataType.INT16, -32768, 32767),
}


def rounded(array: np.ndarray, scale: np.ndarray, levels: Levels, axis: int | None) -> np.ndarray:
    """Floats as integers, as QuantizeLinear rounds them with a zero point of 0."""
    ratio = array / _spread(scale, array.ndim, axis)
    return np.clip(np.rint(ratio), levels.low, levels.high)


def _spread(scale: np.ndarray, rank: int, axis: int | None) -> np.ndarray:
    return scale if axis is None else scale.reshape([-1 if a == axis else 1 for a in range(rank)])


def weight_scale(array: np.ndarray, levels: Levels, axis: int | None) -> np.ndarray:
    """The scale, of the tensor or of every channel, with the least squared error of rounding."""
    rest = tuple(a for a in range(array.ndim) if a != axis) if axis is not None else None
    largest = np.abs(array).max(axis=rest).astype(np.float64)
    largest = np.where(largest > 0, largest, 1.0)
    best = np.full(np.shape(largest), np.inf)
    scale = np.zeros(np.shape(largest))
    for share in SHARES:
        trial = largest * share / levels.high
        wide = _spread(trial, array.ndim, axis)
        error = np.square(rounded(array, trial, levels, axis) * wide - array).sum(axis=rest)
        scale = np.where(error < best, trial, scale)
        best = np.minimum(error, best)
    return scale.astype(array.dtype)


def activation_range(low: float, high: float, levels: Levels) -> tuple[float, int]:
    """The scale and the zero point for numbers from `low` to `high`; 0 is always a level."""
    low, high = min(low, 0.0), max(high, 0.0)
    if levels.low < 0:  # of signed integers the middle
        return max(-low, high) / levels.high or 1.0, 0
    scale = (high - low) / (levels.high - levels.low) or 1.0
    zero = int(np.clip(np.rint(levels.low - low / scale), levels.low, levels.high))
    return scale, zero


def observed(
    model: Model,
    names: Sequence[str],
    data: Any,
    rows: int,
    fields: Mapping[str, str] | None,
) -> dict[str, tuple[float, float]]:
    """The lowest and highest number of each tensor over some rows of the data."""
    marked = model.copy()
    values = {
        v.name: v for v in (*marked.graph.inputs, *(o for n in marked.graph for o in n.outputs))
    }
    inputs = [n for n in names if values[n].producer() is None]
    inner = [n for n in names if values[n].producer() is not None]
    marked.graph.outputs.clear()
    marked.graph.outputs.extend(values[n] for n in inner)
    run = Runner(marked) if inner else None
    ends: dict[str, tuple[float, float]] = {}
    for batch in _batches(model, data, rows, fields):
        arrays = {n: batch[n] for n in inputs} | (run(batch) if run is not None else {})
        for name in names:
            array = arrays[name]
            if not np.isfinite(array).all():
                raise DataError(f"the tensor {name!r} is not finite on the data")
            low, high = ends.get(name, (0.0, 0.0))
            if array.size:
                ends[name] = min(low, float(array.min())), max(high, float(array.max()))
    return ends


def _batches(
    model: Model, data: Any, rows: int, fields: Mapping[str, str] | None
) -> Iterator[Rows]:
    source = open_for(model, data, None, None, labelled=False)
    links = link(model.inputs, [], source, Feeding(fields or {}))
    size = chosen_batch_size(None, links, BATCH_SIZE)
    blocks = chain.from_iterable(epoch_blocks(source, links, size, seed=0, epoch=0, by_hash=True))
    for batch in islice(blocks, max(-(-rows // size), 1)):
        if row_count(batch, links) == size or not any(item.batch for item in links):
            yield batch
