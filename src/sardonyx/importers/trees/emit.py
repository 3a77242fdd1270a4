"""A forest as nodes: which leaf each tree reaches, and the sums of what the leaves hold.

TreeEnsemble gives a leaf one value for one target. Where a leaf holds one number, the operator adds
them up itself. Where a leaf holds a vector, its value is the number of its row in a leaf table,
each tree has a target of its own, and what the rows hold is gathered and added up.

NOTE [leaf vectors]: in onnxruntime 1.31, Gather takes 8 ns for a leaf, be it a number or a short
vector, and GatherElements 1.3 ns for a number. So the entries of short vectors are gathered one
after the other, from tables with a column for each tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ImportRefused, counted
from sardonyx.importers.trees.forest import MEMBER, MODES, Forest
from sardonyx.importers.trees.order import SMALLEST, Tests, common_branch_last

MOST_TESTS = 20_000_000  # copies of shared nodes included
GATHERED_TREES = 512  # trees whose leaf vectors are gathered at once: bounds the memory of a batch
SHORT = 12  # entries of a leaf vector that are gathered one after the other
MOST_PADDING = 4  # how many times larger than the leaves a table with a column per tree may be
MASK_BITS = 64


def leaf_rows(op: Builder, forest: Forest, x: ir.Value) -> ir.Value:
    """The row of the leaf table that each tree reaches: int64 [rows of x, trees]."""
    return _rows(op, unfold(forest), forest, op.cast(x, ir.DataType.DOUBLE), slice(None))


def leaf_means(op: Builder, forest: Forest, x: ir.Value) -> ir.Value:
    """The mean of the leaves that the trees reach: double [rows of x, leaf width]."""
    if 1 < forest.width <= SHORT and forest.trees <= GATHERED_TREES:
        x = x if single(forest) else op.cast(x, ir.DataType.DOUBLE)
        # Without a node for the division, which counts where a batch is one row.
        means = _short_sums(op, unfold(forest), forest, x, slice(None), op.ReduceMean)
        if means is not None:
            return means
    return op.Div(leaf_sums(op, forest, x), np.float64(forest.trees))


def leaf_sums(op: Builder, forest: Forest, x: ir.Value, targets: int | None = None) -> ir.Value:
    """The sum of the leaves that the trees reach: double [rows of x, targets or leaf width].

    x        -- the columns, double or float32 [rows, columns]
    targets  -- how many sums there are, where a leaf holds one number and trees have targets
    """
    nodes = unfold(forest)
    if x.dtype == ir.DataType.FLOAT and (forest.width == 1 or not single(forest)):
        x = op.cast(x, ir.DataType.DOUBLE)
    if forest.width == 1:
        weights = forest.leaves[nodes.leaf_row, 0]
        which = np.asarray(forest.targets, np.int64)[nodes.leaf_tree]
        return _ensemble(op, forest, nodes, x, weights, which, targets or 1)
    total = None
    for start in range(0, forest.trees, GATHERED_TREES):
        part = slice(start, start + GATHERED_TREES)
        partial = None
        if forest.width <= SHORT:
            partial = _short_sums(op, nodes, forest, x, part, op.ReduceSum)
        if partial is None:
            values = op.Gather(op.const(forest.leaves), _rows(op, nodes, forest, x, part), axis=0)
            partial = op.ReduceSum(values, [1], keepdims=0)
        total = partial if total is None else op.Add(total, partial)
    assert total is not None
    return total


def _rows(op: Builder, nodes: Nodes, forest: Forest, x: ir.Value, part: slice) -> ir.Value:
    start, stop, _ = part.indices(forest.trees)
    some = nodes.of_trees(start, stop)
    weights = some.leaf_row.astype(np.float64)
    numbers = _ensemble(op, forest, some, x, weights, some.leaf_tree - start, stop - start)
    return op.Cast(numbers, to=int(ir.DataType.INT64))


def _short_sums(
    op: Builder, nodes: Nodes, forest: Forest, x: ir.Value, part: slice, reduce: Callable[..., Any]
) -> ir.Value | None:
    """The sums of some trees' leaf vectors, entry by entry; None where the table would be large.

    The leaves of each tree are numbered from 0; entry k of them is a table [leaves, trees].
    """
    start, stop, _ = part.indices(forest.trees)
    some = nodes.of_trees(start, stop)
    tree = some.leaf_tree - start
    pairs, place = np.unique(np.stack([tree, some.leaf_row], 1), axis=0, return_inverse=True)
    first = np.searchsorted(pairs[:, 0], np.arange(stop - start))
    number = np.arange(len(pairs)) - first[pairs[:, 0]]
    tables = (forest.width, int(number.max()) + 1, stop - start)
    if np.prod(tables[1:]) > MOST_PADDING * len(pairs):
        return None
    table = np.zeros(tables)
    table[:, number, pairs[:, 0]] = forest.leaves[pairs[:, 1]].T
    weights = number[place.reshape(-1)].astype(np.float64)
    numbers = _ensemble(op, forest, some, x, weights, tree, stop - start)
    numbers = op.Cast(numbers, to=int(ir.DataType.INT32))
    sums = [
        reduce(op.GatherElements(op.const(entries), numbers, axis=0), [1], keepdims=1)
        for entries in table
    ]
    return op.Concat(*sums, axis=1)


# -- copies, in the order of TreeEnsemble --------------------------------------------


@dataclass
class Nodes:
    """Tests in which no node has two parents, and their leaves.

    source                 the test of the forest that each is a copy of
    tree                   the tree of each test
    yes, no                children: a test `n >= 0` or a leaf `~n`
    roots                  the first test of each tree
    leaf_row, leaf_tree    the row in the leaf table, and the tree, of each leaf
    """

    source: np.ndarray
    tree: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    roots: np.ndarray
    leaf_row: np.ndarray
    leaf_tree: np.ndarray

    def of_trees(self, start: int, stop: int) -> Nodes:
        """The part of it that belongs to some of the trees."""
        tests = (self.tree >= start) & (self.tree < stop)
        leaves = (self.leaf_tree >= start) & (self.leaf_tree < stop)
        if tests.all() and leaves.all():
            return self
        test_number, leaf_number = np.cumsum(tests) - 1, np.cumsum(leaves) - 1

        def renumbered(children: np.ndarray) -> np.ndarray:
            rest = children[tests]
            is_leaf = rest < 0
            return np.where(
                is_leaf,
                ~leaf_number[np.where(is_leaf, ~rest, 0)],
                test_number[np.where(is_leaf, 0, rest)],
            )

        return Nodes(
            self.source[tests],
            self.tree[tests],
            renumbered(self.yes),
            renumbered(self.no),
            test_number[self.roots[start:stop]],
            self.leaf_row[leaves],
            self.leaf_tree[leaves],
        )


def unfold(forest: Forest) -> Nodes:
    """Copy the nodes that have several parents, level by level; onnxruntime wants trees."""
    arrays = forest.arrays()
    roots = np.asarray(forest.roots, np.int64)
    # A tree of one leaf has one test, whose children are both that leaf.
    single = roots < 0
    frontier, tree = roots, np.arange(len(roots))
    source, trees, sides = [], [], []
    leaf_row: list[np.ndarray] = []
    leaf_tree: list[np.ndarray] = []
    tests = leaves = 0
    while len(frontier):
        inner = frontier >= 0
        pair = []
        for name in ("yes", "no"):
            child = np.where(inner, _at(arrays[name], frontier), frontier)
            is_leaf = child < 0
            pair.append((child, is_leaf))
        source.append(np.where(inner, frontier, -1))
        trees.append(tree)
        tests += len(frontier)
        if tests > MOST_TESTS:
            raise ImportRefused(
                f"the trees have more than {counted(MOST_TESTS, 'test')} once nodes with several "
                "parents are copied"
            )
        children = np.concatenate([pair[0][0], pair[1][0]])
        is_leaf = np.concatenate([pair[0][1], pair[1][1]])
        owner = np.concatenate([tree, tree])
        number = np.empty(len(children), np.int64)
        leaf_count = int(is_leaf.sum())
        number[is_leaf] = ~(leaves + np.arange(leaf_count))
        number[~is_leaf] = tests + np.arange(len(children) - leaf_count)
        sides.append(np.split(number, 2))
        leaf_row.append(~children[is_leaf])
        leaf_tree.append(owner[is_leaf])
        leaves += leaf_count
        frontier, tree = children[~is_leaf], owner[~is_leaf]
    _share_single_leaves(sides, single, leaf_row, leaf_tree)
    empty = np.zeros(0, np.int64)
    return Nodes(
        np.concatenate(source or [empty]),
        np.concatenate(trees or [empty]),
        np.concatenate([s[0] for s in sides] or [empty]),
        np.concatenate([s[1] for s in sides] or [empty]),
        np.arange(len(roots)),
        np.concatenate(leaf_row or [empty]),
        np.concatenate(leaf_tree or [empty]),
    )


def _share_single_leaves(sides, single, leaf_row, leaf_tree) -> None:
    """Both branches of a tree of one leaf refer to one leaf, as the operator's definition says."""
    if single.any():
        yes, no = sides[0]
        no[single] = yes[single]


def _at(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """`values[index]`, anything where the index is negative."""
    return values[np.maximum(index, 0)] if len(values) else np.zeros_like(index)


# -- the operator ---------------------------------------------------------------------


def _ensemble(
    op: Builder,
    forest: Forest,
    nodes: Nodes,
    x: ir.Value,
    weights: np.ndarray,
    targets: np.ndarray,
    count: int,
) -> ir.Value:
    arrays = forest.arrays()
    inner = nodes.source >= 0
    mode = np.where(inner, _at(arrays["mode"], nodes.source), 0).astype(np.uint8)
    column = np.where(inner, _at(arrays["column"], nodes.source), 0)
    x, column = _whole_columns(op, forest, nodes, x, mode, column)
    splits = np.where(inner, _at(arrays["value"], nodes.source), 0.0).astype(np.float64)
    dtype = np.float32 if x.dtype == ir.DataType.FLOAT else np.float64
    if dtype is np.float32:
        splits = single_splits(splits, mode)
    missing = np.where(inner, _at(arrays["missing"], nodes.source), 0)
    tests = Tests(column, mode, splits, nodes.yes, nodes.no, missing)
    x = common_branch_last(op, tests, nodes.roots, x)
    attributes = {
        "aggregate_function": 1,
        "post_transform": 0,
        "n_targets": count,
        "tree_roots": nodes.roots.tolist(),
        "nodes_modes": ir.tensor(tests.mode),
        "nodes_splits": ir.tensor(tests.value),
        "nodes_featureids": tests.column.tolist(),
        "nodes_truenodeids": np.where(tests.yes < 0, ~tests.yes, tests.yes).tolist(),
        "nodes_trueleafs": (tests.yes < 0).astype(int).tolist(),
        "nodes_falsenodeids": np.where(tests.no < 0, ~tests.no, tests.no).tolist(),
        "nodes_falseleafs": (tests.no < 0).astype(int).tolist(),
        "nodes_missing_value_tracks_true": tests.missing.tolist(),
        "leaf_targetids": targets.tolist(),
        "leaf_weights": ir.tensor(np.asarray(weights, dtype)),
    }
    sets = [forest.sets[int(n)] for n in nodes.source[mode == MEMBER]]
    if sets:
        members = [part for values in sets for part in (values, [np.nan])]
        attributes["membership_values"] = ir.tensor(np.concatenate(members))
    return op.call("TreeEnsemble", [x], attributes, domain="ai.onnx.ml")


def single(forest: Forest) -> bool:
    """Whether columns of float32 can be tested, and leaves numbered, in float32."""
    arrays = forest.arrays()
    value = np.abs(arrays["value"])
    ordered = (arrays["mode"] <= MODES.index(">")).all()
    normal = (value == 0) | (value >= SMALLEST[np.float32])
    return bool(ordered and normal.all() and len(forest.leaves) < 2**24)


def single_splits(splits: np.ndarray, mode: np.ndarray) -> np.ndarray:
    """The thresholds in float32 that divide the numbers of float32 as those in double do."""
    below = (mode == MODES.index("<=")) | (mode == MODES.index(">"))
    low, high = np.float32(-np.inf), np.float32(np.inf)
    with np.errstate(over="ignore"):
        nearest = splits.astype(np.float32)
        lower = np.where(nearest > splits, np.nextafter(nearest, low), nearest)
        upper = np.where(nearest < splits, np.nextafter(nearest, high), nearest)
    return np.where(below, lower, upper)


def _whole_columns(op, forest, nodes, x, mode, column):
    """The columns of `x`, and beside them those of tests of sets, free of small fractions.

    onnxruntime 1.31 writes the whole numbers from 0 to 64 of a set as a bit mask, and takes 1.5
    for a member where 1 is one. A fraction, never a member there, becomes one beyond the mask.
    """
    masks = np.zeros(len(mode), bool)
    for at in np.flatnonzero(mode == MEMBER):
        members = forest.sets[int(nodes.source[at])]
        in_mask = (members >= 0) & (members <= MASK_BITS) & (members == np.floor(members))
        masks[at] = in_mask.any() and int(column[at]) not in forest.whole
    if not masks.any():
        return x, column
    which = np.unique(column[masks])
    picked = op.Gather(x, which, axis=1)
    fraction = op.Greater(op.Sub(picked, op.Floor(picked)), np.float64(0))
    added = op.Where(fraction, np.float64(1000.5), picked)
    column = column.copy()
    column[masks] = x.shape[1] + np.searchsorted(which, column[masks])
    return op.Concat(x, added, axis=1), column
