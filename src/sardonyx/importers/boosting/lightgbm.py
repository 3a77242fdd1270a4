"""LightGBM: its text format, read directly; linear leaves, categories, every objective."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ArgumentError, ImportRefused, MissingExtra, quote
from sardonyx.importers.boosting.columns import booster_schema, frame_categories, matrix_of
from sardonyx.importers.boosting.finish import finished
from sardonyx.importers.sklearn.labels import flat, highest, pair, picked
from sardonyx.importers.sklearn.table import DOUBLE, INT64, width
from sardonyx.importers.special import sigmoid, softmax, softplus
from sardonyx.importers.trees import Forest, leaf_rows, leaf_sums
from sardonyx.importers.trees.forest import MEMBER
from sardonyx.limits import Limits, read_file
from sardonyx.model import Model

F = np.float64
ZERO = float(np.float32(1e-35))  # smaller numbers are zero to LightGBM
CATEGORICAL, DEFAULT_LEFT = 1, 2
NONE, AS_ZERO, AS_NAN = 0, 1, 2
LINEAR_TREES = 16  # trees with linear leaves whose coefficients are gathered at once


@dataclass
class Text:
    """A model file: the fields of its head and of each tree."""

    head: dict[str, str]
    trees: list[dict[str, str]] = field(default_factory=list)
    categories: list[list[Any]] = field(default_factory=list)


def from_lightgbm(booster: Any, X: Any = None, *, raw: bool = False) -> Model:
    """Import a LightGBM model: a Booster, a scikit-learn wrapper, or a text file.

    X    -- example rows: an array or a data frame (one input per column, categories as texts);
            without it the input is one matrix of doubles
    raw  -- add the output `raw`, the sums of leaves before the objective's function

    Classifiers give `label` and `probabilities`, all others `variable`. The model is compared with
    LightGBM on given and generated rows, edges of splits among them.

    >>> import lightgbm, numpy as np, sardonyx as sx
    >>> x = np.arange(100.0).reshape(50, 2)
    >>> regressor = lightgbm.LGBMRegressor(n_estimators=3, verbose=-1).fit(x, x[:, 0])
    >>> [output.name for output in sx.from_lightgbm(regressor).outputs]
    ['variable']
    """
    try:
        import lightgbm
    except ImportError as error:
        raise MissingExtra("lightgbm", "lightgbm") from error

    text = None
    if isinstance(booster, (str, Path)):
        text, content = checked(booster)
        try:
            booster = lightgbm.Booster(model_str=content)
        except lightgbm.basic.LightGBMError as error:
            raise ImportRefused(f"{quote(booster)} is not a model of LightGBM: {error}") from error
    wrapper = None if isinstance(booster, lightgbm.Booster) else booster
    if wrapper is not None and not hasattr(wrapper, "booster_"):
        try:
            wrapper.booster_  # noqa: B018 -- raises where it is not fitted
        except AttributeError:
            raise ArgumentError(f"{type(wrapper).__name__} is not a LightGBM model") from None
        except Exception as error:
            raise ImportRefused(f"the LightGBM model cannot be read: {error}") from error
    native = booster if wrapper is None else wrapper.booster_
    if text is None:
        text = parse(native.model_to_string())  # up to the best iteration
    schema = booster_schema(X, native.num_feature(), DOUBLE)
    categories = _categories(text, X) if schema.frame else {}
    op = Builder()
    op.reserve(["label", "probabilities", "variable", "raw", *schema.names])
    columns = matrix_of(op, schema, categories, single=False)
    outputs, margin, forest = outputs_of(op, text, wrapper, columns)
    if raw:
        outputs["raw"] = margin if width(margin) > 1 else flat(op, margin)
    return finished(
        op,
        schema,
        outputs,
        source="LightGBM",
        predict=lambda rows: _predicted(native, wrapper, rows),
        x=X,
        forest=forest,
        tolerance=1e-12 if "linear_tree" not in _parameters(text) else 1e-10,
        classes=getattr(wrapper, "classes_", None),
        categories=categories,
    )


def outputs_of(op, text: Text, wrapper, columns) -> tuple[dict[str, Any], ir.Value, Forest]:
    """The outputs for columns in double, the sums that they come from, and the trees."""
    tiny = op.LessOrEqual(op.Abs(columns), F(ZERO))
    columns = op.Where(tiny, F(0), columns)  # as LightGBM reads rows
    margin, forest = _margin(op, text, columns)
    averaged = margin
    if "average_output" in text.head:  # a random forest; its raw scores are sums nevertheless
        rounds = len(text.trees) // int(text.head.get("num_tree_per_iteration", 1))
        averaged = op.Div(margin, F(max(rounds, 1)))
    return _outputs(op, text, averaged, wrapper), margin, forest


def _predicted(native, wrapper, rows) -> dict[str, np.ndarray]:
    source = native if wrapper is None else wrapper
    out = {"raw": source.predict(rows, raw_score=True)}
    if wrapper is not None and hasattr(wrapper, "predict_proba"):
        probabilities = wrapper.predict_proba(rows)
        return {**out, "label": wrapper.predict(rows), "probabilities": probabilities}
    return {**out, "variable": source.predict(rows)}


# -- the text format ------------------------------------------------------------------------------


def parse(text: str) -> Text:
    """The fields of a model file."""
    body, _, rest = text.partition("\nend of trees")
    head, *trees = body.split("\nTree=")
    out = Text(_fields(head), [_fields(tree) for tree in trees])
    marker = "pandas_categorical:"
    if marker in rest:
        line = rest[rest.index(marker) + len(marker) :].splitlines()[0]
        out.categories = json.loads(line) or []
    return out


def checked(path: str | Path) -> tuple[Text, str]:
    """The fields of a file and its text; one that is cut, or inconsistent, is refused.

    LightGBM ends the process on some of them. Where the sizes of trees are not given, it reads one
    after the other, and raises errors.
    """
    name = f"{quote(path)} is not a model of LightGBM"
    try:
        content = read_file(Path(path), Limits()).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ImportRefused(f"{name}: it is not text") from error
    if not content.startswith("tree"):
        raise ImportRefused(f"{name}: it does not begin with 'tree'")
    text = parse(content)
    _, _, rest = content.partition("\nend of trees")
    settings, ends, _ = rest.partition("\nparameters:")[2].partition("\nend of parameters")
    sizes = text.head.get("tree_sizes", "").split()
    if not rest or len(sizes) not in (0, len(text.trees)) or bool(settings) != bool(ends):
        raise ImportRefused(f"{name}: its end is missing")
    if any(line and not re.fullmatch(r"\[\w+:.*\]", line) for line in settings.split("\n")):
        raise ImportRefused(f"{name}: its parameters are malformed")
    for number, tree in enumerate(text.trees):
        try:
            problem = _problem_of(tree, int(text.head["max_feature_idx"]))
        except (KeyError, ValueError) as error:
            problem = f"{error} is missing or malformed"
        if problem:
            raise ImportRefused(f"{name}: tree {number}: {problem}")
    return text, re.sub(r"\ntree_sizes=[^\n]*", "", content, count=1)


OF_TESTS = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
ALSO_OF_TESTS = ("split_gain", "internal_value", "internal_weight", "internal_count")
OF_LEAVES = ("leaf_value", "leaf_weight", "leaf_count", "num_features", "leaf_const")


def _problem_of(tree: dict[str, str], last_feature: int) -> str | None:
    """What is inconsistent in a tree, whose tests come before the tests below them."""
    leaves, sets = int(tree["num_leaves"]), int(tree["num_cat"])
    if leaves < 1 or any(len(_floats(tree[k])) != leaves for k in OF_LEAVES if tree.get(k)):
        return "the number of its leaves"
    if leaves == 1:
        return None if tree["leaf_value"] else "the number of its leaves"
    tests = np.arange(leaves - 1)
    fields = {k: _floats(tree[k]) for k in OF_TESTS}
    fields |= {k: _floats(tree[k]) for k in ALSO_OF_TESTS if tree.get(k)}
    if not tree["leaf_value"] or any(len(values) != len(tests) for values in fields.values()):
        return "the number of its tests"
    for side in (fields["left_child"], fields["right_child"]):
        if ((side >= leaves - 1) | (side < -leaves) | ((side >= 0) & (side <= tests))).any():
            return "a test leads to no node below it"
    feature = fields["split_feature"]
    if ((feature < 0) | (feature > last_feature)).any():
        return "a test of a column that is not there"
    categorical = fields["decision_type"].astype(int) % 2 == 1
    if not categorical.any() and not sets:
        return None
    ends, words = _floats(tree["cat_boundaries"]), _floats(tree["cat_threshold"])
    which = fields["threshold"][categorical]
    if len(ends) != sets + 1 or ((which < 0) | (which >= sets)).any():
        return "a test of categories that are not there"
    is_whole = ends[0] == 0 and (np.diff(ends) >= 0).all() and ends[-1] == len(words)
    return None if is_whole else "the sets of its categories"


def _floats(text: str) -> np.ndarray:
    return np.array([float(entry) for entry in text.split()])


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value for key, sign, value in pairs if sign or key == "average_output"} | (
        {"average_output": "1"} if "\naverage_output" in text else {}
    )


def _parameters(text: Text) -> str:
    return "linear_tree" if any(t.get("is_linear") == "1" for t in text.trees) else ""


def _numbers(tree: dict[str, str], name: str, dtype: Any = np.float64) -> np.ndarray:
    return np.array(tree.get(name, "").split(), dtype)


# -- trees ----------------------------------------------------------------------------------------


@dataclass
class Views:
    """Columns as tests read them: plain, with zeros missing ("zero"), or as categories."""

    width: int
    places: dict[tuple[str, int], int] = field(default_factory=dict)

    def place(self, kind: str, column: int) -> int:
        if kind == "plain":
            return column
        return self.places.setdefault((kind, column), self.width + len(self.places))

    def matrix(self, op: Builder, x: ir.Value) -> ir.Value:
        parts = [x]
        for kind, column in self.places:
            part = op.Slice(x, [column], [column + 1], [1])
            if kind == "zero":
                small = op.And(op.Greater(part, F(-ZERO)), op.LessOrEqual(part, F(ZERO)))
                parts.append(op.Where(small, F(np.nan), part))
            else:  # cut towards zero, as a cast to an integer does
                parts.append(op.Mul(op.Sign(part), op.Floor(op.Abs(part))))
        return op.Concat(*parts, axis=1) if len(parts) > 1 else x


def _margin(op, text: Text, columns) -> tuple[ir.Value, Forest]:
    count = int(text.head.get("num_tree_per_iteration", 1))
    forest, views = Forest(), Views(columns.shape[1])
    for i, tree in enumerate(text.trees):
        _add_tree(forest, tree, i % count, views)
    forest.whole = {place for (kind, _), place in views.places.items() if kind == "category"}
    if not forest.trees:
        forest.tree(forest.leaf(0.0))
    table = views.matrix(op, columns)
    if _parameters(text):
        sums = _linear_sums(op, text, forest, table, columns, count)
    else:
        sums = leaf_sums(op, forest, table, count)
    return sums, forest


def _add_tree(forest: Forest, tree: dict[str, str], target: int, views: Views) -> None:
    values = _numbers(tree, "leaf_value")
    first = forest.extend_leaves(values.reshape(-1, 1))
    left, right = (_numbers(tree, f"{side}_child", np.int64) for side in ("left", "right"))
    if int(tree["num_leaves"]) <= 1:
        forest.tree(~first, target)
        return
    start = forest.tests
    yes, no = (np.where(c < 0, ~(first + ~c), start + c) for c in (left, right))
    kind = _numbers(tree, "decision_type", np.int64)
    columns = _numbers(tree, "split_feature", np.int64)
    thresholds = _numbers(tree, "threshold")
    default_left = (kind & DEFAULT_LEFT) > 0
    treatment = (kind >> 2) & 3
    categorical = (kind & CATEGORICAL) > 0
    missing = np.where(treatment == NONE, thresholds >= 0.0, default_left).astype(int)
    mode = np.where(categorical, MEMBER, 0).astype(np.uint8)
    for at in np.flatnonzero((treatment == AS_ZERO) & ~categorical):
        columns[at] = views.place("zero", int(columns[at]))
    if categorical.any():
        bounds = _numbers(tree, "cat_boundaries", np.int64)
        words = _numbers(tree, "cat_threshold", np.uint32)
        for at in np.flatnonzero(categorical):
            index = int(thresholds[at])
            bits = words[bounds[index] : bounds[index + 1]].astype("<u4").view(np.uint8)
            members = np.flatnonzero(np.unpackbits(bits, bitorder="little")).astype(F)
            forest.sets[start + int(at)] = members if len(members) else np.array([-3.0])
            missing[at], columns[at] = 0, views.place("category", int(columns[at]))
    forest.extend(columns, mode, thresholds, yes, no, missing)
    forest.tree(start, target)


def _linear_sums(op, text: Text, forest: Forest, table, columns, count: int) -> ir.Value:
    """Leaves with linear functions of some columns; where one of those is missing, a constant."""
    rows = leaf_rows(op, forest, table)
    size, width = len(forest.leaves), columns.shape[1]
    constants, plain = np.zeros(size), forest.leaves[:, 0].copy()
    coefficients, used = np.zeros((size, width)), np.zeros((size, width))
    first = 0
    for tree in text.trees:
        leaves = int(tree["num_leaves"])
        if tree.get("is_linear") == "1":
            _linear_leaves(tree, first, constants, coefficients, used)
        else:
            constants[first : first + leaves] = plain[first : first + leaves]
        first += leaves
    absent = op.Cast(op.IsNaN(columns), to=int(DOUBLE))
    filled = op.Unsqueeze(op.Where(op.IsNaN(columns), F(0), columns), [1])
    parts = []
    for start in range(0, forest.trees, LINEAR_TREES):
        some = op.Slice(rows, [start], [min(start + LINEAR_TREES, forest.trees)], [1])
        slopes = op.Gather(op.const(coefficients), some, axis=0)
        taken = op.Gather(op.const(used), some, axis=0)
        # An infinite value of a column that the leaf does not use must not become 0 * inf.
        terms = op.Where(op.Greater(taken, F(0)), op.Mul(slopes, filled), F(0))
        value = op.Add(op.ReduceSum(terms, [2], keepdims=0), op.Gather(op.const(constants), some))
        flags = op.Mul(taken, op.Unsqueeze(absent, [1]))
        broken = op.Greater(op.ReduceSum(flags, [2], keepdims=0), F(0))
        parts.append(op.Where(broken, op.Gather(op.const(plain), some), value))
    values = op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]
    rounds = op.Reshape(values, [-1, forest.trees // count, count])
    return op.ReduceSum(rounds, [1], keepdims=0)


def _linear_leaves(tree, first, constants, coefficients, used) -> None:
    counts = _numbers(tree, "num_features", np.int64)
    constant = _numbers(tree, "leaf_const")
    features, slopes = _numbers(tree, "leaf_features", np.int64), _numbers(tree, "leaf_coeff")
    at = 0
    for leaf, number in enumerate(counts):
        constants[first + leaf] = constant[leaf]
        for feature, slope in zip(features[at : at + number], slopes[at : at + number]):
            coefficients[first + leaf, feature] += slope
            used[first + leaf, feature] = 1
        at += number


# -- objectives -----------------------------------------------------------------------------------

IDENTITY = (
    "", "custom", "none", "regression", "regression_l1", "huber", "fair", "quantile", "mape",
    "lambdarank", "rank_xendcg",
)  # fmt: skip


def _outputs(op, text: Text, margin, wrapper) -> dict[str, Any]:
    words = text.head.get("objective", "").split()
    name = words[0] if words else ""
    settings = dict(word.split(":") for word in words[1:] if ":" in word)
    if name in ("multiclass", "softmax", "multiclassova"):
        ova = name == "multiclassova"
        scaled = sigmoid(op, op.Mul(margin, F(settings.get("sigmoid", 1)))) if ova else None
        value = scaled if scaled is not None else softmax(op, margin)
        return _with_label(op, wrapper, value)
    if name == "binary":
        value = sigmoid(op, op.Mul(margin, F(settings.get("sigmoid", 1))))
        if wrapper is not None and hasattr(wrapper, "predict_proba"):
            p = flat(op, value)
            index = op.Cast(op.Greater(p, op.Sub(F(1), p)), to=int(INT64))
            return {"label": picked(op, wrapper.classes_, index), "probabilities": pair(op, p)}
        return {"variable": flat(op, value)}
    if name in ("poisson", "gamma", "tweedie"):
        value = op.Exp(margin)
    elif name in ("cross_entropy", "xentropy"):
        value = sigmoid(op, margin)
    elif name in ("cross_entropy_lambda", "xentlambda"):
        overflow = op.IsInf(op.Exp(margin))  # LightGBM computes log1p(exp(margin))
        value = op.Where(overflow, F(np.inf), softplus(op, margin))
    elif name in IDENTITY:
        value = op.Identity(margin)
        if "sqrt" in words[1:]:
            value = op.Mul(op.Sign(margin), op.Mul(margin, margin))
    else:
        raise ImportRefused(f"the objective {quote(name)} of LightGBM is not known")
    return {"variable": flat(op, value) if margin.shape[1] == 1 else value}


def _with_label(op, wrapper, value) -> dict[str, Any]:
    if wrapper is None or not hasattr(wrapper, "predict_proba"):
        return {"variable": value}
    return {"label": highest(op, wrapper.classes_, value), "probabilities": value}


def _categories(text: Text, X) -> dict[int, Any]:
    """The categories of the category columns of a frame, in the order of training."""
    columns = frame_categories(X)
    if not text.categories:
        return columns
    if len(columns) != len(text.categories):
        raise ArgumentError(
            f"the model has {len(text.categories)} columns of categories, X has {len(columns)}"
        )
    return dict(zip(columns, text.categories))
