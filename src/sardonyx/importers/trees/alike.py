"""The order of rows in which neighbours take the same branches.

NOTE [rows alike]: onnxruntime walks each tree for 128 rows, one after the other. With rows at
random, a hundred trees of five levels take 2,300 ns for a row, and 600 ns where all rows are the
same: the rest are mispredicted branches. So each column is cut into a few bins, where its
thresholds are, and rows are sorted by their bins, coarse ones first. Sorting takes 300 ns for a
row, the walk is then half as long (bench/pmml.py), and nothing else changes: no row depends on
another.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.trees.emit import Nodes, leaf_sums, unfold
from sardonyx.importers.trees.forest import MODES, Forest

SHORTEST_WALK = 300  # tests that a row meets; sorting takes as long as about a hundred
BITS = 18  # of the number that rows are sorted by


def alike_rows(op: Builder, forest: Forest, x: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The numbers of rows in a quicker order, and the place of each row in it: int64 [rows].

    None where a walk through the forest is too short to gain by it.
    """
    nodes = unfold(forest)
    visits = _visits(nodes)
    if visits.sum() < SHORTEST_WALK:
        return None
    bins = _bins(forest, nodes, visits)
    if not bins.trees:
        return None
    count = op.Shape(x, start=0, end=1)
    _, order = op.TopK(leaf_sums(op, bins, x), count, axis=0, largest=0, sorted=1, outputs=2)
    order = op.Squeeze(order, [1])
    first, step = np.array(0, np.int64), np.array(1, np.int64)
    numbers = op.Range(first, op.Squeeze(count, [0]), step)
    return order, op.ScatterElements(order, order, numbers, axis=0)


def _visits(nodes: Nodes) -> np.ndarray:
    """How often a row meets each test, if both branches of all tests are as likely."""
    visits = np.zeros(len(nodes.source))
    level, share = nodes.roots, 1.0
    while len(level):
        visits[level] = share
        children = np.concatenate([nodes.yes[level], nodes.no[level]])
        level, share = children[children >= 0], share / 2
    return visits


def _bins(forest: Forest, nodes: Nodes, visits: np.ndarray) -> Forest:
    """A tree for each column that counts, whose values add up to the number to sort by."""
    arrays = forest.arrays()
    inner = nodes.source >= 0
    source, visits = nodes.source[inner], visits[inner]
    value = arrays["value"][source]
    ordered = (arrays["mode"][source] <= MODES.index(">")) & np.isfinite(value)
    column, value, visits = arrays["column"][source][ordered], value[ordered], visits[ordered]
    bins = Forest()
    for name, places in _shared_bits(column, visits).items():
        here = column == name
        cuts = _cuts(value[here], visits[here], 2 ** len(places))
        bins.tree(_search(bins, name, cuts, places, 0.0))
    return bins


def _shared_bits(column: np.ndarray, visits: np.ndarray) -> dict[int, list[int]]:
    """The places in the number of each column's bits, the first for what is tested most often."""
    names = np.unique(column)
    rest = np.array([visits[column == name].sum() for name in names])
    places: dict[int, list[int]] = {}
    for place in reversed(range(BITS if len(names) else 0)):
        most = int(np.argmax(rest))
        places.setdefault(int(names[most]), []).append(place)
        rest[most] /= 2
    return places


def _cuts(value: np.ndarray, visits: np.ndarray, count: int) -> np.ndarray:
    """Thresholds that divide a column's tests into `count` parts, each met as often."""
    order = np.argsort(value, kind="stable")
    total = np.cumsum(visits[order])
    places = np.searchsorted(total, total[-1] * np.arange(1, count) / count)
    return value[order][np.minimum(places, len(value) - 1)]


def _search(bins: Forest, column: int, cuts: np.ndarray, places: list[int], number: float) -> int:
    """A tree that finds the bin of a column by halving: each test sets a bit of its number."""
    if not places:
        return bins.leaf(number)
    middle = len(cuts) // 2
    yes = _search(bins, column, cuts[:middle], places[1:], number)
    no = _search(bins, column, cuts[middle + 1 :], places[1:], number + 2.0 ** places[0])
    return bins.test(column, "<=", float(cuts[middle]), yes, no)
