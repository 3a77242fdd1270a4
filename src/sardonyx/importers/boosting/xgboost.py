"""XGBoost: trees, dart and linear boosters, with every objective.

XGBoost compares in float32 and adds up in float32; here leaves are added up in double.
"""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ArgumentError, ImportRefused, MissingExtra, quote
from sardonyx.importers.assembly import assemble
from sardonyx.importers.boosting.columns import booster_schema, frame_categories, matrix_of
from sardonyx.importers.boosting.finish import batches, finished, single_precision
from sardonyx.importers.proof import prove
from sardonyx.importers.sklearn.inputs import Schema
from sardonyx.importers.sklearn.labels import flat, highest, pair, picked
from sardonyx.importers.sklearn.table import DOUBLE, FLOAT, INT64, width
from sardonyx.importers.special import sigmoid, softmax
from sardonyx.importers.trees import Forest, leaf_rows, leaf_sums
from sardonyx.importers.trees.forest import MEMBER
from sardonyx.model import Model

F = np.float64
LESS = 1  # the mode `<`
LOGISTIC = ("binary:logistic", "reg:logistic")
LOG = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")
IDENTITY = (
    "reg:squarederror", "reg:linear", "reg:squaredlogerror", "reg:absoluteerror",
    "reg:pseudohubererror", "reg:quantileerror", "reg:expectileerror", "binary:logitraw",
    "rank:pairwise", "rank:ndcg", "rank:map",
)  # fmt: skip


def from_xgboost(booster: Any, X: Any = None, *, raw: bool = False) -> Model:
    """Import an XGBoost model: a Booster, a scikit-learn wrapper, or a file (.json, .ubj).

    X    -- example rows: an array or a data frame (one input per column, categories as texts);
            without it the input is one float32 matrix
    raw  -- add the output `raw`, the sums of leaves before the objective's function

    Classifiers give `label` and `probabilities`, all others `variable`. The model is compared with
    XGBoost on given and generated rows, edges of splits among them.

    >>> import numpy as np, sardonyx as sx, xgboost
    >>> x = np.arange(20, dtype=np.float32).reshape(10, 2)
    >>> model = sx.from_xgboost(xgboost.XGBRegressor(n_estimators=3).fit(x, x[:, 0]))
    >>> [output.name for output in model.outputs]
    ['variable']
    """
    try:
        import xgboost
    except ImportError as error:
        raise MissingExtra("xgboost", "xgboost") from error

    path = None
    if isinstance(booster, (str, Path)):
        path, booster = booster, xgboost.Booster()
        try:
            booster.load_model(bytearray(Path(path).read_bytes()))  # by content, not by suffix
        except xgboost.core.XGBoostError as error:
            reason = (str(error).splitlines() or [""])[0]  # a trace of native code follows
            raise ImportRefused(f"{quote(path)} is not a model of XGBoost: {reason}") from error
    wrapper = None if isinstance(booster, xgboost.Booster) else booster
    if wrapper is not None and not hasattr(wrapper, "get_booster"):
        raise ArgumentError(f"{type(wrapper).__name__} is not an XGBoost model")
    try:
        native = booster if wrapper is None else wrapper.get_booster()
        document = json.loads(native.save_raw("json"))["learner"]
    except Exception as error:
        raise ImportRefused(f"the XGBoost model cannot be read: {error}") from error
    if path is not None:
        _check_trees(quote(path), document)
    return _imported(native, wrapper, document, X, raw)


def _check_trees(name: str, document) -> None:
    """Refuse a file whose trees lead elsewhere, where XGBoost reads memory that is not its own."""
    booster = document["gradient_booster"]
    model = booster.get("gbtree", booster).get("model", {})
    columns = int(document["learner_model_param"]["num_feature"])
    for number, tree in enumerate(model.get("trees", [])):
        left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
        inner = left >= 0
        children = np.concatenate([left[inner], right[inner]])
        feature = np.asarray(tree["split_indices"])[inner]
        is_inside = ((children > 0) & (children < len(left))).all()
        is_inside &= ((feature >= 0) & (feature < columns)).all()
        if not is_inside or len(np.unique(children)) < len(children):
            raise ImportRefused(f"{name} is not a model of XGBoost: tree {number} is inconsistent")


def _imported(native, wrapper, document, X, raw) -> Model:
    count = int(document["learner_model_param"]["num_feature"])
    schema = booster_schema(X, count, FLOAT)
    categories = _categories(document, X) if schema.frame else {}
    op = Builder()
    op.reserve(["label", "probabilities", "variable", "raw", *schema.names])
    marker = getattr(wrapper, "missing", None)
    columns = _with_gaps(op, matrix_of(op, schema, categories, single=True), marker, categories)
    margin, forest = _margin(op, document, columns, _rounds(wrapper, native))
    outputs = _outputs(op, document, margin, wrapper)
    classes = getattr(wrapper, "classes_", None) if "probabilities" in outputs else None
    if raw:
        outputs["raw"] = margin if width(margin) > 1 else flat(op, margin)
    model = finished(
        op,
        schema,
        outputs,
        source="XGBoost",
        predict=lambda rows: _predicted(native, wrapper, document, rows, schema),
        x=X,
        forest=forest,
        tolerance=single_precision(forest.trees if forest is not None else 1),
        classes=classes,
        categories=categories,
    )
    if isinstance(forest, RoutedForest):
        _prove_routing(native, document, schema, X, forest, categories, marker)
    return model


def outputs_of(op, wrapper, x: ir.Value) -> dict[str, Any]:
    """The outputs of a wrapper for a matrix of numbers."""
    native = wrapper.get_booster()
    document = json.loads(native.save_raw("json"))["learner"]
    columns = _with_gaps(op, op.cast(op.cast(x, FLOAT), DOUBLE), wrapper.missing, {})
    margin, _ = _margin(op, document, columns, _rounds(wrapper, native))
    return _outputs(op, document, margin, wrapper)


def has_categories(wrapper) -> bool:
    """Whether a column of the training data held categories."""
    return "c" in (wrapper.get_booster().feature_types or [])


def _with_gaps(op, columns, marker: float | None, categories: dict[int, Any]) -> ir.Value:
    """The columns with NaN where they have the number that the wrapper takes for missing."""
    if marker is None or np.isnan(marker):
        return columns
    if any(0 <= marker < len(values) for values in categories.values()):
        raise ImportRefused(
            f"missing={marker:g} is the code of a category as well",
            hint="train with missing=nan: XGBoost takes the category for missing, by its place "
            "among the categories of the frame at hand",
        )
    return op.Where(op.Equal(columns, F(np.float32(marker))), F(np.nan), columns)


def _rounds(wrapper: Any, native: Any) -> int | None:
    """How many rounds the wrapper predicts with: up to the best one after early stopping."""
    if wrapper is None:
        return None
    try:
        best = wrapper.best_iteration
    except AttributeError:
        return None
    return None if getattr(wrapper, "booster", None) == "gblinear" else int(best) + 1


# -- what the library itself gives ----------------------------------------------------------------


def _matrix(document, rows, schema: Schema, marker: float | None = None) -> Any:
    import xgboost

    if schema.frame:
        return xgboost.DMatrix(rows, enable_categorical=True, missing=marker)
    names, types = document.get("feature_names") or None, document.get("feature_types") or None
    return xgboost.DMatrix(
        rows, feature_names=names, feature_types=types, enable_categorical=True, missing=marker
    )


def _predicted(native, wrapper, document, rows, schema: Schema) -> dict[str, np.ndarray]:
    if wrapper is None:
        data = _matrix(document, rows, schema)
        out = native.predict(data)
        return {
            "variable": out,
            "label": out,
            "raw": native.predict(data, output_margin=True),
        }
    out = {"raw": wrapper.predict(rows, output_margin=True)}
    value = wrapper.predict(rows)
    if hasattr(wrapper, "predict_proba"):
        return {**out, "label": value, "probabilities": wrapper.predict_proba(rows)}
    return {**out, "variable": value}


# -- trees ----------------------------------------------------------------------------------------


def _margin(op, document, columns, rounds) -> tuple[ir.Value, Forest | None]:
    """The sums before the objective's function: [rows, outputs]."""
    booster = document["gradient_booster"]
    parameters = document["learner_model_param"]
    outputs = max(int(parameters["num_class"]), int(parameters.get("num_target", 1)), 1)
    start = _base_margin(document, parameters["base_score"], outputs)
    if booster["name"] == "gblinear":
        weights = np.asarray(booster["model"]["weights"], np.float32).astype(F)
        table = weights.reshape(-1, outputs)
        zeroed = op.Where(op.IsNaN(columns), F(0), columns)
        bias = table[-1:] + start[:, :1]  # XGBoost 3.2 adds the first bias to every output here
        return op.Add(op.MatMul(zeroed, table[:-1].copy()), bias), None
    drops = booster.get("weight_drop")
    model = booster["gbtree"]["model"] if booster["name"] == "dart" else booster["model"]
    count = len(model["trees"])
    if rounds is not None:
        starts = model.get("iteration_indptr")
        each = int(model["gbtree_model_param"].get("num_parallel_tree", 1)) * outputs
        count = starts[rounds] if starts else min(count, rounds * each)
    forest = RoutedForest()
    whole: set[int] = set()
    for i, tree in enumerate(model["trees"][:count]):
        weight = 1.0 if drops is None else float(drops[i])
        _add_tree(forest, tree, weight, model["tree_info"][i], outputs, whole)
    if not forest.trees:
        forest.tree(forest.leaf(0.0))
    forest.whole = whole
    if whole:
        columns = _category_codes(op, columns, whole)
    return op.Add(leaf_sums(op, forest, columns, outputs), start), forest


class RoutedForest(Forest):
    """A forest that remembers which row of the leaf table each node of a tree is."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[np.ndarray] = []


def _prove_routing(native, document, schema: Schema, X, forest, categories, marker) -> None:
    """Compare the leaf that each row reaches in each tree with XGBoost's: they are the same."""
    if not forest.numbers:
        return
    op = Builder()
    columns = _with_gaps(op, matrix_of(op, schema, categories, single=True), marker, categories)
    if forest.whole:
        columns = _category_codes(op, columns, forest.whole)
    model = assemble(op, schema.values, {"leaves": leaf_rows(op, forest, columns)})
    count = len(forest.numbers)
    for rows in batches(schema, X, forest, categories):
        nodes = native.predict(_matrix(document, rows, schema, marker), pred_leaf=True)
        nodes = np.asarray(nodes).reshape(len(rows), -1)[:, :count].astype(np.int64)
        leaves = np.stack([forest.numbers[t][nodes[:, t]] for t in range(count)], 1)
        prove(model, schema.feeds(rows), {"leaves": leaves}, source="XGBoost")


def _category_codes(op, columns, whole) -> ir.Value:
    """Categories as XGBoost reads them: cut to integers; negative ones belong to no set."""
    parts = []
    for j in range(columns.shape[1]):
        part = op.Slice(columns, [j], [j + 1], [1])
        if j in whole:
            part = op.Where(op.Less(part, F(0)), F(-1), op.Floor(part))
        parts.append(part)
    return op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]


def _add_tree(forest, tree, weight, group, outputs, whole) -> None:
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    is_leaf = left < 0
    values = _leaf_values(tree, is_leaf, right) * weight
    first = forest.extend_leaves(values)
    number = np.where(is_leaf, ~(first + np.cumsum(is_leaf) - 1), 0)
    inner = np.flatnonzero(~is_leaf)
    # Deleted nodes are unreachable; they stay in the arrays.
    start = forest.tests
    number[inner] = start + np.arange(len(inner))
    mode = np.full(len(inner), LESS, np.uint8)
    yes, no = number[left[inner]], number[right[inner]]
    missing = np.asarray(tree["default_left"], int)[inner].copy()
    thresholds = np.asarray(tree["split_conditions"], np.float32).astype(F)[inner]
    columns = np.asarray(tree["split_indices"])[inner]
    place = {int(n): i for i, n in enumerate(inner)}
    for node, begin, size in zip(
        tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"]
    ):
        at = place[int(node)]
        members = np.unique(np.asarray(tree["categories"][begin : begin + size], F))
        mode[at] = MEMBER  # members go right
        yes[at], no[at], missing[at] = no[at], yes[at], 1 - missing[at]
        forest.sets[start + at] = members if len(members) else np.array([-3.0])
        whole.add(int(columns[at]))
    forest.extend(columns, mode, thresholds, yes, no, missing)
    forest.tree(int(number[0]), int(group) if values.shape[1] == 1 else 0)
    forest.numbers.append(~number)


def _leaf_values(tree, is_leaf, right) -> np.ndarray:
    size = int(tree["tree_param"].get("size_leaf_vector", "1") or 1)
    if size <= 1:
        conditions = np.asarray(tree["split_conditions"], np.float32).astype(F)
        return conditions[is_leaf].reshape(-1, 1)
    if "leaf_weights" in tree:
        table = np.asarray(tree["leaf_weights"], np.float32).astype(F).reshape(-1, size)
        return table[right[is_leaf]]
    return np.asarray(tree["base_weights"], np.float32).astype(F).reshape(-1, size)[is_leaf]


# -- objectives -----------------------------------------------------------------------------------


def _base_margin(document, text: str, outputs: int) -> np.ndarray:
    """The global bias in the space of sums, one per output."""
    scores = np.array([float(v) for v in text.strip("[]").split(",")], np.float32).astype(F)
    name = document["objective"]["name"]
    if name in LOGISTIC:
        scores = -np.log(1.0 / scores - 1.0)
    elif name in LOG:
        scores = np.log(scores)
    return np.broadcast_to(scores.astype(np.float32).astype(F), (outputs,)).reshape(1, -1).copy()


def _outputs(op, document, margin, wrapper) -> dict[str, Any]:
    name = document["objective"]["name"]
    several = margin.shape[1] > 1
    if name.startswith("multi:"):
        return _classes(op, name, margin, wrapper)
    if name == "binary:hinge":
        value = op.Cast(op.Greater(margin, F(0)), to=int(DOUBLE))
    elif name in LOGISTIC:
        value = sigmoid(op, margin)
    elif name in LOG:
        value = op.Exp(margin)
        # XGBoost has it in float32, where such a number is infinite.
        huge = op.Greater(value, F(np.finfo(np.float32).max))
        value = op.Where(huge, F(np.inf), value)
    elif name in IDENTITY:
        value = op.Identity(margin)
    else:
        raise ImportRefused(f"the objective {quote(name)} of XGBoost is not known")
    if wrapper is None or not hasattr(wrapper, "predict_proba"):
        return {"variable": value if several else flat(op, value)}
    if several:  # several labels
        label = op.Cast(op.Greater(value, F(0.5)), to=int(INT64))
        return {"label": label, "probabilities": value}
    p = flat(op, value)
    index = op.Cast(op.Greater(p, F(0.5)), to=int(INT64))
    return {"label": picked(op, wrapper.classes_, index), "probabilities": pair(op, p)}


def _classes(op, name, margin, wrapper) -> dict[str, Any]:
    if wrapper is None or not hasattr(wrapper, "predict_proba"):
        if name == "multi:softmax":
            return {"label": op.ArgMax(margin, axis=1, keepdims=0)}
        return {"variable": softmax(op, margin)}
    label = highest(op, wrapper.classes_, margin)
    return {"label": label, "probabilities": softmax(op, margin)}


# -- categories -----------------------------------------------------------------------------------


def _categories(document, X) -> dict[int, Any]:
    """The categories of each column: those that the model keeps, or those of the frame."""
    booster = document["gradient_booster"]
    model = booster.get("gbtree", booster).get("model", {})
    frame = frame_categories(X)
    out = {}
    for j, entry in enumerate((model.get("cats") or {}).get("enc", [])):
        if entry.get("offsets"):
            data = bytes(v % 256 for v in entry["values"])
            out[j] = _names(entry["offsets"], data, frame.get(j, []))
        elif entry.get("values") and "offsets" not in entry:
            out[j] = list(entry["values"])
    return {j: out.get(j, values) for j, values in frame.items()}


def _names(ends: list[int], data: bytes, frame: list[Any]) -> list[str]:
    """The names of categories that the model keeps.

    XGBoost 3 counts their characters where it means bytes, and so cuts names that are not ASCII:
    they are taken from the frame, if what it would keep of them is what is there.
    """
    if data.isascii():
        return [data[a:b].decode() for a, b in pairwise(ends)]
    texts = [str(name) for name in frame]
    for sizes in ([len(text) for text in texts], [len(text.encode()) for text in texts]):
        kept = "".join(texts).encode()[: sum(sizes)]
        if texts == frame and [0, *accumulate(sizes)] == ends and kept == data:
            return frame
    raise ImportRefused(
        "XGBoost has kept only parts of the names of categories that are not ASCII",
        hint="give a frame whose categories are those of the training, in their order",
    )
