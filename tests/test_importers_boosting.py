"""XGBoost and LightGBM models as ONNX, against the libraries on rows that were not given."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest

import sardonyx as sx
from sardonyx.errors import ImportRefused

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = 160


def numbers(seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(ROWS, 4)).astype(np.float32)
    x[np.random.default_rng(seed + 1).random(x.shape) < 0.1] = np.nan
    return x


def targets() -> dict[str, np.ndarray]:
    x = np.nan_to_num(numbers())
    score = x[:, 0] + x[:, 1] ** 2 - x[:, 2]
    return {
        "number": score,
        "binary": (score > 0.5).astype(int),
        "classes": np.searchsorted([-0.2, 1.0], score),
        "positive": np.exp(score / 3),
        "unit": 1 / (1 + np.exp(-score)),
        "two": np.stack([score, -x[:, 0]], 1),
        "labels": (x[:, :3] > 0).astype(int),
        "rank": np.clip(np.round(score + 1), 0, 4).astype(int),
    }


def frame(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    data = pd.DataFrame({"a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS)})
    data["color"] = pd.Categorical(rng.choice(list("rgbkwy"), ROWS), categories=list("rgbkwy"))
    data["size"] = pd.Categorical(rng.choice([1, 2, 5, 9], ROWS), categories=[1, 2, 5, 9])
    data.loc[data.index % 9 == 2, "color"] = None
    return data


def outputs(model, rows) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(
        sx.save(model, "booster.onnx").read_bytes(), providers=["CPUExecutionProvider"]
    )
    if isinstance(rows, pd.DataFrame):
        missing = model.metadata.get("missing_string", "")
        feeds = {}
        for i in session.get_inputs():
            column = rows[i.name].astype(object)
            if i.type == "tensor(string)":
                values = [missing if pd.isna(v) else v for v in column]
                feeds[i.name] = np.array(values, object).reshape(-1, 1)
            else:
                kind = {"tensor(double)": float, "tensor(int64)": int, "tensor(bool)": bool}[i.type]
                feeds[i.name] = column.astype(kind).to_numpy().reshape(-1, 1)
    else:
        (only,) = session.get_inputs()
        kind = np.float32 if only.type == "tensor(float)" else np.float64
        feeds = {only.name: rows.astype(kind)}
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds)))


def close(actual, expected, tolerance) -> None:
    expected = np.asarray(expected)
    if expected.dtype.kind in "iuUOb":
        assert actual.astype(str).tolist() == expected.astype(str).tolist()
        return
    scale = np.maximum(np.abs(expected), np.median(np.abs(expected)))
    assert actual.size == expected.size
    assert (np.abs(actual.reshape(expected.shape) - expected) <= tolerance * scale).all()


# -- XGBoost --------------------------------------------------------------------------------------

XGBOOST = {
    "reg:squarederror": "number", "reg:squaredlogerror": "unit", "reg:absoluteerror": "number",
    "reg:pseudohubererror": "number", "reg:logistic": "unit", "binary:logistic": "binary",
    "binary:logitraw": "binary", "binary:hinge": "binary", "count:poisson": "positive",
    "reg:gamma": "positive", "reg:tweedie": "positive", "multi:softprob": "classes",
    "multi:softmax": "classes", "survival:cox": "number", "rank:ndcg": "rank",
    "rank:pairwise": "rank", "rank:map": "binary",
}  # fmt: skip
SHAPES = [
    {}, {"booster": "dart", "rate_drop": 0.4}, {"num_parallel_tree": 3, "subsample": 0.6},
    {"grow_policy": "lossguide", "max_leaves": 6}, {"booster": "gblinear"},
]  # fmt: skip


def trained(objective: str, **settings):
    import xgboost

    y = targets()[XGBOOST.get(objective, "number")]
    data = xgboost.DMatrix(numbers(), label=y)
    if objective.startswith("rank:"):
        data.set_group([ROWS // 4] * 4)
    if objective.startswith("multi:"):
        settings["num_class"] = 3
    parameters = {"objective": objective, "max_depth": 3, "seed": 0, **settings}
    return xgboost.train(parameters, data, 6)


def check_booster(booster, tolerance=1e-6) -> None:
    import xgboost

    model = sx.from_xgboost(booster, raw=True)
    rows = numbers(7)
    data = xgboost.DMatrix(rows)
    result = outputs(model, rows)
    close(result["raw"], booster.predict(data, output_margin=True), tolerance)
    value = booster.predict(data)
    close(result["label" if "label" in result else "variable"], value, 4 * tolerance)


@pytest.mark.parametrize("objective", XGBOOST)
def test_xgboost_objectives(objective, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_booster(trained(objective))


@pytest.mark.parametrize("settings", SHAPES, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob"])
def test_xgboost_boosters(objective, settings, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_booster(trained(objective, **settings))


def test_xgboost_beyond_single_precision(tmp_path, monkeypatch) -> None:
    """What is infinite in XGBoost's float32 is infinite in the model."""
    monkeypatch.chdir(tmp_path)
    import xgboost

    x = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
    data = xgboost.DMatrix(x, label=np.exp(x[:, 0]))
    parameters = {"objective": "reg:gamma", "booster": "gblinear", "seed": 0}
    booster = xgboost.train(parameters, data, 6)
    rows = np.array([[0.5], [1e3], [-1e3]], np.float32)
    expected = booster.predict(xgboost.DMatrix(rows))
    assert np.isinf(expected[1])
    result = outputs(sx.from_xgboost(booster), rows)["variable"].reshape(-1)
    assert result[1] == np.inf
    assert np.allclose(result, expected, rtol=1e-5)


def test_xgboost_survival_with_bounds_and_quantiles(tmp_path, monkeypatch) -> None:
    import xgboost

    monkeypatch.chdir(tmp_path)
    y = targets()["positive"]
    data = xgboost.DMatrix(numbers())
    data.set_float_info("label_lower_bound", y)
    data.set_float_info("label_upper_bound", y * 2)
    check_booster(xgboost.train({"objective": "survival:aft", "max_depth": 3}, data, 5))
    data = xgboost.DMatrix(numbers(), label=targets()["number"])
    alphas = {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.9]}
    check_booster(xgboost.train(alphas, data, 5))


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
def test_xgboost_several_outputs(strategy, tmp_path, monkeypatch) -> None:
    import xgboost

    monkeypatch.chdir(tmp_path)
    settings = {
        "n_estimators": 4,
        "max_depth": 3,
        "multi_strategy": strategy,
        "tree_method": "hist",
    }
    regressor = xgboost.XGBRegressor(**settings).fit(numbers(), targets()["two"])
    rows = numbers(7)
    close(outputs(sx.from_xgboost(regressor), rows)["variable"], regressor.predict(rows), 1e-6)
    classifier = xgboost.XGBClassifier(**settings).fit(numbers(), targets()["labels"])
    result = outputs(sx.from_xgboost(classifier), rows)
    close(result["label"], classifier.predict(rows), 0)
    close(result["probabilities"], classifier.predict_proba(rows), 1e-6)


def test_xgboost_stops_at_the_best_iteration(tmp_path, monkeypatch) -> None:
    import xgboost

    monkeypatch.chdir(tmp_path)
    y = np.random.default_rng(3).normal(size=ROWS)
    model = xgboost.XGBRegressor(n_estimators=30, early_stopping_rounds=2, learning_rate=0.9)
    model.fit(numbers(), y, eval_set=[(numbers(3), y)], verbose=False)
    assert model.best_iteration < 29
    rows = numbers(7)
    close(outputs(sx.from_xgboost(model), rows)["variable"], model.predict(rows), 1e-6)


@pytest.mark.parametrize("marker", [-1.0, 0.0])
def test_xgboost_a_number_that_stands_for_missing(marker, tmp_path, monkeypatch) -> None:
    import xgboost

    monkeypatch.chdir(tmp_path)
    x = np.nan_to_num(numbers(), nan=marker)
    model = xgboost.XGBRegressor(n_estimators=5, missing=marker).fit(x, targets()["number"])
    rows = np.nan_to_num(numbers(7), nan=marker)
    rows[::5, 0] = np.nan  # missing as well
    close(outputs(sx.from_xgboost(model, x), rows)["variable"], model.predict(rows), 1e-6)


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_xgboost_frames_with_categories_and_files(suffix, tmp_path, monkeypatch) -> None:
    import xgboost

    monkeypatch.chdir(tmp_path)
    y = np.array(["no", "yes"])[(frame()["a"] > 0).astype(int)]
    codes = (y == "yes").astype(int) ^ (frame()["color"] == "r").to_numpy()
    classifier = xgboost.XGBClassifier(
        n_estimators=6, max_depth=3, enable_categorical=True, max_cat_to_onehot=2
    ).fit(frame(), codes)
    rows = frame(5)
    result = outputs(sx.from_xgboost(classifier, frame()), rows)
    close(result["label"], classifier.predict(rows), 0)
    close(result["probabilities"], classifier.predict_proba(rows), 1e-6)
    booster = trained("binary:logistic")
    booster.save_model(f"model.{suffix}")
    result = outputs(sx.from_xgboost(f"model.{suffix}"), numbers(7))
    close(result["variable"], booster.predict(xgboost.DMatrix(numbers(7))), 1e-6)
    (tmp_path / "nonsense.json").write_text("{}")
    with pytest.raises(ImportRefused, match="not a model of XGBoost"):
        sx.from_xgboost("nonsense.json")


@pytest.mark.parametrize("names", [("é", "ü", "日本"), ("éa", "b", "c")])
def test_xgboost_categories_that_are_not_ascii(names, tmp_path, monkeypatch) -> None:
    """XGBoost 3 keeps parts of such names only: `offsets` of its file count characters."""
    import xgboost

    monkeypatch.chdir(tmp_path)
    data, rows = frame(), frame(5)
    renamed = dict(zip("rgbkwy", (*names, "x", "yy", "z"), strict=True))
    for table in (data, rows):
        table["color"] = table["color"].cat.rename_categories(renamed)
    model = xgboost.XGBRegressor(n_estimators=6, max_depth=3, enable_categorical=True)
    model.fit(data, data["a"] * (data["color"] == names[0]) - (data["color"] == names[2]))
    close(outputs(sx.from_xgboost(model, data), rows)["variable"], model.predict(rows), 1e-6)
    other = data.assign(color=data["color"].cat.reorder_categories([*reversed(renamed.values())]))
    with pytest.raises(ImportRefused, match="not ASCII"):
        sx.from_xgboost(model, other)


@pytest.mark.parametrize(
    ("field", "value"),
    [("right_children", 10**6), ("left_children", 0), ("split_indices", 10**6)],
)
def test_damaged_trees_of_xgboost_are_refused(field, value, tmp_path) -> None:
    """XGBoost itself ends the process on some of them."""
    import json

    path = tmp_path / "model.json"
    trained("binary:logistic").save_model(path)
    document = json.loads(path.read_text())
    document["learner"]["gradient_booster"]["model"]["trees"][1][field][0] = value
    path.write_text(json.dumps(document))
    with pytest.raises(ImportRefused, match="tree 1 is inconsistent"):
        sx.from_xgboost(path)


# -- LightGBM -------------------------------------------------------------------------------------

LIGHTGBM = {
    "regression": "number", "regression_l1": "number", "huber": "number", "fair": "number",
    "poisson": "positive", "quantile": "number", "mape": "positive", "gamma": "positive",
    "tweedie": "positive", "binary": "binary", "multiclass": "classes", "multiclassova": "classes",
    "cross_entropy": "unit", "cross_entropy_lambda": "unit", "lambdarank": "rank",
    "rank_xendcg": "rank",
}  # fmt: skip
KINDS = [
    {"boosting": "dart"}, {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6},
    {"linear_tree": True}, {"zero_as_missing": True}, {"use_missing": False},
    {"reg_sqrt": True},
]  # fmt: skip


def light(objective: str, y: str, **settings):
    import lightgbm

    group = [ROWS // 4] * 4 if "rank" in objective else None
    x = np.where(np.abs(numbers()) < 0.2, 0.0, numbers()) if settings else numbers()
    data = lightgbm.Dataset(x.astype(float), targets()[y], group=group, free_raw_data=False)
    parameters = {"objective": objective, "num_leaves": 6, "min_data_in_leaf": 5, "verbose": -1}
    if y == "classes":
        parameters["num_class"] = 3
    return lightgbm.train({**parameters, **settings}, data, 6)


def check_light(booster, tolerance=1e-12) -> None:
    rows = numbers(7).astype(float)
    rows[:20, 0] = 0.0
    result = outputs(sx.from_lightgbm(booster, raw=True), rows)
    close(result["raw"], booster.predict(rows, raw_score=True), tolerance)
    close(result["variable"], booster.predict(rows), tolerance)


@pytest.mark.parametrize("objective", LIGHTGBM)
def test_lightgbm_objectives(objective, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_light(light(objective, LIGHTGBM[objective]))


@pytest.mark.parametrize("objective", ["regression", "multiclassova", "cross_entropy_lambda"])
def test_linear_leaves_of_infinite_and_huge_values(objective, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    booster = light(objective, LIGHTGBM[objective], linear_tree=True)
    rows = numbers(7)[:12].astype(float)
    rows[np.arange(4), np.arange(4)] = np.inf
    rows[5:8] *= 1e6
    scores, expected = booster.predict(rows, raw_score=True), booster.predict(rows)
    assert np.isinf(scores).any()  # else nothing is tried
    actual = outputs(sx.from_lightgbm(booster, raw=True), rows)
    np.testing.assert_allclose(actual["raw"].reshape(scores.shape), scores, rtol=1e-9)
    np.testing.assert_allclose(actual["variable"].reshape(scores.shape), expected, rtol=1e-9)


@pytest.mark.parametrize("settings", KINDS, ids=lambda s: next(iter(s)))
def test_lightgbm_kinds(settings, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_light(light("regression", "number", **settings), 1e-11)


def test_lightgbm_wrappers_categories_and_files(tmp_path, monkeypatch) -> None:
    import lightgbm

    monkeypatch.chdir(tmp_path)
    data, rows = frame(), frame(5)
    y = np.array(["no", "maybe", "yes"])[np.searchsorted([-0.3, 0.5], data["a"])]
    y = np.where(data["color"] == "r", "maybe", y)
    settings = {"n_estimators": 6, "min_child_samples": 4, "verbose": -1, "min_data_per_group": 2,
                "cat_smooth": 1, "max_cat_to_onehot": 2}  # fmt: skip
    model = lightgbm.LGBMClassifier(**settings).fit(data, y)
    result = outputs(sx.from_lightgbm(model, data), rows)
    close(result["label"], model.predict(rows), 0)
    close(result["probabilities"], model.predict_proba(rows), 1e-12)
    booster = light("binary", "binary")
    booster.save_model("model.txt")
    result = outputs(sx.from_lightgbm("model.txt"), numbers(7))
    close(result["variable"], booster.predict(numbers(7).astype(float)), 1e-12)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("\nleaf_value=", "\nleaf_", "leaf_value"),
        ("\nend of trees", "", "its end"),
        ("\nleft_child=", "\nleft_child=0 ", "number of its tests"),
        ("left_child=1", "left_child=0", "no node below"),  # a circle
        ("\nsplit_feature=", "\nsplit_feature=9", "column that is not there"),
        ("tree_sizes=", "tree_sizes=7 ", "its end"),
    ],
)
def test_damaged_files_of_lightgbm_are_refused(old, new, reason, tmp_path) -> None:
    """LightGBM itself ends the process on some of them."""
    import lightgbm

    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    data = lightgbm.Dataset(x, x[:, 0] + x[:, 1] * x[:, 2])
    booster = lightgbm.train({"verbose": -1, "min_data_in_leaf": 3}, data, 3)
    path = tmp_path / "model.txt"
    booster.save_model(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ImportRefused, match=reason):
        sx.from_lightgbm(path)


def test_lightgbm_stops_at_the_best_iteration(tmp_path, monkeypatch) -> None:
    import lightgbm

    monkeypatch.chdir(tmp_path)
    y = np.random.default_rng(3).normal(size=ROWS)
    model = lightgbm.LGBMRegressor(n_estimators=40, min_child_samples=3, verbose=-1)
    stop = lightgbm.early_stopping(2, verbose=False)
    model.fit(numbers(), y, eval_set=[(numbers(3), y)], callbacks=[stop])
    assert model.best_iteration_ < 40
    rows = numbers(7).astype(float)
    close(outputs(sx.from_lightgbm(model), rows)["variable"], model.predict(rows), 1e-12)


# -- steps of scikit-learn's pipelines ----------------------------------------------------------


def wrappers() -> dict[str, tuple[type, type, dict]]:
    import lightgbm
    import xgboost

    light = {"n_estimators": 5, "verbose": -1, "min_child_samples": 5}
    return {
        "xgboost": (xgboost.XGBClassifier, xgboost.XGBRegressor, {"n_estimators": 5}),
        "lightgbm": (lightgbm.LGBMClassifier, lightgbm.LGBMRegressor, light),
    }


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_boosters_are_steps_of_pipelines_and_meta_estimators(
    library, tmp_path, monkeypatch
) -> None:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import StackingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    monkeypatch.chdir(tmp_path)
    classifier, regressor, settings = wrappers()[library]
    x, rows = numbers().astype(float), numbers(7).astype(float)
    tolerance = 4e-6 if library == "xgboost" else 1e-12
    names = np.array(["low", "mid", "high"])[targets()["classes"]]
    cases = [
        (make_pipeline(StandardScaler(), classifier(**settings)), targets()["classes"]),
        (StackingClassifier([("a", classifier(**settings))], cv=2), names),
        (CalibratedClassifierCV(classifier(**settings), cv=2), names == "low"),
    ]
    for estimator, y in cases:
        estimator.fit(x, y)
        result = outputs(sx.from_sklearn(estimator, x), rows)
        close(result["label"], estimator.predict(rows), 0)
        close(result["probabilities"], estimator.predict_proba(rows), tolerance)
    estimator = make_pipeline(StandardScaler(), regressor(**settings)).fit(x, targets()["number"])
    result = outputs(sx.from_sklearn(estimator, x), rows)
    close(result["variable"], estimator.predict(rows), tolerance)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_zeros_of_sparse_matrices_are_missing_for_xgboost_alone(
    library, tmp_path, monkeypatch
) -> None:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    monkeypatch.chdir(tmp_path)
    _, regressor, settings = wrappers()[library]
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.choice(list("uvwxyz"), ROWS), "b": rng.integers(0, 9, ROWS)})
    y = x["a"].map(ord).to_numpy() + x["b"].to_numpy() ** 2.0
    estimator = make_pipeline(OneHotEncoder(handle_unknown="ignore"), regressor(**settings))
    estimator.fit(x, y)
    model = sx.from_sklearn(estimator, x)
    rows = pd.DataFrame({"a": [*"uvwxyz?"], "b": [3, 1, 4, 1, 5, 9, 2]})
    tolerance = 4e-6 if library == "xgboost" else 1e-12
    close(outputs(model, rows)["variable"], estimator.predict(rows), tolerance)
