"""The order of branches that onnxruntime walks fastest.

NOTE [branches]: onnxruntime stores the node of the `no` branch right behind its test, and follows
a pointer for `yes`. In large forests a walk waits for memory and for mispredicted branches, so the
branch that most rows take should be `no`. A test whose `yes` has more leaves below it is reversed:
`x <= t` becomes `-x < -t`, over a second copy of the column with the other sign. All tests keep one
comparison, for which onnxruntime has a loop of its own. A forest of 500 trees scores up to three
times faster (bench/trees.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.trees.forest import MODES

MANY_TESTS = 20_000  # fewer fit into the caches as they are
LEQ, LT, GTE, GT = (MODES.index(mode) for mode in ("<=", "<", ">=", ">"))
# Below these, the number next to a threshold may be one that engines take for zero.
SMALLEST = {np.float64: 1e-300, np.float32: 1e-37}


@dataclass
class Tests:
    """Tests in the order of TreeEnsemble; see `Forest.arrays` for the fields."""

    column: np.ndarray
    mode: np.ndarray
    value: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray


def common_branch_last(op: Builder, tests: Tests, roots: np.ndarray, x: ir.Value) -> ir.Value:
    """Reverse tests in place, so that `no` is the larger branch; returns the columns to test."""
    width = x.shape[1] if x.shape is not None and len(x.shape) == 2 else None
    if len(tests.mode) < MANY_TESTS or not isinstance(width, int):
        return x
    _one_comparison(tests)
    leaves = leaves_below(tests, roots)
    far = _has_neighbours(tests.value)
    reverse = (leaves(tests.yes) > leaves(tests.no)) & far & (tests.mode <= LT)
    if not reverse.any():
        return x
    _swap(tests, reverse)
    # x > t is -x < -t, and x >= t is -x <= -t
    away = np.where(tests.mode == LEQ, -np.inf, np.inf).astype(tests.value.dtype)
    next_value = np.nextafter(np.where(reverse, -tests.value, 0), away)
    tests.value = np.where(reverse, next_value, tests.value)
    which, place = np.unique(tests.column[reverse], return_inverse=True)
    tests.column = tests.column.copy()
    tests.column[reverse] = width + place
    reversed_columns = x if len(which) == width else op.Gather(x, which, axis=1)
    return op.Concat(x, op.Neg(reversed_columns), axis=1)


def _one_comparison(tests: Tests) -> None:
    """`>` and `>=` as the opposite of `<=` and `<`, and those two as one where both occur."""
    tests.mode = tests.mode.copy()
    for mode, opposite in ((GT, LEQ), (GTE, LT)):
        upper = tests.mode == mode
        _swap(tests, upper)
        tests.mode[upper] = opposite
    less = (tests.mode == LT) & _has_neighbours(tests.value)
    if (tests.mode == LEQ).any() and less.any():
        below = np.nextafter(np.where(less, tests.value, 0), tests.value.dtype.type(-np.inf))
        tests.value = np.where(less, below, tests.value)
        tests.mode[less] = LEQ


def _has_neighbours(values: np.ndarray) -> np.ndarray:
    """Whether the numbers next to a threshold are ones that all engines tell from it."""
    sizes = np.abs(values)
    return (sizes >= SMALLEST[values.dtype.type]) & (sizes < np.finfo(values.dtype).max)


def _swap(tests: Tests, which: np.ndarray) -> None:
    """Exchange the branches of some tests; what is missing goes where it went."""
    tests.yes, tests.no = np.where(which, tests.no, tests.yes), np.where(which, tests.yes, tests.no)
    tests.missing = np.where(which, 1 - tests.missing, tests.missing)


def leaves_below(tests: Tests, roots: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A function that counts the leaves below nodes, given by their numbers."""
    count = np.zeros(len(tests.mode), np.int64)

    def below(nodes: np.ndarray) -> np.ndarray:
        return np.where(nodes < 0, 1, count[np.maximum(nodes, 0)])

    levels, level = [], roots
    while len(level):
        levels.append(level)
        children = np.concatenate([tests.yes[level], tests.no[level]])
        level = children[children >= 0]
    for level in reversed(levels):
        count[level] = below(tests.yes[level]) + below(tests.no[level])
    return below
