"""Boosters with settings drawn at random, imported and held against their own libraries.

    python -m tests.sweeps.booster_settings [first seed] [how many] [xgboost | lightgbm | catboost]

A draw combines what the tests have one at a time: frames and arrays, categories, missing values,
kinds of trees, objectives, labels of any kind, weights, early stopping, start scores, files of each
format. The rows that are scored are new: thresholds and their neighbours, unseen categories, zeros,
infinities, huge numbers, one row alone. One line per draw that is not right; then totals.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pandas as pd

import sardonyx as sx
from sardonyx.errors import ImportRefused

ROWS = 220
LABELS: dict[str, list[Any]] = {
    "bool": [False, True], "text": ["no", "yes"], "negative": [-1, 1], "gaps": [3, 10],
    "three": [0, 1, 2], "texts": ["a", "b b", "c"], "gaps of three": [-5, 2, 40],
}  # fmt: skip


class Draw:
    """The data and settings of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.notes: list[str] = []

    def one(self, name: str, *choices: Any) -> Any:
        value = choices[self.rng.integers(len(choices))]
        self.notes.append(f"{name}={value}")
        return value

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def table(self, categories: bool) -> pd.DataFrame:
        rng = self.rng
        x = rng.normal(size=(ROWS, 4)) * rng.choice([1.0, 1e-3, 1e4], 4)
        x[:, 3] = rng.integers(-2, 4, ROWS)
        if self.one("missing", True, False):
            x[rng.random(x.shape) < 0.12] = np.nan
        names = self.one("names", ("a", "b", "c", "d"), ("f 1", "x[0]", "f<2", "näme"))
        if self.library != "xgboost":
            names = tuple(str(n).translate(str.maketrans("[]<", "___")) for n in names)
        data = pd.DataFrame(
            x, columns=[str(n).translate(str.maketrans("[]<", "___")) for n in names]
        )
        if categories:
            data["color"] = pd.Categorical(
                rng.choice(list("rgbkwyz"), ROWS), categories=list("rgbkwyz")
            )
            data["size"] = pd.Categorical(rng.choice([1, 2, 5, 9], ROWS), categories=[1, 2, 5, 9])
            if self.chance(0.5) and self.library != "catboost":
                data.loc[rng.random(ROWS) < 0.1, "color"] = None
        return data

    library = ""

    def score(self, data: pd.DataFrame) -> np.ndarray:
        z = [np.nan_to_num(data.iloc[:, k]) / (np.nanstd(data.iloc[:, k]) + 1e-9) for k in range(4)]
        out = z[0] - z[1] * z[2] + 0.5 * z[3]
        if "color" in data:
            codes = data["color"].cat.codes.to_numpy()
            out = out + np.where(codes % 3 == 1, 1.5, 0) + (data["size"].cat.codes == 2)
        return np.asarray(out + 0.1 * self.rng.normal(size=ROWS))

    def rows(self, data: pd.DataFrame, whole: bool) -> pd.DataFrame:
        """New rows: values of the training rows recombined, their neighbours, and extremes."""
        rng = self.rng
        test = pd.DataFrame(
            {c: data[c].to_numpy()[rng.permutation(ROWS)] for c in data.columns[:4]}
        )
        for c in test.columns:
            x = test[c].to_numpy().copy()
            x[:20] = np.nextafter(x[:20].astype(np.float32), np.float32(np.inf))
            x[20:30], x[30:34], x[34:38] = 0.0, 1e30, -1e30
            if whole:  # where a missing value is one of the values
                x[38:50] = np.nan
            test[c] = rng.permutation(x)
        for c in data.columns[4:]:
            test[c] = data[c].to_numpy()[rng.permutation(ROWS)]
            test[c] = pd.Categorical(test[c], categories=data[c].cat.categories)
        return test

    def target(self, kind: str, score: np.ndarray) -> np.ndarray:
        if kind == "number":
            return score
        if kind == "positive":
            return np.exp(score / 4)
        if kind == "unit":
            return 1 / (1 + np.exp(-score))
        if kind == "rank":
            return np.clip(np.round(score + 1), 0, 4).astype(int)
        if kind == "two":
            return np.stack([score, -(score**2)], 1)
        if kind == "labels":
            return np.stack([score > 0, score > 1, score < -0.5], 1).astype(int)
        labels = np.array(LABELS[kind])
        edges = np.quantile(score, np.arange(1, len(labels)) / len(labels))
        return labels[np.searchsorted(edges, score)]


def outputs(model: sx.Model, rows: Any, folder: Path) -> dict[str, np.ndarray]:
    data = sx.save(model, folder / "model.onnx").read_bytes()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    feeds = {}
    for i in session.get_inputs():
        if isinstance(rows, pd.DataFrame):
            column = rows[i.name].astype(object)
            if i.type == "tensor(string)":
                gone = model.metadata.get("missing_string", "")
                values: Any = np.array([gone if pd.isna(v) else v for v in column], object)
            else:
                kind = {"tensor(double)": float, "tensor(int64)": int, "tensor(float)": np.float32}
                values = column.astype(kind[i.type]).to_numpy()
            feeds[i.name] = values.reshape(-1, 1)
        else:
            feeds[i.name] = rows.astype(np.float32 if i.type == "tensor(float)" else np.float64)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def differs(actual: np.ndarray, expected: Any, tolerance: float) -> str:
    expected = np.asarray(expected)
    if actual.size != expected.size:
        return f"{actual.shape} instead of {expected.shape}"
    if expected.dtype.kind in "UObi":
        same = actual.reshape(-1).astype(str) == expected.reshape(-1).astype(str)
        return "" if same.all() else f"labels of {(~same).sum()} rows"
    a, b = actual.reshape(-1).astype(float), expected.reshape(-1).astype(float)
    if (np.isnan(a) != np.isnan(b)).any():
        return "missing at other places"
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite & ~np.isnan(b)], b[~finite & ~np.isnan(b)]):
        return "infinite at other places"
    a, b = a[finite], b[finite]
    scale = np.maximum(np.abs(b), np.median(np.abs(b)) if len(b) else 0) + 1e-12
    worst = (np.abs(a - b) / scale).max(initial=0)
    return "" if worst <= tolerance else f"{worst:.1e} relative"


# -- XGBoost ---------------------------------------------------------------------------------------

XGBOOST = {
    "reg:squarederror": "number", "reg:squaredlogerror": "unit", "reg:absoluteerror": "number",
    "reg:pseudohubererror": "number", "reg:logistic": "unit", "binary:logistic": "gaps",
    "binary:logitraw": "negative", "binary:hinge": "text", "count:poisson": "positive",
    "reg:gamma": "positive", "reg:tweedie": "positive", "multi:softprob": "gaps of three",
    "multi:softmax": "texts", "survival:cox": "positive", "rank:ndcg": "rank",
    "rank:pairwise": "rank", "reg:quantileerror": "number",
}  # fmt: skip


def xgboost_case(draw: Draw) -> tuple[Any, Any, Any, dict[str, Any], str]:

    draw.library = "xgboost"
    frame, categories = draw.one("frame", True, False), False
    if frame:
        categories = draw.one("categories", True, False)
    data = draw.table(categories)
    score = draw.score(data)
    objective = draw.one("objective", *XGBOOST)
    kind = XGBOOST[objective]
    settings: dict[str, Any] = {"max_depth": draw.one("depth", 1, 3, 6), "seed": 0, "nthread": 1}
    settings |= draw.one(
        "shape", {}, {"booster": "dart", "rate_drop": 0.4}, {"num_parallel_tree": 3, "subsample": .6},  # noqa: E501
        {"grow_policy": "lossguide", "max_leaves": 7, "tree_method": "hist"},
        {"tree_method": "exact"}, {"tree_method": "approx"}, {"booster": "gblinear"},
    )  # fmt: skip
    if categories and settings.get("tree_method") == "exact":
        settings["tree_method"] = "hist"
    if categories and settings.get("booster") == "gblinear":
        settings["booster"] = "gbtree"
    settings |= draw.one("more", {}, {"base_score": 0.3}, {"max_cat_to_onehot": 1}, {"gamma": 0.1},
                         {"learning_rate": 1.0, "reg_lambda": 0.0}, {"max_delta_step": 0.5})  # fmt: skip # noqa: E501
    if settings.get("booster") == "gblinear":
        settings = {k: settings[k] for k in settings if k in ("booster", "seed", "nthread")}
    if objective == "reg:quantileerror":
        settings["quantile_alpha"] = draw.one("alpha", 0.3, [0.1, 0.9])
        settings.pop("base_score", None)
    labels = draw.target(kind, score)
    x: Any = data if frame else data.to_numpy().astype(draw.one("type", np.float32, np.float64))
    test: Any = draw.rows(data, True)
    test = test if frame else test.to_numpy().astype(np.float32)
    return x, test, labels, {"objective": objective, **settings}, kind


def xgboost_judge(draw: Draw, folder: Path) -> str:
    import xgboost

    x, test, y, settings, kind = xgboost_case(draw)
    objective = settings.pop("objective")
    stop = draw.chance(0.3) and settings.get("booster") != "gblinear"
    if settings.get("booster") == "gblinear" and not isinstance(x, pd.DataFrame):
        x, test = np.nan_to_num(x), np.nan_to_num(test)
    categories = isinstance(x, pd.DataFrame) and "color" in x
    wrapped = draw.one("wrapper", True, False)
    if wrapped and kind in LABELS:
        values = LABELS[kind]
        y = np.array([values.index(v) for v in y.tolist()])
    if not wrapped:
        if kind in LABELS:
            y = np.array([LABELS[kind].index(v) for v in y.tolist()])
        matrix = xgboost.DMatrix(x, label=y, enable_categorical=categories)
        if objective.startswith("rank:"):
            matrix.set_group([ROWS // 4] * 4)
        if objective.startswith("multi:"):
            settings["num_class"] = 3
        more = (
            {"evals": [(matrix, "t")], "early_stopping_rounds": 2, "verbose_eval": False}
            if stop
            else {}
        )
        model = xgboost.train({"objective": objective, **settings}, matrix, 9, **more)
    else:
        classes = {"XGBClassifier": kind in LABELS, "XGBRanker": objective.startswith("rank:")}
        name = next((n for n, hit in classes.items() if hit), "XGBRegressor")
        settings["n_jobs"] = settings.pop("nthread")
        settings["random_state"] = settings.pop("seed")
        if stop:
            settings["early_stopping_rounds"] = 2
        model = getattr(xgboost, name)(n_estimators=9, objective=objective,
                                       enable_categorical=categories, **settings)  # fmt: skip
        more = {"qid": np.repeat(np.arange(4), ROWS // 4)} if name == "XGBRanker" else {}
        if stop:
            more |= {"eval_set": [(x, y)], "verbose": False}
            if name == "XGBRanker":
                more["eval_qid"] = [more["qid"]]
        model.fit(x, y, **more)
    booster = model.get_booster() if wrapped else model
    source: Any = model
    if draw.chance(0.4):
        source = folder / f"booster.{draw.one('file', 'json', 'ubj')}"
        booster.save_model(source)
    given = [x] if isinstance(x, pd.DataFrame) else []
    imported = sx.from_xgboost(source, *given, raw=True)
    problems = []
    for part in (test, test[:1]):
        result = outputs(imported, part, folder)
        rows = xgboost.DMatrix(part, enable_categorical=categories)
        # A wrapper predicts with its best iteration, a booster and a file with all of them.
        margin = (model.predict(part, output_margin=True) if source is model and wrapped
                  else booster.predict(rows, output_margin=True))  # fmt: skip
        problems.append(differs(result["raw"], margin, 3e-6))
        if source is model and wrapped:
            value = model.predict(part)
            problems.append(
                differs(result["label" if "label" in result else "variable"], value, 2e-5)
            )
            if "probabilities" in result:
                problems.append(differs(result["probabilities"], model.predict_proba(part), 2e-5))
        elif "label" not in result:
            problems.append(differs(result["variable"], booster.predict(rows), 2e-5))
    return "; ".join(p for p in problems if p)


# -- LightGBM --------------------------------------------------------------------------------------

LIGHTGBM = {
    "regression": "number", "regression_l1": "number", "huber": "number", "fair": "number",
    "poisson": "positive", "quantile": "number", "mape": "positive", "gamma": "positive",
    "tweedie": "positive", "cross_entropy": "unit", "cross_entropy_lambda": "unit",
    "binary": "gaps", "multiclass": "texts", "multiclassova": "gaps of three",
    "lambdarank": "rank", "rank_xendcg": "rank",
}  # fmt: skip


def lightgbm_judge(draw: Draw, folder: Path) -> str:
    import lightgbm

    draw.library = "lightgbm"
    frame = draw.one("frame", True, False)
    categories = frame and draw.one("categories", True, False)
    data = draw.table(categories)
    objective = draw.one("objective", *LIGHTGBM)
    kind = LIGHTGBM[objective]
    if kind in LABELS:
        kind = draw.one("labels", *(["bool", "text", "negative", "gaps"] if kind == "gaps"
                                    else ["three", "texts", "gaps of three"]))  # fmt: skip
    y = draw.target(kind, draw.score(data))
    settings = {"verbose": -1, "num_leaves": draw.one("leaves", 3, 7, 20), "min_data_in_leaf": 3,
                "num_threads": 1, "min_data_per_group": 2, "cat_smooth": 1.0}  # fmt: skip
    settings |= draw.one("boosting", {}, {"boosting": "dart"}, {"boosting": "rf", "bagging_freq": 1,
                         "bagging_fraction": 0.7}, {"data_sample_strategy": "goss"},
                         {"linear_tree": True}, {"extra_trees": True})  # fmt: skip
    if objective == "regression_l1" or objective in ("quantile", "mape"):
        settings.pop("linear_tree", None)
    settings |= draw.one("more", {}, {"zero_as_missing": True}, {"use_missing": False},
                         {"boost_from_average": False}, {"max_bin": 15}, {"sigmoid": 1.7},
                         {"reg_sqrt": True}, {"max_cat_to_onehot": 1}, {"path_smooth": 1.0})  # fmt: skip # noqa: E501
    x: Any = data if frame else data.to_numpy().astype(draw.one("type", np.float32, np.float64))
    test: Any = draw.rows(data, True)
    test = test if frame else test.to_numpy()
    wrapped = draw.one("wrapper", True, False)
    stop = draw.chance(0.3) and settings.get("boosting") not in ("dart", "rf")
    groups = [ROWS // 4] * 4 if kind == "rank" else None
    codes = np.array([LABELS[kind].index(v) for v in y.tolist()]) if kind in LABELS else y
    callbacks = [lightgbm.early_stopping(2, verbose=False)] if stop else []
    if wrapped:
        name = "LGBMClassifier" if kind in LABELS else "LGBMRanker" if groups else "LGBMRegressor"
        model = getattr(lightgbm, name)(n_estimators=9, objective=objective, **settings)
        more: dict[str, Any] = {"group": groups} if groups else {}
        if stop:
            more["eval_set"] = [(x, y)]
            more["callbacks"] = callbacks
            if groups:
                more["eval_group"] = [groups]
        model.fit(x, y, **more)
    else:
        if kind in LABELS and len(LABELS[kind]) > 2:
            settings["num_class"] = 3
        table = lightgbm.Dataset(x, codes, group=groups)
        valid = {"valid_sets": [table], "callbacks": callbacks} if stop else {}
        model = lightgbm.train({"objective": objective, **settings}, table, 9, **valid)
    booster = model.booster_ if wrapped else model
    source: Any = model
    if draw.chance(0.4):
        source = folder / "booster.txt"
        booster.save_model(str(source))
    given = [x] if frame else []
    imported = sx.from_lightgbm(source, *given, raw=True)
    tolerance = 1e-9 if settings.get("linear_tree") else 1e-11
    problems = []
    for part in (test, test[:1]):
        result = outputs(imported, part, folder)
        problems.append(differs(result["raw"], booster.predict(part, raw_score=True), tolerance))
        if source is model and wrapped:
            value = model.predict(part)
            problems.append(
                differs(result["label" if "label" in result else "variable"], value, 1e-9)
            )
            if "probabilities" in result:
                problems.append(differs(result["probabilities"], model.predict_proba(part), 1e-9))
        elif "label" not in result:
            problems.append(differs(result["variable"], booster.predict(part), 1e-9))
    return "; ".join(p for p in problems if p)


# -- CatBoost --------------------------------------------------------------------------------------

CATBOOST = {
    "RMSE": "number", "MAE": "number", "Quantile:alpha=0.3": "number", "Poisson": "positive",
    "Tweedie:variance_power=1.5": "positive", "MultiRMSE": "two", "RMSEWithUncertainty": "number",
    "LogCosh": "number", "Expectile:alpha=0.3": "number", "Huber:delta=1": "number",
    "Logloss": "text", "CrossEntropy": "binary", "MultiClass": "gaps of three",
    "MultiClassOneVsAll": "texts", "MultiLogloss": "labels", "YetiRank": "rank",
    "QueryRMSE": "rank", "PairLogit": "rank", "Cox": "positive", "MultiQuantile:alpha=0.2,0.8": "number",  # noqa: E501
}  # fmt: skip


def catboost_judge(draw: Draw, folder: Path) -> str:
    import catboost

    draw.library = "catboost"
    frame = draw.one("frame", True, False)
    categories = frame and draw.one("categories", True, False)
    data = draw.table(categories)
    loss = draw.one("loss", *CATBOOST)
    kind = CATBOOST[loss]
    if kind == "binary":
        LABELS.setdefault("binary", [0, 1])
    elif kind in LABELS:
        kind = draw.one("labels", *(["bool", "text", "negative", "gaps"] if kind == "text"
                                    else ["three", "texts", "gaps of three"]))  # fmt: skip
    y = draw.target(kind, draw.score(data))
    several = kind in ("two", "labels") or loss.startswith(("RMSEW", "MultiQ"))
    settings: dict[str, Any] = {
        "iterations": 9, "depth": draw.one("depth", 1, 3, 5), "verbose": 0, "thread_count": 1,
        "allow_writing_files": False, "random_seed": 0,
        "nan_mode": draw.one("nan", "Min", "Max"),
    }  # fmt: skip
    if not several and not loss.startswith("MultiClass"):
        settings["grow_policy"] = draw.one("policy", "SymmetricTree", "Lossguide", "Depthwise")
    if not several:
        settings |= draw.one("boosting", {}, {"boosting_type": "Plain"}, {"l2_leaf_reg": 0.5},
                             {"bootstrap_type": "Bernoulli", "subsample": 0.7})  # fmt: skip
    if categories:
        settings["cat_features"] = ["color", "size"]
        settings["one_hot_max_size"] = draw.one("one hot", 2, 10)
        for c in ("color", "size"):
            data[c] = data[c].astype(object)
    if loss in ("MAE",) or loss.startswith(("Quantile", "MultiQ")):
        settings["leaf_estimation_method"] = draw.one("leaves", "Gradient", "Exact")
    name = "CatBoostClassifier" if kind in (*LABELS, "labels") else (
        "CatBoostRanker" if kind == "rank" else "CatBoostRegressor")  # fmt: skip
    model = getattr(catboost, name)(loss_function=loss, **settings)
    x: Any = data if frame else data.to_numpy().astype(draw.one("type", np.float32, np.float64))
    more = {"group_id": np.repeat(np.arange(4), ROWS // 4)} if kind == "rank" else {}
    model.fit(x, y, **more)
    names = ["color", "size"] if categories else []
    test: Any = draw.rows(
        data.astype(dict.fromkeys(names, "category")), bool(data.iloc[:, :4].isna().any().any())
    )
    for c in names:
        test[c] = test[c].astype(object)
    test = test if frame else test.to_numpy()
    source: Any = model
    if draw.chance(0.4):
        source = folder / "booster.cbm"
        model.save_model(str(source))
    given = [x] if frame else []
    imported = sx.from_catboost(source, *given, raw=True)
    problems = []
    for part in (test, test[:1]):
        result = outputs(imported, part, folder)
        kind_of_score = {} if kind == "rank" else {"prediction_type": "RawFormulaVal"}
        raw = model.predict(part, **kind_of_score)  # a ranker has raw scores only
        problems.append(differs(result["raw"], raw, 1e-9))
        if source is model:
            label = "label" if "label" in result else "variable"
            problems.append(differs(result[label], model.predict(part), 1e-9))
            if "probabilities" in result:
                problems.append(differs(result["probabilities"], model.predict_proba(part), 1e-9))
    return "; ".join(p for p in problems if p)


JUDGES: dict[str, Callable[[Draw, Path], str]] = {
    "xgboost": xgboost_judge, "lightgbm": lightgbm_judge, "catboost": catboost_judge,
}  # fmt: skip
OWN = ("xgboost", "lightgbm", "catboost")


def tried(seed: int, library: str, folder: Path) -> tuple[str, str]:
    draw = Draw(seed)
    try:
        problem = JUDGES[library](draw, folder)
    except ImportRefused as error:
        return "refused", f"{' '.join(str(error).split())[:200]} | {draw.notes}"
    except sx.SardonyxError as error:
        return "failed", f"{' '.join(str(error).split())[:300]} | {draw.notes}"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1].filename
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]} | {draw.notes}"
        return ("not trained" if any(f"/{own}/" in place or own in place for own in OWN)
                and "sardonyx/" not in place else "failed"), words  # fmt: skip
    return ("wrong", f"{problem} | {draw.notes}") if problem else ("right", "")


def main(first: int = 0, count: int = 100, libraries: tuple[str, ...] = OWN) -> Counter[str]:
    warnings.simplefilter("ignore")
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            for library in libraries:
                verdict, words = tried(seed, library, Path(folder))
                totals[f"{library} {verdict}"] += 1
                if verdict not in ("right", "not trained"):
                    print(f"{seed:5} {library:9} {verdict:8} {words}", flush=True)
    print(dict(sorted(totals.items())))
    return totals


if __name__ == "__main__":
    totals = main(*map(int, sys.argv[1:3]), *([(sys.argv[3],)] if len(sys.argv) > 3 else []))
    sys.exit(1 if any("wrong" in name for name in totals) else 0)
