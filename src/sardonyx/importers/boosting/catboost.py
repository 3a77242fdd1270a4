"""CatBoost: symmetric and other trees, categories by their target statistics, all objectives."""

from __future__ import annotations

import json
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ArgumentError, ImportRefused, MissingExtra, quote
from sardonyx.importers.boosting.columns import booster_schema
from sardonyx.importers.boosting.finish import finished
from sardonyx.importers.sklearn.encoders import coded, missing_text
from sardonyx.importers.sklearn.inputs import Schema
from sardonyx.importers.sklearn.labels import flat, highest, pair, picked
from sardonyx.importers.sklearn.table import DOUBLE, FLOAT, INT64, column, width
from sardonyx.importers.special import sigmoid, softmax
from sardonyx.importers.trees import Forest, leaf_sums
from sardonyx.model import Model

F = np.float64
GREATER = 3  # the mode `>`
MOST_COMBINATIONS = 1_000_000
MAGIC, WORD = 0x4906BA494954CB65, 2**64 - 1
EMPTY = WORD  # the hash of an unused place in a table
CLASSES = ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll", "MultiLogloss",
           "MultiCrossEntropy")  # fmt: skip


def from_catboost(booster: Any, X: Any = None, *, raw: bool = False) -> Model:
    """Import a CatBoost model: an object or a file (.cbm, .json).

    X    -- example rows; without it the input is one float32 matrix. A model with categories needs
            a data frame that holds every category, because the model keeps hashes only.
    raw  -- add the output `raw`, the sums of leaves before the objective's function

    Classifiers give `label` and `probabilities`, all others `variable`. The model is compared with
    CatBoost on given and generated rows, edges of splits among them.

    >>> import sardonyx as sx
    >>> sx.from_catboost("no such file.cbm")
    Traceback (most recent call last):
    ...
    sardonyx.errors...
    """
    try:
        import catboost
    except ImportError as error:
        raise MissingExtra("catboost", "catboost") from error

    if isinstance(booster, (str, Path)):
        booster = _loaded(booster)
    if not isinstance(booster, catboost.CatBoost):
        raise ArgumentError(f"{type(booster).__name__} is not a CatBoost model")
    if not booster.is_fitted():
        raise ImportRefused("the CatBoost model is not fitted")
    return _Import(booster, X).model(raw)


def outputs_of(op: Builder, booster: Any, x: ir.Value) -> dict[str, Any]:
    """The outputs of a model without categories for a matrix of numbers."""
    return _Import(booster, None).outputs(op, x)


def _loaded(path: Any) -> Any:
    import catboost

    form = _format(path)
    try:
        plain = catboost.CatBoost().load_model(str(path), format=form)
        kind = (
            catboost.CatBoostClassifier if _loss(plain) in CLASSES else catboost.CatBoostRegressor
        )
        return kind().load_model(str(path), format=form)
    except catboost.CatBoostError as error:
        raise ImportRefused(f"{quote(path)} is not a model of CatBoost: {error}") from error


def _format(path: Any) -> str:
    """The format of a file: CatBoost's own, or the one in JSON."""
    try:
        with Path(path).open("rb") as file:
            return "json" if file.read(64).lstrip()[:1] == b"{" else "cbm"
    except OSError:
        return "cbm"  # CatBoost says what is wrong


def _loss(booster: Any) -> str:
    name = booster.get_all_params().get("loss_function") or "RMSE"
    return str(name).partition(":")[0]


TARGETS = ("MultiRMSE", "MultiRMSEWithMissingValues", "MultiLogloss", "MultiCrossEntropy")
UNTARGETED = ("Counter", "FeatureFreq")  # statistics that do not look at the target


class _Import:
    """One import: the model's document, its columns and its categories."""

    def __init__(self, booster: Any, x: Any):
        self.booster, self.x = booster, x
        self.document = _document(booster)
        info = self.document["features_info"]
        self.floats = info.get("float_features", [])
        self.cats = info.get("categorical_features", [])
        self.ctrs = info.get("ctrs", [])
        if _loss(booster) in TARGETS and any(c["ctr_type"] not in UNTARGETED for c in self.ctrs):
            # CatBoost's file has one table for the statistics of all targets.
            raise ImportRefused(
                "CatBoost does not write the statistics of categories for each of several targets",
                hint="train with one_hot_max_size above the number of categories",
            )
        for kind in ("text_features", "embedding_features"):
            if info.get(kind):
                raise ImportRefused(f"the CatBoost model has {kind.replace('_', ' ')}")
        count = len(booster.feature_names_ or []) or len(self.floats) + len(self.cats)
        self.schema: Schema = booster_schema(x, count, FLOAT)
        self.values: dict[int, list[Any]] = {}  # the categories of each categorical feature
        self.hashes: dict[int, list[int]] = {}
        if self.cats:
            self._read_categories()

    # -- categories -------------------------------------------------------------------

    def _read_categories(self) -> None:
        if self.x is None or not self.schema.frame:
            raise ImportRefused(
                "the CatBoost model has categories, of which it keeps hashes only",
                hint="give a data frame with every category: from_catboost(model, X)",
            )
        table = _hash_table(self.booster, self.x)
        for feature in self.cats:
            place = feature["flat_feature_index"]
            name = self.x.columns[place]
            values = list(dict.fromkeys(self.x[name].tolist()))
            self.values[feature["feature_index"]] = values
            self.hashes[feature["feature_index"]] = [table[_spelled(v)] for v in values]

    # -- columns ----------------------------------------------------------------------

    def model(self, raw: bool) -> Model:
        op = Builder()
        op.reserve(["label", "probabilities", "variable", "raw", *self.schema.names])
        table = self.schema.table()
        token = missing_text.set(self.schema.missing)
        try:
            columns = self._columns(op, table)
        finally:
            missing_text.reset(token)
        margin, forest = self._margin(op, columns)
        outputs = _outputs(op, self.booster, margin)
        if raw:
            outputs["raw"] = margin if width(margin) > 1 else flat(op, margin)
        classes = getattr(self.booster, "classes_", None) if "label" in outputs else None
        return finished(
            op, self.schema, outputs, source="CatBoost", predict=self._predicted, x=self.x,
            forest=None if self.schema.frame else forest, tolerance=1e-10, classes=classes,
        )  # fmt: skip

    def _margin(self, op: Builder, columns: ir.Value) -> tuple[ir.Value, Forest]:
        forest = self._forest()
        scale, bias = self.document["scale_and_bias"]
        sums = leaf_sums(op, forest, columns)
        return op.Add(op.Mul(sums, F(scale)), np.asarray(bias, F).reshape(1, -1)), forest

    def outputs(self, op: Builder, x: ir.Value) -> dict[str, Any]:
        """The outputs for a matrix of numbers."""
        return _outputs(op, self.booster, self._margin(op, self._columns(op, x))[0])

    def _columns(self, op: Builder, table: Any) -> ir.Value:
        """Numbers in float32, codes of categories, statistics of categories: in this order."""
        parts = []
        for feature in self.floats:
            part = column(op, table, feature["flat_feature_index"])
            parts.append(op.cast(op.cast(part, FLOAT), DOUBLE))
        codes = {}
        for feature in self.cats:
            index = feature["feature_index"]
            values = self.values[index]
            part = column(op, table, feature["flat_feature_index"])
            codes[index] = coded(op, part, values, np.arange(len(values)), len(values))
            parts.append(op.cast(codes[index], DOUBLE))
        floats = parts[: len(self.floats)]
        parts += [self._statistic(op, ctr, codes, floats) for ctr in self.ctrs]
        return op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]

    def _statistic(self, op: Builder, ctr: Any, codes: Any, floats: Any) -> ir.Value:
        """A statistic as a table over all combinations of what it depends on."""
        cats, bits, sizes = [], [], []
        for element in ctr["elements"]:
            kind = element["combination_element"]
            if kind == "cat_feature_value":
                cats.append(element["cat_feature_index"])
            elif kind == "float_feature":
                value = floats[self._float_place(element["float_feature_index"])]
                bits.append(op.Greater(value, F(np.float32(element["border"]))))
            else:
                index = element["cat_feature_index"]
                code = self._code_of(index, element["value"])
                bits.append(op.Equal(codes[index], np.int64(code)))
        sizes = [len(self.values[c]) + 1 for c in cats] + [2] * len(bits)
        if np.prod(sizes, dtype=float) > MOST_COMBINATIONS:
            raise ImportRefused("a statistic over too many combinations of categories")
        values = _statistic_table(self.document, ctr, [self.hashes[c] for c in cats], len(bits))
        place = None
        for size, part in zip(sizes, [codes[c] for c in cats] + bits):
            part = op.cast(part, INT64)
            place = part if place is None else op.Add(op.Mul(place, np.int64(size)), part)
        return op.Gather(op.const(values), place)

    def _float_place(self, index: int) -> int:
        return next(i for i, f in enumerate(self.floats) if f["feature_index"] == index)

    def _code_of(self, index: int, value: int) -> int:
        """The code of the category with this hash."""
        hashes = [h & 0xFFFFFFFF for h in self.hashes[index]]
        if (value & 0xFFFFFFFF) not in hashes:
            raise _unseen()
        return hashes.index(value & 0xFFFFFFFF)

    # -- trees ------------------------------------------------------------------------

    def _forest(self) -> Forest:
        forest = Forest()
        owners = self._ctr_of_split()
        for tree in self.document.get("oblivious_trees", []):
            _add_symmetric(forest, tree, [self._test(s, owners) for s in tree["splits"] or []])
        for tree in self.document.get("trees", []):
            forest.tree(self._branch(forest, tree, owners))
        return forest

    def _ctr_of_split(self) -> dict[int, int]:
        """Which statistic a split is about, by the number of the split."""
        start = sum(len(f["borders"]) for f in self.floats)
        start += sum(len(c.get("values", [])) for c in self.cats)
        out = {}
        for i, ctr in enumerate(self.ctrs):
            for _ in ctr["borders"]:
                out[start] = i
                start += 1
        return out

    def _test(self, split: Any, owners: dict[int, int]) -> tuple[int, int, float, bool]:
        """Column, mode, value and where missing values go."""
        kind = split["split_type"]
        if kind == "FloatFeature":
            place = self._float_place(split["float_feature_index"])
            missing = self.floats[place]["nan_value_treatment"] == "AsTrue"
            return place, GREATER, float(np.float32(split["border"])), missing
        if kind == "OneHotFeature":
            index = split["cat_feature_index"]
            place = next(i for i, c in enumerate(self.cats) if c["feature_index"] == index)
            code = self._code_of(index, split["value"])
            return len(self.floats) + place, 4, float(code), False
        if kind == "OnlineCtr":
            place = len(self.floats) + len(self.cats) + owners[split["split_index"]]
            return place, GREATER, float(np.float32(split["border"])), False
        raise ImportRefused(f"splits of the kind {quote(kind)}")

    def _branch(self, forest: Forest, tree: Any, owners: dict[int, int]) -> int:
        if "split" not in tree:
            return forest.leaf(np.atleast_1d(tree["value"]))
        no = self._branch(forest, tree["left"], owners)
        yes = self._branch(forest, tree["right"], owners)
        where, mode, value, missing = self._test(tree["split"], owners)
        return forest.extend([where], [mode], [value], [yes], [no], [missing])

    # -- what the library itself gives ------------------------------------------------

    def _predicted(self, rows: Any) -> dict[str, np.ndarray]:
        import catboost

        # CatBoostRanker's own `predict` has no types of predictions: it is always this one.
        raw = catboost.CatBoost.predict(self.booster, rows, prediction_type="RawFormulaVal")
        out = {"raw": raw}
        if hasattr(self.booster, "predict_proba"):
            probabilities = self.booster.predict_proba(rows)
            return {**out, "label": self.booster.predict(rows), "probabilities": probabilities}
        return {**out, "variable": self.booster.predict(rows)}


def _unseen() -> ImportRefused:
    return ImportRefused(
        "the CatBoost model knows categories that X does not hold",
        hint="give a data frame with every category that the model was trained on",
    )


def _document(booster: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        try:
            booster.save_model(str(path), format="json")
        except Exception as error:
            raise ImportRefused(f"the CatBoost model cannot be read: {error}") from error
        return json.loads(path.read_text(encoding="utf-8"))


def _spelled(value: Any) -> str:
    """A category as CatBoost writes it."""
    return str(int(value)) if isinstance(value, (bool, np.bool_)) else str(value)


def _hash_table(booster: Any, x: Any) -> dict[str, int]:
    """The hash of each category of X, from the program that CatBoost writes for its models."""
    import ast

    import catboost

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        pool = catboost.Pool(x, cat_features=booster.get_cat_feature_indices())
        booster.save_model(str(path), format="python", pool=pool)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "cat_features_hashes"
            ):
                # Its texts are bytes of UTF-8, each written as one character.
                hashes = ast.literal_eval(node.value)
                return {k.encode("latin-1").decode(): int(v) for k, v in hashes.items()}
    raise ImportRefused("CatBoost gives no hashes of the categories")


def _combined(parts: Any) -> int:
    result = 0
    for part in parts:
        result = (MAGIC * ((result + MAGIC * (part & WORD)) & WORD)) & WORD
    return result


def _signed(value: int) -> int:
    """A hash of 32 bits as CatBoost extends it to 64."""
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def _statistic_table(document: Any, ctr: Any, hashes: list[list[int]], bits: int) -> np.ndarray:
    """The value of a statistic for each combination; the last code of a category is unknown."""
    entry = document["ctr_data"][ctr["identifier"]]
    stride, flat_map = entry["hash_stride"], entry["hash_map"]
    places = range(0, len(flat_map), stride)
    counts = {int(flat_map[i]): flat_map[i + 1 : i + stride] for i in places}
    counts.pop(EMPTY, None)
    rows = [[*(_signed(h) for h in some), None] for some in hashes] + [[0, 1]] * bits
    values, keys = [], set()
    for parts in product(*rows):
        key = None if None in parts else _combined(parts)
        if key in counts:
            keys.add(key)
        values.append(_statistic_value(ctr, entry, counts.get(key)))  # type: ignore[arg-type]
    if len(keys) < len(counts):
        raise _unseen()
    return np.asarray(values, np.float32).astype(F)


def _statistic_value(ctr: Any, entry: Any, history: Any) -> np.float32:
    kind, border = ctr["ctr_type"], ctr["target_border_idx"]
    good = total = 0.0
    if kind in ("Counter", "FeatureFreq"):
        good, total = (history[0] if history else 0), entry["counter_denominator"]
    elif kind in ("BinarizedTargetMeanValue", "FloatTargetMeanValue"):
        good, total = history if history else (0, 0)
    elif kind == "Buckets" and history:
        good, total = history[border], sum(history)
    elif kind == "Borders" and history:
        good, total = sum(history[border + 1 :]), sum(history)
    elif kind not in ("Buckets", "Borders"):
        raise ImportRefused(f"statistics of the kind {quote(kind)}")
    numerator = np.float32(good) + np.float32(ctr["prior_numerator"])
    value = numerator / (np.float32(total) + np.float32(ctr["prior_denomerator"]))
    return (value + np.float32(ctr["shift"])) * np.float32(ctr["scale"])


def _add_symmetric(forest: Forest, tree: Any, tests: list[tuple[int, int, float, bool]]) -> None:
    """A symmetric tree: split `i` decides bit `i` of the leaf's number."""
    depth = len(tests)
    values = np.asarray(tree["leaf_values"], F).reshape(2**depth, -1)
    first = forest.extend_leaves(values)
    if not depth:
        forest.tree(~first)
        return
    start = forest.tests
    level = np.concatenate([np.full(2**d, d) for d in range(depth)])
    within = np.concatenate([np.arange(2**d) for d in range(depth)])  # bits of the path, low first
    bit = 1 << level
    is_last = level == depth - 1
    below = start + 2 ** (level + 1) - 1
    no = np.where(is_last, ~(first + within), below + within)
    yes = np.where(is_last, ~(first + (within | bit)), below + (within | bit))
    columns, modes, borders, missing = (np.asarray(part)[level] for part in zip(*tests))
    forest.extend(columns, modes.astype(np.uint8), borders, yes, no, missing)
    forest.tree(start)


def _outputs(op, booster, margin) -> dict[str, Any]:
    loss = _loss(booster)
    if hasattr(booster, "predict_proba"):
        return _class_outputs(op, booster, margin, loss)
    if loss in ("Poisson", "Tweedie"):
        value = op.Exp(margin)
    elif loss == "RMSEWithUncertainty":
        mean, spread = (op.Slice(margin, [i], [i + 1], [1]) for i in (0, 1))
        value = op.Concat(mean, op.Exp(op.Mul(spread, F(2))), axis=1)
    else:
        value = op.Identity(margin)
    return {"variable": flat(op, value) if width(margin) == 1 else value}


def _class_outputs(op, booster, margin, loss) -> dict[str, Any]:
    if loss in ("MultiLogloss", "MultiCrossEntropy"):
        p = sigmoid(op, margin)
        label = op.cast(op.Greater(margin, F(0)), INT64)
        return {"label": label, "probabilities": p}
    if width(margin) == 1:
        score = flat(op, margin)
        index = op.cast(op.Greater(score, F(0)), INT64)
        proba = pair(op, sigmoid(op, score))
        return {"label": picked(op, booster.classes_, index), "probabilities": proba}
    proba = sigmoid(op, margin) if loss == "MultiClassOneVsAll" else softmax(op, margin)
    return {"label": highest(op, booster.classes_, margin), "probabilities": proba}
