"""Trees, forests, gradient boosting and isolation forests, through `importers.trees`.

scikit-learn compares float32 columns with double thresholds; histogram boosting compares doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import methods, refuse, transform
from sardonyx.importers.sklearn.labels import flat, highest, pair, picked
from sardonyx.importers.sklearn.table import FLOAT, INT64, double, matrix, select
from sardonyx.importers.special import sigmoid, softmax
from sardonyx.importers.trees import Forest, leaf_means, leaf_rows, leaf_sums
from sardonyx.importers.trees.forest import MEMBER

F = np.float64
EPSILON = np.finfo(np.float64).eps
MANY_NODES = 20_000  # of forests that are large enough to be worth another form


def add_tree(forest: Forest, tree: Any, values: np.ndarray, target: int = 0, features=None) -> None:
    """Add a `sklearn.tree` structure whose node `i` has the vector `values[i]` if it is a leaf."""
    left, right = tree.children_left, tree.children_right
    is_leaf = left < 0
    first_leaf = forest.extend_leaves(values[is_leaf].reshape(int(is_leaf.sum()), -1))
    number = np.where(is_leaf, ~(first_leaf + np.cumsum(is_leaf) - 1), 0)
    number[~is_leaf] = forest.tests + np.arange(int((~is_leaf).sum()))
    column = tree.feature[~is_leaf]
    if features is not None:
        column = np.asarray(features)[column]
    missing = getattr(tree, "missing_go_to_left", None)
    inner = ~is_leaf
    forest.extend(
        column,
        np.zeros(len(column), np.uint8),
        tree.threshold[inner],
        number[left[inner]],
        number[right[inner]],
        np.zeros(len(column)) if missing is None else np.asarray(missing)[inner],
    )
    forest.tree(int(number[0]), target)


def rounded(op: Builder, x: Any) -> ir.Value:
    """The columns as trees see them: rounded to float32."""
    return op.cast(matrix(op, x), FLOAT)


# -- single trees and forests -----------------------------------------------------------


def _class_means(op, trees: Sequence[Any], x: ir.Value) -> ir.Value:
    forest = Forest()
    for tree in trees:
        structure = tree.tree_
        add_tree(
            forest, structure, np.asarray(structure.value, F).reshape(len(structure.value), -1)
        )
    return leaf_sums(op, forest, x) if len(trees) == 1 else leaf_means(op, forest, x)


def _classes_of(op, model, proba: ir.Value) -> dict[str, Any]:
    """Probabilities and labels of one or several outputs, from shares `[outputs × classes]`."""
    classes = model.classes_ if model.n_outputs_ > 1 else [model.classes_]
    most = max(len(c) for c in classes)
    parts, labels = [], []
    for k, names in enumerate(classes):
        part = proba
        if len(classes) > 1:
            part = op.Slice(proba, [k * most], [k * most + len(names)], [1])
        parts.append(part)
        labels.append(highest(op, names, part))
    if len(classes) == 1:
        return {"predict_proba": parts[0], "predict": labels[0]}
    stacked = op.Concat(*(op.Unsqueeze(label, [1]) for label in labels), axis=1)
    return {"predict_proba": parts, "predict": stacked}


def _votes(op, trees: Sequence[Any], x: ir.Value, classes: int) -> ir.Value | None:
    """Counts of classes where every leaf is of one class: the digits of one exact sum per row.

    A leaf of class c is base**c (of two classes, c itself). TreeEnsemble then adds one number per
    tree, which is much faster than vectors of leaves. None where a leaf is mixed, or a double has
    too few digits.
    """
    bits = len(trees).bit_length()
    two = classes == 2
    if bits * classes > 52:
        return None
    forest = Forest()
    for tree in trees:
        values = np.asarray(tree.tree_.value, F)[:, 0, :]
        leaves = values[tree.tree_.children_left < 0]
        if not ((leaves == 0) | (leaves == 1)).all() or not (leaves.sum(1) == 1).all():
            return None
        number = np.argmax(values, 1).astype(F)
        add_tree(forest, tree.tree_, (number if two else np.exp2(bits * number)).reshape(-1, 1))
    rest, counts = leaf_sums(op, forest, x), []
    if two:
        return op.Concat(op.Sub(F(len(trees)), rest), rest, axis=1)
    for c in reversed(range(classes)):
        digit = op.Floor(op.Div(rest, F(2.0 ** (bits * c))))
        rest = op.Sub(rest, op.Mul(digit, F(2.0 ** (bits * c))))
        counts.append(digit)
    return op.Concat(*reversed(counts), axis=1)


def _pairs(op, trees: Sequence[Any], x: ir.Value) -> ir.Value | None:
    """Sums of the two classes' shares from the sum of one, for forests in which ties are no matter.

    The leaf of every tree has shares that add up to 1: one number per leaf is much faster than two.
    None where the forest is small, or a leaf's shares do not add up.
    """
    if sum(tree.tree_.node_count for tree in trees) < MANY_NODES:
        return None
    forest = Forest()
    for tree in trees:
        values = np.asarray(tree.tree_.value, F)[:, 0, :]
        if not (np.abs(values.sum(1) - 1) <= 4 * EPSILON).all():
            return None
        add_tree(forest, tree.tree_, values[:, 1:])
    second = leaf_sums(op, forest, x)
    return op.Concat(op.Max(op.Sub(F(len(trees)), second), F(0)), second, axis=1)


@importer("sklearn.tree.DecisionTreeClassifier", "sklearn.tree.ExtraTreeClassifier")
def tree_classifier(op, model, x):
    return _classes_of(op, model, _class_means(op, [model], rounded(op, x)))


@importer("sklearn.ensemble.RandomForestClassifier", "sklearn.ensemble.ExtraTreesClassifier")
def forest_classifier(op, model, x):
    columns = rounded(op, x)
    sums = None
    if model.n_outputs_ == 1 and len(model.classes_) > 1:
        sums = _votes(op, model.estimators_, columns, len(model.classes_))
        if sums is None and len(model.classes_) == 2:
            sums = _pairs(op, model.estimators_, columns)
    if sums is None:
        return _classes_of(op, model, _class_means(op, model.estimators_, columns))
    return _classes_of(op, model, op.Div(sums, F(len(model.estimators_))))


@importer("sklearn.tree.DecisionTreeRegressor", "sklearn.tree.ExtraTreeRegressor")
def tree_regressor(op, model, x):
    y = _class_means(op, [model], rounded(op, x))
    return {"predict": flat(op, y) if model.n_outputs_ == 1 else y}


@importer("sklearn.ensemble.RandomForestRegressor", "sklearn.ensemble.ExtraTreesRegressor")
def forest_regressor(op, model, x):
    y = _class_means(op, model.estimators_, rounded(op, x))
    return {"predict": flat(op, y) if model.n_outputs_ == 1 else y}


@importer("sklearn.ensemble.RandomTreesEmbedding")
def random_trees_embedding(op, model, x):
    """One column per leaf: which leaf of each tree a row reaches."""
    forest, which, leaves = Forest(), [], []
    for t, (tree, categories) in enumerate(
        zip(model.estimators_, model.one_hot_encoder_.categories_)
    ):
        structure = tree.tree_
        first = len(forest.leaves) if t else 0
        add_tree(forest, structure, np.zeros((structure.node_count, 1)))
        order = np.flatnonzero(structure.children_left < 0)
        which += [t] * len(categories)
        leaves += [first + int(np.searchsorted(order, leaf)) for leaf in categories]
    rows = op.Gather(leaf_rows(op, forest, rounded(op, x)), np.array(which), axis=1)
    return {"transform": op.Cast(op.Equal(rows, np.array([leaves])), to=int(ir.DataType.DOUBLE))}


@importer("sklearn.ensemble.IsolationForest")
def isolation_forest(op, model, x):
    forest = Forest()
    lengths = zip(model._decision_path_lengths, model._average_path_length_per_tree)
    for tree, features, (depth, rest) in zip(
        model.estimators_, model.estimators_features_, lengths
    ):
        values = np.asarray(depth, F) + np.asarray(rest, F) - 1.0
        add_tree(forest, tree.tree_, values.reshape(-1, 1), features=features)
    depths = flat(op, leaf_sums(op, forest, rounded(op, x)))
    usual = len(model.estimators_) * _average_path_length(model._max_samples)
    ratio = op.Div(depths, F(usual)) if usual else op.Add(op.Mul(depths, F(0)), F(1))
    scores = op.Neg(op.Pow(op.const(F(2)), op.Neg(ratio)))
    decision = op.Sub(scores, F(model.offset_))
    label = op.Where(op.Less(decision, F(0)), np.int64(-1), np.int64(1))
    return {"score_samples": scores, "decision_function": decision, "predict": label}


def _average_path_length(n: float) -> float:
    if n <= 1:
        return 0.0
    return 1.0 if n == 2 else 2.0 * (np.log(n - 1.0) + np.euler_gamma) - 2.0 * (n - 1.0) / n


# -- gradient boosting -----------------------------------------------------------------------


def _boosted(op, model, x) -> ir.Value:
    forest = Forest()
    for stage in model.estimators_:
        for k, tree in enumerate(stage):
            values = model.learning_rate * np.asarray(tree.tree_.value, F)[:, 0, :1]
            add_tree(forest, tree.tree_, values, target=k)
    columns = rounded(op, x)
    sums = leaf_sums(op, forest, columns, model.estimators_.shape[1])
    return op.Add(sums, _initial(op, model, columns))


def _initial(op, model, x) -> Any:
    start = model.init_
    if isinstance(start, str):
        return F(0)
    if type(start).__name__.startswith("Dummy"):
        return model._raw_predict_init(np.zeros((1, model.n_features_in_), np.float32))
    result = methods(op, start, x, "init_")
    if not hasattr(model, "classes_"):
        raw = result["predict"]
        raw = double(op, raw) if len(raw.shape) > 1 else op.Unsqueeze(raw, [1])
        return op.cast(raw, ir.DataType.DOUBLE)
    proba = op.Min(op.Max(result["predict_proba"], F(EPSILON)), F(1 - EPSILON))
    link = type(model._loss.link).__name__
    if link == "MultinomialLogit":
        logs = op.Log(proba)
        return op.Sub(logs, op.ReduceMean(logs, [1], keepdims=1))
    p = op.Slice(proba, [1], [2], [1])
    logit = op.Log(op.Div(p, op.Sub(F(1), p)))
    return op.Mul(logit, F(0.5)) if link == "HalfLogitLink" else logit


def _boosted_classes(op, model, raw, at_zero) -> dict[str, Any]:
    """Labels and probabilities by the loss; `at_zero` compares a score with zero."""
    loss = type(model._loss).__name__
    if raw.shape[1] == 1:
        score = flat(op, raw)
        if loss not in ("HalfBinomialLoss", "ExponentialLoss"):
            raise refuse(f"the loss {loss}")
        p = sigmoid(op, op.Mul(score, F(2)) if loss == "ExponentialLoss" else score)
        label = picked(op, model.classes_, op.Cast(at_zero(score, F(0)), to=int(INT64)))
        return {"decision_function": score, "predict_proba": pair(op, p), "predict": label}
    if loss != "HalfMultinomialLoss":
        raise refuse(f"the loss {loss}")
    label = highest(op, model.classes_, raw)
    return {"decision_function": raw, "predict_proba": softmax(op, raw), "predict": label}


@importer("sklearn.ensemble.GradientBoostingClassifier")
def gradient_boosting_classifier(op, model, x):
    return _boosted_classes(op, model, _boosted(op, model, x), op.GreaterOrEqual)


@importer("sklearn.ensemble.GradientBoostingRegressor")
def gradient_boosting_regressor(op, model, x):
    return {"predict": flat(op, _boosted(op, model, x))}


# -- histogram gradient boosting ------------------------------------------------------------------


def _add_histogram_tree(forest: Forest, predictor: Any, categories: dict[int, np.ndarray], k: int):
    """Add a tree; a category that is unknown follows missing values."""
    nodes = predictor.nodes
    is_leaf = nodes["is_leaf"].astype(bool)
    first_leaf = forest.extend_leaves(nodes["value"][is_leaf].reshape(-1, 1))
    number = np.where(is_leaf, ~(first_leaf + np.cumsum(is_leaf) - 1), 0)
    categorical = nodes["is_categorical"].astype(bool) & ~is_leaf
    inner = ~is_leaf
    start = forest.tests
    number[inner] = start + np.arange(int(inner.sum()))
    mode = np.where(categorical, MEMBER, 0).astype(np.uint8)[inner]
    yes, no = number[nodes["left"][inner]], number[nodes["right"][inner]]
    missing = nodes["missing_go_to_left"][inner].astype(int)
    for at in np.flatnonzero(mode == MEMBER):
        node = nodes[np.flatnonzero(inner)[at]]
        bits = predictor.raw_left_cat_bitsets[node["bitset_idx"]]
        left = _members(bits)
        if missing[at]:  # the right side is what is known and not left; the rest follows missing
            members = np.setdiff1d(categories[int(node["feature_idx"])], left)
            yes[at], no[at], missing[at] = no[at], yes[at], 0
        else:
            members = left
        if not len(members):
            members = np.array([-1.0, -2.0])  # nothing: codes of categories are not negative
        forest.sets[start + int(at)] = members
    forest.extend(
        nodes["feature_idx"][inner], mode, nodes["num_threshold"][inner], yes, no, missing
    )
    forest.tree(int(number[0]), k)


def _members(bits: np.ndarray) -> np.ndarray:
    """The numbers whose bits are set, of words of 32 bits."""
    flags = np.unpackbits(np.asarray(bits, "<u4").view(np.uint8), bitorder="little")
    return np.flatnonzero(flags).astype(np.float64)


def _histogram_raw(op, model, x) -> ir.Value:
    categories: dict[int, np.ndarray] = {}
    if getattr(model, "_preprocessor", None) is not None:
        encoder = model._preprocessor.named_transformers_["encoder"]
        categorical = np.flatnonzero(model.is_categorical_)
        codes = transform(op, encoder, select(op, x, categorical), "categories")
        plain = np.flatnonzero(~np.asarray(model.is_categorical_))
        parts = [double(op, codes)]
        parts += [double(op, select(op, x, plain))] if len(plain) else []
        columns = op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]
    else:
        columns = double(op, x)
    bitsets, index = model._bin_mapper.make_known_categories_bitsets()
    remapped = getattr(model._bin_mapper, "is_categorical_", None)
    if remapped is not None:
        categories = {int(f): _members(bitsets[index[f]]) for f in np.flatnonzero(remapped)}
    forest = Forest()
    forest.whole = set(categories)
    for stage in model._predictors:
        for k, predictor in enumerate(stage):
            _add_histogram_tree(forest, predictor, categories, k)
    sums = leaf_sums(op, forest, columns, model.n_trees_per_iteration_)
    return op.Add(sums, np.asarray(model._baseline_prediction, F).reshape(1, -1))


@importer("sklearn.ensemble.HistGradientBoostingClassifier", columns=True)
def hist_gradient_boosting_classifier(op, model, x):
    return _boosted_classes(op, model, _histogram_raw(op, model, x), op.Greater)


@importer("sklearn.ensemble.HistGradientBoostingRegressor", columns=True)
def hist_gradient_boosting_regressor(op, model, x):
    raw = flat(op, _histogram_raw(op, model, x))
    link = type(model._loss.link).__name__
    if link not in ("IdentityLink", "LogLink"):
        raise refuse(f"the link {link}")
    return {"predict": op.Exp(raw) if link == "LogLink" else raw}
