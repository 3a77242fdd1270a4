"""Tree ensembles as programs of tensors: all rows go down all trees at once, a level per step.

A forest is one table of nodes. A leaf leads to itself, so that every row takes as many steps as the
deepest tree has levels. Then the weights of the leaves reached are gathered and aggregated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.errors import EngineError
from sardonyx.lower.driver import lowering
from sardonyx.lower.lookup import once
from sardonyx.lower.traditionalml.score import (
    FLOAT32,
    INT64,
    ML,
    constant,
    labels,
    rows,
    transformed,
    two_sided,
)

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
COMPARE = ("less_equal", "less", "greater_equal", "greater", "equal", "not_equal")
MEMBER = 6
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class Forest:
    """Nodes by number, and what their leaves weigh."""

    roots: np.ndarray
    feature: np.ndarray
    split: np.ndarray
    mode: np.ndarray  # the number of a comparison; -1 for a leaf
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray  # whether NaN goes the way of `yes`
    members: np.ndarray  # [nodes, most members], NaN for none
    leaf: np.ndarray  # the row of a leaf in `weights`
    weights: np.ndarray  # [leaves, targets]
    present: np.ndarray  # whether a leaf weighs a target at all
    depth: int = 0

    def __post_init__(self) -> None:
        here = np.arange(len(self.mode))
        ends = self.mode < 0
        self.yes, self.no = np.where(ends, here, self.yes), np.where(ends, here, self.no)
        level = np.unique(self.roots)
        while (self.mode[level] >= 0).any():
            level = np.unique(np.concatenate([self.yes[level], self.no[level]]))
            self.depth += 1
            if self.depth > len(here):
                raise EngineError("a tree of this ensemble leads back to its own root")


def leaves_reached(xp, x, forest: Forest):
    """The node [N, trees] at which each row ends in each tree."""
    table = {n: xp.asarray(getattr(forest, n)) for n in ("feature", "yes", "no", "mode", "missing")}
    split = constant(xp, forest.split, x)
    shape = (xp.shape(x)[0], len(forest.roots))
    at = xp.broadcast_to(xp.asarray(forest.roots.reshape(1, -1)), shape)
    for _ in range(forest.depth):
        value = xp.take_along(x, xp.take(table["feature"], at, 0), 1)
        goes = compared(xp, value, xp.take(split, at, 0), at, table["mode"], forest)
        if forest.missing.any():
            tracked = xp.logical_and(xp.isnan(value), xp.take(table["missing"], at, 0))
            goes = xp.logical_or(goes, tracked)
        at = xp.where(goes, xp.take(table["yes"], at, 0), xp.take(table["no"], at, 0))
    return at


def compared(xp, value, split, at, modes, forest: Forest):
    """The outcome of each node's comparison; only kinds that occur are computed."""
    kinds = sorted(set(forest.mode[forest.mode >= 0].tolist()))
    outcome = None
    for kind in kinds:
        if kind == MEMBER:
            sets = xp.take(constant(xp, forest.members, value), at, 0)
            result = xp.any(xp.equal(xp.expand_dims(value, (2,)), sets), 2)
        else:
            result = getattr(xp, COMPARE[kind])(value, split)
        if outcome is None:
            outcome = result
        else:
            mode = xp.take(modes, at, 0)
            outcome = xp.where(xp.equal(mode, xp.scalar(kind, mode)), result, outcome)
    return outcome


def aggregated(xp, x, forest: Forest, aggregate: str):
    """What the leaves that rows reach weigh together: [N, targets]."""
    at = leaves_reached(xp, x, forest)
    row = xp.take(xp.asarray(forest.leaf), at, 0)
    if aggregate in ("SUM", "AVERAGE"):
        total = xp.sum(xp.take(constant(xp, forest.weights, x), row, 0), 1)
        return total / len(forest.roots) if aggregate == "AVERAGE" else total
    # A leaf that does not weigh a target takes no part in its extremes.
    out = np.inf if aggregate == "MIN" else -np.inf
    parts = xp.take(constant(xp, np.where(forest.present, forest.weights, out), x), row, 0)
    best = xp.min(parts, 1) if aggregate == "MIN" else xp.max(parts, 1)
    return xp.where(xp.equal(best, xp.scalar(out, best)), xp.scalar(0, best), best)


# -- TreeEnsemble, with leaves apart from nodes ----------------------------------------


@once
def forest_of_parts(n_targets, tree_roots, leaf_targetids, leaf_weights, **nodes):
    features, modes = (np.asarray(nodes[f"nodes_{n}"], INT64) for n in ("featureids", "modes"))
    count, ends = len(features), len(leaf_targetids)
    targets = n_targets or max(leaf_targetids) + 1
    modes = modes.reshape(-1)
    to_yes, to_no = (
        np.asarray(nodes[f"nodes_{way}nodeids"], INT64)
        + np.where(np.asarray(nodes[f"nodes_{way}leafs"], bool), count, 0)
        for way in ("true", "false")
    )
    missing = nodes["nodes_missing_value_tracks_true"] or [0] * count
    table = np.zeros((ends, targets))
    present = np.zeros((ends, targets), bool)
    table[np.arange(ends), list(leaf_targetids)] = np.asarray(leaf_weights, np.float64).reshape(-1)
    present[np.arange(ends), list(leaf_targetids)] = True
    more = np.zeros(ends, INT64)
    return Forest(
        roots=np.asarray(tree_roots, INT64),
        feature=np.concatenate([features, more]),
        split=np.concatenate([np.asarray(nodes["nodes_splits"], np.float64).reshape(-1), more]),
        mode=np.concatenate([modes, more - 1]),
        yes=np.concatenate([to_yes, more]),
        no=np.concatenate([to_no, more]),
        missing=np.concatenate([np.asarray(missing, bool), more > 0]),
        members=sets_of(modes, nodes["membership_values"], count + ends),
        leaf=np.concatenate([np.zeros(count, INT64), np.arange(ends)]),
        weights=table,
        present=present,
    )


def sets_of(modes, members, nodes):
    """The members of each node's set, in the order of those nodes; NaN stands between sets."""
    if members is None or MEMBER not in modes:
        return np.zeros((nodes, 0))
    values = np.asarray(members, np.float64).reshape(-1)
    parts = np.split(values, np.flatnonzero(np.isnan(values)) + 1)
    table = np.full((nodes, max(len(p) for p in parts)), np.nan)
    for node, part in zip(np.flatnonzero(modes == MEMBER), parts):
        table[node, : len(part)] = part
    return table


@lowering("TreeEnsemble", domain=ML)
def tree_ensemble(xp, x, *, aggregate_function, post_transform, **parts):
    forest = forest_of_parts(**parts)
    scores = aggregated(xp, x, forest, AGGREGATES[aggregate_function])
    return transformed(xp, scores, TRANSFORMS[post_transform])


# -- the operators that it replaced, whose leaves may weigh several targets ------------


@once
def forest_of_nodes(
    targets,
    trees,
    nodes,
    features,
    splits,
    modes,
    yes,
    no,
    missing,
    weight_trees,
    weight_nodes,
    weight_ids,
    weights,
):
    names, tree = np.unique(np.asarray(trees, INT64), return_inverse=True)
    node = np.asarray(nodes, INT64)
    key = tree * (node.max() + 1) + node
    order = np.argsort(key)

    def place(of_tree, name):
        at = np.searchsorted(key, of_tree * (node.max() + 1) + name, sorter=order)
        return order[np.minimum(at, len(order) - 1)]

    mode = np.array([-1 if m == "LEAF" else MODES.index(m.removeprefix("BRANCH_")) for m in modes])
    is_leaf = mode < 0
    leaf = np.where(is_leaf, np.cumsum(is_leaf) - 1, 0)
    table, present = np.zeros((is_leaf.sum(), targets)), np.zeros((is_leaf.sum(), targets), bool)
    owner = np.searchsorted(names, np.asarray(weight_trees, INT64))
    entries = leaf[place(owner, np.asarray(weight_nodes, INT64))], np.asarray(weight_ids, INT64)
    np.add.at(table, entries, np.asarray(weights, np.float64))
    present[entries] = True
    return Forest(
        roots=np.unique(tree, return_index=True)[1].astype(INT64),
        feature=np.asarray(features, INT64),
        split=np.asarray(splits, np.float64),
        mode=mode,
        yes=place(tree, np.asarray(yes, INT64)),
        no=place(tree, np.asarray(no, INT64)),
        missing=np.asarray(missing or [0] * len(node), bool),
        members=np.zeros((len(node), 0)),
        leaf=leaf,
        weights=table,
        present=present,
    )


def grown(xp, x, targets: int, kind: str, aggregate: str, attributes: dict[str, Any]):
    """Scores [N, targets] in the old form, and the forest; `kind` begins the names of weights."""
    values = attributes.get("nodes_values_as_tensor")
    weights = attributes.get(f"{kind}_weights_as_tensor")
    forest = forest_of_nodes(
        targets=targets,
        trees=attributes["nodes_treeids"],
        nodes=attributes["nodes_nodeids"],
        features=attributes["nodes_featureids"],
        splits=attributes["nodes_values"] if values is None else values,
        modes=attributes["nodes_modes"],
        yes=attributes["nodes_truenodeids"],
        no=attributes["nodes_falsenodeids"],
        missing=attributes.get("nodes_missing_value_tracks_true"),
        weight_trees=attributes[f"{kind}_treeids"],
        weight_nodes=attributes[f"{kind}_nodeids"],
        weight_ids=attributes[f"{kind}_ids"],
        weights=attributes[f"{kind}_weights"] if weights is None else weights,
    )
    return aggregated(xp, x, forest, aggregate), forest


def base_of(attributes: dict[str, Any]) -> Any:
    base = attributes.get("base_values_as_tensor")
    return attributes.get("base_values") if base is None else base


@lowering("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(
    xp, x, *, n_targets=1, aggregate_function="SUM", post_transform="NONE", **attributes
):
    x = rows(xp, x)
    scores, _ = grown(xp, x, n_targets, "target", aggregate_function, attributes)
    base = base_of(attributes)
    scores = scores if base is None else scores + constant(xp, base, x)
    return xp.cast(transformed(xp, scores, post_transform), FLOAT32)


@lowering("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(
    xp, x, *, classlabels_int64s=None, classlabels_strings=None, post_transform="NONE", **attributes
):
    x, base = rows(xp, x), base_of(attributes)
    classes = len(classlabels_int64s or classlabels_strings)
    used = set(attributes["class_ids"])
    alone = classes <= 2 and used == {0} and (base is None or len(base) == 1)
    scores, forest = grown(xp, x, 1 if alone else classes, "class", "SUM", attributes)
    scores = scores if base is None else scores + constant(xp, base, x)
    if classes == 1:
        winner = xp.reshape(xp.cast(xp.greater(scores, xp.scalar(0, scores)), INT64), (-1,))
        names = ("", *classlabels_strings) if classlabels_strings else None
        return labels(xp, winner, None, names), xp.cast(
            transformed(xp, scores, post_transform), FLOAT32
        )
    if alone:
        # One score for two classes: a probability, unless a leaf weighs less than nothing.
        mixed = bool((forest.weights < 0).any())
        won = xp.greater(scores, xp.scalar(0 if mixed else 0.5, scores))
        winner = xp.reshape(xp.cast(won, INT64), (-1,))
        scores = two_sided(xp, scores, post_transform, mixed)
    else:
        winner = xp.argmax(scores, 1)
        scores = transformed(xp, scores, post_transform)
    return labels(xp, winner, classlabels_int64s, classlabels_strings), xp.cast(scores, FLOAT32)
