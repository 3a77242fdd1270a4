"""Tensors whose numbers tell that nobody trains them: masks, sines and cosines, frequencies.

Files that mark no parameters hold such buffers beside the weights, often under names of the
exporter. A fresh weight does not have these numbers, a trained one even less.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

LARGEST = 2**22  # elements that are looked at
FIRST = 64  # elements that rule most tensors out
FAR = 100.0  # a number of this size or larger beside zeros masks
PRECISION = 1e-3  # of squares that add up to one number, also in float16
MASK = "a mask"


def fixed_tables(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The tensors of a graph that are such tables, each with what it is."""
    tables: dict[str, str] = {}
    waves: dict[tuple[int, ...], list[str]] = {}
    for name, array in arrays.items():
        if not 1 < array.size <= LARGEST:
            continue
        if _is_mask(array):
            tables[name] = MASK
        elif _is_frequencies(array):
            tables[name] = "frequencies, each a fixed part of the one before"
        elif _may_be_waves(array):
            if any(_is_circle(a, b) for a, b in _halves(array)):
                tables[name] = "sines and cosines"
            waves.setdefault(array.shape, []).append(name)
    for names in waves.values():
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                if _is_circle(arrays[first], arrays[second]):
                    tables[first] = tables[second] = "sines and cosines"
    return tables


def _is_mask(array: np.ndarray) -> bool:
    """Whether a matrix holds two numbers: 0 or 1, and 1, 0, or one that is far off."""
    if sum(size > 1 for size in array.shape) < 2:
        return False
    flat = array.reshape(-1)
    for numbers in (np.unique(flat[:FIRST]), np.unique(flat) if len(flat) > FIRST else None):
        if numbers is None:
            break
        if len(numbers) > 2 or np.isnan(numbers).any():
            return False
        pair = numbers
    if len(pair) != 2:
        return False
    near, far = sorted(pair, key=abs)
    return bool(near == 0 and (far == 1 or abs(far) >= FAR))


def _is_frequencies(array: np.ndarray) -> bool:
    """Whether a vector falls from 1 by one factor, as the frequencies of rotary positions do."""
    flat = array.reshape(-1).astype(np.float64)
    if max(array.shape) != array.size or not 4 <= flat.size <= FIRST * FIRST or flat[0] != 1.0:
        return False
    if not np.all(np.isfinite(flat)) or not np.all(flat > 0) or flat[1] >= 1.0:
        return False
    ratios = flat[1:] / flat[:-1]
    return bool(np.all(np.abs(ratios / ratios[0] - 1) < PRECISION))


def _may_be_waves(array: np.ndarray) -> bool:
    first = array.reshape(-1)[:FIRST]
    return array.ndim > 1 and array.shape[-1] > 1 and bool(np.all(np.abs(first) <= 2.0))


def _halves(array: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """How positions are written in one table: every other number a sine, or the first half."""
    size = array.shape[-1]
    if size % 2 or size < 4:
        return []
    return [(array[..., 0::2], array[..., 1::2]), tuple(np.split(array, 2, axis=-1))]  # type: ignore[list-item]


def _is_circle(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the squares of both add up to one number everywhere, and neither holds one alone."""
    if np.all(a == a.reshape(-1)[0]) or np.all(b == b.reshape(-1)[0]):
        return False
    squares = a.astype(np.float64) ** 2 + b.astype(np.float64) ** 2
    first = float(squares.reshape(-1)[0])
    return bool(first > 0 and np.all(np.abs(squares / first - 1) < PRECISION))
