"""Forests in memory against their evaluation by hand, in onnxruntime and in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.build import Builder
from sardonyx.errors import ImportDiffers
from sardonyx.importers.assembly import assemble, graph_input
from sardonyx.importers.proof import prove, run
from sardonyx.importers.trees import Forest, alike, alike_rows, emit, leaf_rows, leaf_sums, order

COMPARE = {
    "<=": np.less_equal, "<": np.less, ">=": np.greater_equal, ">": np.greater,
    "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


def model_of(
    forest: Forest, columns: int, targets: int | None = None, kind: ir.DataType = ir.DataType.DOUBLE
):
    op = Builder()
    x = graph_input("x", kind, ["n", columns])
    outputs = {"sums": leaf_sums(op, forest, x, targets), "rows": leaf_rows(op, forest, x)}
    return assemble(op, [x], outputs)


def random_tree(rng, forest, tests, columns, width, depth):
    """A tree; `tests` keeps, by node, what it asks, for the evaluation by hand."""
    if depth == 0 or rng.random() < 0.15:
        return forest.leaf(rng.normal(size=width))
    yes = random_tree(rng, forest, tests, columns, width, depth - 1)
    no = yes if rng.random() < 0.1 else random_tree(rng, forest, tests, columns, width, depth - 1)
    column, missing = int(rng.integers(columns)), bool(rng.random() < 0.5)
    kind = rng.choice([*COMPARE, "in"])
    if kind == "in":
        pool = [np.arange(1, 9), np.arange(0, 9), np.arange(-3, 80), np.arange(10) / 2]
        source = pool[rng.integers(4)]
        value = rng.choice(source, rng.integers(0, min(9, len(source))), replace=False)
        node = forest.member(column, value, yes, no, missing)
    else:
        value = float(rng.choice([0.0, 1.0, 2.5, -1.0, np.inf, -np.inf, 1e300]))
        node = forest.test(column, kind, value, yes, no, missing)
    tests[node] = (column, kind, value, yes, no, missing)
    return node


def reached(node, tests, row):
    while node >= 0:
        column, kind, value, yes, no, missing = tests[node]
        x = row[column]
        if np.isnan(x):
            true = missing
        else:
            true = x in value if kind == "in" else COMPARE[kind](x, value)
        node = yes if true else no
    return ~node


def rows_for(rng, columns):
    values = [0, 1, 2, 3, 2.5, -1, 1.5, 64, 65, 0.5, np.nan, np.inf, -np.inf, 1e300, 7, 79]
    return rng.choice(np.array(values, np.float64), (200, columns))


@pytest.mark.parametrize("width", [1, 3, 20])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("many", [1, 20_000])
def test_any_forest_reaches_the_leaves_that_its_tests_say(seed, width, many, monkeypatch) -> None:
    monkeypatch.setattr(order, "MANY_TESTS", many)  # from how many on branches are reordered
    rng = np.random.default_rng(seed)
    forest, tests = Forest(), {}
    for tree in range(5):
        forest.tree(random_tree(rng, forest, tests, 4, width, 5), tree % 2 if width == 1 else 0)
    x = rows_for(rng, 4)
    rows = np.array([[reached(root, tests, row) for root in forest.roots] for row in x])
    values = forest.leaves[rows]  # [rows, trees, width]
    if width == 1:
        sums = np.stack([values[:, 0::2, 0].sum(1), values[:, 1::2, 0].sum(1)], 1)
    else:
        sums = values.sum(1)
    model = model_of(forest, 4, 2 if width == 1 else None)
    onnx.checker.check_model(model.proto())
    prove(model, {"x": x}, {"sums": sums, "rows": rows})
    outputs = sx.to_numpy(model)(x)
    np.testing.assert_allclose(np.asarray(outputs[0]), sums, rtol=1e-12)


@pytest.mark.parametrize("many", [1, 20_000])
@pytest.mark.parametrize("mode", ["<=", "<", ">=", ">"])
def test_columns_of_float32_are_divided_as_by_thresholds_in_double(mode, many, monkeypatch) -> None:
    monkeypatch.setattr(order, "MANY_TESTS", many)
    rng = np.random.default_rng(0)
    splits = np.concatenate([rng.normal(size=40), np.float32(rng.normal(size=9)), [0, 0.1, 1e300]])
    forest, values = Forest(), rng.normal(size=(len(splits), 2, 3))
    for split, (yes, no) in zip(splits, values):
        low = forest.test(0, "<=", split - 1, forest.leaf(yes), forest.leaf(yes))
        forest.tree(forest.test(0, mode, split, low, forest.leaf(no)))
    with np.errstate(over="ignore"):
        near = splits.astype(np.float32)
    around = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    x = np.concatenate([near, *around, np.float32([np.inf, -np.inf])])[:, None]
    passed = COMPARE[mode](x.astype(np.float64), splits)
    sums = np.where(passed[..., None], values[:, 0], values[:, 1]).sum(1)
    model = model_of(forest, 1, kind=ir.DataType.FLOAT)
    kinds = [n.attributes["nodes_splits"].as_tensor().dtype for n in model.graph
             if n.op_type == "TreeEnsemble"]  # fmt: skip
    assert ir.DataType.FLOAT in kinds
    prove(model, {"x": x}, {"sums": sums})


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_sorted_by_what_the_trees_test_and_put_back(seed, monkeypatch) -> None:
    monkeypatch.setattr(alike, "SHORTEST_WALK", 1)
    rng = np.random.default_rng(seed)
    forest, tests = Forest(), {}
    for _ in range(5):
        forest.tree(random_tree(rng, forest, tests, 4, 1, 5))
    op = Builder()
    x = graph_input("x", ir.DataType.DOUBLE, ["n", 4])
    places = alike_rows(op, forest, x)
    assert places is not None
    ordered, back = places
    sums = op.Gather(leaf_sums(op, forest, op.Gather(x, ordered, axis=0)), back, axis=0)
    model = assemble(op, [x], {"sums": sums, "order": ordered})
    for count in (0, 1, 200):
        rows = rows_for(rng, 4)[:count]
        leaves = [[reached(root, tests, row) for root in forest.roots] for row in rows]
        expected = forest.leaves[np.array(leaves, int).reshape(count, 5)].sum(1)
        for outputs in (
            run(model, {"x": rows}),
            dict(zip(("sums", "order"), sx.to_numpy(model)(rows))),
        ):
            np.testing.assert_allclose(outputs["sums"], expected, rtol=1e-12)
            assert sorted(np.asarray(outputs["order"])) == list(range(count))


def test_sorted_rows_are_neighbours_where_they_fall_into_the_same_bins() -> None:
    rng = np.random.default_rng(0)
    forest = Forest()
    leaf = forest.leaf(1.0)
    for column, cut in zip(rng.integers(0, 2, 400), rng.normal(size=400)):
        forest.tree(forest.test(int(column), "<=", cut, leaf, forest.leaf(2.0)))
    op = Builder()
    x = graph_input("x", ir.DataType.DOUBLE, ["n", 2])
    places = alike_rows(op, forest, x)
    assert places is not None
    model = assemble(op, [x], {"order": places[0]})
    rows = rng.normal(size=(500, 2))
    thresholds = forest.thresholds()
    passed = np.concatenate([rows[:, [c]] <= thresholds[c] for c in (0, 1)], axis=1)
    sorted_rows = passed[run(model, {"x": rows})["order"]]
    changes = [np.count_nonzero(np.diff(r.astype(int), axis=0)) for r in (sorted_rows, passed)]
    assert changes[0] < changes[1] / 4
    few = Forest()
    few.tree(few.test(0, "<=", 0.0, few.leaf(1.0), few.leaf(2.0)))
    assert alike_rows(op, few, x) is None


def test_many_trees_with_leaf_vectors_are_gathered_in_parts(monkeypatch) -> None:
    monkeypatch.setattr(emit, "GATHERED_TREES", 128)
    rng = np.random.default_rng(0)
    forest = Forest()
    splits = rng.normal(size=300)
    values = rng.normal(size=(300, 2, 3))
    for split, (low, high) in zip(splits, values):
        forest.tree(forest.test(0, "<=", split, forest.leaf(low), forest.leaf(high)))
    x = rng.normal(size=(40, 1))
    sums = np.where((x <= splits)[..., None], values[:, 0], values[:, 1]).sum(1)
    prove(model_of(forest, 1), {"x": x}, {"sums": sums})


@pytest.mark.parametrize("rows", [0, 1])
def test_a_tree_of_one_leaf(rows) -> None:
    forest = Forest()
    forest.tree(forest.leaf([2.5]))
    forest.tree(forest.test(0, "<", 0.0, forest.leaf([1.0]), forest.leaf([3.0])))
    sums = run(model_of(forest, 2), {"x": np.zeros((rows, 2))})["sums"]
    assert sums.tolist() == [[5.5]] * rows


def test_a_deep_chain() -> None:
    forest = Forest()
    node = forest.leaf([0.0])
    for i in range(3000):
        node = forest.test(0, "<=", i + 1.0, node, forest.leaf([i + 1.0]))
    forest.tree(node)
    x = np.array([[0.5], [1.5], [2999.5], [5000.0]])
    prove(model_of(forest, 1), {"x": x}, {"sums": [[0.0], [1.0], [2999.0], [3000.0]]})


def test_a_difference_names_output_row_and_values() -> None:
    forest = Forest()
    forest.tree(forest.test(0, "<=", 0.5, forest.leaf([1.0]), forest.leaf([2.0])))
    with pytest.raises(ImportDiffers, match=r'"sums".*row 1, column 0.*model 2.0.*source 7.0'):
        prove(model_of(forest, 1), {"x": np.array([[0.0], [1.0]])}, {"sums": [[1.0], [7.0]]})
